"""What people learn of a table: before a write, and by `airflow lake conflicts`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from airflow_lake_provider.conflict.activity_report import describe_activity, is_clear, print_line
from airflow_lake_provider.conflict.contention import PREFER_WRITER, STRATEGY, WriteIntent, find_writer_rule
from airflow_lake_provider.conflict.guard import WriteFacts, judge_write
from airflow_lake_provider.conflict.guard_register import find_obstacles
from airflow_lake_provider.shared.hudi_settings import CONCURRENCY_MODE
from airflow_lake_provider.table_layout import INDEX_TYPE
from tests.unit.conflict.fake_table import FakeTable, keys

W1, W2, W3, W4 = (f"2026112110000000{n}" for n in range(1, 5))
OSLO, BONN = ("Oslo", "f1-0"), ("Bonn", "f2-0")
NON_BLOCKING = "NON_BLOCKING_CONCURRENCY_CONTROL"


def report(table: FakeTable, hudi_options: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    opened = table.open(hudi_options)
    activity = opened.read_activity(table.now_ms)
    return describe_activity(activity, lambda claim: opened.find_commits(claim, activity.snapshot))


def test_report_names_live_writers_dead_ones_and_clashes() -> None:
    table = FakeTable()
    for instant in (W1, W2, W3):
        table.begin(instant)
        table.mark_direct(instant, [OSLO])
    table.beat(W3, ago_ms=500_000)
    rows = report(table)
    assert [row.state for row in rows] == ["live", "live", "dead"]
    assert [bool(row.clashes) for row in rows] == [False, True, False]
    assert f"gives way: deltacommit {W1}" in print_line(rows[1])
    assert not is_clear(rows)


@pytest.mark.parametrize(("group", "is_doomed"), [(OSLO, True), (BONN, False)])
def test_writer_that_is_doomed_by_an_older_ones_commit_is_named(group: tuple[str, str], *, is_doomed: bool) -> None:
    table = FakeTable()
    for instant, marked in ((W1, OSLO), (W2, group)):
        table.begin(instant)
        table.mark_direct(instant, [marked])
    table.commit(W1, W3, [OSLO])
    rows = report(table)
    assert [row.instant for row in rows] == [W2]
    assert (f"gives way: deltacommit {W1} has committed 1 file group" in print_line(rows[0])) is is_doomed
    assert is_clear(rows) is not is_doomed


def test_what_cannot_be_read_of_the_living_is_said_and_not_clear() -> None:
    table = FakeTable()
    table.begin(W1)
    table.mark_by_server(W1, [OSLO], cut=5)
    rows = report(table)
    assert (rows[0].clashes, is_clear(rows)) == ((), False)
    assert f"not known: .hoodie/.temp/{W1}/MARKERS0" in print_line(rows[0])
    table.beat(W1, ago_ms=500_000)
    assert is_clear(report(table)), "a dead writer is in no writer's way"
    table.begin(W2)
    table.write(f"timeline/{W3}_{W3}9.deltacommit", b"{not json")
    rows = report(table)
    assert (rows[1].state, len(rows[1].unread), is_clear(rows)) == ("live", 1, False)


def test_service_whose_executor_died_is_distinguished_from_one_that_was_never_begun() -> None:
    table = FakeTable()
    for instant in (W1, W2, W3):
        table.plan_compaction(instant, [(instant, "f1-0")])
    table.beat(W2, ago_ms=500_000)
    table.beat(W3)
    rows = report(table)
    assert [row.state for row in rows] == ["pending", "pending, heartbeat dead", "live"]
    assert is_clear(rows)


def test_log_compaction_that_was_begun_is_in_the_way_of_a_write() -> None:
    table = FakeTable()
    table.plan_compaction(W1, [OSLO], action="logcompaction")
    opened = table.open()
    assert find_obstacles(opened.read_activity(table.now_ms), []) == ()
    table.write(f"timeline/{W1}.logcompaction.inflight")
    found = find_obstacles(opened.read_activity(table.now_ms), ["Oslo"])
    assert found == (f"running log compaction {W1} (logcompaction) in Oslo",)
    assert find_obstacles(opened.read_activity(table.now_ms), ["Bonn"]) == ()


@pytest.mark.parametrize(
    ("hudi_options", "found"),
    [
        ({}, ["writer", "log compaction", "clustering"]),
        ({CONCURRENCY_MODE: "NON_BLOCKING_CONCURRENCY_CONTROL"}, ["log compaction", "clustering"]),
        ({STRATEGY: PREFER_WRITER}, ["writer"]),
        ({STRATEGY: "com.example.Own"}, ["writer", "log compaction", "clustering"]),
    ],
)
def test_what_is_in_the_way_follows_the_writers_settings(hudi_options: dict[str, str], found: list[str]) -> None:
    table = FakeTable()
    table.begin(W1)
    table.mark_direct(W1, [OSLO])
    table.plan_compaction(W2, [OSLO], action="logcompaction")
    table.write(f"timeline/{W2}.logcompaction.inflight")
    table.plan(W3, [OSLO])
    obstacles = find_obstacles(table.open().read_activity(table.now_ms), ["Oslo"], find_writer_rule(hudi_options))
    assert [word for word in ("writer", "log compaction", "clustering") if any(word in o for o in obstacles)] == found


def begin_writer(table: FakeTable) -> None:
    table.begin(W1)
    table.mark_direct(W1, [OSLO])


def begin_log_compaction(table: FakeTable) -> None:
    table.plan_compaction(W1, [OSLO], action="logcompaction")
    table.write(f"timeline/{W1}.logcompaction.inflight")


def plan_clustering(table: FakeTable) -> None:
    table.plan(W1, [OSLO])


@pytest.mark.parametrize("begin", [begin_writer, begin_log_compaction, plan_clustering])
@pytest.mark.parametrize(
    "hudi_options",
    [{}, {CONCURRENCY_MODE: NON_BLOCKING}, {STRATEGY: PREFER_WRITER}, {INDEX_TYPE: "BUCKET"}],
    ids=["simple", "non-blocking", "prefer-writer", "bucket"],
)
def test_before_a_write_during_it_and_in_the_report_one_rule_holds(
    hudi_options: dict[str, str], begin: Callable[[FakeTable], None]
) -> None:
    table, rule = FakeTable(), find_writer_rule(hudi_options)
    begin(table)
    opened = table.open(hudi_options)
    is_obstacle = bool(find_obstacles(opened.read_activity(table.now_ms), ["Oslo"], rule))
    intent = WriteIntent(W2, keys([OSLO]), since=W2)
    assert bool(opened.check(intent, table.now_ms).clashes) is is_obstacle
    table.begin(W2)
    table.mark_direct(W2, [OSLO])
    row = next(row for row in report(table, hudi_options) if row.instant == W2)
    assert bool(row.clashes) is is_obstacle
    if not rule.unjudged:
        forecast = judge_write(WriteFacts(W2, opened.read_activity(table.now_ms)), rule)
        assert bool(forecast.clashes or forecast.notes) is is_obstacle


def test_two_new_file_groups_of_one_bucket_conflict_where_the_index_is_by_bucket() -> None:
    table = FakeTable()
    for instant, file_id in ((W1, "00000007-aaaa-0"), (W2, "00000007-bbbb-0"), (W3, "00000008-cccc-0")):
        table.begin(instant)
        table.mark_by_server(instant, [("Oslo", file_id)])
    clashes = {row.instant: bool(row.clashes) for row in report(table, {INDEX_TYPE: "BUCKET"})}
    assert clashes == {W1: False, W2: True, W3: False}
    # The file ids themselves show the index, unless the settings say another one.
    assert {row.instant: bool(row.clashes) for row in report(table)} == clashes
    assert not any(row.clashes for row in report(table, {INDEX_TYPE: "BLOOM"}))
    table.commit(W1, W4, [("Oslo", "00000007-aaaa-0")])
    clashes = {row.instant: bool(row.clashes) for row in report(table, {INDEX_TYPE: "BUCKET"})}
    assert clashes == {W2: True, W3: False}


def test_commits_of_others_reject_no_writer_that_does_not_block_and_those_of_services_do() -> None:
    options = {CONCURRENCY_MODE: NON_BLOCKING}
    for operation, is_rejected in (("UPSERT", False), ("CLUSTER", True)):
        table = FakeTable()
        begin_writer(table)
        table.commit(W2, W3, [OSLO], operation)
        (row,) = report(table, options)
        assert bool(row.clashes) is is_rejected


def test_pending_restore_is_in_the_way_of_each_partition() -> None:
    table = FakeTable()
    table.write(f"timeline/{W1}.restore.requested", b"")
    activity = table.open().read_activity(table.now_ms)
    assert find_obstacles(activity, ["Oslo"]) == (f"restore {W1}, during which Hudi refuses each write",)
    table.write(f"timeline/{W1}_{W2}.restore", b"")
    assert find_obstacles(table.open().read_activity(table.now_ms), ["Oslo"]) == ()
