"""Versions of Hudi that cannot run services, or cannot go on next to a build, are refused by name."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from lake_jobs.hudi.settings import LOCK_METHOD, find_version_problem
from lake_jobs.indexing.hudi_internals import find_writers_problem

# As they stand in the beginning of a log file of the metadata table's `files`.
OF_1_0 = b'#HUDI#..{"type":"record","name":"HoodieMetadataRecord","fields":[{"name":"isTightBound"}]}'
OF_1_1 = OF_1_0.replace(b'"isTightBound"', b'"valueType"')


@dataclass(frozen=True)
class JavaMethod:
    name: str

    def getName(self) -> str:
        return self.name


@dataclass(frozen=True)
class ClientClass:
    methods: tuple[str, ...]

    def getDeclaredMethods(self) -> list[JavaMethod]:
        return [JavaMethod(name) for name in self.methods]

    def getPackage(self) -> ClientClass:
        return self

    def getImplementationVersion(self) -> str:
        return "1.0.2"


def test_job_on_a_hudi_whose_lock_cannot_be_held_is_refused_by_its_version() -> None:
    assert find_version_problem(ClientClass(("close", LOCK_METHOD))) == ""
    problem = find_version_problem(ClientClass(("close",)))
    assert all(part in problem for part in ("Hudi 1.0.2", LOCK_METHOD, "1.2.0"))


@pytest.mark.parametrize(
    ("headers", "is_refused"),
    [
        pytest.param([OF_1_1, OF_1_1], False, id="since-1.1"),
        pytest.param([OF_1_1, OF_1_0], True, id="one-writer-of-1.0-among-others"),
        pytest.param([b"", b"#HUDI#"], False, id="nothing-to-tell-by"),
        pytest.param([], False, id="no-log-files"),
    ],
)
def test_writers_of_hudi_1_0_are_known_by_their_records(headers: list[bytes], is_refused: bool) -> None:
    assert ("Hudi 1.0" in find_writers_problem(headers)) is is_refused
