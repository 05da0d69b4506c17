"""All files of one table together: their number is their writer's choice, and a bound on each alone is none on them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from airflow_lake_provider.conflict.activity import open_conflict_table
from airflow_lake_provider.errors import DamagedFileError, UnsupportedTableError
from airflow_lake_provider.hudi import commit_metadata
from airflow_lake_provider.hudi.commit_metadata import find_damaged_files
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.hudi.timeline import load_timeline
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.storage import store, table_storage
from airflow_lake_provider.storage.store import LocalStore
from airflow_lake_provider.storage.table_storage import Storage, open_storage
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from tests.support.patience import patient
from tests.support.tables import HandMadeTable


@pytest.fixture
def table(tmp_path: Path) -> HandMadeTable:
    return HandMadeTable.create(tmp_path / "orders")


def timeline_of(table: HandMadeTable) -> Path:
    return table.path / ".hoodie" / "timeline"


def test_many_large_commits_are_refused_before_one_is_read(table: HandMadeTable) -> None:
    table.commit(1)
    large = timeline_of(table) / "20261121130000000_20261121130000500.deltacommit"
    with large.open("wb") as stream:
        stream.truncate(120 << 20)
    for minute in range(1, 10):
        os.link(large, timeline_of(table) / f"202611211300{minute:02}000_202611211300{minute:02}500.deltacommit")
    began_s = time.thread_time()
    with pytest.raises(UnsupportedTableError, match=r"orders: its 11 completed writes have 1,258,.*archive older ones"):
        TableViewCache().refresh(str(table.path))
    conflicts = open_conflict_table(open_storage(str(table.path)), {}, {})
    snapshot = conflicts.read_activity(int(time.time() * 1000)).snapshot
    with pytest.raises(UnsupportedTableError, match="completed writes have"):
        conflicts.load_commits("", snapshot)
    assert time.thread_time() - began_s < patient(2)


def test_commits_that_take_too_much_memory_together_are_refused(
    table: HandMadeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    for second in range(1, 9):
        table.commit(second)
    assert len(TableViewCache().refresh(str(table.path)).commits) == 8
    monkeypatch.setattr(commit_metadata, "MAX_COMMITS_MEMORY_BYTES", 1_000)
    with pytest.raises(UnsupportedTableError, match="take more than 0 MiB of memory"):
        TableViewCache().refresh(str(table.path))


def test_refused_commits_are_not_read_again_while_they_are_all_there(
    table: HandMadeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    for second in range(1, 9):
        table.commit(second)
    storages: list[Storage] = []

    def open_table(base_path: str) -> Storage:
        storages.append(open_storage(base_path))
        return storages[-1]

    cache = TableViewCache(SharedTimelines(open_table=open_table))
    monkeypatch.setattr(commit_metadata, "MAX_COMMITS_MEMORY_BYTES", 1_000)

    def opened_by_a_refusal() -> int:
        before = sum(storage.calls.opens for storage in storages)
        with pytest.raises(UnsupportedTableError, match="take more than 0 MiB of memory"):
            cache.refresh(str(table.path))
        return sum(storage.calls.opens for storage in storages) - before

    first = opened_by_a_refusal()
    table.commit(9)
    assert (first > 3, opened_by_a_refusal()) == (True, 0)
    for second in range(1, 8):
        (timeline_of(table) / f"202611211200{second:02}000_202611211200{second:02}500.deltacommit").unlink()
    assert len(cache.refresh(str(table.path)).commits) == 2


def test_search_for_damaged_files_ends_at_its_limit(table: HandMadeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    for second in range(1, 9):
        table.commit(second)
    storage = open_storage(str(table.path))
    properties = load_table_properties(storage)
    monkeypatch.setattr(commit_metadata, "MAX_COMMITS_BYTES", 500)
    problems = find_damaged_files(storage, properties, load_timeline(storage, properties))
    assert 3 < len(problems) < 8
    assert all("not read: those before it have more than 500 bytes" in problem.reason for problem in problems)


def test_marker_files_beyond_the_limit_count_as_unread_and_cost_nothing(table: HandMadeTable) -> None:
    table.commit(1)
    now_ms = int(time.time() * 1000)
    for instant, files in (("20261121140000000", 10), ("20261121150000000", 1)):
        (timeline_of(table) / f"{instant}.deltacommit.inflight").touch()
        folder = table.path / ".hoodie" / ".temp" / instant
        folder.mkdir(parents=True)
        (folder / "MARKERS.type").write_text("TIMELINE_SERVER_BASED")
        for number in range(files):
            with (folder / f"MARKERS{number}").open("wb") as stream:
                stream.truncate(100 << 20 if files > 1 else 0)
    (folder / "MARKERS0").write_text("p/f_0-1-0_20261121150000000.parquet.marker.CREATE\n")
    began_s = time.thread_time()
    activity = open_conflict_table(open_storage(str(table.path)), {}, {}).read_activity(now_ms)
    assert time.thread_time() - began_s < patient(1)
    markers = {active.instant: active.markers for active in activity.actives}
    assert len(markers["20261121140000000"].unread) == 10
    assert (markers["20261121150000000"].unread, markers["20261121150000000"].count) == ((), 1)


def test_folder_of_too_many_entries_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abcd":
        (tmp_path / name).touch()
    assert len(LocalStore().list_names(str(tmp_path))) == len(LocalStore().list_entries(str(tmp_path))) == 4
    monkeypatch.setattr(store, "MAX_ENTRIES", 3)
    for list_folder in (LocalStore().list_names, LocalStore().list_entries):
        with pytest.raises(DamagedFileError, match="more than 3 entries"):
            list_folder(str(tmp_path))


def test_write_changes_nothing_that_a_link_leads_to(tmp_path: Path) -> None:
    (tmp_path / "others").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "others")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(OSError, match=r"levels of symbolic links|No such device"):
            LocalStore().write(str(tmp_path / name), b"x")
    assert (tmp_path / "others").read_text() == "kept"
    LocalStore().write(str(tmp_path / "own"), b"x")
    assert (tmp_path / "own").read_bytes() == b"x"


def test_many_large_plans_leave_the_decoders_to_other_tables(
    table: HandMadeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 6: only the file of a pending replacecommit says whether it is a clustering, so each is read."""
    properties = table.path / ".hoodie" / "hoodie.properties"
    properties.write_text(properties.read_text().replace("version=9", "version=6").replace("layout.version=2", ""))
    large = table.path / ".hoodie" / "20261121130000000.replacecommit.requested"
    large.write_text(json.dumps({"unread": "x" * (3 << 20)}))
    for minute in range(1, 20):
        os.link(large, large.with_name(f"202611211300{minute:02}000.replacecommit.requested"))
    monkeypatch.setattr(table_storage, "MAX_LARGE_BYTES", 10 << 20)
    with pytest.raises(UnsupportedTableError, match="large commits and plans take too much"):
        TableViewCache().refresh(str(table.path))


def test_large_records_are_read_again_as_time_passes() -> None:
    records = table_storage.LargeRecords(left_bytes=table_storage.MAX_LARGE_BYTES)
    size_bytes = table_storage.MAX_LARGE_BYTES // 4
    for _ in range(4):
        records.take(size_bytes, "/lake/orders", 1000.0)
    records.take(table_storage.LARGE_BYTES, "/lake/orders", 1000.0)
    with pytest.raises(UnsupportedTableError, match="/lake/orders: its large commits"):
        records.take(size_bytes, "/lake/orders", 1000.0)
    records.take(size_bytes, "/lake/orders", 1000.0 + size_bytes / table_storage.LARGE_BYTES_PER_S)
