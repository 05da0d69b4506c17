"""Rolls back what dead writers left on one table, with Hudi's own client."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from hudi_table import TableLook, requested_times
from job_contract import FailureKind, JobRequest, Mode, Outcome, Service, ServiceRequest, ServiceResult
from planned_service import Visit, open_patient_client, open_visit, refuse_scheduling, seconds_since

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_rollback(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Run one rollback request: pending writes without a living heartbeat go, with all that they wrote.

    Hudi plans a rollback and executes it in one call, and chooses the writes itself: `instants` of the request are
    those that the caller takes for dead, and the request fails when one of them is still pending afterwards. Raises
    ServiceRefusedError when only scheduling is asked for, NoTableError, or Py4JJavaError when Hudi fails.
    """
    if request.mode is Mode.SCHEDULE:
        raise refuse_scheduling(job, "a rollback is planned and executed in one")
    visit = open_visit(spark, job, request)
    rolled_back = roll_back_dead_writers(visit)
    left = [instant for instant in request.instants if instant in _open_work(visit.look())]
    if left:
        message = f"Hudi did not roll back {', '.join(left)}: the heartbeat lives, or the write is going on"
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


def roll_back_dead_writers(visit: Visit) -> tuple[str, ...]:
    """Let Hudi roll back pending writes without a living heartbeat, and end rollbacks that were begun.

    Returns the requested times of these writes and of these rollbacks.
    """
    pending = _open_work(visit.first_look)
    if not pending:
        return ()
    started = time.monotonic()
    visit.say(f"pending {', '.join(pending)}: rolling back those whose heartbeat has ended")
    with open_patient_client(visit) as client:
        client.rollbackFailedWrites(visit.look().meta_client)
    rolled_back = _find_rolled_back(visit.look().timeline, pending)
    visit.say(f"rolled back {', '.join(rolled_back) or 'nothing'} in {seconds_since(started)}")
    return rolled_back


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
