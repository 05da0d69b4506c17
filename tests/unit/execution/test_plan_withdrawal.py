"""What becomes of a clustering plan that gave way to a writer, and what the failed try says of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from airflow_lake_provider.conflict.contention import Clash, ClashKind
from airflow_lake_provider.conflict.service_watch import ServiceConflict
from airflow_lake_provider.errors import EngineError, LeaseLostError, ServiceFailedError, StorageError
from airflow_lake_provider.execution.admission import LostPlan, PlanWithdrawal, withdrawal_of
from airflow_lake_provider.execution.engines.engine import EngineJob
from airflow_lake_provider.execution.engines.job_files import write_text
from airflow_lake_provider.hudi.instant import Layout
from airflow_lake_provider.hudi.timeline import Timeline, build_timeline
from airflow_lake_provider.job_contract import (
    EXECUTOR_ENDED,
    FailureKind,
    JobRequest,
    JobResult,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
    ServiceResult,
    to_json,
)
from airflow_lake_provider.planner.verdict import judge
from tests.support.engine_jobs import engine_job

PLAN, OTHER, WRITER = "20261121100000001", "20261121100000002", "20261121100000003"
CONFLICT = ServiceConflict(PLAN, (Clash(WRITER, "commit", ClashKind.MARKER, frozenset({b"Oslo/f1-0"})),), 7_000)
STOPPED = LostPlan(PLAN, CONFLICT.describe(12.0), is_stopped=True)
CLUSTER = ServiceRequest(Service.CLUSTERING, Mode.SCHEDULE_AND_EXECUTE)


@dataclass
class FakeTimeline:
    """Names of files; `error` is raised by the next read."""

    names: set[str] = field(default_factory=lambda: {f"{PLAN}.clustering.requested", f"{PLAN}.clustering.inflight"})
    error: Exception | None = None

    def read(self) -> Timeline:
        if self.error is not None:
            raise self.error
        return build_timeline(Layout.V2, sorted(self.names))

    def withdraw(self, plan: str) -> None:
        self.names = {name for name in self.names if not name.startswith(plan)}

    def complete(self, plan: str) -> None:
        self.names.add(f"{plan}_20261121100000009.replacecommit")


@pytest.fixture
def table() -> FakeTimeline:
    return FakeTimeline()


@pytest.fixture
def job(tmp_path: Path) -> EngineJob:
    return engine_job(tmp_path, wanted=CLUSTER)


def give_way(table: FakeTimeline, job: EngineJob, run_job: Callable[[EngineJob], object]) -> JobRequest:
    return PlanWithdrawal(Timeline(), table.read).give_way(STOPPED, job.request, job, run_job)


def says(request: JobRequest, result: ServiceResult) -> None:
    write_text(request.result_path, to_json(JobResult(request.job_id, (result,))))


def never(job: EngineJob) -> None:
    raise AssertionError("nothing is to be withdrawn")


def test_plan_that_is_withdrawn_is_said_to_be(table: FakeTimeline, job: EngineJob) -> None:
    with pytest.raises(ServiceFailedError) as raised:
        give_way(table, job, lambda _: table.withdraw(PLAN))
    assert str(raised.value) == (
        f"table /lake/orders: clustering {PLAN} is stopped after 12 s: commit {WRITER} is writing 1 file group: "
        "Oslo/f1-0. Hudi would reject that writer at its commit, where it would lose 7 s of work; the plan is "
        "withdrawn and will be made again"
    )
    assert raised.value.failure_kind == FailureKind.CONFLICT


def test_plan_that_stays_is_not_said_to_be_withdrawn(table: FakeTimeline, job: EngineJob) -> None:
    def fail(job: EngineJob) -> None:
        says(job.request, ServiceResult(Service.CLUSTERING, Outcome.FAILED, message="no lock"))

    with pytest.raises(ServiceFailedError, match=f"not withdrawn.*plan {PLAN} is still on the timeline; no lock$"):
        give_way(table, job, fail)


@pytest.mark.parametrize("error", [EngineError("no cluster"), LeaseLostError("the lease was lost")])
def test_failure_of_the_withdrawal_does_not_hide_the_conflict(
    table: FakeTimeline, job: EngineJob, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: EngineJob) -> None:
        assert CONFLICT.describe(12.0) in caplog.text, "said before the withdrawal begins"
        raise error

    with caplog.at_level(logging.WARNING), pytest.raises(ServiceFailedError) as raised:
        give_way(table, job, fail)
    assert CONFLICT.describe(12.0) in str(raised.value)
    assert f"the plan is not withdrawn, and while it is pending writers of its file groups fail: plan {PLAN}" in str(
        raised.value
    )
    assert str(raised.value).endswith(str(error))


def test_timeline_says_whether_the_plan_is_gone_whatever_the_engine_says(table: FakeTimeline, job: EngineJob) -> None:
    def withdraw_and_fail(_: EngineJob) -> None:
        table.withdraw(PLAN)
        raise EngineError("lost sight of the job")

    with pytest.raises(ServiceFailedError, match="the plan is withdrawn and will be made again"):
        give_way(table, job, withdraw_and_fail)


def test_timeline_that_cannot_be_read_is_no_withdrawal(table: FakeTimeline, job: EngineJob) -> None:
    table.error = StorageError("no answer")
    with pytest.raises(ServiceFailedError, match=r"is stopped after .* not withdrawn.* no answer"):
        give_way(table, job, never)


def test_clustering_that_completed_before_it_was_stopped_succeeds(table: FakeTimeline, job: EngineJob) -> None:
    table.complete(PLAN)
    request = give_way(table, job, never)
    verdict = judge(Timeline(), table.read(), request.services[0], None)
    assert (verdict.outcome, verdict.completed_instants) == (Outcome.COMPLETED, (PLAN,))


def test_clustering_that_completes_while_it_is_withdrawn_succeeds(table: FakeTimeline, job: EngineJob) -> None:
    request = give_way(table, job, lambda _: table.complete(PLAN))
    assert judge(Timeline(), table.read(), request.services[0], None).outcome is Outcome.COMPLETED


def test_other_plans_that_the_ended_job_left_open_are_still_wanted(table: FakeTimeline, job: EngineJob) -> None:
    table.names.add(f"{OTHER}.clustering.requested")
    before = table.read()
    table.complete(PLAN)
    request = PlanWithdrawal(before, table.read).give_way(STOPPED, job.request, job, never)
    verdict = judge(before, table.read(), request.services[0], None)
    assert (verdict.outcome, verdict.completed_instants) == (Outcome.FAILED, (PLAN,))
    assert OTHER in verdict.reason


@pytest.mark.parametrize("is_stopped", [True, False])
def test_withdrawal_says_whether_the_plans_executor_was_ended(job: EngineJob, *, is_stopped: bool) -> None:
    request = withdrawal_of(job.request, LostPlan(PLAN, "", is_stopped=is_stopped))
    (service,) = request.services
    assert (service.mode, service.instants) == (Mode.WITHDRAW, (PLAN,))
    assert dict(service.options) == ({EXECUTOR_ENDED: "true"} if is_stopped else {})
    assert request.result_path != job.request.result_path


@pytest.mark.parametrize(
    ("mode", "kind", "is_lost"),
    [
        pytest.param(Mode.SCHEDULE_AND_EXECUTE, FailureKind.CONFLICT, True, id="lost"),
        pytest.param(Mode.EXECUTE, FailureKind.CONFLICT, True, id="lost-as-somebody-elses-plan"),
        pytest.param(Mode.EXECUTE, FailureKind.OUT_OF_MEMORY, False, id="failed-otherwise"),
        pytest.param(Mode.EXECUTE, None, False, id="died-without-a-word"),
        pytest.param(Mode.SCHEDULE, FailureKind.CONFLICT, False, id="was-not-executed"),
        pytest.param(Mode.WITHDRAW, FailureKind.CONFLICT, False, id="is-withdrawn-already"),
    ],
)
def test_plan_that_lost_at_its_commit_is_found_by_what_the_job_said(
    table: FakeTimeline, tmp_path: Path, mode: Mode, kind: FailureKind | None, *, is_lost: bool
) -> None:
    request = engine_job(tmp_path, wanted=ServiceRequest(Service.CLUSTERING, mode)).request
    if kind is not None:
        result = ServiceResult(
            Service.CLUSTERING, Outcome.FAILED, scheduled_instants=(PLAN,), failure_kind=kind, message="Cannot resolve"
        )
        says(request, result)
    found = PlanWithdrawal(Timeline(), table.read).find_lost(request, None, 1.0)
    expected = LostPlan(PLAN, f"clustering {PLAN} lost to a writer at its commit: Cannot resolve", is_stopped=False)
    assert found == (expected if is_lost else None)


def test_first_plan_that_did_not_complete_is_the_one_that_lost(table: FakeTimeline, tmp_path: Path) -> None:
    table.names |= {f"{OTHER}.clustering.requested"}
    before = table.read()
    table.complete(PLAN)
    request = engine_job(tmp_path, wanted=CLUSTER).request
    says(request, ServiceResult(Service.CLUSTERING, Outcome.FAILED, (), (PLAN,), FailureKind.CONFLICT, "lost"))
    found = PlanWithdrawal(before, table.read).find_lost(request, None, 1.0)
    assert found is not None
    assert found.plan == OTHER


def test_conflict_that_the_watch_found_comes_first(table: FakeTimeline, job: EngineJob) -> None:
    assert PlanWithdrawal(Timeline(), table.read).find_lost(job.request, CONFLICT, 12.0) == STOPPED
