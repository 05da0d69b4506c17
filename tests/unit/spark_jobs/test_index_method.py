"""The one private method of Hudi that builds rest on: found by its parameters, and refused by name when it is gone."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from index_method import METHOD, PARAMETERS, WRITER_CLASS, find_method
from index_outcome import IndexFailure


@dataclass
class JavaClass:
    name: str

    def getName(self) -> str:
        return self.name


@dataclass
class JavaMethod:
    name: str
    parameters: tuple[str, ...]
    is_accessible: bool = False

    def getName(self) -> str:
        return self.name

    def getParameterTypes(self) -> list[JavaClass]:
        return [JavaClass(name) for name in self.parameters]

    def setAccessible(self, accessible: bool) -> None:
        self.is_accessible = accessible


@dataclass
class WriterClass:
    methods: list[JavaMethod] = field(default_factory=list)

    def getDeclaredMethods(self) -> list[JavaMethod]:
        return self.methods

    def getPackage(self) -> WriterClass:
        return self

    def getImplementationVersion(self) -> str:
        return "1.9.0"


def test_method_is_found_among_others_and_made_accessible() -> None:
    wanted = JavaMethod(METHOD, PARAMETERS)
    others = [JavaMethod("close", ()), JavaMethod(METHOD, PARAMETERS[:1])]
    assert find_method(WriterClass([*others, wanted])) is wanted
    assert wanted.is_accessible
    assert not any(other.is_accessible for other in others)


@pytest.mark.parametrize("methods", [[], [JavaMethod(METHOD, PARAMETERS[:1])]], ids=["gone", "other-parameters"])
def test_version_of_hudi_without_it_is_named(methods: list[JavaMethod]) -> None:
    with pytest.raises(IndexFailure) as raised:
        find_method(WriterClass(methods))
    assert all(part in raised.value.message for part in ("1.9.0", WRITER_CLASS, METHOD))
