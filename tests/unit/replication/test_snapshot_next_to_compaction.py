"""Which instant a snapshot is read at while compactions are planned next to slow writers."""

from __future__ import annotations

import random

import pytest

from airflow_lake_provider.replication.checkpoint import Checkpoint
from airflow_lake_provider.replication.feed import begin_snapshot, find_gap, find_snapshot_block
from tests.support.fake_sink import Died, FakeSink, replica, run
from tests.unit.replication.table_model import ModelTable, time_of


def instant_of(table: ModelTable) -> str:
    begun = begin_snapshot(Checkpoint("t.sink", 0, 0, None), table.read_timeline())
    assert begun is not None
    assert begun.snapshot is not None
    assert find_gap(begun, table.read_timeline()) is None
    return begun.snapshot.instant


def table_with_an_overtaken_writer() -> ModelTable:
    table = ModelTable()
    table.complete(1, 2, {1: 10, 2: 20})
    table.begin(3)
    table.plan_compaction(4)
    table.complete(3, 5, {2: 21})
    return table


@pytest.mark.parametrize("is_executed", [False, True], ids=["pending", "executed"])
def test_commit_that_a_compaction_plan_overtook_is_in_the_snapshot(is_executed: bool) -> None:
    table, sink = table_with_an_overtaken_writer(), FakeSink()
    if is_executed:
        table.execute_compactions(6)
    assert instant_of(table) == time_of(4), "the compaction's own: from there on its slices' log files are read"
    run(table, sink)
    assert replica(sink) == table.rows() == {1: 10, 2: 21}


def test_commit_that_cannot_be_in_the_snapshot_follows_it_as_changes() -> None:
    table, sink = ModelTable(), FakeSink()
    table.complete(1, 2, {1: 10, 2: 20})
    table.begin(3)
    table.begin(4)
    table.plan_compaction(5)
    table.complete(3, 6, {2: 21})
    # The compaction is not before the pending write 4, so no snapshot before that write has all of commit 3.
    assert instant_of(table) == time_of(1)
    report = run(table, sink)
    assert (report.commits, report.waits_for) == (1, "")
    table.complete(4, 7, {1: 11})
    run(table, sink)
    assert replica(sink) == table.rows() == {1: 11, 2: 21}


def overtaken_from_the_beginning() -> ModelTable:
    table = ModelTable()
    table.begin(1)
    table.begin(2)
    table.plan_compaction(3)
    table.complete(1, 4, {1: 10})
    return table


def test_snapshot_waits_for_the_write_that_it_cannot_pass_and_says_so() -> None:
    table, sink = overtaken_from_the_beginning(), FakeSink()
    report = run(table, sink)
    assert (report.checkpoint, sink.records) == (None, [])
    assert report.waits_for == (
        f"a snapshot cannot begin before write {time_of(2)} completes or is rolled back: compaction {time_of(3)} was "
        f"planned while it and write {time_of(1)} were pending, and a snapshot before {time_of(2)} would lack rows of "
        f"{time_of(1)}"
    )
    table.complete(2, 5, {2: 20})
    assert find_snapshot_block(table.read_timeline()) == ""
    assert run(table, sink).waits_for == ""
    assert replica(sink) == table.rows() == {1: 10, 2: 20}


@pytest.mark.parametrize("kept_from", [1, 3])
def test_earlier_instant_is_not_taken_where_a_clean_took_its_files(kept_from: int) -> None:
    table = ModelTable()
    table.complete(1, 2, {1: 10})
    table.begin(3)
    table.begin(4)
    table.plan_compaction(5)
    table.complete(3, 6, {2: 21})
    table.retained_from = time_of(kept_from)
    report = run(table, FakeSink())
    assert (report.checkpoint is None) == (kept_from == 3)
    assert (f"compaction {time_of(5)} was planned" in report.waits_for) == (kept_from == 3)


def test_snapshot_that_an_earlier_release_began_too_early_begins_anew() -> None:
    table, sink = table_with_an_overtaken_writer(), FakeSink()
    plans, table.compactions = table.compactions, set()  # as a release saw it that knows no pending compactions
    sink.dies_at = 5
    with pytest.raises(Died):
        run(table, sink, snapshot_part_rows=1)
    table.compactions = plans
    report = run(table, sink)
    assert report.snapshot_reason == (
        f"a snapshot at {time_of(3)} lacks rows of commit {time_of(3)}: compaction {time_of(4)} was planned before "
        "that commit completed"
    )
    assert replica(sink) == table.rows()


@pytest.mark.parametrize("seed", range(60))
def test_snapshot_need_not_wait_while_no_write_lasts_longer_than_from_one_plan_to_the_next(seed: int) -> None:
    """Writes are always pending, and so is a compaction."""
    draw = random.Random(seed)
    table, begun_after, plans, number = ModelTable(), {}, 0, 0
    table.complete(0, 1, {1: 1})

    def complete(write: int) -> None:
        nonlocal number
        number += 1
        table.complete(write, number, {write: number})  # writers at the same time never write the same rows
        del begun_after[write]

    while plans < 12:
        number += 2
        begun_after[number] = plans
        table.begin(number)
        for write in list(begun_after)[:-1]:
            if draw.random() < 0.2:
                complete(write)
        if draw.random() < 0.2:
            for write in [write for write, seen in begun_after.items() if seen < plans]:
                complete(write)
            number += 1
            table.execute_compactions(number)
            number += 1
            table.plan_compaction(number)
            plans += 1
        sink = FakeSink()
        report = run(table, sink)
        assert report.waits_for == ""
        assert replica(sink) == table.rows()
