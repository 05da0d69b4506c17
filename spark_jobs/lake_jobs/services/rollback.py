"""Rolls back what dead writers left on one table, with Hudi's own client.

Hudi's own choice of writes (`rollbackFailedWrites`, and every clean under the policy LAZY) takes one without a
heartbeat for dead. In single-writer mode no writer has one, so here each write is named to Hudi, and only when its
heartbeat has expired, or when the request names it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.job_contract import (
    FailureKind,
    JobRequest,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
    ServiceResult,
)
from lake_jobs.hudi.plan_path_rules import whole_paths
from lake_jobs.hudi.plan_paths import PlanOutsideError, require_inside
from lake_jobs.hudi.settings import heartbeat_expires_s
from lake_jobs.hudi.table import LoadedTable, find_heartbeat_age_s, requested_times
from lake_jobs.services.context import (
    ServiceContext,
    act_under_lock,
    open_context,
    open_waiting_client,
    refuse_scheduling,
    seconds_since,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_rollback(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Run one rollback request: pending writes of dead writers go, with all that they wrote.

    `instants` of the request are those that the caller takes for dead, writes or rollbacks that were begun; nothing
    else is rolled back then, and the request fails when one of them is still pending afterwards. Without any, every
    write is rolled back whose heartbeat has expired, and every rollback that was begun is ended. A write with a fresh
    heartbeat stays in any case. Raises ServiceRefusedError for a request that only schedules, NoTableError, or
    Py4JJavaError when Hudi fails.
    """
    if request.mode is Mode.SCHEDULE:
        raise refuse_scheduling(job, "a rollback is planned and executed in one")
    context = open_context(spark, job, request)
    rolled_back = _roll_back(context)
    left = [instant for instant in request.instants if instant in _unfinished_writes(context.read_table_state())]
    if left:
        message = (
            f"{', '.join(left)} was not rolled back: its heartbeat is fresh, or the write is going on or completed"
        )
        return ServiceResult(
            Service.ROLLBACK,
            Outcome.FAILED,
            completed_instants=rolled_back,
            failure_kind=FailureKind.BUSY,
            message=message,
        )
    if not rolled_back:
        return ServiceResult(Service.ROLLBACK, Outcome.NOTHING_TO_DO, message="no pending write has a dead writer")
    message = f"rolled back {', '.join(rolled_back)}, whose writers are dead"
    return ServiceResult(Service.ROLLBACK, Outcome.COMPLETED, completed_instants=rolled_back, message=message)


def _roll_back(context: ServiceContext) -> tuple[str, ...]:
    """Roll back the writes of dead writers, and end rollbacks that were begun; return their requested times."""
    pending = _unfinished_writes(context.first_state)
    if not pending or not _find_dead_writes(context, context.first_state):
        return ()
    started = time.monotonic()
    with open_waiting_client(context) as holder:
        for write in _find_dead_writes(context, context.read_table_state()):
            # Hudi rolls completed writes back as well. So the lock, without which no writer completes one, is held from
            # the last reading to the end; and released in between, so that writers wait for one rollback alone.
            with act_under_lock(context, holder) as (held, client):
                _drop_plans_of_others(held, held.read_table_state())
                if write in _find_dead_writes(held, held.read_table_state()):
                    context.log_progress(f"rolling {write} back")
                    client.rollback(write)
    rolled_back = _find_rolled_back(context.read_table_state().timeline, pending)
    context.log_progress(f"rolled back {', '.join(rolled_back) or 'nothing'} in {seconds_since(started)}")
    return rolled_back


def _drop_plans_of_others(context: ServiceContext, state: LoadedTable) -> None:
    """Remove rollbacks that were planned for another table, of which this one is a copy; Hudi then plans them again.

    Call it under the table's lock. Raises ServiceRefusedError for one that was begun.
    """
    plans = context.spark._jvm.org.apache.hudi.table.action.rollback.RollbackUtils
    for begun in state.timeline.filterPendingRollbackTimeline().getInstants():
        rollback = str(begun.requestedTime())
        try:
            text = str(plans.getRollbackPlan(state.meta_client, begun).toString())
            require_inside(context.spark, state, rollback, whole_paths(text))
        except PlanOutsideError as error:
            if not begun.isRequested():
                raise ServiceRefusedError(
                    f"table {context.job.table_name} at {context.job.base_path}: rollback {error}; when no writer "
                    f"runs, remove the files {rollback}.rollback.* of {state.meta_client.getTimelinePath()}"
                ) from error
            context.log_progress(f"rollback {error}, and it is removed")
            state.timeline.deletePending(begun)


def _find_dead_writes(context: ServiceContext, state: LoadedTable) -> tuple[str, ...]:
    """Return the writes that Hudi must roll back, youngest first as Hudi does: a begun rollback names its write."""
    named = context.request.instants
    expires_s = heartbeat_expires_s(context.settings)
    writes = set()
    for write in _pending_writes(state):
        age_s = find_heartbeat_age_s(context.spark, state.base_path, write)
        is_dead = age_s > expires_s if age_s is not None else write in named
        if is_dead and (not named or write in named):
            writes.add(write)
    plans = context.spark._jvm.org.apache.hudi.table.action.rollback.RollbackUtils
    completed = requested_times(state.timeline.getCommitsTimeline().filterCompletedInstants())
    for begun in state.timeline.filterPendingRollbackTimeline().getInstants():
        if not named or str(begun.requestedTime()) in named:
            plan = plans.getRollbackPlan(state.meta_client, begun)
            write = str(plan.getInstantToRollback().getCommitTime())
            # One that only is planned has removed nothing yet: a write that has completed since stays.
            if write not in completed or not begun.isRequested():
                writes.add(write)
    return tuple(sorted(writes, reverse=True))


def _pending_writes(state: LoadedTable) -> tuple[str, ...]:
    writes = state.timeline.getCommitsTimeline().filterPendingExcludingCompaction()
    clusterings = requested_times(state.timeline.filterPendingClusteringTimeline())
    return tuple(instant for instant in requested_times(writes) if instant not in clusterings)


def _unfinished_writes(state: LoadedTable) -> tuple[str, ...]:
    """Return pending writes, and rollbacks that began: Hudi deletes a write's instants before it ends one."""
    return (*_pending_writes(state), *requested_times(state.timeline.filterPendingRollbackTimeline()))


def _find_rolled_back(timeline: Any, instants: tuple[str, ...]) -> tuple[str, ...]:
    # A write that went on to complete meanwhile is still there.
    left = (
        *requested_times(timeline.getCommitsTimeline()),
        *requested_times(timeline.filterPendingRollbackTimeline()),
    )
    return tuple(instant for instant in instants if instant not in left)
