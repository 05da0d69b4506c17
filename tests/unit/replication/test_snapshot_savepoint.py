"""A snapshot that a savepoint keeps from cleans: which cleans count, and when the savepoint is removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from airflow_lake_provider.errors import ConfigError, ReplicationGapError
from airflow_lake_provider.replication.change import Change
from airflow_lake_provider.replication.checkpoint import SnapshotProgress
from airflow_lake_provider.replication.feed import CleansAfter
from airflow_lake_provider.replication.job import ReplicationRequest, as_source_options
from airflow_lake_provider.replication.transactions import Order
from tests.support.fake_sink import Died, FakeSink, replica, run
from tests.unit.replication.table_model import ModelTable, time_of


class CleaningTable(ModelTable):
    """A writer commits and cleans behind each row of a snapshot that is read; savepoints are respected."""

    number = 10
    stops = False

    def read_snapshot(self, progress: SnapshotProgress) -> Iterator[Change]:
        for row in super().read_snapshot(progress):
            yield row
            if self.stops:
                continue
            self.complete(self.number, self.number + 1, {1: self.number})
            self.number += 2
            self.retained_from = time_of(self.number - 2)
            self.saved = {instant: CleansAfter("", "") for instant in self.kept}


class UnheldTable(CleaningTable):
    def let_go(self, instant: str) -> None:
        self.kept = []


class SharedTable(CleaningTable):
    """The savepoint is another stream's of the same instant, which removes it, and then the writer cleans."""

    def read_snapshot(self, progress: SnapshotProgress) -> Iterator[Change]:
        rows = ModelTable.read_snapshot(self, progress)
        yield next(rows)
        self.kept, self.saved = [], {}
        yield next(rows)
        self.complete(self.number, self.number + 1, {1: self.number})
        self.retained_from = time_of(self.number)
        self.saved = {instant: CleansAfter("", "") for instant in self.kept}
        yield from rows


def cleaning(kind: Callable[[], CleaningTable] = CleaningTable) -> CleaningTable:
    table = kind()
    table.keeps = True
    table.complete(1, 2, {1: 10, 2: 20, 3: 30})
    return table


def test_snapshot_ends_next_to_cleans_that_know_of_its_savepoint_and_the_savepoint_goes() -> None:
    table, sink = cleaning(), FakeSink()
    report = run(table, sink, snapshot_part_rows=1)
    assert (report.rows, table.kept) == (3, [])
    assert replica(sink) == {1: 10, 2: 20, 3: 30}
    # One snapshot in a run: the next one would be overtaken as this one was.
    assert "the snapshot took longer than a writer's cleans keep files" in report.waits_for
    table.stops = True
    report = run(table, sink, snapshot_part_rows=1)
    assert "was not replicated" in report.snapshot_reason
    assert (report.waits_for, table.kept) == ("", [])
    assert replica(sink) == table.rows()


def test_snapshot_makes_a_savepoint_of_its_own_when_that_of_another_stream_is_gone() -> None:
    table, sink = cleaning(SharedTable), FakeSink()
    report = run(table, sink, snapshot_part_rows=1)
    # The snapshot, and what the writer wrote meanwhile.
    assert (report.rows, table.kept) == (3 + 1, [])
    assert replica(sink) == table.rows()


def test_snapshot_that_another_run_began_is_kept_on() -> None:
    table, sink = cleaning(SharedTable), FakeSink()
    # Opened; and of the first part written, and committed.
    sink.dies_at, sink.dies_after = 3, True
    with pytest.raises(Died):
        run(table, sink, snapshot_part_rows=1)
    assert table.kept == [time_of(1)]
    report = run(table, sink, snapshot_part_rows=1)
    assert (report.rows, report.snapshot_reason, table.kept) == (2 + 1, "", [])
    assert replica(sink) == table.rows()


def test_clean_that_does_not_know_of_the_savepoint_still_counts() -> None:
    with pytest.raises(ReplicationGapError, match="a clean kept only what readers since"):
        run(cleaning(UnheldTable), FakeSink(), snapshot_part_rows=1)
    table = cleaning()
    table.saved = {time_of(1): CleansAfter(time_of(5), "")}
    table.stops = True
    with pytest.raises(ReplicationGapError, match="a clean kept only what readers since"):
        run(table, FakeSink())


def test_savepoint_does_not_help_a_commit_that_is_to_be_read_alone() -> None:
    table, sink = ModelTable(), FakeSink()
    table.complete(1, 2, {1: 10})
    run(table, sink)
    table.complete(3, 4, {1: 11})
    table.complete(5, 6, {1: 12})
    table.retained_from, table.saved = time_of(5), {time_of(3): CleansAfter("", "")}
    assert "was not replicated" in run(table, sink).snapshot_reason


def test_savepoint_that_a_killed_run_left_goes_with_the_next_run() -> None:
    table, sink = ModelTable(), FakeSink()
    table.complete(1, 2, {1: 10})
    run(table, sink)
    table.kept = [time_of(1)]
    run(table, sink)
    assert table.kept == []


def test_lock_of_the_table_reaches_the_run_and_not_the_sink() -> None:
    lock = {"hoodie.write.lock.provider": "org.example.Lock", "hoodie.write.lock.zookeeper.url": "zk"}
    options = {"path": "/out", "snapshot_savepoint": "never", **as_source_options(lock)}
    request = ReplicationRequest("/lake/orders", "orders", "file", Order("t.file"), "", options=options)
    assert request.run_options.hudi == lock
    assert dict(request.sink_settings.options) == {"path": "/out"}
    assert request.run_options.makes_savepoints is False
    assert (
        ReplicationRequest("/lake/orders", "orders", "file", Order("t.file"), "").run_options.makes_savepoints is True
    )
    wrong = ReplicationRequest("/l", "o", "file", Order("t.file"), "", options={"snapshot_savepoint": "yes"})
    with pytest.raises(ConfigError, match="snapshot_savepoint is 'yes', allowed: auto, never"):
        _ = wrong.run_options
