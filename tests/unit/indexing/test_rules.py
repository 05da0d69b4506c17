"""Holes, readiness, what is missing, and the writers' settings: pure rules over hand-made timelines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_lake_provider.hudi.active_writes import HeartbeatRule
from airflow_lake_provider.hudi.pending import PendingIndexPlan
from airflow_lake_provider.hudi.timeline import Timeline
from airflow_lake_provider.indexing.index_spec import (
    find_missing,
    find_setting_problems,
    find_unmet_need,
    parse_indexes,
)
from airflow_lake_provider.indexing.table_indexes import find_holes, readiness_of
from airflow_lake_provider.shared.actions import Action, State
from tests.support.index_rules import LOCK, properties, write

NOW_MS = 10_000_000


def test_commits_beyond_a_hole_are_reported_with_their_fate() -> None:
    c4, c5 = write(4, done=True), write(5, done=False)
    timeline = Timeline((c4, c5, write(6, done=True), write(7, done=True), write(8, done=True)))
    touched = {c5.requested_time: NOW_MS - 90_000}
    found = find_holes(timeline, touched, {c5.requested_time: NOW_MS - 5_000}, NOW_MS)
    assert found.last_without_holes == c4.requested_time
    (hole,) = found.holes
    assert (hole.instant, hole.owner, hole.age_s, hole.beat_age_s, hole.is_live) == (
        c5.requested_time,
        "writer",
        90.0,
        5.0,
        True,
    )
    assert len(found.beyond) == 3
    said = "\n".join(found.explain())
    assert "its writer lives" in said
    assert found.beyond[0] in said


def test_dead_writer_and_pending_plan_are_distinguished() -> None:
    dead = write(2, done=False)
    plan = replace(write(3, done=False, action=Action.COMPACTION), state=State.REQUESTED)
    timeline = Timeline((write(1, done=True), dead, plan))
    found = find_holes(timeline, {}, {dead.requested_time: 0}, NOW_MS)
    assert [hole.owner for hole in found.holes] == ["writer", "table service"]
    assert "): its writer is dead; the service rollback takes it back" in found.explain()[1]
    assert "a plan" in found.explain()[2]
    assert "nothing proves that its writer is dead" in find_holes(timeline, {}, {}, NOW_MS).explain()[1]


def test_writer_is_dead_by_the_tables_own_rule() -> None:
    slow = write(2, done=False)
    beats = {slow.requested_time: NOW_MS - 300_000}
    timeline = Timeline((write(1, done=True), slow))
    assert not find_holes(timeline, {}, beats, NOW_MS).holes[0].is_live
    assert find_holes(timeline, {}, beats, NOW_MS, HeartbeatRule(interval_ms=300_000)).holes[0].is_live


def test_timeline_without_holes_says_so() -> None:
    found = find_holes(Timeline((write(1, done=True),)), {}, {}, NOW_MS)
    assert (found.holes, found.beyond) == ((), ())
    assert found.explain() == (f"nothing is pending: the last completed write is {found.last_without_holes}",)


BUILDING = PendingIndexPlan("20261121100000000", is_inflight=True, partitions=("record_index",))
PLANNED = replace(BUILDING, is_inflight=False)


@pytest.mark.parametrize(
    ("partitions", "inflight", "plans", "ready", "reason"),
    [
        pytest.param("files,record_index", "", (), True, "complete", id="complete"),
        pytest.param("files,record_index", "", (PLANNED,), True, "complete", id="a-second-plan-changes-nothing"),
        pytest.param("files,record_index", "", (BUILDING,), False, "not completed", id="catch-up-still-runs"),
        pytest.param("files", "record_index", (BUILDING,), False, "not completed", id="being-built"),
        pytest.param("files", "record_index", (), False, "being built", id="left-behind"),
        pytest.param("files", "", (PLANNED,), False, "planned", id="planned"),
        pytest.param("files", "", (), False, "does not have it", id="absent"),
    ],
)
def test_readiness(
    partitions: str, inflight: str, plans: tuple[PendingIndexPlan, ...], ready: bool, reason: str
) -> None:
    found = readiness_of("record_index", properties(partitions, inflight), plans)
    assert found.is_ready is ready
    assert reason in found.reason


def test_missing_is_what_is_not_complete_and_can_exist() -> None:
    wanted = parse_indexes(["record_index", "column_stats", "partition_stats"])
    found = find_missing(wanted, properties("files,column_stats", "record_index"))
    assert [spec.partition for spec in found] == ["partition_stats", "record_index"]
    unpartitioned = find_missing(wanted, properties("files,column_stats,record_index", fields=""))
    assert unpartitioned == ()


def test_secondary_index_needs_a_record_index() -> None:
    wanted = parse_indexes(["secondary_index:city"])
    assert "needs record_index" in (find_unmet_need(wanted, properties()) or "")
    assert find_unmet_need(wanted, properties("files,record_index")) is None
    assert find_unmet_need(parse_indexes(["secondary_index:city", "record_index"]), properties()) is None


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        pytest.param(LOCK, (), id="nothing-wrong"),
        pytest.param({}, ("hoodie.write.lock.provider",), id="no-lock"),
        pytest.param(
            LOCK | {"hoodie.metadata.auto.delete.partitions": "true"},
            ("auto.delete",),
            id="drops-what-it-does-not-name",
        ),
        pytest.param(
            LOCK | {"hoodie.metadata.streaming.write.enabled": "TRUE"}, ("streaming.write",), id="builds-must-wait"
        ),
        pytest.param(
            LOCK | {"hoodie.embed.timeline.server": "false"}, ("hoodie.embed.timeline.server",), id="writers-would-fail"
        ),
    ],
)
def test_declared_settings(declared: dict[str, str], expected: tuple[str, ...]) -> None:
    problems = find_setting_problems(parse_indexes(["partition_stats"]), declared)
    assert len(problems) == len(expected)
    for problem, words in zip(problems, expected, strict=True):
        assert words in problem
