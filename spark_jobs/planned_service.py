"""What the services that leave a plan on the timeline have in common: compaction, clustering, clean, ..."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from failure_kind import causes_of, classify, describe
from hudi_table import (
    MERGE_ON_READ,
    PlanBusyError,
    TableLook,
    be_sole_executor,
    find_beat_ms,
    find_heartbeat_age_s,
    leave_expired_heartbeat,
    look_at_table,
    open_client,
    remove_heartbeat,
    requested_times,
    take_lock_once,
)
from index_hudi import find_hudi_problem
from job_contract import (
    PLANNED_BEAT_MS,
    FailureKind,
    JobRequest,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
    ServiceResult,
    find_lock_problem,
)
from progress import say
from py4j.protocol import Py4JJavaError
from retention import hold_back
from service_settings import ALWAYS, service_settings, wait_for_lock_without_end
from time_zone import find_zone_problem, take_zone_of_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession


class ServiceRefusedError(Exception):
    """This table cannot have this service with these settings; the table was not touched."""


@dataclass(frozen=True, slots=True)
class PlannedService:
    """What one service does its own way.

    `find_pending` returns requested times of plans that are not completed, oldest first; `find_completed` says in words
    what a completed instant did, None when it is not completed in this look. `schedule` gets Java's package
    `org.apache.hudi` and a client, and returns a Java Option of the new instant. `hudi_beats` tells that Hudi itself
    keeps executors apart.
    """

    service: Service
    find_pending: Callable[[TableLook], tuple[str, ...]]
    find_completed: Callable[[TableLook, str], str | None]
    schedule: Callable[[Any, Any], Any]
    execute: Callable[[Any, str], object]
    nothing_new: str
    hudi_beats: bool = False


@dataclass(frozen=True, slots=True)
class Visit:
    """A request on its way: the session, who asked for what, and the settings of every client that is opened."""

    spark: SparkSession
    job: JobRequest
    request: ServiceRequest
    settings: dict[str, str]
    first_look: TableLook

    def look(self) -> TableLook:
        """Read the table afresh."""
        return look_at_table(self.spark, self.job.base_path)

    def say(self, message: str) -> None:
        """Print one line about the table."""
        say(self.job.table_name, message)


@dataclass(frozen=True, slots=True)
class PlanFailure:
    """Why one plan was not executed."""

    instant: str
    kind: FailureKind
    message: str


def open_visit(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> Visit:
    """Look at the table and settle the settings. Raises ServiceRefusedError, NoTableError, or Py4JJavaError."""
    if request.mode is Mode.WITHDRAW and request.service is not Service.CLUSTERING:
        raise ServiceRefusedError(
            f"table {job.table_name} at {job.base_path}: only plans of {Service.CLUSTERING} are withdrawn"
        )
    options = {**job.hudi_options, **request.options}
    problem = find_lock_problem(options)
    if problem is not None:
        raise ServiceRefusedError(f"table {job.table_name} at {job.base_path}: {problem}")
    look = look_at_table(spark, job.base_path)
    take_zone_of_table(spark, look)
    problem = find_zone_problem(spark, look)
    if not problem and request.service is Service.INDEXING:
        problem = find_hudi_problem(spark, look)
    if problem:
        raise ServiceRefusedError(f"table {job.table_name} at {job.base_path}: {problem}")
    options = hold_back(
        request.service, options, requested_times(look.timeline.getCommitsTimeline().filterCompletedInstants())
    )
    settings = service_settings(request.service, options, look.table_version, look.metadata_partitions)
    return Visit(spark, job, request, settings, look)


def refuse_scheduling(job: JobRequest, why: str) -> ServiceRefusedError:
    """Return the error of a service that leaves no plan on the timeline."""
    return ServiceRefusedError(
        f"table {job.table_name} at {job.base_path}: {why}, there is no plan to schedule; use mode {Mode.EXECUTE} or "
        f"{Mode.SCHEDULE_AND_EXECUTE}"
    )


def require_merge_on_read(visit: Visit) -> None:
    """Raise ServiceRefusedError unless the table has log files."""
    if visit.first_look.table_type != MERGE_ON_READ:
        raise ServiceRefusedError(
            f"table {visit.job.table_name} at {visit.job.base_path} is {visit.first_look.table_type}; "
            f"only {MERGE_ON_READ} is compacted"
        )


def run_plans(visit: Visit, kind: PlannedService) -> ServiceResult:
    """Schedule, execute, or both.

    Running it twice is harmless: a plan that is completed counts as done, one that another try left inflight is taken
    up by Hudi, and nothing is scheduled while something is pending (unless only scheduling was asked for).
    Raises Py4JJavaError when scheduling fails.
    """
    look, request = visit.first_look, visit.request
    pending = kind.find_pending(look)
    visit.say(f"{look.base_path}, table version {look.table_version}, pending {', '.join(pending) or 'none'}")
    if request.mode is Mode.SCHEDULE:
        scheduled = _schedule(visit, kind)
        outcome = Outcome.SCHEDULED if scheduled else Outcome.NOTHING_TO_DO
        return ServiceResult(kind.service, outcome, scheduled_instants=scheduled)
    instants = request.instants or pending
    others = () if request.instants else _find_others(visit, kind, look)
    if others:
        return refuse_others(kind.service, others)
    if instants or request.mode is Mode.EXECUTE:
        return _execute(visit, kind, instants)
    scheduled = _schedule(visit, kind)
    return replace(_execute(visit, kind, scheduled), scheduled_instants=scheduled)


def refuse_others(service: Service, plans: Sequence[str]) -> ServiceResult:
    """Return the result of a request that met plans of other executors."""
    message = (
        f"{service} plan {', '.join(plans)} was made or begun by an executor without a heartbeat, which may be at "
        "work: a second one would destroy its files; name the plan in the request (instants) when no executor runs"
    )
    return ServiceResult(service, Outcome.FAILED, failure_kind=FailureKind.BUSY, message=message)


def is_ours(visit: Visit, instant: str, *, is_begun: bool) -> bool:
    """Return whether this service made a plan, or began it where it is begun: it leaves a heartbeat, dead or alive."""
    beat_ms = find_beat_ms(visit.spark, visit.job.base_path, instant)
    return beat_ms is not None and (beat_ms > PLANNED_BEAT_MS or not is_begun)


def _find_others(visit: Visit, kind: PlannedService, look: TableLook) -> tuple[str, ...]:
    """Return the pending plans that another executor may execute.

    Hudi keeps executors of compactions apart. Who asks to execute what is pending means what is only planned as well;
    who asks for a new plan does not mean one that came up meanwhile.
    """
    if kind.hudi_beats:
        return ()
    begun = frozenset(requested_times(look.timeline.filterInflights()))
    means_all = visit.request.mode is Mode.EXECUTE
    doubtful = [plan for plan in kind.find_pending(look) if plan in begun or not means_all]
    return tuple(plan for plan in doubtful if not is_ours(visit, plan, is_begun=plan in begun))


@contextmanager
def open_patient_client(visit: Visit) -> Iterator[Any]:
    """Open a client that waits for the table's lock without end, once the lock was had by the caller's own patience.

    A lock that cannot be had is found out before, and without harm (see `wait_for_lock_without_end`). Raises
    Py4JJavaError then.
    """
    with open_client(visit.spark, visit.job.base_path, visit.settings, ALWAYS) as client:
        take_lock_once(visit.spark, client)
    settings = wait_for_lock_without_end(visit.settings)
    with open_client(visit.spark, visit.job.base_path, settings, ALWAYS) as client:
        yield client


def seconds_since(started: float) -> str:
    """Print how long ago a time of the monotonic clock was."""
    return f"{time.monotonic() - started:.1f} s"


def _schedule(visit: Visit, kind: PlannedService) -> tuple[str, ...]:
    started = time.monotonic()
    visit.say("scheduling, as soon as the table's lock is free")
    with open_client(visit.spark, visit.job.base_path, visit.settings, ALWAYS) as client:
        found = kind.schedule(visit.spark._jvm.org.apache.hudi, client)
        instants = (str(found.get()),) if found.isPresent() else ()
    for instant in () if kind.hudi_beats else instants:
        # Says whose plan it is, should this driver die. Where it would look alive, this very job could not execute it.
        if not leave_expired_heartbeat(visit.spark, visit.job.base_path, instant, PLANNED_BEAT_MS):
            remove_heartbeat(visit.spark, visit.job.base_path, instant)
    said = instants[0] if instants else f"nothing: {kind.nothing_new}"
    visit.say(f"scheduled {said} in {seconds_since(started)}")
    return instants


def _execute(visit: Visit, kind: PlannedService, instants: Sequence[str]) -> ServiceResult:
    completed: list[str] = []
    failures: list[PlanFailure] = []
    for instant in instants:
        failure = _execute_plan(visit, kind, instant)
        if failure is None:
            completed.append(instant)
        else:
            visit.say(f"{kind.service} {instant} FAILED ({failure.kind}): {failure.message}")
            failures.append(failure)
    if failures:
        return ServiceResult(
            kind.service,
            Outcome.FAILED,
            completed_instants=tuple(completed),
            failure_kind=failures[0].kind,
            message="; ".join(f"{kind.service} {failure.instant}: {failure.message}" for failure in failures),
        )
    outcome = Outcome.COMPLETED if completed else Outcome.NOTHING_TO_DO
    return ServiceResult(kind.service, outcome, completed_instants=tuple(completed))


def _execute_plan(visit: Visit, kind: PlannedService, instant: str) -> PlanFailure | None:
    before = visit.look()
    if kind.find_completed(before, instant) is not None:
        visit.say(f"{kind.service} {instant} is completed already")
        return None
    if instant not in kind.find_pending(before):
        return _plan_gone(instant)
    started = time.monotonic()
    visit.say(f"{kind.service} {instant}: executing")
    failure = None
    try:
        _execute_with_hudi(visit, kind, instant)
    except (Py4JJavaError, PlanBusyError) as error:
        failure = _describe_failure(visit, kind, instant, error)
    # The timeline judges (G3): neither a returned call nor an exception says whether the instant is completed.
    after = visit.look()
    done = kind.find_completed(after, instant)
    if done is not None:
        if failure is not None and not kind.hudi_beats:
            remove_heartbeat(visit.spark, visit.job.base_path, instant)
        visit.say(f"{kind.service} {instant} completed in {seconds_since(started)}: {done}")
        return None
    if instant not in kind.find_pending(after):
        return _plan_gone(instant)
    return failure or PlanFailure(
        instant, FailureKind.OTHER, "Hudi returned without an error, but the timeline does not show it completed"
    )


def _execute_with_hudi(visit: Visit, kind: PlannedService, instant: str) -> None:
    with ExitStack() as stack:
        client = stack.enter_context(open_patient_client(visit))
        if not kind.hudi_beats:
            stack.enter_context(be_sole_executor(visit.spark, client, instant))
        kind.execute(client, instant)


def _describe_failure(
    visit: Visit, kind: PlannedService, instant: str, error: Py4JJavaError | PlanBusyError
) -> PlanFailure:
    causes = () if isinstance(error, PlanBusyError) else causes_of(error.java_exception)
    failure_kind = FailureKind.BUSY if isinstance(error, PlanBusyError) else classify(causes)
    message = describe(causes)
    if failure_kind is FailureKind.BUSY:
        age_s = find_heartbeat_age_s(visit.spark, visit.job.base_path, instant)
        seen = "its heartbeat has just ended" if age_s is None else f"its last heartbeat was {age_s:.0f} s ago"
        message = f"another executor has this plan, {seen}"
    elif failure_kind is FailureKind.OTHER:
        visit.say(f"{kind.service} {instant}: stack trace follows\n{error}")
    return PlanFailure(instant, failure_kind, message)


def _plan_gone(instant: str) -> PlanFailure:
    return PlanFailure(
        instant,
        FailureKind.PLAN_GONE,
        f"the plan {instant} is neither pending nor completed on the active timeline: it was removed, or archived",
    )
