"""A clustering plan that gave way to a writer: removed from the timeline, or the reason why it is still there.

While it is pending Hudi refuses updates of its file groups, and a plan that lost to a writer's commit loses again with
every try. The timeline judges (G3): neither the job's result nor its end shows whether the plan still exists.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import LakeError, ServiceFailedError
from airflow_lake_provider.execution.engines.job_files import read_result
from airflow_lake_provider.hudi.instant import Action
from airflow_lake_provider.job_contract import EXECUTOR_ENDED, FailureKind, Mode, Outcome, Service
from airflow_lake_provider.planner.verdict import judge

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_lake_provider.conflict.service_watch import ServiceConflict
    from airflow_lake_provider.execution.engines.engine import EngineJob
    from airflow_lake_provider.hudi.timeline import Timeline
    from airflow_lake_provider.job_contract import JobRequest, ServiceResult

log = logging.getLogger(__name__)


_EXECUTES = frozenset({Mode.EXECUTE, Mode.SCHEDULE_AND_EXECUTE})


@dataclass(frozen=True, slots=True)
class LostPlan:
    """A plan that gave way to a writer, and why. `is_stopped`: its executor was stopped for the writer."""

    plan: str
    why: str
    is_stopped: bool


@dataclass(frozen=True, slots=True)
class PlanWithdrawal:
    """The clustering plans of one table before a try's job. `read_timeline` reads the table's timeline anew."""

    before: Timeline
    read_timeline: Callable[[], Timeline]

    def find_lost(self, ran: JobRequest, conflict: ServiceConflict | None, ran_s: float) -> LostPlan | None:
        """Return the plan that gave way: to a writer that the watch found, or at its own commit. Raises LakeError."""
        if conflict is not None:
            return LostPlan(conflict.plan, conflict.describe(ran_s), is_stopped=True)
        (service,) = ran.services
        if service.service is not Service.CLUSTERING or service.mode not in _EXECUTES:
            return None
        result = _read_result(ran)
        if result is None or result.failure_kind is not FailureKind.CONFLICT:
            return None
        pending = frozenset(instant.requested_time for instant in self.read_timeline().pending(Action.CLUSTERING))
        # The kind is that of the first plan that failed.
        plan = next((name for name in (*self._plans_of(ran), *result.scheduled_instants) if name in pending), None)
        if plan is None:
            return None
        return LostPlan(plan, f"clustering {plan} lost to a writer at its commit: {result.message}", is_stopped=False)

    def give_way(
        self, lost: LostPlan, ran: JobRequest, job: EngineJob, run_job: Callable[[EngineJob], object]
    ) -> JobRequest:
        """Withdraw a lost plan, and raise ServiceFailedError with both facts.

        When the plan completed before the job could be stopped, it returns what to judge: a stopped job had no time to
        report which plan it had made.
        """
        # Logged before anything else can go wrong.
        log.warning("table %s: %s", job.request.base_path, lost.why)
        problem = self._withdraw(replace(job, request=withdrawal_of(job.request, lost)), run_job)
        if problem is None:
            (service,) = ran.services
            instants = tuple(dict.fromkeys((*self._plans_of(ran), lost.plan)))
            return replace(ran, services=(replace(service, instants=instants),))
        end = "the plan is withdrawn and will be made again"
        if problem:
            end = f"the plan is not withdrawn, and while it is pending writers of its file groups fail: {problem}"
        raise ServiceFailedError(f"table {job.request.base_path}: {lost.why}; {end}", FailureKind.CONFLICT)

    def _withdraw(self, job: EngineJob, run_job: Callable[[EngineJob], object]) -> str | None:
        """Return why the plan is still there, empty when it is removed, None when it has completed."""
        (service,) = job.request.services
        trouble = ""
        try:
            if any(instant.requested_time in service.instants for instant in self.read_timeline().completed()):
                return None
            try:
                run_job(job)
            except LakeError as error:
                trouble = f"; {error}"
            judgement = judge(self.before, self.read_timeline(), service, _read_result(job.request))
        except LakeError as error:
            return f"{error}{trouble}"
        if judgement.done:
            return "" if judgement.outcome is Outcome.COMPLETED else None
        return f"{judgement.reason}{trouble}"

    def _plans_of(self, ran: JobRequest) -> tuple[str, ...]:
        (service,) = ran.services
        pending = self.before.pending(Action.CLUSTERING)
        return service.instants or tuple(instant.requested_time for instant in pending)


def withdrawal_of(request: JobRequest, lost: LostPlan) -> JobRequest:
    """Return the request that removes a lost plan from the timeline."""
    (service,) = request.services
    options = MappingProxyType({EXECUTOR_ENDED: "true"} if lost.is_stopped else {})
    withdrawal = replace(service, mode=Mode.WITHDRAW, instants=(lost.plan,), options=options)
    return replace(request, services=(withdrawal,), result_path=f"{request.result_path}.withdrawal")


def _read_result(request: JobRequest) -> ServiceResult | None:
    result = read_result(request.result_path)
    return result.services[0] if result is not None and result.services else None
