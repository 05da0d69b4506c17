"""What is said when Hudi writes no plan for an index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from lake_jobs.indexing.outcome import explain_no_plan


@dataclass(frozen=True)
class FakeInstant:
    time: str

    def requestedTime(self) -> str:
        return self.time

    def getAction(self) -> str:
        return "deltacommit"


@dataclass(frozen=True)
class FakeOption:
    instant: FakeInstant | None

    def isPresent(self) -> bool:
        return self.instant is not None

    def get(self) -> FakeInstant | None:
        return self.instant


@dataclass(frozen=True)
class FakeTimeline:
    """Stands for itself under every filter: `first` is pending, `last` completed without holes before it."""

    first: FakeInstant | None
    last: FakeInstant | None

    def getWriteTimeline(self) -> FakeTimeline:
        return self

    filterInflightsAndRequested = getContiguousCompletedWriteTimeline = getWriteTimeline

    def firstInstant(self) -> FakeOption:
        return FakeOption(self.first)

    def lastInstant(self) -> FakeOption:
        return FakeOption(self.last)


@dataclass(frozen=True)
class FakeTable:
    timeline: FakeTimeline


@dataclass(frozen=True)
class FakeIndexReader:
    table: FakeTable


@pytest.mark.parametrize(
    ("first", "last", "words"),
    [
        pytest.param("20261121100000000", "", "pending deltacommit 20261121100000000", id="write-in-front"),
        pytest.param("", "", "no completed write", id="empty-table"),
        pytest.param("", "20261121100000000", "gives no reason", id="unknown"),
    ],
)
def test_missing_plan_is_explained_by_the_write_in_front(first: str, last: str, words: str) -> None:
    timeline = FakeTimeline(FakeInstant(first) if first else None, FakeInstant(last) if last else None)
    said = explain_no_plan(cast("Any", FakeIndexReader(FakeTable(timeline))), "record_index")
    assert words in said
    assert "record_index" in said
