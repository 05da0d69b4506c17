"""Rolls back what dead writers left on one table, with Hudi's own client.

Hudi's own choice of writes (`rollbackFailedWrites`, and every clean under the policy LAZY) takes one without a
heartbeat for dead. In single-writer mode no writer has one, so here each write is named to Hudi, and only when its
heartbeat has expired, or when whoever asked named it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from hudi_table import TableLook, find_heartbeat_age_s, requested_times
from index_rules import heartbeat_expires_s
from job_contract import FailureKind, JobRequest, Mode, Outcome, Service, ServiceRequest, ServiceResult
from planned_service import Visit, open_patient_client, open_visit, refuse_scheduling, seconds_since

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_rollback(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Run one rollback request: pending writes of dead writers go, with all that they wrote.

    `instants` of the request are those that the caller takes for dead, writes or rollbacks that were begun; nothing
    else is rolled back then, and the request fails when one of them is still pending afterwards. Without any, every
    write goes whose heartbeat has expired, and every rollback that was begun is ended. A write whose heartbeat lives
    stays in any case. Raises ServiceRefusedError when only scheduling is asked for, NoTableError, or Py4JJavaError when
    Hudi fails.
    """
    if request.mode is Mode.SCHEDULE:
        raise refuse_scheduling(job, "a rollback is planned and executed in one")
    visit = open_visit(spark, job, request)
    rolled_back = _roll_back(visit)
    left = [instant for instant in request.instants if instant in _open_work(visit.look())]
    if left:
        message = f"{', '.join(left)} was not rolled back: the heartbeat lives, or the write is going on"
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


def _roll_back(visit: Visit) -> tuple[str, ...]:
    """Roll back the writes of dead writers, and end rollbacks that were begun; return their requested times."""
    pending = _open_work(visit.first_look)
    if not pending or not _to_undo(visit, visit.first_look):
        return ()
    started = time.monotonic()
    with open_patient_client(visit) as client:
        # The heartbeats once more, after the wait for the lock. One that has expired does not come back.
        for write in _to_undo(visit, visit.look()):
            visit.say(f"rolling {write} back")
            client.rollback(write)
    rolled_back = _find_rolled_back(visit.look().timeline, pending)
    visit.say(f"rolled back {', '.join(rolled_back) or 'nothing'} in {seconds_since(started)}")
    return rolled_back


def _to_undo(visit: Visit, look: TableLook) -> tuple[str, ...]:
    """Return the writes that Hudi shall roll back, youngest first as Hudi does: a begun rollback names its write."""
    named, expires_s = visit.request.instants, heartbeat_expires_s(visit.settings)
    writes = set()
    for write in _pending_writes(look):
        age_s = find_heartbeat_age_s(visit.spark, look.base_path, write)
        is_dead = age_s > expires_s if age_s is not None else write in named
        if is_dead and (not named or write in named):
            writes.add(write)
    plans = visit.spark._jvm.org.apache.hudi.table.action.rollback.RollbackUtils
    for begun in look.timeline.filterPendingRollbackTimeline().getInstants():
        if not named or str(begun.requestedTime()) in named:
            plan = plans.getRollbackPlan(look.meta_client, begun)
            writes.add(str(plan.getInstantToRollback().getCommitTime()))
    return tuple(sorted(writes, reverse=True))


def _pending_writes(look: TableLook) -> tuple[str, ...]:
    writes = look.timeline.getCommitsTimeline().filterPendingExcludingCompaction()
    clusterings = requested_times(look.timeline.filterPendingClusteringTimeline())
    return tuple(instant for instant in requested_times(writes) if instant not in clusterings)


def _open_work(look: TableLook) -> tuple[str, ...]:
    """Return pending writes, and rollbacks that somebody began: Hudi deletes a write's instants before it ends one."""
    return (*_pending_writes(look), *requested_times(look.timeline.filterPendingRollbackTimeline()))


def _find_rolled_back(timeline: Any, instants: tuple[str, ...]) -> tuple[str, ...]:
    # A write that went on to complete meanwhile is still there.
    left = (
        *requested_times(timeline.getCommitsTimeline()),
        *requested_times(timeline.filterPendingRollbackTimeline()),
    )
    return tuple(instant for instant in instants if instant not in left)
