"""What a stream can no longer read, or must not keep: cleans without a bound, restores, archived history."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from airflow_lake_provider.errors import ReplicationGapError
from airflow_lake_provider.replication.change import Change, CommitRef
from airflow_lake_provider.replication.checkpoint import Checkpoint, SnapshotProgress, from_text, to_text
from airflow_lake_provider.replication.feed import begin_snapshot, find_gap
from tests.support.fake_sink import FakeSink, replica, run
from tests.unit.replication.table_model import ModelTable, time_of


def test_table_that_is_cleaned_by_file_versions_is_bootstrapped() -> None:
    table, sink = ModelTable(), FakeSink()
    table.complete(1, 2, {1: 10, 2: 20})
    table.complete(3, 4, {1: 11, 3: 30})
    table.cleaned_without_bound = time_of(5)
    report = run(table, sink, snapshot_part_rows=1)
    assert (report.rows, replica(sink)) == (3, table.rows())
    table.complete(6, 7, {1: 12})
    report = run(table, sink)
    assert (report.commits, report.snapshot_reason, replica(sink)) == (1, "", table.rows())
    # One that passes what is unread is answered with a snapshot, and that one comes to an end as well.
    table.complete(8, 9, {1: 13})
    table.cleaned_without_bound = time_of(10)
    report = run(table, sink)
    assert "before clean" in report.snapshot_reason
    assert replica(sink) == table.rows()


def test_clean_by_file_versions_that_comes_while_a_snapshot_is_taken_is_not_overlooked() -> None:
    class Cleaned(ModelTable):
        def read_snapshot(self, progress: SnapshotProgress) -> Iterator[Change]:
            yield from super().read_snapshot(progress)
            self.cleaned_without_bound = time_of(9)

    table, sink = Cleaned(), FakeSink()
    table.complete(1, 2, {1: 10})
    table.cleaned_without_bound = time_of(5)
    with pytest.raises(ReplicationGapError, match=r"before clean \d+9 deleted files, while the snapshot was read"):
        run(table, sink)


def test_clean_by_file_versions_counts_when_commits_behind_a_slow_writer_were_newer_than_the_snapshot() -> None:
    table = ModelTable()
    table.complete(1, 2, {1: 10})
    table.begin(3)
    table.complete(4, 5, {1: 11})
    table.cleaned_without_bound = time_of(6)
    begun = begin_snapshot(Checkpoint("t.sink", 0, 0, None), table.read_timeline())
    assert begun is not None
    assert "before clean" in str(find_gap(begun, table.read_timeline()))


def test_snapshot_is_taken_at_a_compaction_that_follows_the_last_commit() -> None:
    """A clean without a bound leaves its files, and not those that it has replaced."""
    table = ModelTable()
    commit = table.complete(1, 2, {1: 10})
    table.silent[time_of(3)] = CommitRef(time_of(3), time_of(4))
    table.cleaned_without_bound = time_of(5)
    begun = begin_snapshot(Checkpoint("t.sink", 0, 0, None), table.read_timeline())
    assert begun is not None
    assert (begun.commit, begun.snapshot) == (commit, SnapshotProgress(time_of(3), clean=time_of(5)))
    assert find_gap(begun, table.read_timeline()) is None


def test_checkpoint_of_an_earlier_release_within_a_snapshot_is_read() -> None:
    body = json.loads(to_text(Checkpoint("t.sink", 1, 1, None, snapshot=SnapshotProgress("1", "k", 7))))
    del body["snapshot"]["clean"]
    assert from_text(json.dumps(body)).snapshot == SnapshotProgress("1", "k", 7)


def undo_all_but_the_last_of_the_checkpoint(table: ModelTable) -> None:
    """A slow writer's commit is the last by completion; a restore leaves it and undoes one that was requested later."""
    del table.commits[time_of(4)]
    table.restored = time_of(8)


def replicated_with_a_slow_writer() -> tuple[ModelTable, FakeSink]:
    table, sink = ModelTable(), FakeSink()
    table.complete(1, 2, {1: 10, 2: 20})
    run(table, sink)
    table.begin(3)
    table.complete(4, 5, {1: 11})
    table.complete(3, 6, {2: 21})
    assert run(table, sink).commits == 2
    return table, sink


@pytest.mark.parametrize("has_savepoints", [False, True])
def test_restore_that_leaves_the_checkpoints_own_commit_is_found(has_savepoints: bool) -> None:
    table, sink = replicated_with_a_slow_writer()
    table.has_savepoints = has_savepoints
    undo_all_but_the_last_of_the_checkpoint(table)
    report = run(table, sink)
    assert f"commit {time_of(4)}, which was replicated, is no longer on the active timeline" in report.snapshot_reason
    assert replica(sink) == table.rows() == {1: 10, 2: 21}


def test_commits_that_were_archived_beyond_a_savepoint_are_no_restore() -> None:
    table, sink = ModelTable(), FakeSink()
    for number in range(1, 9, 2):
        table.complete(number, number + 1, {1: number})
    run(table, sink)
    table.has_savepoints, table.archived = True, {time_of(3)}
    table.complete(11, 12, {1: 11})
    report = run(table, sink)
    assert (report.commits, report.snapshot_reason) == (1, "")


def test_seek_to_a_time_before_the_active_timeline_begins_a_snapshot() -> None:
    table, sink = ModelTable(), FakeSink()
    for number in range(1, 9, 2):
        table.complete(number, number + 1, {number: number})
    table.archived = {time_of(1), time_of(3)}
    run(table, sink)
    report = run(table, sink, request="r1", seek_until=time_of(2))
    assert "before the active timeline" in report.snapshot_reason
    assert replica(sink) == table.rows()
    assert set(replica(sink)) == {1, 3, 5, 7}
    assert run(table, sink, request="r1", seek_until=time_of(2)).snapshot_reason == ""


def test_snapshot_that_a_pending_write_keeps_from_beginning_says_so() -> None:
    table, sink = ModelTable(), FakeSink()
    table.begin(1)
    report = run(table, sink)
    assert (report.checkpoint, report.waits_for) == (None, ""), "there is nothing to replicate"
    table.complete(3, 4, {1: 10})
    report = run(table, sink)
    assert report.checkpoint is None
    assert f"cannot begin before write {time_of(1)} completes or is rolled back" in report.waits_for
    table.complete(1, 5, {2: 20})
    report = run(table, sink)
    assert (report.waits_for, replica(sink)) == ("", table.rows())


def test_commits_that_were_unread_when_their_merge_on_read_table_was_upgraded_are_answered_with_a_snapshot() -> None:
    table, sink = ModelTable(), FakeSink()
    table.complete(1, 2, {1: 10, 2: 20})
    table.complete(3, 4, {1: 11})
    run(table, sink)
    # What the sink has is no gap, whichever version wrote it.
    table.from_before_upgrade = frozenset({time_of(3)})
    table.complete(5, 6, {2: 21})
    report = run(table, sink)
    assert (report.commits, report.snapshot_reason) == (1, "")
    table.complete(7, 8, {1: None})
    table.from_before_upgrade |= {time_of(7)}
    table.complete(9, 10, {3: 30})
    report = run(table, sink)
    assert f"commit {time_of(7)} was not replicated before the table was upgraded" in report.snapshot_reason
    assert replica(sink) == table.rows() == {2: 21, 3: 30}


def test_upgrade_while_unread_commits_are_read_moves_no_checkpoint() -> None:
    class Upgraded(ModelTable):
        def read(self, commit: CommitRef) -> Iterator[Change]:
            self.from_before_upgrade = frozenset({commit.requested_time})
            return iter(())

    table, sink = Upgraded(), FakeSink()
    table.complete(1, 2, {1: 10, 2: 20})
    run(table, sink)
    table.complete(3, 4, {1: None})
    with pytest.raises(ReplicationGapError, match=f"commit {time_of(3)} was not replicated before the table was upgr"):
        run(table, sink)
    assert run(table, sink).snapshot_reason
    assert replica(sink) == table.rows() == {2: 20}
