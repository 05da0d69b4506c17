from __future__ import annotations

import threading
from pathlib import Path

import pytest

from airflow_lake_provider.errors import TableNotFoundError
from airflow_lake_provider.timeline.storage import Storage, open_storage
from airflow_lake_provider.view.view_cache import SETTLED_AFTER_MS, TableViewCache
from tests.unit.tables import HandMadeTable

LONG_AFTER_MS = 10**15


class Opened:
    """Opens storages and remembers them, so that their calls can be counted."""

    def __init__(self) -> None:
        self.storages: list[Storage] = []

    def __call__(self, base_path: str) -> Storage:
        self.storages.append(open_storage(base_path))
        return self.storages[-1]


@pytest.fixture
def table(tmp_path: Path) -> HandMadeTable:
    return HandMadeTable.create(tmp_path / "orders")


def test_refresh_of_an_unchanged_table_lists_and_reads_nothing(table: HandMadeTable) -> None:
    table.commit(1)
    opened = Opened()
    cache = TableViewCache(10, opened, now_ms=lambda: LONG_AFTER_MS)
    for _ in range(3):
        view = cache.refresh(str(table.path))
    calls = opened.storages[0].calls
    before = (calls.lists, calls.opens)
    assert cache.refresh(str(table.path)) is view
    assert (calls.lists, calls.opens) == before


def test_refresh_after_a_commit_reads_that_commit_only(table: HandMadeTable) -> None:
    for second in (1, 2, 3):
        table.commit(second)
    opened = Opened()
    cache = TableViewCache(10, opened)
    first = cache.refresh(str(table.path))
    opens = opened.storages[0].calls.opens
    newest = table.commit(4)
    second_view = cache.refresh(str(table.path))
    assert opened.storages[0].calls.opens - opens == 2, "the properties and the new commit"
    assert newest in second_view.commits
    assert second_view.version != first.version
    assert len(second_view.commits) == 4


def test_refresh_right_after_a_change_does_not_trust_the_folders_time(table: HandMadeTable) -> None:
    """Two commits within one tick of the file system's clock leave the same modification time."""
    import os

    table.commit(1)
    folder = table.path / ".hoodie" / "timeline"
    stamp = folder.stat().st_mtime_ns
    cache = TableViewCache(10, now_ms=lambda: stamp // 1_000_000 + SETTLED_AFTER_MS)
    for _ in range(3):
        cache.refresh(str(table.path))
    newest = table.commit(2)
    os.utime(folder, ns=(stamp, stamp))
    assert newest in cache.refresh(str(table.path)).commits


def test_refresh_with_a_damaged_commit_reports_it_and_keeps_the_table_readable(table: HandMadeTable) -> None:
    good = table.commit(1)
    damaged = table.path / ".hoodie" / "timeline" / "20261121120002000_20261121120002500.deltacommit"
    damaged.write_bytes(b'{"operationType": "UPS')
    cache = TableViewCache(10, now_ms=lambda: LONG_AFTER_MS)
    view = cache.refresh(str(table.path))
    assert set(view.commits) == {good}
    assert [problem.file_name for problem in view.problems] == [damaged.name]
    damaged.write_bytes(b'{"operationType": "UPSERT"}')
    assert cache.refresh(str(table.path)).problems == ()


def test_refresh_of_a_commit_that_is_whole_at_the_second_look_reports_nothing(table: HandMadeTable) -> None:
    table.commit(1)
    half = table.path / ".hoodie" / "timeline" / "20261121120002000_20261121120002500.deltacommit"
    half.write_bytes(b"{")

    class WriterFinishes(Opened):
        def __call__(self, base_path: str) -> Storage:
            storage = super().__call__(base_path)
            storage.__class__ = FinishingStorage
            return storage

    class FinishingStorage(Storage):
        __slots__ = ()

        def read_bytes(self, path: str) -> bytes:
            content = Storage.read_bytes(self, path)
            if content == b"{":
                half.write_bytes(b'{"operationType": "UPSERT"}')
            return content

    view = TableViewCache(10, WriterFinishes()).refresh(str(table.path))
    assert view.problems == ()
    assert len(view.commits) == 2


def test_refresh_of_a_missing_table_raises_and_of_the_same_table_later_works(tmp_path: Path) -> None:
    cache = TableViewCache(10)
    with pytest.raises(TableNotFoundError):
        cache.refresh(str(tmp_path / "later"))
    HandMadeTable.create(tmp_path / "later").commit(1)
    assert len(cache.refresh(str(tmp_path / "later")).commits) == 1


def test_cache_keeps_no_more_tables_than_allowed(tmp_path: Path) -> None:
    cache = TableViewCache(3)
    for name in "abcde":
        cache.refresh(str(HandMadeTable.create(tmp_path / name).path))
    assert len(cache) == 3


def test_refresh_from_many_threads_reads_each_commit_once(table: HandMadeTable) -> None:
    for second in range(1, 6):
        table.commit(second)
    opened = Opened()
    cache = TableViewCache(10, opened)
    threads = [threading.Thread(target=cache.refresh, args=(str(table.path),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    properties_reads = 8
    assert opened.storages[0].calls.opens <= 5 + properties_reads
    assert len(opened.storages) == 1
