from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_lake_provider.timeline_server.schedule import ChangeLog


class Counted(list[str]):
    """Counts the entries that are read."""

    reads = 0

    def __getitem__(self, key: Any) -> Any:
        self.reads += 1
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[str]:
        for entry in super().__iter__():
            self.reads += 1
            yield entry

    def __reversed__(self) -> Iterator[str]:
        for entry in super().__reversed__():
            self.reads += 1
            yield entry


@pytest.mark.parametrize("behind", [10, 9_000], ids=["close-behind", "far-behind"])
def test_part_of_the_backlog_reads_no_other_entry(behind: int) -> None:
    log = ChangeLog(10_000)
    cursor = log.cursor
    for number in range(12_000 + behind):
        if number == 12_000:
            cursor = log.cursor
        log.add(f"table-{number}")
    log._entries = entries = Counted(log._entries)
    found = log.find_after(cursor, 10)
    assert found is not None
    assert found[1] == tuple(f"table-{number}" for number in range(12_000, 12_010))
    assert 0 < entries.reads <= 10


def test_reader_gets_each_change_once_in_whatever_parts_it_reads() -> None:
    chance = random.Random(3)
    log, added = ChangeLog(50), [f"t{chance.randrange(20)}" for _ in range(400)]
    cursor, read, begun = log.cursor, 0, 0
    for number, path in enumerate(added, start=1):
        log.add(path)
        if chance.random() < 0.1 or number - begun == 50:
            most = chance.randrange(1, 60)
            found = log.find_after(cursor, most)
            assert found is not None
            cursor, changed = found
            until = min(number, begun + most)
            # A table that changed twice is named once, where it changed last.
            assert changed == tuple(reversed(dict.fromkeys(reversed(added[begun:until]))))
            read, begun = read + 1, until
    assert read > 20


def test_cursor_before_the_oldest_entry_is_not_known_any_more() -> None:
    log = ChangeLog(5)
    first = log.cursor
    for number in range(5):
        log.add(f"t{number}")
    found = log.find_after(first)
    assert found is not None
    assert found[1] == ("t0", "t1", "t2", "t3", "t4")
    log.add("t5")
    assert log.find_after(first) is None
    epoch, _, last = log.cursor.partition(".")
    assert log.find_after(f"{epoch}.{int(last) + 1}") is None
