"""Schedules and executes plans on the timeline, for the services that leave one: compaction, clustering, clean, ..."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from airflow_lake_provider.job_contract import (
    COMPACTIONS_PASS_FROM,
    PLANNED_BEAT_MS,
    FailureKind,
    Mode,
    Outcome,
    Service,
    ServiceResult,
)
from airflow_lake_provider.shared.partition_filter import find_partition_filter
from lake_jobs.driver.failure import classify, describe
from lake_jobs.hudi.metadata_writes import is_written_by_1_0
from lake_jobs.hudi.plan_path_rules import whole_paths
from lake_jobs.hudi.plan_paths import PlanOutsideError, require_inside
from lake_jobs.hudi.settings import ALWAYS
from lake_jobs.hudi.table import (
    LoadedTable,
    PlanBusyError,
    PlanGoneError,
    be_sole_executor,
    find_beat_ms,
    find_heartbeat_age_s,
    find_instant,
    hold_lock,
    leave_expired_heartbeat,
    leave_mark_of_end,
    open_client,
    remove_heartbeat,
    requested_times,
)
from lake_jobs.services.clean_plan_rules import PlanTakesNeededError
from lake_jobs.services.context import (
    ServiceContext,
    TableChangedError,
    act_under_lock,
    open_waiting_client,
    seconds_since,
)
from lake_jobs.services.living_writers import WriterInTheWayError, require_no_writer
from lake_jobs.services.writer_rules import asks_writers
from lake_jobs.services.writer_watch import give_way_to_writers
from lake_jobs.verify.execution import RowsDifferError, execute
from lake_jobs.verify.overtaken import PlanOvertakenError, require_current
from lake_jobs.verify.plan_inputs import GroupsGoneError, LogsCutError
from lake_jobs.verify.rewrite import RowsNotWrittenError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_WITHDRAWN = "; the plan is withdrawn"
_WITHDRAWING = frozenset({FailureKind.CONFLICT, FailureKind.REFUSED})
"""Failures by which a plan may leave the timeline."""


@dataclass(frozen=True, slots=True)
class PlannedService:
    """What one service does its own way.

    `find_pending` returns requested times of plans that are not completed, oldest first; `find_completed` describes
    what a completed instant did, None when this state does not show it completed. `schedule` gets Java's package
    `org.apache.hudi` and a client, and returns a Java Option of the new instant. `hudi_keeps_heartbeat`: Hudi itself
    keeps executors apart. `withdraw` takes a plan from the timeline, with what was written for it.
    """

    service: Service
    find_pending: Callable[[LoadedTable], tuple[str, ...]]
    find_completed: Callable[[LoadedTable, str], str | None]
    schedule: Callable[[Any, Any], Any]
    execute: Callable[[Any, str], object]
    nothing_new: str
    hudi_keeps_heartbeat: bool = False
    withdraw: Callable[[ServiceContext, Any, str], object] | None = None
    gives_way: bool = False
    """Its executions end for a writer that they would fail, and withdraw the plan."""
    is_begun_anew: bool = False
    """Hudi resumes no execution that failed: its plan is withdrawn at once, and made again."""
    read_plans: Callable[[ServiceContext, LoadedTable, str], dict[str, str]] | None = None
    """Returns the plans that executing this one executes, in Avro's JSON: those of them that name whole paths."""
    check_plans: Callable[[ServiceContext, Any], None] | None = None
    """Raises PlanTakesNeededError before a client executes plans that must never be executed."""
    find_hold: Callable[[ServiceContext, LoadedTable], str] | None = None
    """Returns why the pending plans must not be executed now, in words; empty when they may be."""


class PlanHeldError(Exception):
    """A plan would remove what a sink of replication still needs."""


@dataclass(frozen=True, slots=True)
class PlanFailure:
    """Why one plan was not executed."""

    instant: str
    kind: FailureKind
    message: str
    is_withdrawn: bool = False
    """The plan left the timeline because of it."""


def run_plans(context: ServiceContext, kind: PlannedService) -> ServiceResult:
    """Schedule, execute, or both.

    Running it twice is harmless: a plan that is completed counts as done, one that another try left inflight is resumed
    by Hudi, and nothing is scheduled while a plan is pending (unless the request only schedules).
    Raises Py4JJavaError when scheduling fails.
    """
    if context.request.mode is not Mode.EXECUTE or kind.gives_way:
        # Once: of some tables the answer is in the headers of files.
        context = replace(context, writers_first=_asks_writers(context, kind))
    state = context.first_state
    request = context.request
    pending = kind.find_pending(state)
    context.log_progress(
        f"{state.base_path}, table version {state.table_version}, pending {', '.join(pending) or 'none'}"
    )
    if request.mode is Mode.SCHEDULE:
        try:
            scheduled = _schedule(context, kind)
        except WriterInTheWayError as error:
            return _give_way(kind.service, error)
        outcome = Outcome.SCHEDULED if scheduled else Outcome.NOTHING_TO_DO
        return ServiceResult(kind.service, outcome, scheduled_instants=scheduled)
    instants = request.instants or pending
    others = () if request.instants else _find_others(context, kind, state)
    if others:
        return refuse_others(kind.service, others)
    if instants or request.mode is Mode.EXECUTE:
        return _execute(context, kind, instants)
    try:
        scheduled = _schedule(context, kind)
    except WriterInTheWayError as error:
        return _give_way(kind.service, error)
    return replace(_execute(context, kind, scheduled), scheduled_instants=scheduled)


def _give_way(service: Service, error: WriterInTheWayError) -> ServiceResult:
    return ServiceResult(service, Outcome.FAILED, failure_kind=FailureKind.CONFLICT, message=f"{error}")


def refuse_others(service: Service, plans: Sequence[str]) -> ServiceResult:
    """Return the result of a request that met plans of other executors."""
    message = (
        f"{service} plan {', '.join(plans)} was made or begun by an executor without a heartbeat, which may be at "
        "work: a second one would destroy its files; name the plan in the request (instants) when no executor runs"
    )
    return ServiceResult(service, Outcome.FAILED, failure_kind=FailureKind.BUSY, message=message)


def is_ours(context: ServiceContext, instant: str, *, is_begun: bool) -> bool:
    """Return whether this service made a plan, or began it where it is begun: it leaves a heartbeat, dead or alive."""
    beat_ms = find_beat_ms(context.spark, context.job.base_path, instant)
    return beat_ms is not None and (beat_ms > PLANNED_BEAT_MS or not is_begun)


def _find_others(context: ServiceContext, kind: PlannedService, state: LoadedTable) -> tuple[str, ...]:
    """Return the pending plans that another executor may execute.

    Hudi keeps executors of compactions apart. A request to execute what is pending includes plans that no executor
    began; a request for a new plan does not include one that appeared meanwhile.
    """
    if kind.hudi_keeps_heartbeat:
        return ()
    begun = _begun(state)
    includes_unbegun = context.request.mode is Mode.EXECUTE
    doubtful = [plan for plan in kind.find_pending(state) if plan in begun or not includes_unbegun]
    return tuple(plan for plan in doubtful if not is_ours(context, plan, is_begun=plan in begun))


def _schedule(context: ServiceContext, kind: PlannedService) -> tuple[str, ...]:
    started = time.monotonic()
    context.log_progress("scheduling, as soon as the table's lock is free")
    with open_client(context.spark, context.job.base_path, context.settings, ALWAYS) as client:
        plan = _plan_past_writers if context.writers_first else _plan
        instants = plan(context, kind, client)
    for instant in () if kind.hudi_keeps_heartbeat else instants:
        # It says whose plan this is, should this driver die. A fresh heartbeat would keep this very job from executing
        # it.
        if not leave_expired_heartbeat(context.spark, context.job.base_path, instant, PLANNED_BEAT_MS):
            remove_heartbeat(context.spark, context.job.base_path, instant)
    result = instants[0] if instants else f"nothing: {kind.nothing_new}"
    context.log_progress(f"scheduled {result} in {seconds_since(started)}")
    return instants


def _asks_writers(context: ServiceContext, kind: PlannedService) -> bool:
    state = context.first_state
    return asks_writers(
        kind.service,
        state.table_version,
        context.request.options,
        by_1_0=lambda: is_written_by_1_0(context.spark, state),
    )


def _plan(context: ServiceContext, kind: PlannedService, client: Any) -> tuple[str, ...]:
    found = kind.schedule(context.spark._jvm.org.apache.hudi, client)
    return (str(found.get()),) if found.isPresent() else ()


def _plan_past_writers(context: ServiceContext, kind: PlannedService, client: Any) -> tuple[str, ...]:
    """Plan unless a living writer would fail by it. Raises WriterInTheWayError, and then leaves no plan.

    The table's lock is held from the question to the plan.
    """
    partitions = find_partition_filter(context.settings).selected
    with act_under_lock(context, client) as (context, planner):
        require_no_writer(context, context.read_table_state(), partitions)
        plans = _plan(context, kind, planner)
        if kind.service is Service.COMPACTION and context.first_state.table_version < COMPACTIONS_PASS_FROM:
            # A write that has begun may append to the file slices of the plan, so that it must stay.
            return plans
        # Hudi before 1.2 puts a write on the timeline after it has released the lock.
        state = context.read_table_state()
        try:
            require_no_writer(context, state, partitions)
        except WriterInTheWayError:
            for plan in plans:
                remove_unbegun(state, plan)
            raise
        return plans


def remove_unbegun(state: LoadedTable, instant: str) -> None:
    """Remove a plan that no executor has begun. Hudi has no call for it; call it under the table's lock."""
    found = find_instant(state.timeline.filterInflightsAndRequested(), instant)
    if found is not None and found.isRequested():
        state.timeline.deletePending(found)


def _execute(context: ServiceContext, kind: PlannedService, instants: Sequence[str]) -> ServiceResult:
    completed: dict[str, str] = {}
    failures: list[PlanFailure] = []
    for instant in instants:
        ended = _execute_plan(context, kind, instant)
        if isinstance(ended, PlanFailure):
            context.log_progress(f"{kind.service} {instant} FAILED ({ended.kind}): {ended.message}")
            failures.append(ended)
            if ended.kind is FailureKind.REFUSED:
                break  # the table is blocked, the other plans as well
        else:
            completed[instant] = ended
    if failures:
        return ServiceResult(
            kind.service,
            Outcome.FAILED,
            completed_instants=tuple(completed),
            failure_kind=failures[0].kind,
            message="; ".join(f"{kind.service} {failure.instant}: {failure.message}" for failure in failures),
        )
    outcome = Outcome.COMPLETED if completed else Outcome.NOTHING_TO_DO
    proof = "; ".join(f"{instant}: {found}" for instant, found in completed.items() if found)
    return ServiceResult(kind.service, outcome, completed_instants=tuple(completed), message=proof)


def _execute_plan(context: ServiceContext, kind: PlannedService, instant: str) -> PlanFailure | str:
    """Execute a plan; return how much of what it rewrote was compared, in words, or why it is not completed."""
    context = context.refreshed_if_changed()
    before = context.first_state
    if kind.find_completed(before, instant) is not None:
        context.log_progress(f"{kind.service} {instant} is completed already")
        return ""
    if instant not in kind.find_pending(before):
        return _plan_gone(instant)
    started = time.monotonic()
    context.log_progress(f"{kind.service} {instant}: executing")
    tried = _try_plan(context, kind, instant, was_begun=instant in _begun(before))
    failure = tried if isinstance(tried, PlanFailure) else None
    # The timeline judges (G3): neither a returned call nor an exception says whether the instant is completed.
    after = context.read_table_state()
    done = kind.find_completed(after, instant)
    if done is not None:
        if failure is not None:
            remove_heartbeat(context.spark, context.job.base_path, instant)
        context.log_progress(f"{kind.service} {instant} completed in {seconds_since(started)}: {done}")
        return "" if isinstance(tried, PlanFailure) else tried
    if instant not in kind.find_pending(after):
        if failure is not None and (failure.is_withdrawn or failure.kind in _WITHDRAWING):
            return failure
        return _plan_gone(instant)
    return failure or PlanFailure(
        instant, FailureKind.OTHER, "Hudi returned without an error, but the timeline does not show it completed"
    )


def _try_plan(context: ServiceContext, kind: PlannedService, instant: str, *, was_begun: bool) -> PlanFailure | str:
    """Execute a plan; return how much was compared, in words, or the failure, by which the plan may be withdrawn."""
    try:
        return _execute_with_hudi(context, kind, instant, was_begun=was_begun)
    except (Py4JJavaError, PlanBusyError, PlanGoneError) as error:
        failure = _describe_failure(context, kind, instant, error)
        return _withdraw_failed(context, kind, failure) if kind.is_begun_anew else failure
    except (WriterInTheWayError, PlanOvertakenError) as error:
        return PlanFailure(instant, FailureKind.CONFLICT, f"{error}{_withdraw(context, kind, instant)}")
    except TableChangedError as error:
        return PlanFailure(instant, FailureKind.CONFLICT, f"{error}; the plan is still pending")
    except RowsNotWrittenError as error:
        failure = PlanFailure(instant, FailureKind.OTHER, f"{error}")
        return _withdraw_failed(context, kind, failure) if kind.is_begun_anew else failure
    except PlanHeldError as error:
        return PlanFailure(instant, FailureKind.CONFLICT, f"{error}{_take_back(context, instant)}")
    except (PlanOutsideError, PlanTakesNeededError) as error:
        if kind.service is Service.COMPACTION:
            # Log files of table version 6 are named after the plan: without it no reader would find them.
            return PlanFailure(instant, FailureKind.REFUSED, f"{error}; see which writer made the plan")
        return PlanFailure(instant, FailureKind.CONFLICT, f"{error}{drop_harmful(context, error.plan)}")
    except (GroupsGoneError, LogsCutError, RowsDifferError) as error:
        if isinstance(error, LogsCutError) and kind.service is Service.COMPACTION:
            # It harms nothing where it is, and is executed once the files are back.
            return PlanFailure(instant, FailureKind.REFUSED, f"{error}; the plan stays pending")
        end = FailureKind.CONFLICT if isinstance(error, GroupsGoneError) else FailureKind.REFUSED
        return PlanFailure(instant, end, f"{error}{_drop_plan(context, kind, instant)}")


def _execute_with_hudi(context: ServiceContext, kind: PlannedService, instant: str, *, was_begun: bool) -> str:
    def require_due() -> None:
        _require_due(context, kind, instant, was_begun=was_begun)

    with ExitStack() as stack:
        client = stack.enter_context(open_waiting_client(context))
        if kind.hudi_keeps_heartbeat:
            stack.enter_context(leave_mark_of_end(context.spark, client, instant, require_due))
        else:
            stack.enter_context(be_sole_executor(context.spark, client, instant, require_due))
        if kind.gives_way and context.writers_first:
            stack.enter_context(give_way_to_writers(context, instant))
        if kind.check_plans is not None:
            kind.check_plans(context, client)
        return execute(context, kind.service, client, instant, kind.execute)


def _drop_plan(context: ServiceContext, kind: PlannedService, instant: str) -> str:
    """Take a plan from the timeline that must not be executed; return what became of it, in words.

    Before table version 8 that of a compaction must stay: log files written since name it as their base.
    """
    if kind.service is Service.COMPACTION and context.first_state.table_version < COMPACTIONS_PASS_FROM:
        return "; the plan stays pending, because log files written since belong to it"
    return _withdraw(context, kind, instant)


def drop_harmful(context: ServiceContext, plan: str) -> str:
    """Take a plan that must never be executed from the timeline; return what became of it, in words.

    One that was begun may have deleted some of its own table's files, where it was begun: a new plan takes the rest.
    """
    path = context.job.base_path
    with open_client(context.spark, path, context.settings, ALWAYS) as client, hold_lock(context.spark, client):
        remove_unbegun(context.read_table_state(), plan)
    remove_heartbeat(context.spark, path, plan)
    state = context.read_table_state()
    left = find_instant(state.timeline.filterInflightsAndRequested(), plan)
    if left is None:
        return _WITHDRAWN
    begun = state.meta_client.getInstantFileNameGenerator().getFileName(left)
    return f"; it was begun before: when no executor runs, remove {state.meta_client.getTimelinePath()}/{begun}"


def _withdraw_failed(context: ServiceContext, kind: PlannedService, failure: PlanFailure) -> PlanFailure:
    """Withdraw the plan of an execution that failed, unless another executor has it or nothing was executed."""
    if failure.kind in {FailureKind.BUSY, FailureKind.LOCK, FailureKind.PLAN_GONE}:
        return failure
    end = _withdraw(context, kind, failure.instant)
    return replace(failure, message=f"{failure.message}{end}", is_withdrawn=end == _WITHDRAWN)


def _withdraw(context: ServiceContext, kind: PlannedService, instant: str) -> str:
    """Withdraw a plan; return what became of it, in words, empty when it had left the timeline before."""
    if kind.withdraw is None:
        return ""
    try:
        with open_client(context.spark, context.job.base_path, context.settings, ALWAYS) as client:
            kind.withdraw(context, client, instant)
    except PlanGoneError:
        return ""
    except (Py4JJavaError, PlanBusyError) as error:
        causes = () if isinstance(error, PlanBusyError) else context.find_causes(error)
        return f"; the plan is still pending: {describe(causes) or 'another executor has it'}"
    return _WITHDRAWN


def withdraw_plans(context: ServiceContext, kind: PlannedService) -> ServiceResult:
    """Remove the named plans, and what a dead executor left of them. A plan that was removed or completed stays so.

    A plan whose executor has a fresh heartbeat stays as it is.
    """
    if kind.withdraw is None:
        raise ValueError(f"plans of {kind.service} are not withdrawn")
    withdrawn: list[str] = []
    for instant in context.request.instants:
        if instant not in kind.find_pending(context.read_table_state()):
            continue
        try:
            with open_client(context.spark, context.job.base_path, context.settings, ALWAYS) as client:
                kind.withdraw(context, client, instant)
        except PlanGoneError:
            continue
        except PlanBusyError:
            message = f"{kind.service} {instant}: another executor has this plan"
            return ServiceResult(kind.service, Outcome.FAILED, failure_kind=FailureKind.BUSY, message=message)
        except Py4JJavaError as error:
            causes = context.find_causes(error)
            return ServiceResult(
                kind.service, Outcome.FAILED, failure_kind=classify(causes), message=f"{instant}: {describe(causes)}"
            )
        context.log_progress(f"{kind.service} {instant} is withdrawn")
        withdrawn.append(instant)
    outcome = Outcome.COMPLETED if withdrawn else Outcome.NOTHING_TO_DO
    return ServiceResult(kind.service, outcome, message=f"withdrawn: {', '.join(withdrawn) or 'nothing'}")


def _take_back(context: ServiceContext, instant: str) -> str:
    """Remove a plan that this service made and no executor began, so that no writer executes it; say so.

    A plan of others stays: it waits for the sink, and its maker may rely on it.
    """
    if not is_ours(context, instant, is_begun=False) or instant in _begun(context.read_table_state()):
        return "; the plan stays pending until the sink has gone on"
    path = context.job.base_path
    with open_client(context.spark, path, context.settings, ALWAYS) as client, hold_lock(context.spark, client):
        remove_unbegun(context.read_table_state(), instant)
    remove_heartbeat(context.spark, context.job.base_path, instant)
    return _WITHDRAWN


def _require_due(context: ServiceContext, kind: PlannedService, instant: str, *, was_begun: bool) -> None:
    """Raise PlanGoneError, PlanBusyError, PlanHeldError, PlanOutsideError, PlanOvertakenError or
    TableChangedError unless a plan may be executed.

    Call it under the table's lock.

    Minutes may lie between: Hudi would roll back the files of an executor that began the plan since.
    """
    state = context.read_table_state()
    if instant not in kind.find_pending(state):
        raise PlanGoneError(instant)
    context.require_unchanged(state)
    why_held = kind.find_hold(context, state) if kind.find_hold is not None else ""
    if why_held:
        raise PlanHeldError(why_held)
    is_begun_since = not was_begun and instant in _begun(state)
    if is_begun_since and not kind.hudi_keeps_heartbeat and not is_ours(context, instant, is_begun=True):
        raise PlanBusyError(instant)
    if kind.read_plans is not None:
        for plan, text in kind.read_plans(context, state, instant).items():
            require_inside(context.spark, state, plan, whole_paths(text))
    if kind.service is Service.CLUSTERING:
        require_current(context.spark, state, instant)


def _begun(state: LoadedTable) -> frozenset[str]:
    return frozenset(requested_times(state.timeline.filterInflights()))


def _describe_failure(
    context: ServiceContext, kind: PlannedService, instant: str, error: Py4JJavaError | PlanBusyError | PlanGoneError
) -> PlanFailure:
    if isinstance(error, PlanGoneError):
        return _plan_gone(instant)
    causes = () if isinstance(error, PlanBusyError) else context.find_causes(error)
    failure_kind = FailureKind.BUSY if isinstance(error, PlanBusyError) else classify(causes)
    message = describe(causes)
    if failure_kind is FailureKind.BUSY:
        age_s = find_heartbeat_age_s(context.spark, context.job.base_path, instant)
        # Without one it has just ended, or belongs to a writer's own service, which has none.
        detail = "it has no heartbeat" if age_s is None else f"its last heartbeat was {age_s:.0f} s ago"
        message = f"another executor has this plan, {detail}"
    elif failure_kind is FailureKind.OTHER:
        context.log_progress(f"{kind.service} {instant}: stack trace follows\n{error}")
    return PlanFailure(instant, failure_kind, message)


def _plan_gone(instant: str) -> PlanFailure:
    return PlanFailure(
        instant,
        FailureKind.PLAN_GONE,
        f"the plan {instant} is neither pending nor completed on the active timeline: it was removed, or archived",
    )
