from __future__ import annotations

import secrets
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.errors import TableNotFoundError
from airflow_lake_provider.planner.facts import TableFacts
from airflow_lake_provider.planner.periodic import decide_indexing
from airflow_lake_provider.planner.rules import Verdict
from airflow_lake_provider.planner.table_view import (
    MIN_FILES,
    CommitFile,
    CommitMemory,
    TableView,
    TableViewCache,
    content_key,
)
from airflow_lake_provider.storage.store import MAX_FILE_BYTES
from airflow_lake_provider.storage.table_storage import Storage, open_storage
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.saved import restore, save
from airflow_lake_provider.timeline_server.schedule import SharedLimits
from airflow_lake_provider.timeline_server.snapshot import SETTLED_AFTER_MS
from airflow_lake_provider.timeline_server.table_memory import TableLocks
from tests.support.fixture_tables import NAMES, unpack
from tests.support.tables import HandMadeTable

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
    cache = TableViewCache(SharedTimelines(open_table=opened, now_ms=lambda: LONG_AFTER_MS))
    for _ in range(3):
        view = cache.refresh(str(table.path))
    calls = opened.storages[0].calls
    before = (calls.lists, calls.opens, calls.stats)
    assert cache.refresh(str(table.path)) is view
    assert (calls.lists, calls.opens, calls.stats) == (before[0], before[1], before[2] + 2), "folder and properties"


def test_refresh_of_an_unchanged_table_with_an_unknown_file_lists_nothing_and_still_reports_it(
    table: HandMadeTable,
) -> None:
    (table.path / ".hoodie" / "timeline" / "notes.txt").touch()
    opened = Opened()
    cache = TableViewCache(SharedTimelines(open_table=opened, now_ms=lambda: LONG_AFTER_MS))
    for _ in range(2):
        cache.refresh(str(table.path))
    lists = opened.storages[0].calls.lists
    assert [problem.file_name for problem in cache.refresh(str(table.path)).problems] == ["notes.txt"]
    assert opened.storages[0].calls.lists == lists


def test_supplement_costs_one_listing_for_each_thing_that_is_asked_for(table: HandMadeTable) -> None:
    table.commit(1)
    heartbeats = table.path / ".hoodie" / ".heartbeat"
    heartbeats.mkdir()
    (heartbeats / "20261121120005000").touch()
    HandMadeTable.create(table.path / ".hoodie" / "metadata").commit(1)
    opened = Opened()
    cache = TableViewCache(SharedTimelines(open_table=opened))
    view = cache.refresh(str(table.path))
    calls = opened.storages[0].calls
    lists = calls.lists
    assert cache.supplement(view, heartbeats=False, metadata_timeline=False) is view
    assert calls.lists == lists

    beating = cache.supplement(view, heartbeats=True, metadata_timeline=False)
    assert (set(beating.heartbeats_ms or ()), beating.metadata_timeline) == ({"20261121120005000"}, None)
    assert calls.lists == lists + 1
    described = cache.supplement(view, heartbeats=False, metadata_timeline=True)
    assert described.metadata_timeline is not None
    assert [instant.requested_time for instant in described.metadata_timeline.instants] == ["20261121120001000"]
    assert described.heartbeats_ms is None
    assert calls.lists == lists + 2


def test_supplement_of_a_table_without_metadata_table_has_none(table: HandMadeTable) -> None:
    cache = TableViewCache(SharedTimelines(open_table=Opened()))
    view = cache.supplement(cache.refresh(str(table.path)), heartbeats=True, metadata_timeline=True)
    assert (dict(view.heartbeats_ms or {}), view.metadata_timeline) == ({}, None)


def test_refresh_after_a_commit_reads_that_commit_only(table: HandMadeTable) -> None:
    for second in (1, 2, 3):
        table.commit(second)
    opened = Opened()
    cache = TableViewCache(SharedTimelines(open_table=opened))
    first = cache.refresh(str(table.path))
    opens = opened.storages[0].calls.opens
    newest = table.commit(4)
    second_view = cache.refresh(str(table.path))
    assert opened.storages[0].calls.opens - opens == 1, "the new commit"
    assert newest in second_view.commits
    assert second_view.version != first.version
    assert len(second_view.commits) == 4


def test_refresh_right_after_a_change_does_not_trust_the_folders_time(table: HandMadeTable) -> None:
    """Two commits within one tick of the file system's clock leave the same modification time."""
    import os

    table.commit(1)
    folder = table.path / ".hoodie" / "timeline"
    stamp = folder.stat().st_mtime_ns
    cache = TableViewCache(SharedTimelines(now_ms=lambda: stamp // 1_000_000 + SETTLED_AFTER_MS))
    for _ in range(3):
        cache.refresh(str(table.path))
    newest = table.commit(2)
    os.utime(folder, ns=(stamp, stamp))
    assert newest in cache.refresh(str(table.path)).commits


def test_commit_of_layout_1_that_is_overwritten_after_it_was_read_is_read_again(tmp_path: Path) -> None:
    table = unpack("mor_v6", tmp_path)
    cache = TableViewCache()
    newest = cache.refresh(str(table.path)).timeline.completed_writes[-1]
    (table.path / ".hoodie" / newest.file_name).write_bytes(b"{broken")
    (problem,) = cache.refresh(str(table.path)).problems
    assert problem.file_name == newest.file_name
    assert "damaged" in problem.reason


@pytest.mark.parametrize("content", [b'{"operationType": "UPS', b""], ids=["half-written", "empty"])
def test_refresh_with_a_damaged_commit_reports_it_and_keeps_the_table_readable(
    table: HandMadeTable, content: bytes
) -> None:
    good = table.commit(1)
    damaged = table.path / ".hoodie" / "timeline" / "20261121120002000_20261121120002500.deltacommit"
    damaged.write_bytes(content)
    cache = TableViewCache(SharedTimelines(now_ms=lambda: LONG_AFTER_MS))
    for _ in range(3):  # until a folder's time would be trusted, which repairing a file in place does not change
        view = cache.refresh(str(table.path))
    assert set(view.commits) == {good}
    assert [problem.file_name for problem in view.problems] == [damaged.name]
    damaged.write_bytes(b'{"operationType": "UPSERT"}')
    assert cache.refresh(str(table.path)).problems == ()


def test_refresh_of_a_commit_that_is_whole_at_the_second_read_reports_nothing(table: HandMadeTable) -> None:
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

        def read_bytes(self, path: str, limit_bytes: int = MAX_FILE_BYTES) -> bytes:
            content = Storage.read_bytes(self, path, limit_bytes)
            if content == b"{":
                half.write_bytes(b'{"operationType": "UPSERT"}')
            return content

    view = TableViewCache(SharedTimelines(open_table=WriterFinishes())).refresh(str(table.path))
    assert view.problems == ()
    assert len(view.commits) == 2


def test_refresh_of_a_missing_table_raises_and_of_the_same_table_later_works(tmp_path: Path) -> None:
    cache = TableViewCache()
    with pytest.raises(TableNotFoundError):
        cache.refresh(str(tmp_path / "later"))
    HandMadeTable.create(tmp_path / "later").commit(1)
    assert len(cache.refresh(str(tmp_path / "later")).commits) == 1


def test_cache_with_too_many_tables_drops_the_one_unused_longest(tmp_path: Path) -> None:
    paths = [str(HandMadeTable.create(tmp_path / name).path) for name in "abc"]
    opened = Opened()
    cache = TableViewCache(SharedTimelines(SharedLimits(max_tables=2), opened))
    for path in (paths[0], paths[1], paths[0], paths[2], paths[0]):
        cache.refresh(path)
    assert len(cache) == 2
    assert [storage.base_path for storage in opened.storages] == paths
    cache.refresh(paths[1])
    assert [storage.base_path for storage in opened.storages] == [*paths, paths[1]]


class Gate(Opened):
    """Holds back each thread that lists a table's timeline while it is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.open = threading.Event(), threading.Event()
        self.lists = 0

    def __call__(self, base_path: str) -> Storage:
        gate = self

        class GatedStorage(Storage):
            __slots__ = ()

            def list_names(self, folder: str) -> list[str]:
                gate.lists += 1
                gate.reached.set()
                assert gate.open.wait(30)
                return Storage.list_names(self, folder)

        storage = super().__call__(base_path)
        storage.__class__ = GatedStorage
        return storage


class CountingLock:
    """A lock that counts how many have come to it, so that a test need not sleep until they wait."""

    def __init__(self) -> None:
        self.lock, self.arrived = threading.Lock(), threading.Semaphore(0)

    def __enter__(self) -> None:
        self.arrived.release()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def test_refresh_by_many_while_one_is_under_way_does_one_more_for_all_of_them(table: HandMadeTable) -> None:
    """The refresh under way may have listed before the waiting ones asked, so it is not theirs; the next one is."""
    table.commit(1)
    path, gate, lock = str(table.path), Gate(), CountingLock()
    timelines = SharedTimelines(open_table=gate)
    cache = TableViewCache(timelines)
    gate.open.set()
    cache.refresh(path)
    timelines.memory.refreshing = TableLocks(lambda: lock)
    gate.open.clear()
    gate.reached.clear()
    gate.lists = 0
    views: list[TableView] = []
    first = threading.Thread(target=cache.refresh, args=(path,))
    waiting = [threading.Thread(target=lambda: views.append(cache.refresh(path))) for _ in range(8)]
    first.start()
    assert gate.reached.wait(30)
    newest = table.commit(2)
    opens = gate.storages[0].calls.opens
    for thread in waiting:
        thread.start()
    for _ in [first, *waiting]:
        assert lock.arrived.acquire(timeout=30)
    gate.open.set()
    for thread in [first, *waiting]:
        thread.join(30)
    assert len(views) == 8
    assert all(newest in view.commits for view in views)
    assert len({id(view) for view in views}) == 1
    assert gate.lists == 2
    assert gate.storages[0].calls.opens - opens == 1, "the new commit, once"
    assert len(gate.storages) == 1


@pytest.mark.parametrize("name", NAMES)
def test_refresh_of_a_real_table_has_every_completed_write_and_a_version_that_stays(name: str, tmp_path: Path) -> None:
    table = unpack(name, tmp_path)
    cache = TableViewCache()
    view = cache.refresh(str(table.path))
    writes = {"commit", "deltacommit", "replacecommit"}
    completed = [i for i in table.expected if i["action"] in writes and i["state"] == "COMPLETED"]
    assert set(view.commits) == {instant["requested_time"] for instant in completed}
    assert view.problems == ()
    assert TableViewCache().refresh(str(table.path)).version == view.version


@pytest.mark.parametrize("is_built_by_a_writer", [False, True])
def test_no_index_job_is_due_after_commits_that_follow_a_complete_build(
    table: HandMadeTable, is_built_by_a_writer: bool
) -> None:
    """A job's build completes an `indexing` on the timeline; a writer begins an index with one of its commits."""
    now_ms = LONG_AFTER_MS
    timelines = SharedTimelines(now_ms=lambda: now_ms)
    cache, path = TableViewCache(timelines), str(table.path)
    policy = TablePolicy(
        indexing=TablePolicy().indexing.replace(indexes=("record_index",)),
        hudi_options={"hoodie.write.lock.provider": "org.example.AnyLock"},
    )
    table.commit(1)
    assert decide_indexing(TableFacts(cache.refresh(path)), policy, 0).verdict is Verdict.DUE
    with (table.path / ".hoodie" / "hoodie.properties").open("a") as file:
        file.write("\nhoodie.table.metadata.partitions=files,record_index")
    if not is_built_by_a_writer:
        folder = table.path / ".hoodie" / "timeline"
        (folder / "20261121120001100_20261121120001200.indexing").write_bytes(b"")
    verdicts = []
    for number in range(2, 32):
        now_ms += 20_000
        timelines.hint(path, [table.commit(number)], number, is_by_writer=True)
        verdicts.append(decide_indexing(TableFacts(cache.refresh(path, number)), policy, 0).verdict)
    assert verdicts == [Verdict.NOT_DUE] * 30


def test_quiet_table_is_kept_in_a_few_bytes_and_a_refresh_reads_its_new_commit_only(tmp_path: Path) -> None:
    tables = [HandMadeTable.create(tmp_path / f"t{number}") for number in range(6)]
    for table in tables:
        for second in range(1, 11):
            table.commit(second)
    opened = Opened()
    memory = CommitMemory(most_hot_files=2 * MIN_FILES, most_packed_bytes=100_000)
    cache = TableViewCache(SharedTimelines(open_table=opened), memory)
    views = {table.path: cache.refresh(str(table.path)) for table in tables}
    assert (len(memory._views), len(memory._packed)) == (2, 4)
    assert memory.packed_bytes <= 1024 * 4, "1 KiB a quiet table"
    assert memory.packed_bytes == sum(map(len, memory._packed.values()))
    quiet, storage = tables[0], opened.storages[0]
    opens = storage.calls.opens
    newest = quiet.commit(11)
    again = cache.refresh(str(quiet.path))
    assert storage.calls.opens - opens == 1, "the new commit"
    assert dict(again.commits) == dict(views[quiet.path].commits) | {newest: again.commits[newest]}
    assert (len(memory._views), len(memory._packed)) == (2, 4), "it is among the last two again"


def test_memory_of_commits_is_bounded_whatever_the_tables_are(tmp_path: Path) -> None:
    def view_of(number: int, files: int) -> TableView:
        table = HandMadeTable.create(tmp_path / f"t{number}")
        table.commit(1)
        view = TableViewCache().refresh(str(table.path))
        (time,) = view.commits
        stats = tuple(replace(view.commits[time].stats[0], path=f"p/{secrets.token_hex(16)}") for _ in range(files))
        return replace(view, commits={time: replace(view.commits[time], stats=stats)})

    memory = CommitMemory(most_hot_files=5_000, most_packed_bytes=30_000)
    for number, files in enumerate((10, 3_000, 2_500, 10, 10, 400, 10, 10, 10, 6_000, 10)):
        memory.keep(view_of(number, files))
        assert memory.hot_files <= 5_000 or len(memory._views) == 1, "the table at hand is kept, however large it is"
        assert memory.packed_bytes <= 30_000
    assert memory.hot_files == MIN_FILES * len(memory._views)
    assert str(tmp_path / "t1") not in memory._packed, "what is too large is read again"
    view = view_of(11, 1)
    assert memory.find_commits(str(tmp_path / "t1"), view.properties) == {}
    assert len(memory) >= 6


@pytest.mark.parametrize("name", NAMES)
def test_packed_metadata_of_a_real_table_is_as_it_was_read(tmp_path: Path, name: str) -> None:
    view = TableViewCache().refresh(str(unpack(name, tmp_path).path))
    memory = CommitMemory(most_hot_files=0, most_packed_bytes=10**9)
    memory.keep(view)
    memory.keep(replace(view, base_path="/lake/another"))
    assert view.base_path in memory._packed
    names = {content_key(instant): instant.requested_time for instant in view.timeline.completed_writes}
    assert {
        names[file]: commit for file, commit in memory.find_commits(view.base_path, view.properties).items()
    } == dict(view.commits)


class Process:
    """One process after the other: each has its own memory, and both files of the one before."""

    def __init__(self, folder: Path, tables: int, hot_files: int = 3 * MIN_FILES) -> None:
        self.opened = Opened()
        self.timelines = SharedTimelines(SharedLimits(max_tables=tables), self.opened)
        self.views = TableViewCache(self.timelines, CommitMemory(hot_files, 4096 * tables, tables))
        self.file = CommitFile(folder / "api-server.commits", self.views.memory)
        self.file.restore()
        restore(self.timelines, folder / "api-server.timelines")
        self.folder = folder

    def end(self) -> None:
        save(self.timelines, self.folder / "api-server.timelines")
        self.file.save()

    @property
    def opens(self) -> int:
        return self.timelines.calls.opens


def test_restarted_process_reads_no_commit_again_that_an_earlier_one_read(tmp_path: Path) -> None:
    tables = [HandMadeTable.create(tmp_path / "lake" / f"t{number}") for number in range(12)]
    for table in tables:
        for second in range(1, 9):
            table.commit(second)
    first = Process(tmp_path, len(tables))
    before = {table.path: first.views.refresh(str(table.path)) for table in tables}
    assert first.opens >= 8 * len(tables)
    first.end()
    second = Process(tmp_path, len(tables))
    newest = tables[3].commit(9)
    for table in tables:
        view = second.views.refresh(str(table.path))
        expected = dict(before[table.path].commits)
        if table is tables[3]:
            expected[newest] = view.commits[newest]
        assert dict(view.commits) == expected
    assert second.opens == 1, "the commit that came meanwhile"


def test_commits_of_an_earlier_table_at_a_path_count_for_no_other_one(tmp_path: Path) -> None:
    table = HandMadeTable.create(tmp_path / "lake" / "orders")
    time = table.commit(1)
    first = Process(tmp_path, 10)
    first.views.refresh(str(table.path))
    first.end()
    shutil.rmtree(table.path)
    # Another table with an instant of the same name, which no clock excludes for sure.
    other = HandMadeTable.create(tmp_path / "lake" / "orders", name="customers")
    assert other.commit(1) == time
    second = Process(tmp_path, 10)
    opens = second.opens
    second.views.refresh(str(table.path))
    assert second.opens - opens == 2, "its properties and its commit"


def test_damaged_file_of_commits_costs_reading_and_nothing_else(tmp_path: Path) -> None:
    tables = [HandMadeTable.create(tmp_path / "lake" / f"t{number}") for number in range(3)]
    for table in tables:
        table.commit(1)
    first = Process(tmp_path, 10)
    views = {table.path: first.views.refresh(str(table.path)) for table in tables}
    first.end()
    file = tmp_path / "api-server.commits"
    whole = file.read_bytes()
    for number, damage in enumerate((b"", whole[:7], whole[:-5], whole[:40] + b"x" + whole[41:], whole[::-1])):
        file.write_bytes(damage)
        again = Process(tmp_path, 10)
        for table in tables:
            assert dict(again.views.refresh(str(table.path)).commits) == dict(views[table.path].commits), number


def test_file_of_commits_is_as_bounded_as_the_memory_and_written_when_something_is_new(tmp_path: Path) -> None:
    process = Process(tmp_path, 4, hot_files=MIN_FILES)
    for number in range(9):
        table = HandMadeTable.create(tmp_path / "lake" / f"t{number}")
        table.commit(1)
        process.views.refresh(str(table.path))
    process.end()
    file = tmp_path / "api-server.commits"
    assert sorted(Process(tmp_path, 10).views.memory._packed) == [str(tmp_path / "lake" / f"t{n}") for n in range(5, 9)]
    file.unlink()
    process.end()
    assert not file.exists(), "nothing was new"
