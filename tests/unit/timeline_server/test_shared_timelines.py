from __future__ import annotations

import gc
import os
import random
import re
import threading
import tracemalloc
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_lake_provider.errors import DamagedFileError, StorageError, TableNotFoundError
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.hudi.timeline import load_timeline
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.shared.actions import COMPLETED_WRITE_ACTIONS
from airflow_lake_provider.storage.table_storage import Storage, open_storage
from airflow_lake_provider.timeline_server import cached_table
from airflow_lake_provider.timeline_server.cache import PROPERTIES_AT_LATEST_MS, SharedTimelines
from airflow_lake_provider.timeline_server.saved import restore, save
from airflow_lake_provider.timeline_server.schedule import (
    NEVER,
    SILENCE_SHARE,
    SUSPICIOUS_AFTER_GAPS,
    DueQueue,
    HeartbeatLimits,
    SharedLimits,
)
from airflow_lake_provider.timeline_server.server import ServerOptions
from airflow_lake_provider.timeline_server.snapshot import (
    NOW,
    PROPERTIES_AFTER_MS,
    SETTLED_AFTER_MS,
    SETTLED_REMOTELY_AFTER_MS,
    Depth,
    Freshness,
    TimelineSnapshot,
    pack,
    version_of,
)
from airflow_lake_provider.timeline_server.table_memory import TableLocks
from airflow_lake_provider.timeline_server.views import (
    RETRY_SERVER_AFTER_S,
    FileSystemTimelineView,
    MemoryTimelineView,
)
from airflow_lake_provider.timeline_server.watch import Watch, WatchKind, find_changes
from tests.support.fixture_tables import NAMES, unpack
from tests.support.tables import HandMadeTable
from tests.unit.timeline_server.histories import new_history

HISTORIES = int(os.environ.get("LAKE_HISTORIES", "4"))
START_MS = 2_000_000_000_000
"""In 2033, long after every file of a test was written: folder times count as settled."""


@dataclass
class Clock:
    now_ms: int = START_MS

    def __call__(self) -> int:
        return self.now_ms


@dataclass
class Opened:
    """Opens storages that a test can make fail or lie about folder times."""

    fails_with: Exception | None = None
    lying_ms: int | None = None
    storages: list[Storage] = field(default_factory=list)

    def __call__(self, base_path: str) -> Storage:
        opened = self

        class ScriptedStorage(Storage):
            __slots__ = ()

            def list_names(self, folder: str) -> list[str]:
                if opened.fails_with is not None:
                    raise opened.fails_with
                return Storage.list_names(self, folder)

            def stat(self, path: str) -> Any:
                entry = Storage.stat(self, path)
                if opened.lying_ms is not None and entry is not None and entry.is_folder:
                    return type(entry)(entry.name, entry.size_bytes, opened.lying_ms, is_folder=True)
                return entry

        storage = open_storage(base_path)
        storage.__class__ = ScriptedStorage
        self.storages.append(storage)
        return storage


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def opened() -> Opened:
    return Opened()


@pytest.fixture
def timelines(clock: Clock, opened: Opened) -> SharedTimelines:
    return SharedTimelines(open_table=opened, now_ms=clock)


@pytest.fixture
def table(tmp_path: Path) -> HandMadeTable:
    return HandMadeTable.create(tmp_path / "orders")


def calls(timelines: SharedTimelines) -> tuple[int, int, int]:
    return timelines.calls.lists, timelines.calls.opens, timelines.calls.stats


def spent(timelines: SharedTimelines, before: tuple[int, int, int]) -> tuple[int, int, int]:
    lists, opens, stats = (now - then for now, then in zip(calls(timelines), before, strict=True))
    return lists, opens, stats


def settle(timelines: SharedTimelines, path: str) -> None:
    """Refresh until the folder's time counts."""
    for _ in range(2):
        timelines.snapshot(path, NOW)


# --- what a refresh costs -----------------------------------------------------------------------------------------


def test_snapshot_in_memory_asks_no_storage(timelines: SharedTimelines, table: HandMadeTable) -> None:
    table.commit(1)
    first = timelines.snapshot(str(table.path))
    before = calls(timelines)
    assert timelines.snapshot(str(table.path)) == first
    assert spent(timelines, before) == (0, 0, 0)


def test_snapshot_that_must_be_new_costs_two_stats_while_nothing_changed(
    timelines: SharedTimelines, table: HandMadeTable
) -> None:
    table.commit(1)
    settle(timelines, str(table.path))
    before = calls(timelines)
    timelines.snapshot(str(table.path), NOW)
    assert spent(timelines, before) == (0, 0, 2), "the timeline's folder and the properties"


def test_hint_costs_one_listing_and_nothing_else(timelines: SharedTimelines, table: HandMadeTable) -> None:
    table.commit(1)
    settle(timelines, str(table.path))
    instant = table.commit(2)
    timelines.hint(str(table.path), [instant], is_by_writer=True)
    before = calls(timelines)
    timelines.refresh_if_due(str(table.path), is_hinted=True)
    assert spent(timelines, before) == (1, 0, 0)
    assert timelines.snapshot(str(table.path)).timeline.latest_completed().requested_time == instant
    assert spent(timelines, before) == (1, 0, 0)


def test_hint_of_an_instant_that_is_shown_already_costs_nothing(
    timelines: SharedTimelines, table: HandMadeTable
) -> None:
    instant = table.commit(1)
    settle(timelines, str(table.path))
    before = calls(timelines)
    timelines.hint(str(table.path), [instant], is_by_writer=True)
    timelines.refresh_if_due(str(table.path), is_hinted=True)
    assert spent(timelines, before) == (0, 0, 0)
    assert timelines.memory.get(str(table.path)).is_announced


def test_hint_without_an_instant_always_causes_a_refresh(timelines: SharedTimelines, table: HandMadeTable) -> None:
    instant = table.commit(1)
    settle(timelines, str(table.path))
    before = calls(timelines)
    timelines.hint(str(table.path), [instant])
    timelines.hint(str(table.path))
    timelines.refresh_if_due(str(table.path), is_hinted=True)
    assert spent(timelines, before)[0] == 1


def test_snapshot_while_a_hint_waits_is_not_the_old_one(timelines: SharedTimelines, table: HandMadeTable) -> None:
    table.commit(1)
    settle(timelines, str(table.path))
    instant = table.commit(2)
    timelines.hint(str(table.path), [instant])
    assert timelines.snapshot(str(table.path)).timeline.latest_completed().requested_time == instant


def test_unannounced_bound_holds_only_for_tables_that_announce_nothing(
    timelines: SharedTimelines, table: HandMadeTable, clock: Clock
) -> None:
    table.commit(1)
    settle(timelines, str(table.path))
    bound = Freshness(unannounced_max_age_s=30)
    clock.now_ms += 60_000
    before = calls(timelines)
    timelines.snapshot(str(table.path), bound)
    assert spent(timelines, before) == (0, 0, 1)
    timelines.hint(str(table.path), [table.commit(2)], is_by_writer=True)
    timelines.refresh_if_due(str(table.path), is_hinted=True)
    clock.now_ms += 60_000
    before = calls(timelines)
    timelines.snapshot(str(table.path), bound)
    assert spent(timelines, before) == (0, 0, 0)


# --- marks -----------------------------------------------------------------------------------------------------


def test_snapshot_covering_a_mark_that_no_refresh_covers_refreshes(
    timelines: SharedTimelines, table: HandMadeTable
) -> None:
    table.commit(1)
    settle(timelines, str(table.path))
    instant = table.commit(2)
    newest = timelines.snapshot(str(table.path), covering=7).timeline.latest_completed()
    assert newest.requested_time == instant
    before = calls(timelines)
    timelines.snapshot(str(table.path), covering=7)
    assert spent(timelines, before) == (0, 0, 0)


def test_hint_that_is_shown_covers_no_mark_that_another_process_took(
    timelines: SharedTimelines, table: HandMadeTable
) -> None:
    """Mark 5 stands for something that this process was not notified of; that mark 6 is shown says nothing about it."""
    first = table.commit(1)
    timelines.hint(str(table.path), [first], 4, is_by_writer=True)
    timelines.refresh_if_due(str(table.path), is_hinted=True)
    settle(timelines, str(table.path))
    table.commit(2)  # announced to another process as mark 5
    timelines.hint(str(table.path), [first], 6, is_by_writer=True)
    timelines.refresh_if_due(str(table.path), is_hinted=True)
    assert len(timelines.snapshot(str(table.path), covering=6).timeline.completed()) == 2


# --- heartbeats ------------------------------------------------------------------------------------------------


def test_heartbeat_that_finds_a_commit_says_so_and_trusts_the_table_no_more(
    timelines: SharedTimelines, table: HandMadeTable
) -> None:
    reported: list[tuple[str, list[str]]] = []
    timelines.on_unannounced = lambda path, instants: reported.append((path, [i.requested_time for i in instants]))
    path = str(table.path)
    timelines.hint(path, [table.commit(1)], is_by_writer=True)
    timelines.refresh_if_due(path, is_hinted=True)
    assert timelines.memory.get(path).is_announced
    instant = table.commit(2)
    timelines.refresh_if_due(path, is_hinted=False)
    assert reported == [(path, [instant])]
    assert not timelines.memory.get(path).is_announced
    timelines.hint(path, [table.commit(3)], is_by_writer=True)
    timelines.refresh_if_due(path, is_hinted=True)
    assert not timelines.memory.get(path).is_announced, "a writer that announces nothing may be at work as well"
    timelines.hint(path, [instant], is_by_writer=True)  # the callback was late
    timelines.refresh_if_due(path, is_hinted=True)
    assert timelines.memory.get(path).is_announced
    assert len(reported) == 1


def test_silent_writer_next_to_one_that_announces_is_noticed_and_searched_as_often_as_a_watcher_polls(
    timelines: SharedTimelines, table: HandMadeTable, clock: Clock
) -> None:
    path = str(table.path)
    timelines.snapshot(path)
    silent = [table.commit(second) for second in (1, 2, 3, 4)]
    timelines.hint(path, [table.commit(5)], 1, is_by_writer=True)
    timelines.refresh_if_due(path, is_hinted=True)
    assert timelines.stats.read()["unannounced_commits"] == len(silent)
    assert not timelines.memory.get(path).is_announced
    timelines.watch(path, 60.0, clock.now_ms + 300_000)
    assert timelines.due.due_ms(path) <= clock.now_ms + 60_000
    timelines.hint(path, [table.commit(6)], 2, is_by_writer=True)
    timelines.refresh_if_due(path, is_hinted=True)
    assert not timelines.memory.get(path).is_announced, "one announced commit says nothing about the silent writer"
    for instant in silent:
        for file in (table.path / ".hoodie" / "timeline").glob(f"{instant}*"):
            file.unlink()
    timelines.hint(path, [table.commit(7)], 3, is_by_writer=True)
    timelines.refresh_if_due(path, is_hinted=True)
    timelines.hint(path, [table.commit(8)], 4, is_by_writer=True)
    timelines.refresh_if_due(path, is_hinted=True)
    assert timelines.memory.get(path).is_announced, "its commits are archived, and no other came"


@pytest.mark.parametrize(
    ("marks", "is_trusted"),
    [pytest.param(2, True, id="a notice for each"), pytest.param(1, False, id="one notice for two commits")],
)
def test_notices_of_other_processes_name_no_commits_and_are_counted(
    timelines: SharedTimelines, table: HandMadeTable, marks: int, is_trusted: bool
) -> None:
    path = str(table.path)
    timelines.hint(path, [table.commit(1)], 7, is_by_writer=True)
    timelines.refresh_if_due(path, is_hinted=True)
    table.commit(2)
    table.commit(3)
    timelines.hint(path, (), 7 + marks, is_by_writer=True)
    timelines.refresh_if_due(path, is_hinted=True)
    assert timelines.memory.get(path).is_announced is is_trusted


def test_log_compaction_of_an_announcing_writer_is_no_silent_writer(
    timelines: SharedTimelines, table: HandMadeTable
) -> None:
    path = str(table.path)
    timelines.snapshot(path)
    folder = table.path / ".hoodie" / "timeline"
    compaction = "20261121093000000"
    for name in (f"{compaction}.logcompaction.requested", f"{compaction}.logcompaction.inflight"):
        (folder / name).write_bytes(b"")
    (folder / f"{compaction}_20261121093001000.deltacommit").write_bytes(b"")
    timelines.hint(path, [table.commit(1)], 1, is_by_writer=True)
    timelines.refresh_if_due(path, is_hinted=True)
    assert timelines.memory.get(path).is_announced


def test_evicted_table_that_changed_counts_only_what_is_new(clock: Clock, tmp_path: Path) -> None:
    found: list[list[str]] = []
    timelines = SharedTimelines(SharedLimits(max_tables=1), now_ms=clock)
    timelines.on_unannounced = lambda _, instants: found.append([i.requested_time for i in instants])
    first = HandMadeTable.create(tmp_path / "first")
    other = HandMadeTable.create(tmp_path / "other")
    first.commit(1)
    timelines.register(str(first.path))
    timelines.snapshot(str(first.path))
    timelines.snapshot(str(other.path))  # evicts the first one
    instant = first.commit(2)
    timelines.refresh_if_due(str(first.path), is_hinted=False)
    assert found == [[instant]]


def test_heartbeat_that_finds_a_write_in_flight_only_says_nothing(
    timelines: SharedTimelines, table: HandMadeTable
) -> None:
    reported: list[str] = []
    timelines.on_unannounced = lambda path, _: reported.append(path)
    timelines.snapshot(str(table.path))
    table.plan(5)
    timelines.refresh_if_due(str(table.path), is_hinted=False)
    assert reported == []
    assert len(timelines.snapshot(str(table.path)).timeline.pending()) == 1


def test_registered_table_is_due_within_the_cold_start_and_then_by_its_heartbeat(
    timelines: SharedTimelines, table: HandMadeTable, clock: Clock
) -> None:
    table.commit(1)
    path = str(table.path)
    timelines.register(path)
    clock.now_ms += 60_000
    assert timelines.due.take(clock.now_ms, 10) == [(path, False)]
    timelines.refresh_if_due(path, is_hinted=False)
    assert timelines.due.take(clock.now_ms, 10) == []
    clock.now_ms += 600_000
    assert timelines.due.take(clock.now_ms, 10) == [(path, False)]


def test_watched_table_without_announcements_is_due_at_the_watchers_interval(
    timelines: SharedTimelines, table: HandMadeTable, clock: Clock
) -> None:
    table.commit(1)
    path = str(table.path)
    timelines.snapshot(path)
    assert timelines.due.due_ms(path) is None
    timelines.watch(path, 5.0, clock.now_ms + 300_000)
    assert START_MS + 4500 <= timelines.due.due_ms(path) <= START_MS + 5000
    clock.now_ms += 301_000  # the watcher is gone
    timelines.refresh_if_due(path, is_hinted=False)
    assert timelines.due.due_ms(path) is None


@pytest.mark.parametrize(
    ("kind", "actions"),
    [
        pytest.param(WatchKind.PENDING_INDEX, COMPLETED_WRITE_ACTIONS, id="plan"),
        pytest.param(WatchKind.COMMIT, frozenset({"clean"}), id="clean"),
    ],
)
def test_what_no_writer_announces_is_seen_within_the_poll_interval_on_a_table_that_announces_its_commits(
    timelines: SharedTimelines, table: HandMadeTable, clock: Clock, kind: WatchKind, actions: frozenset[str]
) -> None:
    path = str(table.path)
    watch = Watch(kind, ((path, "20261121000000000"),), actions)
    timelines.snapshot(path)
    timelines.hint(path, [table.commit(1)], 1, is_by_writer=True)
    assert timelines.due.take(clock.now_ms, 10) == [(path, True)]
    timelines.refresh_if_due(path, is_hinted=True)
    # Sooner than any heartbeat of a table that announces its commits.
    timelines.watch(path, 20.0, clock.now_ms + 300_000, 20.0 if watch.needs_unannounced else None)
    action = "indexing.requested" if kind is WatchKind.PENDING_INDEX else "clean"
    times = "20261121130000000" if kind is WatchKind.PENDING_INDEX else "20261121130000000_20261121130001000"
    (table.path / ".hoodie" / "timeline" / f"{times}.{action}").write_bytes(b"")
    clock.now_ms += 20_000
    assert timelines.due.take(clock.now_ms, 10) == [(path, False)]
    timelines.due.give_back(path)
    views = SimpleNamespace(get_view=lambda path: MemoryTimelineView(path, timelines))
    (change,) = find_changes(watch, views, watch.freshness(10.0))
    assert [instant.requested_time for instant in change.instants] == ["20261121130000000"]


def test_watcher_of_commits_does_not_have_an_announcing_table_polled(
    timelines: SharedTimelines, table: HandMadeTable, clock: Clock
) -> None:
    path = str(table.path)
    timelines.snapshot(path)
    timelines.hint(path, [table.commit(1)], 1, is_by_writer=True)
    timelines.refresh_if_due(path, is_hinted=True)
    timelines.watch(path, 5.0, clock.now_ms + 300_000)
    assert timelines.pause_ms(path) > 50_000
    timelines.watch(path, 60.0, clock.now_ms + 300_000, 5.0)
    assert timelines.pause_ms(path) <= 5_000


def test_table_with_a_heartbeat_of_its_own_keeps_it_whatever_it_announces(
    timelines: SharedTimelines, table: HandMadeTable
) -> None:
    path = str(table.path)
    timelines.register(path, fixed_pause_s=20)
    timelines.hint(path, [table.commit(1)], is_by_writer=True)
    timelines.refresh_if_due(path, is_hinted=True)
    assert 18_000 <= timelines.pause_ms(path) <= 20_000


# --- failures --------------------------------------------------------------------------------------------------


def test_failed_refresh_keeps_what_was_announced_and_the_other_tables(
    timelines: SharedTimelines, opened: Opened, table: HandMadeTable, tmp_path: Path, clock: Clock
) -> None:
    other = HandMadeTable.create(tmp_path / "other")
    path = str(table.path)
    timelines.register(path)
    timelines.snapshot(path)
    instant = table.commit(1)
    timelines.hint(path, [instant], 3, is_by_writer=True)
    opened.fails_with = StorageError("the store is away")
    timelines.refresh_if_due(path, is_hinted=True)
    with pytest.raises(StorageError, match="away"):
        timelines.snapshot(path)
    opened.fails_with = None
    timelines.snapshot(str(other.path))
    clock.now_ms += 5000
    assert path in dict(timelines.due.take(clock.now_ms, 10))
    timelines.refresh_if_due(path, is_hinted=False)
    assert timelines.snapshot(path, covering=3).timeline.latest_completed().requested_time == instant


def test_missing_table_is_forgotten_unless_a_reader_needs_it(timelines: SharedTimelines, tmp_path: Path) -> None:
    for number in range(3):
        with pytest.raises(TableNotFoundError):
            timelines.snapshot(str(tmp_path / f"nothing-{number}"))
    assert len(timelines.memory) == 0
    timelines.register(str(tmp_path / "later"))
    timelines.refresh_if_due(str(tmp_path / "later"), is_hinted=False)
    HandMadeTable.create(tmp_path / "later").commit(1)
    timelines.refresh_if_due(str(tmp_path / "later"), is_hinted=False)
    assert len(timelines.snapshot(str(tmp_path / "later")).timeline.instants) == 1


def test_table_that_no_reader_watches_is_forgotten_soon_after_its_store_failed_and_not_asked_again(
    timelines: SharedTimelines, opened: Opened, tmp_path: Path, clock: Clock
) -> None:
    paths = [str(HandMadeTable.create(tmp_path / f"t{number}").path) for number in range(20)]
    opened.fails_with = StorageError("the store is away")
    timelines.watch(paths[0], 60.0, clock.now_ms + 300_000)
    for path in paths:
        for _ in range(3):
            with pytest.raises(StorageError, match="away"):
                timelines.snapshot(path)
        clock.now_ms += 2000
    assert timelines.stats.read()["failed_refreshes"] == len(paths), "readers of one moment share the error"
    assert len(timelines.memory) == 2, "the watched one, and the last"
    clock.now_ms += 10_000
    assert timelines.due.take(clock.now_ms, 100) == [(paths[0], False)]
    clock.now_ms += 300_000
    timelines.refresh_if_due(paths[0], is_hinted=False)
    clock.now_ms += 86_400_000
    assert timelines.due.take(clock.now_ms, 100) == [], "its watcher has left"


def test_unexpected_error_of_a_store_becomes_a_storage_error_of_that_table(
    timelines: SharedTimelines, opened: Opened, table: HandMadeTable
) -> None:
    opened.fails_with = RuntimeError("surprise")
    with pytest.raises(StorageError, match="surprise"):
        timelines.snapshot(str(table.path))


def test_folder_time_that_lies_is_found_reported_and_never_believed_again(
    timelines: SharedTimelines, opened: Opened, table: HandMadeTable
) -> None:
    path = str(table.path)
    opened.lying_ms = START_MS - 10**9
    table.commit(1)
    settle(timelines, path)
    table.commit(2)
    assert len(timelines.snapshot(path, NOW).timeline.instants) == 1, "the lie is believed"
    assert timelines.verify_one() == path
    assert timelines.stats.read()["is_gate_unreliable"] == 1
    assert len(timelines.snapshot(path).timeline.instants) == 2
    table.commit(3)
    assert len(timelines.snapshot(path, NOW).timeline.instants) == 3


def test_folder_time_that_lies_is_believed_of_no_table_of_the_same_file_system_nor_after_a_restart(
    timelines: SharedTimelines, opened: Opened, table: HandMadeTable, clock: Clock, tmp_path: Path
) -> None:
    other = HandMadeTable.create(tmp_path / "other")
    opened.lying_ms = START_MS - 10**9
    for made in (table, other):
        made.commit(1)
        settle(timelines, str(made.path))
    table.commit(2)
    timelines.refresh(str(table.path), Depth.VERIFY)
    other.commit(2)
    assert len(timelines.snapshot(str(other.path), NOW).timeline.instants) == 2
    save(timelines, tmp_path / "timelines")
    again = SharedTimelines(open_table=opened, now_ms=clock)
    assert restore(again, tmp_path / "timelines") == 2
    other.commit(3)
    assert len(again.snapshot(str(other.path), NOW).timeline.instants) == 3


def test_notice_shows_that_folder_times_lie(
    timelines: SharedTimelines, opened: Opened, table: HandMadeTable, clock: Clock
) -> None:
    path = str(table.path)
    opened.lying_ms = START_MS - 10**9
    table.commit(1)
    settle(timelines, path)
    clock.now_ms += 60_000
    timelines.hint(path, [table.commit(2)], 1, is_by_writer=True)
    timelines.refresh_if_due(path, is_hinted=True)
    assert timelines.stats.read()["is_gate_unreliable"] == 1


def test_view_of_files_finds_out_that_folder_times_lie(table: HandMadeTable, opened: Opened, clock: Clock) -> None:
    opened.lying_ms = START_MS - 10**9
    view = FileSystemTimelineView(str(table.path), opened, clock)
    table.commit(1)
    view.snapshot(NOW)
    table.commit(2)
    clock.now_ms += PROPERTIES_AFTER_MS + 1
    assert len(view.snapshot(NOW).timeline.instants) == 2
    table.commit(3)
    assert len(view.snapshot(NOW).timeline.instants) == 3


def test_verification_of_an_honest_store_reports_nothing(timelines: SharedTimelines, table: HandMadeTable) -> None:
    settle(timelines, str(table.path))
    table.commit(1)
    for _ in range(3):
        timelines.verify_one()
    assert timelines.stats.read().get("is_gate_unreliable", 0) == 0


# --- properties and upgrades -----------------------------------------------------------------------------------


def test_changed_properties_are_seen_by_a_heartbeat_some_minutes_later(
    timelines: SharedTimelines, table: HandMadeTable, clock: Clock
) -> None:
    path = str(table.path)
    settle(timelines, path)
    file = table.path / ".hoodie" / "hoodie.properties"
    file.write_text(file.read_text() + "\nhoodie.table.metadata.partitions=files\n")
    clock.now_ms += PROPERTIES_AFTER_MS + 1000
    assert timelines.refresh(path, Depth.GATE).properties.metadata_partitions == ("files",)


@pytest.mark.parametrize("is_by_writer", [False, True])
@pytest.mark.parametrize("action", ["indexing", "restore"])
def test_properties_are_right_as_soon_as_an_action_that_changes_them_is_seen_complete(
    timelines: SharedTimelines, table: HandMadeTable, action: str, is_by_writer: bool
) -> None:
    path = str(table.path)
    table.commit(1)
    settle(timelines, path)
    write_properties(table, "files,record_index")
    folder = table.path / ".hoodie" / "timeline"
    (folder / f"20261121120010000.{action}.requested").write_bytes(b"")
    (folder / f"20261121120010000_20261121120011000.{action}").write_bytes(b"")
    timelines.hint(path, is_by_writer=is_by_writer)
    timelines.refresh_if_due(path, is_hinted=True)
    assert timelines.snapshot(path).properties.metadata_partitions == ("files", "record_index")


def test_properties_are_right_after_the_notice_of_one_of_our_jobs_whatever_it_did(
    timelines: SharedTimelines, table: HandMadeTable
) -> None:
    path = str(table.path)
    instant = table.commit(1)
    settle(timelines, path)
    write_properties(table, "files,record_index")
    timelines.hint(path, [instant])
    timelines.refresh_if_due(path, is_hinted=True)
    assert timelines.snapshot(path).properties.metadata_partitions == ("files", "record_index")


def test_properties_that_a_writer_changed_are_right_in_an_answer_that_must_be_new(
    timelines: SharedTimelines, table: HandMadeTable
) -> None:
    path = str(table.path)
    settle(timelines, path)
    write_properties(table, "files,record_index")
    assert timelines.snapshot(path, NOW).properties.metadata_partitions == ("files", "record_index")
    view = FileSystemTimelineView(path)
    view.snapshot()
    write_properties(table, "files")
    assert view.snapshot(NOW).properties.metadata_partitions == ("files",)


def test_index_that_a_writer_drops_is_noticed_within_half_an_hour_while_commits_are_announced(
    timelines: SharedTimelines, table: HandMadeTable, clock: Clock
) -> None:
    path = str(table.path)
    write_properties(table, "files,record_index")
    settle(timelines, path)
    write_properties(table, "files")
    for minute in range(31):
        clock.now_ms += 60_000
        timelines.hint(path, [table.commit(minute)], is_by_writer=True)
        timelines.refresh_if_due(path, is_hinted=True)
    assert timelines.snapshot(path).properties.metadata_partitions == ("files",)


def write_properties(table: HandMadeTable, partitions: str) -> None:
    file = table.path / ".hoodie" / "hoodie.properties"
    kept = [line for line in file.read_text().splitlines() if "metadata.partitions" not in line]
    file.write_text("\n".join([*kept, f"hoodie.table.metadata.partitions={partitions}"]))


def test_upgrade_that_moves_the_timeline_is_followed(timelines: SharedTimelines, tmp_path: Path) -> None:
    table = unpack("mor_v6", tmp_path)
    path = str(table.path)
    before = timelines.snapshot(path)
    meta = Path(path) / ".hoodie"
    (meta / "timeline").mkdir()
    for instant in before.timeline.instants:
        (meta / instant.file_name).unlink()
        if instant.is_completed:
            moved = f"{instant.requested_time}_{instant.completed_time}.{instant.action}"
            (meta / "timeline" / moved).write_bytes(b"")
    text = (meta / "hoodie.properties").read_text()
    (meta / "hoodie.properties").write_text(text.replace("hoodie.table.version=6", "hoodie.table.version=9"))
    timelines.hint(path)
    timelines.refresh_if_due(path, is_hinted=True)
    after = timelines.snapshot(path)
    assert after.properties.version == 9
    completed = {(i.requested_time, i.action) for i in before.timeline.completed()}
    assert {(i.requested_time, i.action) for i in after.timeline.instants} == completed


def test_instant_that_is_archived_between_two_pages_of_a_listing_is_not_shown_as_pending(
    timelines: SharedTimelines, table: HandMadeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder = str(table.path), table.path / ".hoodie" / "timeline"
    archived, clustered = table.commit(1), "20261121120001500"
    pending = [f"{archived}.deltacommit.requested", f"{archived}.deltacommit.inflight"]
    pending += [f"{clustered}.clustering.requested", f"{clustered}.clustering.inflight"]
    (folder / f"{clustered}_20261121120001700.replacecommit").touch()
    for name in pending:
        (folder / name).touch()
    table.commit(2)
    timelines.snapshot(path, NOW)
    first_page = [pending, []]
    for file in [*folder.glob(f"{archived}*"), *folder.glob(f"{clustered}*")]:
        file.unlink()
    really_list = Storage.list_names
    monkeypatch.setattr(
        Storage, "list_names", lambda *given: really_list(*given) + (first_page.pop(0) if first_page else [])
    )
    timelines.hint(path)
    timelines.refresh_if_due(path, is_hinted=True)
    assert [instant.requested_time for instant in timelines.snapshot(path).timeline.instants] == ["20261121120002000"]
    assert first_page == [], "one more listing"


# --- memory ----------------------------------------------------------------------------------------------------


def test_too_many_tables_are_evicted_and_a_needed_one_keeps_its_schedule(clock: Clock, tmp_path: Path) -> None:
    paths = [str(HandMadeTable.create(tmp_path / f"t{number}").path) for number in range(5)]
    timelines = SharedTimelines(SharedLimits(max_tables=2, hot_tables=1), now_ms=clock)
    timelines.register(paths[0])
    for path in paths:
        timelines.snapshot(path)
    assert timelines.memory.kept == 2
    assert len(timelines.memory) == 3, "the registered one and the two that are kept"
    assert timelines.due.due_ms(paths[0]) is not None
    assert timelines.snapshot(paths[0]).base_path == paths[0]


@pytest.mark.parametrize(("table_bytes", "hot_bytes"), [(100, 1 << 30), (8_192, 1 << 20)], ids=["packed", "unpacked"])
def test_memory_is_bounded_in_bytes_however_long_the_timelines_are(
    clock: Clock, tmp_path: Path, table_bytes: int, hot_bytes: int
) -> None:
    tables = [HandMadeTable.create(tmp_path / f"t{number}") for number in range(24)]
    for table in tables:
        for number in range(1, 201):
            table.commit(number)
    bound = SharedLimits(max_tables=100, table_bytes=table_bytes, hot_bytes=hot_bytes)
    tracemalloc.start()
    timelines = SharedTimelines(bound, now_ms=clock)
    for _ in range(3):  # a table that is read twice is kept unpacked as well
        for table in tables:
            timelines.snapshot(str(table.path), NOW)
    gc.collect()
    taken_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    kept_bytes = timelines.memory.kept_bytes()
    if table_bytes == 100:
        assert 5_000 < kept_bytes <= 10_000 * 17 / 16
    else:
        assert timelines.memory.kept == len(tables)
        assert 500_000 < taken_bytes - kept_bytes < 1_250_000


def test_change_of_an_evicted_table_is_still_a_change(clock: Clock, tmp_path: Path) -> None:
    tables = [HandMadeTable.create(tmp_path / f"t{number}") for number in range(3)]
    timelines = SharedTimelines(SharedLimits(max_tables=1, hot_tables=1), now_ms=clock)
    reported: list[str] = []
    timelines.on_unannounced = lambda path, _: reported.append(path)
    timelines.register(str(tables[0].path))
    for table in tables:
        timelines.snapshot(str(table.path))
    tables[0].commit(1)
    cursor = timelines.log.cursor
    timelines.refresh_if_due(str(tables[0].path), is_hinted=False)
    assert timelines.log.find_after(cursor)[1] == (str(tables[0].path),)
    assert reported == [str(tables[0].path)]


# --- truth -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_snapshot_of_a_real_table_equals_what_hudi_says(timelines: SharedTimelines, name: str, tmp_path: Path) -> None:
    table = unpack(name, tmp_path)
    shown = timelines.snapshot(str(table.path)).timeline.instants
    expected = {(i["requested_time"], i["action"], i["state"]) for i in table.expected}
    assert {(i.requested_time, i.action.value, i.state.value) for i in shown} == expected


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_view_after_a_random_history_equals_a_fresh_listing(tmp_path: Path, seed: int, clock: Clock) -> None:
    """1,000 steps; refreshes in between, forgotten hints, evictions, damaged folder times within a tick."""
    chance = random.Random(seed)
    history = new_history(tmp_path / "table", seed)
    path = str(history.table.path)
    hot = chance.choice([0, 10])
    timelines = SharedTimelines(SharedLimits(max_tables=chance.choice([1, 10]), hot_tables=hot), now_ms=clock)
    other = str(HandMadeTable.create(tmp_path / "other").path)
    folder = history.timeline
    store_ms = START_MS - 10**9
    for _ in range(1000):
        history.step()
        # The folder's clock ticks coarsely: several changes may share a time.
        store_ms += chance.choice([0, 0, 1, 50])
        clock.now_ms = store_ms + chance.choice([0, SETTLED_AFTER_MS, SETTLED_AFTER_MS + 1, 10_000])
        os.utime(folder, ns=(store_ms * 1_000_000, store_ms * 1_000_000))
        kind = chance.random()
        if kind < 0.2:
            timelines.hint(path)
            timelines.refresh_if_due(path, is_hinted=True)
        elif kind < 0.4:
            timelines.refresh_if_due(path, is_hinted=False)
        elif kind < 0.5:
            timelines.snapshot(other, NOW)
        elif kind < 0.6:
            shown = timelines.snapshot(path, NOW)
            assert (shown.properties, shown.timeline) == fresh(path)
        if clock.now_ms - store_ms > SETTLED_AFTER_MS:
            store_ms = clock.now_ms  # what comes next is another tick, or the time would rightly be believed
    shown = timelines.snapshot(path, NOW)
    assert (shown.properties, shown.timeline) == fresh(path)
    assert shown.version == version_of(shown.timeline, shown.properties)
    assert history.done >= {"fail", "savepoint", "delete_savepoint", "restore", "archive", "drop_index"}


def fresh(path: str) -> Any:
    storage = open_storage(path)
    properties = load_table_properties(storage)
    return properties, load_timeline(storage, properties)


@pytest.mark.parametrize("keep", [0, 1, 17])
def test_half_written_commit_is_reported_with_its_name_and_the_table_stays_readable(
    timelines: SharedTimelines, table: HandMadeTable, keep: int
) -> None:
    table.commit(1)
    file = table.path / ".hoodie" / "timeline" / "20261121120002000_20261121120002500.deltacommit"
    table.commit(2)
    file.write_bytes(file.read_bytes()[:keep])
    view = TableViewCache(timelines).refresh(str(table.path))
    assert len(view.timeline.completed()) == 2
    assert len(view.commits) == 1
    assert [problem.file_name for problem in view.problems] == [file.name]


def test_table_whose_timeline_folder_is_gone_says_so(timelines: SharedTimelines, table: HandMadeTable) -> None:
    timelines.snapshot(str(table.path))
    (table.path / ".hoodie" / "timeline").rmdir()
    with pytest.raises(DamagedFileError, match="timeline"):
        timelines.snapshot(str(table.path), NOW)


def test_table_whose_upgrade_from_version_6_is_in_flight_shows_no_half_of_its_timeline(
    timelines: SharedTimelines, tmp_path: Path
) -> None:
    table = unpack("mor_v6", tmp_path)
    path, hoodie = str(table.path), table.path / ".hoodie"
    before = timelines.snapshot(path)
    (hoodie / "timeline" / "history").mkdir(parents=True)  # as a downgrade leaves it
    assert timelines.snapshot(path, NOW).timeline.instants == before.timeline.instants
    requested = {i.requested_time for i in before.timeline.instants}
    for file in [entry for entry in hoodie.iterdir() if entry.name[:17] in requested]:
        state = file.name[17:]
        is_pending = state.endswith((".requested", ".inflight"))
        name = f"{file.name[:17]}{'' if is_pending else '_20991121120000000'}{state}"
        file.rename(hoodie / "timeline" / name)
        for view in (timelines, SharedTimelines(now_ms=timelines.now_ms)):
            with pytest.raises(DamagedFileError, match=r"upgrade .* is moving its timeline"):
                view.refresh(path, Depth.LIST)
    properties = hoodie / "hoodie.properties"
    text = properties.read_text().replace("hoodie.table.version=6", "hoodie.table.version=8")
    properties.write_text(text.replace("layout.version=1", "layout.version=2"))
    after = timelines.refresh(path, Depth.LIST)
    assert {i.requested_time for i in after.timeline.instants} == requested


@pytest.mark.parametrize(
    ("sentence", "limits"),
    [
        (
            r"never longer than `heartbeat_timeout_s` \(([\d,]+)\), or `heartbeat_max_s` \(([\d,]+)\)",
            (HeartbeatLimits().most_s, HeartbeatLimits().most_announced_s),
        ),
        (r"(three) times its usual gap between commits, later a (quarter)", (SUSPICIOUS_AFTER_GAPS, SILENCE_SHARE)),
        (
            r"older than (\d+) s on local disks, and than a (minute) on HDFS",
            (SETTLED_AFTER_MS / 1000, SETTLED_REMOTELY_AFTER_MS / 1000),
        ),
        (
            r"see that within (\d+) minutes, and within (\d+) while",
            (PROPERTIES_AFTER_MS / 60_000, PROPERTIES_AT_LATEST_MS / 60_000),
        ),
        (r"a second call at most once in (\d+) minutes", (PROPERTIES_AT_LATEST_MS / 60_000,)),
        (r"retry the server after (\d+) s", (RETRY_SERVER_AFTER_S,)),
        (r"It writes a snapshot file each (minute)", (ServerOptions().save_interval_s,)),
    ],
)
def test_limits_are_the_documented_ones(sentence: str, limits: tuple[float, ...]) -> None:
    page = " ".join((Path(__file__).parents[3] / "docs" / "timelines.md").read_text(encoding="utf-8").split())
    words = {"three": 3.0, "quarter": 0.25, "minute": 60.0}
    (found,) = re.finditer(sentence, page)
    assert tuple(words.get(word) or float(word.replace(",", "")) for word in found.groups()) == limits


def test_heartbeat_of_an_unchanged_table_unpacks_nothing(
    clock: Clock, opened: Opened, table: HandMadeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    timelines = SharedTimelines(SharedLimits(hot_tables=0), opened, clock)
    path = str(table.path)
    timelines.register(path)
    settle(timelines, path)
    clock.now_ms += 1000
    unpacked: list[object] = []
    target = "airflow_lake_provider.timeline_server.cached_table.unpack"
    monkeypatch.setattr(target, lambda *given: unpacked.append(given))
    before = calls(timelines)
    timelines.refresh_if_due(path, is_hinted=False)
    assert spent(timelines, before) == (0, 0, 1)
    assert unpacked == []
    assert timelines.memory.get(path).as_of_ms == clock.now_ms
    assert timelines.memory.get(path).shown == timelines.memory.get(path).begun


def test_quiet_table_takes_less_than_a_kibibyte_of_memory(opened: Opened, tmp_path: Path) -> None:
    count = 200
    tables = [HandMadeTable.create(tmp_path / f"table-{number:06}") for number in range(count)]
    for table in tables:
        for second in range(10):
            table.commit(second)
    timelines = SharedTimelines(SharedLimits(hot_tables=0))
    tracemalloc.start()
    try:
        for table in tables:
            timelines.register(str(table.path))
            timelines.watch(str(table.path), 60.0, timelines.now_ms() + 300_000)
            timelines.refresh_if_due(str(table.path), is_hinted=False)
            timelines.hint(str(table.path), mark=1, is_by_writer=True)
            assert timelines.due.take(0, 1) == [(str(table.path), True)]
            timelines.refresh_if_due(str(table.path), is_hinted=True)
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert timelines.memory.kept == count
    assert taken / count < 800, "1 KiB with what allocators leave"


def test_table_registered_while_its_refresh_packs_the_timeline_stays_registered(
    timelines: SharedTimelines, table: HandMadeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(table.path)
    table.commit(1)

    def pack_late(snapshot: TimelineSnapshot) -> bytes:
        packed = pack(snapshot)
        timelines.register(path)
        return packed

    monkeypatch.setattr("airflow_lake_provider.timeline_server.cached_table.pack", pack_late)
    timelines.snapshot(path)
    assert timelines.memory.get(path).is_registered
    assert timelines.memory.get(path).is_needed(timelines.now_ms())


@pytest.mark.parametrize("seed", range(5))
def test_due_queue_returns_each_table_when_it_is_due_and_never_sleeps_too_long(seed: int) -> None:
    dice, queue, due, now_ms = random.Random(seed), DueQueue(), {}, START_MS
    for _ in range(3_000):
        path = f"/lake/t{dice.randrange(40)}"
        at_ms = now_ms + dice.choice((0, 100, 5_000, 59_000, 61_000, 900_000, 20_000_000)) + dice.randrange(50)
        match dice.randrange(6):
            case 0:
                queue.put(path, at_ms)
                due[path] = at_ms
            case 1:
                queue.put_earlier(path, at_ms)
                due[path] = min(due.get(path, NEVER), at_ms)
            case 2:
                queue.put(path, NEVER)
                due.pop(path, None)
            case _:
                wait_ms = queue.wait_ms(now_ms, 30_000_000)
                assert wait_ms <= max(0, min(due.values(), default=NEVER) - now_ms)
                now_ms += dice.choice((wait_ms, wait_ms, dice.randrange(90_000)))
                taken = [path for path, _ in queue.take(now_ms, 100)]
                assert sorted(taken) == sorted(path for path, at_ms in due.items() if at_ms <= now_ms)
                for path in taken:
                    queue.give_back(path)
                    due[path] = now_ms + 60_000


def test_lock_of_a_table_is_one_for_all_threads_and_gone_afterwards() -> None:
    locks, order = TableLocks(), []
    entered = threading.Event()

    def work() -> None:
        entered.set()
        with locks.hold("/lake/orders"):
            order.append("second")

    with locks.hold("/lake/orders"), locks.hold("/lake/items"):
        thread = threading.Thread(target=work)
        thread.start()
        assert entered.wait(30)
        order.append("first")
    thread.join(30)
    assert order == ["first", "second"]
    assert locks.used == 0


def test_table_whose_last_notice_was_a_writers_is_trusted_after_a_restart(
    timelines: SharedTimelines, table: HandMadeTable
) -> None:
    timelines.register(str(table.path), was_announced=True)
    timelines.watch(str(table.path), 5.0, START_MS + 300_000)
    table.commit(1)
    timelines.refresh_if_due(str(table.path), is_hinted=False)
    assert timelines.due.due_ms(str(table.path)) > START_MS + 50_000


def test_only_tables_that_are_refreshed_often_are_kept_unpacked_until_they_are_left_alone(
    timelines: SharedTimelines, clock: Clock, table: HandMadeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, unpacked = str(table.path), []
    really = cached_table.unpack
    monkeypatch.setattr(cached_table, "unpack", lambda *given: unpacked.append(given) or really(*given))

    def commit_after(pause_ms: int, second: int) -> int:
        clock.now_ms += pause_ms
        table.commit(second)
        before = len(unpacked)
        timelines.hint(path)
        timelines.refresh_if_due(path, is_hinted=True)
        return len(unpacked) - before

    timelines.snapshot(path)
    assert commit_after(600_000, 1) > 0
    assert commit_after(600_000, 2) > 0, "one that changes now and then stays packed"
    commit_after(1_000, 3)
    assert commit_after(1_000, 4) == 0
    timelines.memory.cool()
    assert commit_after(1_000, 5) == 0, "it was used since"
    timelines.memory.cool()
    timelines.memory.cool()
    assert commit_after(1_000, 6) > 0


def test_forgotten_table_is_due_no_more(timelines: SharedTimelines, clock: Clock, table: HandMadeTable) -> None:
    path = str(table.path)
    timelines.register(path)
    assert timelines.due.due_ms(path) is not None
    timelines.forget(path)
    assert timelines.due.due_ms(path) is None
    timelines.due.put(path, clock.now_ms)
    assert timelines.due.take(clock.now_ms + 600_000, 8) == []
    assert timelines.memory.find(path) is None
