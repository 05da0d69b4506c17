"""How an index job is judged by the timeline."""

from __future__ import annotations

import pytest

from airflow_lake_provider.hudi.instant import Instant
from airflow_lake_provider.hudi.timeline import Timeline
from airflow_lake_provider.job_contract import (
    INDEX_DROP,
    FailureKind,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
    ServiceResult,
)
from airflow_lake_provider.planner.verdict import judge
from airflow_lake_provider.shared.actions import Action, State

OLD, NEW = "20261121100000000", "20261121110000000"


def plan(time: str, state: State = State.REQUESTED) -> Instant:
    return Instant(time, Action.INDEXING, state, time if state is State.COMPLETED else None, f"{time}.indexing")


DONE = plan(NEW, State.COMPLETED)
FAILED = ServiceResult(Service.INDEXING, Outcome.FAILED, failure_kind=FailureKind.CONFLICT, message="a writer")


@pytest.mark.parametrize(
    ("after", "result", "instants", "outcome", "completed"),
    [
        pytest.param(
            [plan(OLD, State.COMPLETED)], None, (), Outcome.COMPLETED, (OLD,), id="completed-whatever-was-said"
        ),
        pytest.param([plan(OLD, State.INFLIGHT)], FAILED, (), Outcome.FAILED, (), id="still-in-flight"),
        pytest.param(
            [DONE],
            ServiceResult(Service.INDEXING, Outcome.COMPLETED, (NEW,), (NEW,)),
            (OLD,),
            Outcome.COMPLETED,
            (NEW,),
            id="replaced-by-a-new-plan",
        ),
        pytest.param(
            [],
            ServiceResult(Service.INDEXING, Outcome.NOTHING_TO_DO, message="record_index is complete"),
            (),
            Outcome.NOTHING_TO_DO,
            (),
            id="removed-because-the-index-is-there",
        ),
        pytest.param([], None, (), Outcome.FAILED, (), id="died-without-a-trace"),
    ],
)
def test_verdict(
    after: list[Instant],
    result: ServiceResult | None,
    instants: tuple[str, ...],
    outcome: Outcome,
    completed: tuple[str, ...],
) -> None:
    request = ServiceRequest(Service.INDEXING, Mode.EXECUTE, instants)
    found = judge(Timeline((plan(OLD),)), Timeline(tuple(after)), request, result)
    assert (found.outcome, found.completed_instants) == (outcome, completed)


@pytest.mark.parametrize(
    ("mode", "after", "result"),
    [
        pytest.param(
            Mode.SCHEDULE_AND_EXECUTE,
            plan(OLD, State.COMPLETED),
            ServiceResult(
                Service.INDEXING, Outcome.FAILED, (), (OLD,), FailureKind.OTHER, message="column_stats is damaged"
            ),
            id="another-index-is-damaged",
        ),
        pytest.param(
            Mode.SCHEDULE,
            plan(NEW),
            ServiceResult(
                Service.INDEXING, Outcome.FAILED, (NEW,), (), FailureKind.OTHER, message="column_stats is damaged"
            ),
            id="another-index-got-no-plan",
        ),
    ],
)
def test_failure_is_reported_although_something_was_done(mode: Mode, after: Instant, result: ServiceResult) -> None:
    before = Timeline((plan(OLD),))
    found = judge(before, Timeline((after,)), ServiceRequest(Service.INDEXING, mode), result)
    assert (found.outcome, found.failure_kind) == (Outcome.FAILED, FailureKind.OTHER)
    assert after.requested_time in found.reason
    assert "column_stats is damaged" in found.reason
    assert found.completed_instants == result.completed_instants


@pytest.mark.parametrize(
    ("result", "outcome", "reason"),
    [
        (
            ServiceResult(Service.INDEXING, Outcome.COMPLETED, message="x was dropped"),
            Outcome.COMPLETED,
            "x was dropped",
        ),
        (ServiceResult(Service.INDEXING, Outcome.NOTHING_TO_DO, message="no x"), Outcome.NOTHING_TO_DO, "no x"),
        (FAILED, Outcome.FAILED, "a writer"),
        (None, Outcome.FAILED, "this run of indexing reported no end"),
    ],
)
def test_drop_is_judged_by_its_report_whatever_plans_are_pending(
    result: ServiceResult | None, outcome: Outcome, reason: str
) -> None:
    before = Timeline((plan(OLD),))
    request = ServiceRequest(Service.INDEXING, Mode.SCHEDULE_AND_EXECUTE, options={INDEX_DROP: "true"})
    found = judge(before, before, request, result)
    assert (found.outcome, reason in found.reason) == (outcome, True)
