"""Early conflict detection for a service's task: a check before the job, a watch during it, a plan that gave way."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from pydantic import ValidationError

from airflow_lake_provider.config.kinds import describe
from airflow_lake_provider.config.service_policies import ConflictPolicy
from airflow_lake_provider.conflict.activity import open_conflict_table
from airflow_lake_provider.conflict.admission import (
    GO_UNCHECKED,
    Admission,
    AdmissionVerdict,
    ask_admission,
    find_pending_plans,
    needs_admission,
    needs_watch,
)
from airflow_lake_provider.conflict.service_watch import ServiceWatch
from airflow_lake_provider.errors import LakeError, ServiceFailedError, ServiceRefusedError
from airflow_lake_provider.execution.engines.job_files import read_result
from airflow_lake_provider.job_contract import EXECUTOR_ENDED, WRITERS_FIRST, FailureKind, Mode, Outcome, Service
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.planner.verdict import judge
from airflow_lake_provider.shared.actions import Action
from airflow_lake_provider.timeline_server.cache import SharedTimelines

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from airflow_lake_provider.conflict.service_watch import ServiceConflict
    from airflow_lake_provider.execution.engines.engine import EngineJob
    from airflow_lake_provider.hudi.commit_metadata import CommitMetadata
    from airflow_lake_provider.hudi.timeline import Timeline
    from airflow_lake_provider.job_contract import JobRequest, ServiceRequest, ServiceResult
    from airflow_lake_provider.storage.table_storage import Storage

log = logging.getLogger(__name__)


class ServiceAdmission:
    """Early conflict detection on one table, for a service's task."""

    def __init__(
        self,
        base_path: str,
        open_table: Callable[[str], Storage],
        policy: ConflictPolicy,
        options: Mapping[str, str],
        spark_conf: Mapping[str, str],
    ) -> None:
        self._base_path = base_path
        self._open_table = open_table
        self._table = open_conflict_table(open_table(base_path), options, spark_conf)
        self.policy = policy

    def check(self, wanted: ServiceRequest) -> Admission:
        """Return whether the service may begin now. Raises what reading the table raises."""
        if not needs_admission(wanted.service, wanted.mode, self.policy):
            return GO_UNCHECKED
        now_ms = int(time.time() * 1000)
        service = wanted.service
        plans = wanted.instants
        if not plans and wanted.mode is not Mode.SCHEDULE:
            plans = find_pending_plans(self._table, service, now_ms)
        return ask_admission(service, self._table, self._commits(service), plans, self.policy, now_ms)

    def watch(self, wanted: ServiceRequest) -> ServiceWatch | None:
        """Return the watch of the service while it runs; None where no writer can get in its way."""
        if not needs_watch(wanted.service, wanted.mode, self.policy):
            return None
        return ServiceWatch(self._table, self.policy, wanted.instants)

    def _commits(self, service: Service) -> Mapping[str, CommitMetadata]:
        if service is not Service.CLUSTERING:
            return {}
        return TableViewCache(SharedTimelines(open_table=self._open_table)).refresh(self._base_path).commits


def narrow(wanted: ServiceRequest, admission: Admission) -> ServiceRequest:
    """Return the request as admitted: in all partitions, in fewer, or as the withdrawal of its plan.

    The job asks once more when it plans: until Spark has started, other writers may have begun.
    """
    if admission is GO_UNCHECKED:
        return wanted
    if admission.verdict is AdmissionVerdict.SHRINK:
        wanted = replace(wanted, options=MappingProxyType({**wanted.options, **admission.options}))
    if admission.withdraw:
        return replace(wanted, mode=Mode.WITHDRAW, instants=admission.withdraw)
    return replace(wanted, options=MappingProxyType({**wanted.options, WRITERS_FIRST: "true"}))


def parse_conflict_policy(settings: Mapping[str, str], base_path: str) -> ConflictPolicy:
    """Return the policy of an operator's argument, whose values templates render to text.

    The settings are those of the tables file. Raises ServiceRefusedError that names table and setting: a policy that
    is misread as "off" would fail writers.
    """
    known = ConflictPolicy()
    try:
        return ConflictPolicy.model_validate(
            {key: _read(text, getattr(known, key, "")) for key, text in settings.items()}
        )
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        mistake = describe(ConflictPolicy, wrong, lambda place: settings[str(place[-1])], "conflict")
        raise ServiceRefusedError(f"table {base_path}: conflict: {mistake}") from error


def _read(text: str, example: object) -> bool | float | str:
    """Parse a text to the type of an example; return the text itself when that fails."""
    plain = text.strip()
    if isinstance(example, bool):
        return {"true": True, "false": False}.get(plain.lower(), text)
    if isinstance(example, float):
        try:
            return float(plain)
        except ValueError:
            return text
    return plain


# --- A thread that watches for writers while a service runs, and stops the service for them

STOP_AGAIN_AFTER_S = 1.0


class ConflictWatch:
    """Checks each `period_s`, first after `initial_delay_s`; after a conflict it calls `stop` until the block ends.

    `conflict` is the result. Without a `watch` it does nothing.
    """

    def __init__(
        self, watch: ServiceWatch | None, stop: Callable[[], None], period_s: float, initial_delay_s: float
    ) -> None:
        self._watch = watch
        self._stop = stop
        self._period_s = period_s
        self._initial_delay_s = initial_delay_s
        self._left = threading.Event()
        self._thread: threading.Thread | None = None
        self.conflict: ServiceConflict | None = None

    def __enter__(self) -> ConflictWatch:
        if self._watch is not None:
            self._thread = threading.Thread(
                target=self._run, args=(self._watch,), name="lake-conflict-watch", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, watch: ServiceWatch) -> None:
        pause_s = self._initial_delay_s
        while not self._left.wait(pause_s):
            pause_s = self._period_s
            try:
                self.conflict = watch.check(int(time.time() * 1000))
            except LakeError as error:
                log.warning("the watch cannot read the table's writers for now: %s", error)
            except Exception:
                # The outermost loop of a thread: a strategy of another package may raise anything, and a watch that
                # ended by it would leave the service unwatched without an error.
                log.exception("the watch failed; it checks again in %s s", self._period_s)
            if self.conflict is not None:
                # The job may still be starting, when there is nothing to stop yet: so this stops it repeatedly.
                self._try_to_stop()
                while not self._left.wait(STOP_AGAIN_AFTER_S):
                    self._try_to_stop()
                return

    def _try_to_stop(self) -> None:
        try:
            self._stop()
        except Exception:
            log.exception("the service was not stopped; the next try follows in %s s", STOP_AGAIN_AFTER_S)


# --- A clustering plan that gave way to a writer: removed from the timeline, or the reason why it is still there
#
# While it is pending Hudi refuses updates of its file groups, and a plan that lost to a writer's commit loses again
# with every try. The timeline judges (G3): neither the job's result nor its end shows whether the plan still exists.

_EXECUTES = frozenset({Mode.EXECUTE, Mode.SCHEDULE_AND_EXECUTE})


@dataclass(frozen=True, slots=True)
class LostPlan:
    """A plan that gave way to a writer, and why. `is_stopped`: its executor was stopped for the writer."""

    plan: str
    why: str
    is_stopped: bool


@dataclass(frozen=True, slots=True)
class PlanWithdrawal:
    """The clustering plans of one table before a try's job. `read_timeline` reads the table's timeline again."""

    before: Timeline
    read_timeline: Callable[[], Timeline]

    def find_lost(self, ran: JobRequest, conflict: ServiceConflict | None, ran_s: float) -> LostPlan | None:
        """Return the plan that gave way: to a writer that the watch found, or at its own commit. Raises LakeError."""
        if conflict is not None:
            return LostPlan(conflict.plan, conflict.describe(ran_s), is_stopped=True)
        (service,) = ran.services
        if service.service is not Service.CLUSTERING or service.mode not in _EXECUTES:
            return None
        result = _read_answer(ran)
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
        failure = ""
        try:
            if any(instant.requested_time in service.instants for instant in self.read_timeline().completed()):
                return None
            try:
                run_job(job)
            except LakeError as error:
                failure = f"; {error}"
            verdict = judge(self.before, self.read_timeline(), service, _read_answer(job.request))
        except LakeError as error:
            return f"{error}{failure}"
        if verdict.done:
            return "" if verdict.outcome is Outcome.COMPLETED else None
        return f"{verdict.reason}{failure}"

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


def _read_answer(request: JobRequest) -> ServiceResult | None:
    """Return what the job says of the one service of its request."""
    result = read_result(request.result_path)
    return None if result is None else result.find(request.services[0].service)
