"""Commits that are read ahead: in order, bounded, and dropped when others are asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from airflow_lake_provider.replication.change import CommitRef
from lake_jobs.replication.row_transfer import READ_AHEAD_BYTES, ReadAhead

COMMITS = [CommitRef(f"{n:03}", f"{n:03}") for n in range(6)]


def weigh(_: str) -> int:
    return READ_AHEAD_BYTES // 10


class Table:
    """Each commit has its number of blocks."""

    def __init__(self, rows: int = 3) -> None:
        self.rows = rows
        self.read: list[str] = []
        self.given = 0
        self.threads: set[str] = set()
        self.broken = ""

    def __call__(self, commits: Sequence[CommitRef]) -> Iterator[Iterator[str]]:
        return map(self.read_commit, commits)

    def read_commit(self, commit: CommitRef) -> Iterator[str]:
        self.read.append(commit.requested_time)
        self.threads.add(threading.current_thread().name)
        if commit.requested_time == self.broken:
            raise ValueError(f"commit {commit.requested_time} is gone")
        for row in range(self.rows):
            self.given += 1
            yield f"{commit.requested_time}-{row}"


def until(done: object) -> None:
    deadline = time.monotonic() + 10
    while not done():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_commits_come_in_order_each_once_while_more_are_expected() -> None:
    table = Table()
    ahead, found = ReadAhead[CommitRef, str](table, weigh), []
    for at, commit in enumerate(COMMITS[:5]):
        ahead.expect(COMMITS[at : at + 3])
        found += ahead.read(commit)
    ahead.expect(())
    assert found == [f"{n:03}-{row}" for n in range(5) for row in range(3)]
    assert [table.read.count(commit.requested_time) for commit in COMMITS[:5]] == [1] * 5
    assert table.threads == {"lake-read-ahead"}


def test_next_commit_is_read_while_the_one_before_is_written() -> None:
    table = Table()
    ahead = ReadAhead[CommitRef, str](table, weigh)
    ahead.expect(COMMITS[:2])
    assert list(ahead.read(COMMITS[0]))
    until(lambda: table.read == ["000", "001"])
    ahead.stop()


def test_memory_holds_some_blocks_however_large_a_commit_is() -> None:
    table = Table(rows=1_000_000)
    ahead = ReadAhead[CommitRef, str](table, weigh)
    ahead.expect(COMMITS[:2])
    rows = ahead.read(COMMITS[0])
    assert next(rows) == "000-0"
    # One was taken, ten fit, and one more waits for room.
    until(lambda: table.given == 12)
    time.sleep(0.3)
    assert table.given == 12
    ahead.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "lake-read-ahead"]


def test_single_commit_and_one_that_was_not_expected_are_read_when_they_are_asked_for() -> None:
    table = Table()
    ahead = ReadAhead[CommitRef, str](table, weigh)
    ahead.expect(COMMITS[:1])
    assert table.read == []
    assert len(list(ahead.read(COMMITS[0]))) == 3
    ahead.expect(COMMITS[1:3])
    # A restore has undone the first of them.
    ahead.expect(COMMITS[3:5])
    assert next(iter(ahead.read(COMMITS[3]))) == "003-0"
    assert next(iter(ahead.read(COMMITS[5]))) == "005-0"


def test_error_of_a_commit_is_raised_where_that_commit_is_asked_for() -> None:
    table = Table()
    table.broken = "001"
    ahead = ReadAhead[CommitRef, str](table, weigh)
    ahead.expect(COMMITS[:3])
    assert len(list(ahead.read(COMMITS[0]))) == 3
    with pytest.raises(ValueError, match="001 is gone"):
        list(ahead.read(COMMITS[1]))
    ahead.expect(())


def test_many_blocks_without_weight_and_one_that_is_too_heavy_pass_a_few_at_a_time() -> None:
    table = Table(rows=1_000)
    ahead = ReadAhead[CommitRef, str](table, lambda _: 0)
    ahead.expect(COMMITS[:2])
    rows = ahead.read(COMMITS[0])
    next(rows)
    time.sleep(0.3)
    assert table.given < 100
    assert len([*rows, *ahead.read(COMMITS[1])]) == 1_999
    ahead.stop()
    heavy = ReadAhead[CommitRef, str](Table(), lambda _: 2 * READ_AHEAD_BYTES)
    heavy.expect(COMMITS[:2])
    assert len([*heavy.read(COMMITS[0]), *heavy.read(COMMITS[1])]) == 6
    heavy.stop()
