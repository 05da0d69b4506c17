"""A clustering plan that a failed run left behind blocks writers: it is withdrawn, and not executed again."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from airflow_lake_provider.job_contract import ENDED_BEAT_MS, PLANNED_BEAT_MS, Mode, Service
from airflow_lake_provider.planner.decide import decide
from airflow_lake_provider.planner.facts import TableFacts
from airflow_lake_provider.planner.last_runs import NO_LAST_RUNS, LastRuns, RunEnd
from airflow_lake_provider.planner.rules import Decision, DecisionBasis, Verdict
from airflow_lake_provider.shared.actions import Action, State
from tests.support.service_tables import POLICY
from tests.unit.planner.views import NOW_MS, at, base, commit, completed, pending, view

HOUR_MS = 3_600_000
WRITES = [(completed(2 * n), commit(base(f"f{n}", 5))) for n in range(4)]


def ran(end: RunEnd, *, is_void: bool = False, runs: int = 1) -> LastRuns:
    due = Decision(Service.CLUSTERING, Verdict.DUE, "due", key_instant=at(1), basis=DecisionBasis("d", ""))
    last_runs = NO_LAST_RUNS
    for n in range(runs):
        last_runs = last_runs.started(due, f"t.clustering.{n}").ended(f"t.clustering.{n}", end, NOW_MS, is_void=is_void)
    return last_runs


def find(state: State, beat_ms: int | None, last_runs: LastRuns) -> Decision:
    table = view(*WRITES, plans=(pending(20, Action.CLUSTERING, state),))
    beats = {} if beat_ms is None else {at(20): beat_ms}
    facts = TableFacts(replace(table, heartbeats_ms=MappingProxyType(beats), touched_ms=MappingProxyType({})))
    later_ms = NOW_MS + 24 * HOUR_MS  # past all patience for plans of others
    decisions = decide(facts, POLICY, later_ms, last_runs)
    return next(decision for decision in decisions if decision.service is Service.CLUSTERING)


@pytest.mark.parametrize(
    ("state", "beat_ms", "last_runs", "mode"),
    [
        pytest.param(State.INFLIGHT, ENDED_BEAT_MS, ran(RunEnd.FAILED), Mode.WITHDRAW, id="failed"),
        pytest.param(State.REQUESTED, PLANNED_BEAT_MS, ran(RunEnd.FAILED), Mode.WITHDRAW, id="never-begun"),
        pytest.param(State.INFLIGHT, ENDED_BEAT_MS, NO_LAST_RUNS, Mode.EXECUTE, id="no-run-of-the-manager"),
        pytest.param(State.INFLIGHT, ENDED_BEAT_MS, ran(RunEnd.SUCCESS), Mode.EXECUTE, id="the-last-run-succeeded"),
        pytest.param(State.INFLIGHT, ENDED_BEAT_MS, ran(RunEnd.FAILED, is_void=True), Mode.EXECUTE, id="workers-died"),
        pytest.param(State.INFLIGHT, None, ran(RunEnd.FAILED), Mode.EXECUTE, id="of-another-process"),
        pytest.param(State.INFLIGHT, PLANNED_BEAT_MS, ran(RunEnd.FAILED), Mode.EXECUTE, id="begun-by-another-process"),
    ],
)
def test_plan_of_a_failed_run_is_withdrawn_and_that_of_others_is_not(
    state: State, beat_ms: int | None, last_runs: LastRuns, mode: Mode
) -> None:
    found = find(state, beat_ms, last_runs)
    assert (found.verdict, found.mode, found.plan_instants) == (Verdict.DUE, mode, (at(20),))
    assert ("t.clustering.0 failed in all its tries" in found.reason) == (mode is Mode.WITHDRAW)


def test_withdrawal_ends_no_row_of_failures() -> None:
    failed = ran(RunEnd.FAILED, runs=2)
    withdrawal = find(State.INFLIGHT, ENDED_BEAT_MS, failed)
    after = failed.started(withdrawal, "w").ended("w", RunEnd.SUCCESS, NOW_MS)
    assert (after.of[Service.CLUSTERING].failures, after.of[Service.CLUSTERING].is_withdrawal) == (2, True)
