"""Plans of others: left to their executors, which give Hudi's timeline no sign of life but their files."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from airflow_lake_provider.config.policies import DoctorPolicy, TablePolicy
from airflow_lake_provider.config.service_policies import (
    ArchivePolicy,
    CleanPolicy,
    ClusteringPolicy,
    CompactionPolicy,
    LogCompactionPolicy,
)
from airflow_lake_provider.job_contract import ENDED_BEAT_MS, PLANNED_BEAT_MS, Mode, Service
from airflow_lake_provider.planner.decide import decide
from airflow_lake_provider.planner.facts import TableFacts
from airflow_lake_provider.planner.rules import Decision, Verdict
from airflow_lake_provider.planner.table_view import TableView
from airflow_lake_provider.shared.actions import Action, State
from tests.support.service_tables import LOCK, cow
from tests.unit.planner.views import NOON_MS, NOW_MS, at, base, commit, completed, log, pending, view

PLAN = 30
MADE_MS = NOON_MS + PLAN * 1000
POLICY = TablePolicy(
    compaction=CompactionPolicy(delta_commits=1),
    logcompaction=LogCompactionPolicy(enabled=True, log_files=2),
    clustering=ClusteringPolicy(enabled=True, commits=1),
    clean=CleanPolicy(commits=1, retained_commits=1),
    archive=ArchivePolicy(min_commits=2, max_commits=3),
    doctor=DoctorPolicy(stuck_after_s=600, unguarded_after_s=7200),
    hudi_options=LOCK,
)
SERVICES = {
    Action.COMPACTION: Service.COMPACTION,
    Action.LOGCOMPACTION: Service.LOGCOMPACTION,
    Action.CLUSTERING: Service.CLUSTERING,
    Action.CLEAN: Service.CLEAN,
}


def with_plan(action: Action, state: State) -> TableView:
    plan = pending(PLAN, action, state)
    if action in {Action.CLUSTERING, Action.CLEAN}:
        return cow(9, plans=(plan,))
    writes = ((completed(0), commit(base("a", 5000))), (completed(2), commit(log("a", 10))))
    return view(*writes, plans=(plan,))


def decided(action: Action, table: TableView, now_ms: int = NOW_MS) -> Decision:
    return next(found for found in decide(TableFacts(table), POLICY, now_ms) if found.service is SERVICES[action])


@pytest.mark.parametrize("action", SERVICES)
def test_plan_that_was_begun_is_left_to_its_executor_until_it_is_idle(action: Action) -> None:
    table = with_plan(action, State.INFLIGHT)
    waits = decided(action, table)
    assert (waits.verdict, waits.evaluate_again_ms) == (Verdict.NOT_DUE, MADE_MS + 7_200_000), waits.reason
    for word in (at(PLAN), "without a heartbeat", "doctor.unguarded_after_s"):
        assert word in waits.reason
    assert waits.evidence["pending_plans"] == at(PLAN)
    # Its markers were changed an hour after it began.
    touched_ms = MADE_MS + 3_600_000
    works_on = replace(table, touched_ms=MappingProxyType({at(PLAN): touched_ms}))
    assert decided(action, works_on, MADE_MS + 7_200_000).evaluate_again_ms == touched_ms + 7_200_000
    left = decided(action, works_on, touched_ms + 7_200_000)
    assert (left.verdict, left.mode, left.plan_instants) == (Verdict.DUE, Mode.EXECUTE, (at(PLAN),)), left.reason


@pytest.mark.parametrize("action", SERVICES)
@pytest.mark.parametrize("state", [State.REQUESTED, State.INFLIGHT])
def test_plan_with_a_heartbeat_of_its_executor_needs_no_patience(action: Action, state: State) -> None:
    """Ours beat: one that was killed leaves its heartbeat behind, and the next run takes the plan up at once."""
    table = replace(with_plan(action, state), heartbeats_ms=MappingProxyType({at(PLAN): NOON_MS}))
    found = decided(action, table)
    assert (found.verdict, found.plan_instants) == (Verdict.DUE, (at(PLAN),)), found.reason


@pytest.mark.parametrize("action", SERVICES)
def test_heartbeat_that_only_says_who_made_a_plan_speaks_for_no_executor(action: Action) -> None:
    """A writer's own service executes what it finds pending."""
    mark = MappingProxyType({at(PLAN): PLANNED_BEAT_MS})
    begun = replace(with_plan(action, State.INFLIGHT), heartbeats_ms=mark)
    assert decided(action, begun).evaluate_again_ms == MADE_MS + 7_200_000
    requested = replace(with_plan(action, State.REQUESTED), heartbeats_ms=mark)
    assert decided(action, requested).plan_instants == (at(PLAN),)
    ended = replace(begun, heartbeats_ms=MappingProxyType({at(PLAN): ENDED_BEAT_MS}))
    assert decided(action, ended).plan_instants == (at(PLAN),)


@pytest.mark.parametrize("action", [Action.CLUSTERING, Action.CLEAN])
def test_plan_that_its_maker_goes_on_to_execute_is_left_to_it_for_a_while(action: Action) -> None:
    table = with_plan(action, State.REQUESTED)
    waits = decided(action, table)
    assert (waits.verdict, waits.evaluate_again_ms) == (Verdict.NOT_DUE, MADE_MS + 600_000), waits.reason
    for word in (at(PLAN), "belongs to another process", "doctor.stuck_after_s"):
        assert word in waits.reason
    assert decided(action, table, MADE_MS + 600_000).plan_instants == (at(PLAN),)


@pytest.mark.parametrize("action", [Action.COMPACTION, Action.LOGCOMPACTION])
def test_compaction_that_a_writer_planned_for_the_table_service_is_executed_at_once(action: Action) -> None:
    assert decided(action, with_plan(action, State.REQUESTED)).plan_instants == (at(PLAN),)


def test_clean_waits_for_all_plans_because_hudi_executes_them_in_one_call() -> None:
    table = cow(9, plans=(pending(20, Action.CLEAN), pending(PLAN, Action.CLEAN, State.INFLIGHT)))
    mixed = decided(Action.CLEAN, replace(table, heartbeats_ms=MappingProxyType({at(20): 0})))
    assert mixed.verdict is Verdict.NOT_DUE
    assert at(PLAN) in mixed.reason


def test_clustering_executes_what_it_may_and_leaves_the_other() -> None:
    table = cow(9, plans=(pending(20, Action.CLUSTERING), pending(PLAN, Action.CLUSTERING, State.INFLIGHT)))
    mixed = decided(Action.CLUSTERING, replace(table, heartbeats_ms=MappingProxyType({at(20): 0})))
    assert (mixed.verdict, mixed.plan_instants) == (Verdict.DUE, (at(20),))
