"""The private parts of Hudi that builds rest on: found, and refused by name when they are gone."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from lake_jobs.indexing.hudi_internals import (
    DATA_META_CLIENT,
    METHOD,
    PARAMETERS,
    WRITER_CLASS,
    find_field,
    find_method,
)
from lake_jobs.indexing.outcome import IndexFailure


@dataclass
class JavaClass:
    name: str

    def getName(self) -> str:
        return self.name


@dataclass
class JavaMember:
    name: str
    parameters: tuple[str, ...] = ()
    is_accessible: bool = False

    def getName(self) -> str:
        return self.name

    def getParameterTypes(self) -> list[JavaClass]:
        return [JavaClass(name) for name in self.parameters]

    def setAccessible(self, accessible: bool) -> None:
        self.is_accessible = accessible


@dataclass
class WriterClass:
    members: list[JavaMember] = field(default_factory=list)

    def getName(self) -> str:
        return WRITER_CLASS

    def getDeclaredMethods(self) -> list[JavaMember]:
        return self.members

    def getDeclaredFields(self) -> list[JavaMember]:
        return self.members

    def getPackage(self) -> WriterClass:
        return self

    def getImplementationVersion(self) -> str:
        return "1.9.0"


def test_method_is_found_among_others_and_made_accessible() -> None:
    wanted = JavaMember(METHOD, PARAMETERS)
    others = [JavaMember("close", ()), JavaMember(METHOD, PARAMETERS[:1])]
    assert find_method(WriterClass([*others, wanted])) is wanted
    assert wanted.is_accessible
    assert not any(other.is_accessible for other in others)


@pytest.mark.parametrize("methods", [[], [JavaMember(METHOD, PARAMETERS[:1])]], ids=["gone", "other-parameters"])
def test_version_of_hudi_without_it_is_named(methods: list[JavaMember]) -> None:
    with pytest.raises(IndexFailure) as raised:
        find_method(WriterClass(methods))
    assert all(part in raised.value.message for part in ("1.9.0", WRITER_CLASS, METHOD))


def test_field_is_found_among_others_and_made_accessible() -> None:
    wanted, other = JavaMember(DATA_META_CLIENT), JavaMember("metadataMetaClient")
    assert find_field(WriterClass([other, wanted]), DATA_META_CLIENT) is wanted
    assert (wanted.is_accessible, other.is_accessible) == (True, False)


def test_version_of_hudi_without_a_field_is_named() -> None:
    with pytest.raises(IndexFailure) as raised:
        find_field(WriterClass([JavaMember("metadataMetaClient")]), DATA_META_CLIENT)
    assert all(part in raised.value.message for part in ("1.9.0", WRITER_CLASS, DATA_META_CLIENT))
