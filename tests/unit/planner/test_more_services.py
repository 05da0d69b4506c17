"""Log compaction, rollback, expiry of partitions, the metadata table: when they are due, and what holds them back."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import (
    ArchivePolicy,
    CleanPolicy,
    CompactionPolicy,
    LogCompactionPolicy,
    MetadataCompactionPolicy,
    RollbackPolicy,
    TtlPolicy,
)
from airflow_lake_provider.hudi.instant import Layout
from airflow_lake_provider.hudi.timeline import Timeline
from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.planner.decide import DECIDED, decide
from airflow_lake_provider.planner.facts import TableFacts
from airflow_lake_provider.planner.rules import Decision, Verdict
from airflow_lake_provider.planner.table_view import TableView
from airflow_lake_provider.shared.actions import Action, State
from tests.support.service_tables import LOCK, cow
from tests.unit.planner.views import NOON_MS, NOW_MS, at, base, commit, completed, log, pending, view

POLICY = TablePolicy(
    compaction=CompactionPolicy(delta_commits=100, log_to_base_ratio=None),
    logcompaction=LogCompactionPolicy(enabled=True, log_files=3),
    clean=CleanPolicy(commits=3, retained_commits=2),
    archive=ArchivePolicy(min_commits=4, max_commits=6),
    rollback=RollbackPolicy(after_s=30),
    ttl=TtlPolicy(retained_days=50, check_every_s=3600),
    metacompaction=MetadataCompactionPolicy(commits=4),
    hudi_options=LOCK,
)
NEW = [Mode.SCHEDULE, Mode.SCHEDULE_AND_EXECUTE]


def find(service: Service, table: TableView, policy: TablePolicy = POLICY, now_ms: int = NOW_MS) -> Decision:
    return next(decision for decision in decide(TableFacts(table), policy, now_ms) if decision.service is service)


def logs(count: int, *, plans: tuple[Any, ...] = (), more: tuple[Any, ...] = ()) -> TableView:
    """Return a merge-on-read table with one base file and that many log files on it."""
    first = (completed(0), commit(base("a", 5000)))
    return view(first, *((completed(2 * n), commit(log("a", 10))) for n in range(1, count + 1)), *more, plans=plans)


# --- log compaction --------------------------------------------------------------------------------------------


def test_log_compaction_is_due_by_the_log_files_of_one_file_slice() -> None:
    assert find(Service.LOGCOMPACTION, logs(2)).verdict is Verdict.NOT_DUE
    due = find(Service.LOGCOMPACTION, logs(3))
    assert (due.verdict, due.mode) == (Verdict.DUE, Mode.SCHEDULE_AND_EXECUTE)
    assert dict(due.options) == {"hoodie.log.compaction.blocks.threshold": "3"}
    assert find(Service.LOGCOMPACTION, logs(4)).key_instant == due.key_instant


def test_log_compaction_that_merged_them_is_not_due_again() -> None:
    merged = (completed(20), commit(log("a", 30), operation="LOG_COMPACT"))
    decision = find(Service.LOGCOMPACTION, logs(5, more=(merged,)))
    assert decision.verdict is Verdict.NOT_DUE
    assert decision.evidence["most_log_files"] == 1
    assert decision.evidence["last_merge"] == at(20)
    # Its own log file is counted once, and it is no commit that waits for compaction.
    compaction = find(Service.COMPACTION, logs(5, more=(merged,)))
    assert (compaction.evidence["delta_commits"], compaction.evidence["log_bytes"]) == (6, 30)


def test_log_compaction_by_age_wants_more_than_one_log_file() -> None:
    policy = POLICY.replace(logcompaction=LogCompactionPolicy(enabled=True, log_files=None, max_age_s=50))
    assert find(Service.LOGCOMPACTION, logs(1), policy).verdict is Verdict.NOT_DUE
    due = find(Service.LOGCOMPACTION, logs(2), policy)
    assert due.verdict is Verdict.DUE
    assert dict(due.options) == {"hoodie.log.compaction.blocks.threshold": "2"}


@pytest.mark.parametrize(
    ("version", "verdict"), [pytest.param("6", Verdict.NOT_DUE, id="6"), pytest.param("9", Verdict.DUE, id="9")]
)
def test_log_compaction_of_old_tables_waits_for_rollbacks_to_leave(version: str, verdict: Verdict) -> None:
    table = logs(5)
    rolled_back = replace(
        table,
        timeline=Timeline((*table.timeline.instants, completed(12, Action.ROLLBACK))),
        properties=replace(table.properties, version=int(version)),
    )
    decision = find(Service.LOGCOMPACTION, rolled_back)
    assert decision.verdict is verdict, decision.reason
    assert ("took back every block" in decision.reason) == (version == "6")


@pytest.mark.parametrize(
    ("plan", "rules"),
    [
        pytest.param((pending(30, Action.COMPACTION),), 100, id="pending"),
        pytest.param((), 3, id="due"),
    ],
)
def test_log_compaction_gives_way_to_compaction(plan: tuple[Any, ...], rules: int) -> None:
    policy = POLICY.replace(compaction=CompactionPolicy(delta_commits=rules))
    assert find(Service.COMPACTION, logs(5, plans=plan), policy).verdict is Verdict.DUE
    decision = find(Service.LOGCOMPACTION, logs(5, plans=plan), policy)
    assert decision.verdict is Verdict.NOT_DUE
    assert "compaction comes first" in decision.reason


def test_compaction_waits_for_a_log_compaction_that_it_would_strand() -> None:
    plan = pending(30, Action.LOGCOMPACTION)
    policy = POLICY.replace(compaction=CompactionPolicy(delta_commits=3))
    table = logs(5, plans=(plan,))
    assert f"log compaction {at(30)} comes first" in find(Service.COMPACTION, table, policy).reason
    executed = find(Service.LOGCOMPACTION, table, policy)
    assert (executed.verdict, executed.mode, executed.plan_instants) == (Verdict.DUE, Mode.EXECUTE, (at(30),))
    # What others left is executed as well, though none would be planned.
    unset = policy.replace(logcompaction=LogCompactionPolicy())
    assert f"log compaction {at(30)} comes first" in find(Service.COMPACTION, table, unset).reason
    assert find(Service.LOGCOMPACTION, table, unset).plan_instants == (at(30),)
    assert "logcompaction.enabled requests no new plans" in find(Service.LOGCOMPACTION, logs(5), unset).reason
    # No process executes it while the service is off, so nothing waits for it.
    off = policy.replace(logcompaction=LogCompactionPolicy(enabled=False))
    assert find(Service.COMPACTION, table, off).verdict is Verdict.DUE
    assert "switched off" in find(Service.LOGCOMPACTION, table, off).reason


@pytest.mark.parametrize("newer", [pending(40, Action.COMPACTION), completed(40, Action.COMMIT)], ids=["plan", "done"])
def test_overtaken_log_compaction_is_left_to_the_doctor(newer: Any) -> None:
    table = logs(5, plans=(pending(30, Action.LOGCOMPACTION), newer))
    decision = find(Service.LOGCOMPACTION, table)
    assert decision.verdict is Verdict.NOT_DUE
    assert at(40) in decision.reason
    assert "airflow lake doctor" in decision.reason


ACTIONS = st.sampled_from([Action.DELTACOMMIT, Action.COMMIT, Action.COMPACTION, Action.LOGCOMPACTION, Action.CLEAN])


@given(
    plans=st.dictionaries(st.integers(10, 59), st.tuples(ACTIONS, st.sampled_from(State)), max_size=6),
    count=st.integers(1, 5),
    deltas=st.integers(1, 6),
)
def test_the_two_compactions_never_plan_next_to_each_other(
    plans: dict[int, tuple[Action, State]], count: int, deltas: int
) -> None:
    """Whatever is on the timeline: no new plan of one kind while the other has one that could still be executed."""
    services = {Action.COMPACTION, Action.LOGCOMPACTION}
    instants = tuple(
        completed(second, action)
        if state is State.COMPLETED and action not in services
        else pending(second, action, State.INFLIGHT if state is State.INFLIGHT else State.REQUESTED)
        for second, (action, state) in plans.items()
    )
    table = logs(count, plans=instants)
    policy = POLICY.replace(compaction=CompactionPolicy(delta_commits=deltas))
    found = {decision.service: decision for decision in decide(TableFacts(table), policy, NOW_MS)}
    compaction, merge = found[Service.COMPACTION], found[Service.LOGCOMPACTION]
    if merge.verdict is Verdict.DUE and merge.mode in NEW:
        assert compaction.verdict is Verdict.NOT_DUE
        assert not table.timeline.pending(Action.COMPACTION)
    if compaction.verdict is Verdict.DUE and compaction.mode in NEW:
        left = table.timeline.pending(Action.LOGCOMPACTION)
        assert all(table.timeline.overtaking(plan) is not None for plan in left)
    for plan in merge.plan_instants:
        (instant,) = (i for i in table.timeline.instants if i.requested_time == plan and i.action == "logcompaction")
        assert table.timeline.overtaking(instant) is None


# --- rollback of failed writes ---------------------------------------------------------------------------------


def failed(*seconds: int, beats: dict[str, int] | None = MappingProxyType({}), **properties: Any) -> TableView:
    plans = tuple(pending(second, Action.COMMIT, State.INFLIGHT) for second in seconds)
    table = cow(3, plans=plans)
    return replace(table, properties=replace(table.properties, **properties), heartbeats_ms=beats)


def test_rollback_is_due_for_writes_whose_heartbeat_ended_and_names_each() -> None:
    # The heartbeat of Hudi ends two minutes after the last beat.
    now_ms = NOON_MS + 200_000
    beats = {at(10): NOON_MS + 10_000, at(11): now_ms - 60_000, at(12): NOON_MS + 12_000}
    due = find(Service.ROLLBACK, failed(10, 11, 12, beats=beats), now_ms=now_ms)
    assert (due.verdict, due.mode, due.plan_instants) == (Verdict.DUE, Mode.EXECUTE, (at(10), at(12)))
    assert due.key_instant == at(10)


HOUR_MS = 3_600_000


@pytest.mark.parametrize("after_s", [30.0, 7200.0])
@pytest.mark.parametrize("enabled", [True, False])
def test_write_without_heartbeat_is_never_taken_back_and_blocks_every_service(enabled: bool, after_s: float) -> None:
    """Single-writer mode sends no heartbeat: a living commit of an hour seems one that its dead writer left."""
    policy = POLICY.replace(rollback=RollbackPolicy(enabled=enabled, after_s=after_s))
    table = replace(cow(9, plans=(pending(30, Action.COMMIT),)), heartbeats_ms=MappingProxyType({}))
    decided = decide(TableFacts(table), policy, NOW_MS + HOUR_MS)
    assert not [decision for decision in decided if decision.verdict is Verdict.DUE]
    blocked = {decision.service: decision for decision in decided if decision.verdict is Verdict.BLOCKED}
    assert Service.CLEAN in blocked
    assert (Service.ROLLBACK in blocked) == (enabled and after_s < 3600)
    for decision in blocked.values():
        assert f"the write {at(30)} is in flight without a heartbeat" in decision.reason
        assert "hoodie.write.concurrency.mode" in decision.reason
        # When its heartbeat is gone because it has just completed, no notice has to announce that.
        assert decision.evaluate_again_ms is not None


def test_write_without_heartbeat_blocks_the_rollback_of_others_too() -> None:
    table = failed(10, 11, beats={at(10): NOON_MS + 10_000})
    decision = find(Service.ROLLBACK, table, now_ms=NOW_MS + HOUR_MS)
    assert decision.verdict is Verdict.BLOCKED
    assert f"the write {at(11)} is in flight without a heartbeat" in decision.reason


def test_rollback_leaves_young_writes_alone_and_says_when_to_check_again() -> None:
    decision = find(Service.ROLLBACK, failed(40, 50))
    assert (decision.verdict, decision.evaluate_again_ms) == (Verdict.NOT_DUE, NOON_MS + 70_000)


def test_rollback_of_what_lives_or_was_not_asked_for_is_not_due() -> None:
    alive = find(Service.ROLLBACK, failed(10, beats={at(10): NOW_MS - 1000}))
    assert (alive.verdict, alive.evaluate_again_ms) == (Verdict.NOT_DUE, NOW_MS + 120_000)
    assert "lives" in alive.reason
    assert find(Service.ROLLBACK, failed(10, beats=None)).verdict is Verdict.NOT_DUE


def test_rollback_that_died_after_it_deleted_the_write_is_gone_on_with() -> None:
    """Hudi deletes the write's instants before it completes the rollback: no write is pending any more."""
    table = cow(3, plans=(pending(20, Action.ROLLBACK, State.INFLIGHT),))
    due = find(Service.ROLLBACK, table)
    assert (due.verdict, due.plan_instants, due.key_instant) == (Verdict.DUE, (at(20),), at(20)), due.reason
    assert f"rollback {at(20)}: begun, and not completed" in due.reason
    young = find(Service.ROLLBACK, cow(3, plans=(pending(50, Action.ROLLBACK, State.INFLIGHT),)))
    assert (young.verdict, young.evaluate_again_ms) == (Verdict.NOT_DUE, NOON_MS + 80_000)


def test_rollback_comes_first_and_cleaning_waits_for_it() -> None:
    table = replace(
        cow(9, plans=(pending(30, Action.COMMIT), pending(31, Action.CLUSTERING))),
        heartbeats_ms=MappingProxyType({at(30): NOON_MS - 120_000}),
    )
    ranked = decide(TableFacts(table), POLICY, NOW_MS)
    assert ranked[0].service is Service.ROLLBACK
    assert (
        "the rollback of failed writes comes first"
        in find(Service.CLEAN, replace(failed(10, beats={at(10): NOON_MS - 120_000}), commits=table.commits)).reason
    )
    assert find(Service.CLEAN, cow(9)).verdict is Verdict.DUE


# --- partitions that expire ------------------------------------------------------------------------------------


def test_ttl_is_due_once_in_each_period_whatever_the_table_does() -> None:
    due = find(Service.TTL, cow(3))
    assert due.evaluate_again_ms is not None
    begin_ms, key = due.evaluate_again_ms - 3_600_000, due.key_instant
    assert (due.verdict, due.mode) == (Verdict.DUE, Mode.EXECUTE)
    assert begin_ms <= NOON_MS < begin_ms + 3_600_000
    assert find(Service.TTL, cow(3), now_ms=begin_ms).key_instant == key
    assert find(Service.TTL, cow(3), now_ms=begin_ms - 1).key_instant != key
    assert dict(due.options) == {
        "hoodie.partition.ttl.strategy.days.retain": "50",
        "hoodie.partition.ttl.strategy.max.delete.partitions": "1000",
    }
    assert find(Service.TTL, cow(9), now_ms=begin_ms + 3_599_999).key_instant == key
    assert find(Service.TTL, cow(3), now_ms=begin_ms + 3_600_000).key_instant != key


def test_ttl_of_many_tables_is_spread_over_the_period() -> None:
    tables = [replace(cow(3), base_path=f"/lake/{number}") for number in range(600)]
    ends_ms = [find(Service.TTL, table).evaluate_again_ms for table in tables]
    in_minutes = Counter(((end_ms or 0) - NOON_MS) // 60_000 for end_ms in ends_ms)
    assert max(in_minutes.values()) < 40
    assert len(in_minutes) == 60
    assert ends_ms == [find(Service.TTL, table).evaluate_again_ms for table in tables]


@pytest.mark.parametrize("action", [Action.COMPACTION, Action.LOGCOMPACTION, Action.CLUSTERING])
def test_ttl_waits_for_pending_plans_that_hold_files(action: Action) -> None:
    decision = find(Service.TTL, cow(3, plans=(pending(30, action),)))
    assert decision.verdict is Verdict.NOT_DUE
    assert f"pending {action} {at(30)}" in decision.reason


def test_ttl_of_a_table_that_did_not_ask_or_has_no_times_is_not_due() -> None:
    table = cow(3)
    assert "ttl.retained_days is not set" in find(Service.TTL, table, POLICY.replace(ttl=TtlPolicy())).reason
    flat = replace(table, properties=replace(table.properties, partition_fields=()))
    assert "not partitioned" in find(Service.TTL, flat).reason
    old = logs(2)
    old = replace(old, properties=replace(old.properties, version=6, layout=Layout.V1))
    assert "version 6" in find(Service.TTL, old).reason


ROWS = POLICY.replace(ttl=TtlPolicy(column="seen", column_days=90, column_unit="ms", check_every_s=3600))


def test_rows_expire_by_a_column_whatever_the_partitions_and_log_files_are() -> None:
    flat = replace(logs(2), properties=replace(logs(2).properties, partition_fields=(), version=6, layout=Layout.V1))
    due = find(Service.TTL, flat, ROWS)
    assert (due.verdict, due.mode) == (Verdict.DUE, Mode.EXECUTE)
    assert "rows whose seen is older than 90 days" in due.reason
    assert dict(due.options) == {
        "lake.ttl.column": "seen",
        "lake.ttl.column_days": "90",
        "lake.ttl.column_unit": "ms",
        "lake.ttl.column_mode": "delete",
        "lake.ttl.max_rows": "1000000",
        "lake.ttl.max_file_groups": "100",
    }


def test_rows_expire_next_to_a_pending_compaction_and_wait_for_a_clustering() -> None:
    assert find(Service.TTL, cow(3, plans=(pending(30, Action.COMPACTION),)), ROWS).verdict is Verdict.DUE
    waits = find(Service.TTL, cow(3, plans=(pending(30, Action.CLUSTERING),)), ROWS)
    assert waits.verdict is Verdict.NOT_DUE
    assert f"pending clustering {at(30)}" in waits.reason


# --- the metadata table ----------------------------------------------------------------------------------------


def with_metadata(count: int, *metadata: Any) -> TableView:
    table = cow(count, cleaned=2 * count)
    properties = replace(table.properties, metadata_partitions=("files",))
    return replace(table, properties=properties, metadata_timeline=Timeline(metadata))


@pytest.mark.parametrize(
    ("table", "verdict", "text"),
    [
        pytest.param(cow(9), Verdict.NOT_DUE, "no metadata table", id="none"),
        pytest.param(with_metadata(4), Verdict.NOT_DUE, "4 writes on the active timeline", id="short"),
        pytest.param(with_metadata(5), Verdict.DUE, "never compacted", id="never"),
        pytest.param(
            with_metadata(9, completed(9, Action.COMMIT)), Verdict.NOT_DUE, f"4 writes since it, {at(9)}", id="lately"
        ),
        pytest.param(
            with_metadata(9, completed(7, Action.COMMIT)), Verdict.DUE, f"5 writes since it, {at(7)}", id="behind"
        ),
        pytest.param(
            with_metadata(9, pending(3, Action.COMPACTION)), Verdict.DUE, f"its plan {at(3)} is pending", id="delegated"
        ),
    ],
)
def test_metadata_compaction_is_due_when_it_was_left_behind(table: TableView, verdict: Verdict, text: str) -> None:
    decision = find(Service.METACOMPACTION, table)
    assert decision.verdict is verdict
    assert text in decision.reason


def test_archiving_never_passes_the_metadata_tables_compaction() -> None:
    assert "there is none yet" in find(Service.ARCHIVE, with_metadata(9)).reason
    one = find(Service.ARCHIVE, with_metadata(9, completed(3, Action.COMMIT)))
    assert (one.verdict, one.evidence["archivable_writes"]) == (Verdict.DUE, 2)


# --- all of them -----------------------------------------------------------------------------------------------


def test_every_service_is_decided_once() -> None:
    services = [decision.service for decision in decide(TableFacts(logs(9)), POLICY, NOW_MS)]
    assert sorted(services) == sorted(DECIDED)


def test_all_asks_for_every_rule() -> None:
    policy = POLICY.replace(
        compaction=CompactionPolicy(delta_commits=3, log_to_base_ratio=None, max_age_s=58, combine="all")
    )
    waiting = find(Service.COMPACTION, logs(5), policy)
    assert (waiting.verdict, waiting.evaluate_again_ms) == (Verdict.DUE, None)
    later = policy.replace(compaction=policy.compaction.replace(max_age_s=100))
    young = find(Service.COMPACTION, logs(5), later)
    assert (young.verdict, young.evaluate_again_ms) == (Verdict.NOT_DUE, NOON_MS + 101_000)
    any_rule = policy.replace(compaction=later.compaction.replace(combine="any"))
    assert find(Service.COMPACTION, logs(5), any_rule).verdict is Verdict.DUE


# --- A service that is paused -----------------------------------------------------------------------------------


@pytest.mark.parametrize("service", list(Service))
def test_paused_service_is_not_due_says_by_whom_and_keeps_its_evidence(service: Service) -> None:
    table = logs(7, plans=(pending(40, Action.CLUSTERING), pending(50, Action.CLEAN)))
    paused = POLICY.replace(**{service.value: getattr(POLICY, service.value).replace(paused="ada: a backfill")})
    before, after = find(service, table), find(service, table, paused)
    assert after.verdict is Verdict.NOT_DUE
    said = "" if before.verdict is Verdict.NOT_DUE else f"else {before.verdict}: "
    assert after.reason == f"paused by ada: a backfill; {said}{before.reason}"
    assert after.evidence == before.evidence
    others = [one for one in decide(TableFacts(table), paused, NOW_MS) if one.service is not service]
    assert not any("paused" in one.reason for one in others)


def test_pause_with_an_end_asks_for_an_evaluation_then_and_is_over_from_then_on() -> None:
    clean = POLICY.clean.replace(paused="ada", paused_until=at_utc(NOW_MS + 60_000))
    paused = find(Service.CLEAN, cow(9), POLICY.replace(clean=clean))
    assert (paused.verdict, paused.reason[:14]) == (Verdict.NOT_DUE, "paused by ada;")
    assert paused.evaluate_again_ms == NOW_MS + 60_000
    over = clean.replace(paused_until=at_utc(NOW_MS))
    assert find(Service.CLEAN, cow(9), POLICY.replace(clean=over)).reason == find(Service.CLEAN, cow(9)).reason


def at_utc(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat()


def test_clean_does_not_wait_for_a_rollback_that_is_paused() -> None:
    plans = (pending(30, Action.COMMIT, State.INFLIGHT),)
    table = replace(cow(9, plans=plans), heartbeats_ms=MappingProxyType({at(30): NOON_MS - 120_000}))
    assert find(Service.ROLLBACK, table).verdict is Verdict.DUE
    assert "the rollback of failed writes comes first" in find(Service.CLEAN, table).reason
    paused = POLICY.replace(rollback=POLICY.rollback.replace(paused="ada"))
    assert find(Service.CLEAN, table, paused).verdict is Verdict.DUE
