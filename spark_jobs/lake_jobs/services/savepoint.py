"""Makes a savepoint of a table's newest write, and removes old ones that this service made, with Hudi's own client.

A savepoint keeps the files of its file slices from every clean, and by Hudi's default every later instant on the active
timeline. So the number and the age of those that this service makes are bounded; those of others it never touches.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.job_contract import (
    SAVEPOINT_EXPIRE_S,
    SAVEPOINT_KEEP,
    FailureKind,
    JobRequest,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
    ServiceResult,
)
from lake_jobs.driver.failure import causes_of, describe
from lake_jobs.hudi.files import find_modified_ms
from lake_jobs.hudi.store_clock import store_now_ms
from lake_jobs.hudi.table import PlanBusyError, list_times, requested_times
from lake_jobs.replication.file_slices import FIRST_VERSION_OF_OWN_LOGS
from lake_jobs.services.context import ServiceContext, open_context, open_waiting_client, refuse_scheduling
from lake_jobs.services.restore import run_restore
from lake_jobs.services.savepoint_rules import MADE_BY_REPLICATION, Savepoint, choose_expired, choose_write
from lake_jobs.services.upgrade import run_upgrade

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MADE_BY = "airflow-lake-provider"
"""In the savepoint's own metadata (`savepointedBy`); it says whose a savepoint is."""
DEAD_AFTER_MS = 600_000
"""Making a savepoint is one listing of the file slices; what was begun longer ago has no maker any more."""
_PASSED_BY_CLEAN = "beyond the lookup window"
"""In what Hudi throws for a savepoint of a write of which a clean may have removed files."""
COMMENT = "made by the table service savepoint, which also removes it (savepoint.keep of the tables file)"


def run_savepoint(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Run one savepoint request. A second run for the same write makes none.

    Raises ServiceRefusedError for a request that only schedules, or without a write to stand for, NoTableError, or
    Py4JJavaError when Hudi fails.
    """
    if request.mode is Mode.RESTORE:
        return run_restore(spark, job, request)
    if request.mode is Mode.UPGRADE:
        return run_upgrade(spark, job, request)
    if request.mode is Mode.SCHEDULE:
        raise refuse_scheduling(job, "a savepoint is made in one step")
    context = open_context(spark, job, request)
    keep = int(context.settings.get(SAVEPOINT_KEEP, "-1"))
    try:
        made = _make(context) if keep else ""
    except PlanBusyError as error:
        message = f"another process is making the savepoint {error}"
        return ServiceResult(Service.SAVEPOINT, Outcome.FAILED, failure_kind=FailureKind.BUSY, message=message)
    removed = _remove(context, keep) if keep >= 0 else ()
    state = context.read_table_state()
    left = requested_times(state.timeline.getSavePointTimeline().filterCompletedInstants())
    wrong = [time for time in (made,) if time and time not in left] + [time for time in removed if time in left]
    parts = [f"made savepoint {made}"] if made else []
    parts += [f"removed {', '.join(removed)}"] if removed else []
    if wrong:
        message = f"{'; '.join(parts)}, but the timeline does not show it for {', '.join(wrong)}"
        return ServiceResult(Service.SAVEPOINT, Outcome.FAILED, failure_kind=FailureKind.OTHER, message=message)
    if not parts:
        message = (
            f"the newest write that overlaps no other one in time has a savepoint, and none of {len(left)} expires"
        )
        return ServiceResult(Service.SAVEPOINT, Outcome.NOTHING_TO_DO, message=message)
    message = f"{'; '.join(parts)}; {len(left)} savepoints are on the timeline"
    context.log_progress(message)
    return ServiceResult(
        Service.SAVEPOINT, Outcome.COMPLETED, completed_instants=(made,) if made else (), message=message
    )


def _make(context: ServiceContext) -> str:
    """Make a savepoint of the newest write that can be one (`choose_write`); return it, or nothing when it has one."""
    state = context.first_state
    until = max(requested_times(state.timeline.getContiguousCompletedWriteTimeline()), default="")
    instant = until
    if state.table_version >= FIRST_VERSION_OF_OWN_LOGS:
        # Hudi restores older ones by requested times.
        instant = choose_write(list_times(state.timeline.getWriteTimeline().filterCompletedInstants()), until)
    if not instant:
        return ""
    savepoints = state.timeline.getSavePointTimeline()
    completed = [_load(state.timeline, found) for found in savepoints.filterCompletedInstants().getInstants()]
    # A stream's goes when its snapshot ends, so it is none of those that the table is to have.
    for_a_while = [found.instant for found in completed if found.made_by == MADE_BY_REPLICATION]
    if instant <= max((found.instant for found in completed if found.instant not in for_a_while), default=""):
        return ""
    if instant in for_a_while:
        raise PlanBusyError(f"{instant}, for a snapshot")
    for left in savepoints.filterInflights().getInstants():
        if str(left.requestedTime()) == instant:
            _remove_dead(context, left)
    with open_waiting_client(context) as client:
        try:
            client.savepoint(instant, MADE_BY, COMMENT)
        except Py4JJavaError as error:
            if _PASSED_BY_CLEAN not in describe(causes_of(error.java_exception)):
                raise
            job = context.job
            raise ServiceRefusedError(
                f"table {job.table_name} at {job.base_path}: all completed writes since {instant} overlap in time, so "
                "a restore of one would take others back, and a clean has removed files of what came before: let the "
                "writers pause until one write has begun and completed alone"
            ) from error
    return instant


def _remove_dead(context: ServiceContext, left: Any) -> None:
    """Remove a savepoint that was begun and not completed, unless its maker may still be at work."""
    state = context.first_state
    name = state.meta_client.getInstantFileNameGenerator().getFileName(left)
    modified_ms = find_modified_ms(context.spark, f"{state.meta_client.getTimelinePath().toString()}/{name}")
    now_ms = store_now_ms(context.spark, context.job.base_path)
    if modified_ms is not None and now_ms - modified_ms < DEAD_AFTER_MS:
        raise PlanBusyError(str(left.requestedTime()))
    state.timeline.deletePending(left)


def _remove(context: ServiceContext, keep: int) -> tuple[str, ...]:
    """Remove this service's savepoints beyond `keep`, and those that are too old; return them."""
    timeline = context.read_table_state().timeline
    expire_s = context.settings.get(SAVEPOINT_EXPIRE_S, "")
    completed = timeline.getSavePointTimeline().filterCompletedInstants().getInstants()
    savepoints = [_load(timeline, instant) for instant in completed]
    made_before_ms = int((time.time() - float(expire_s)) * 1000) if expire_s else None
    expired = choose_expired([found for found in savepoints if found.made_by == MADE_BY], keep, made_before_ms)
    if expired:
        with open_waiting_client(context) as client:
            for instant in expired:
                client.deleteSavepoint(instant)
    return expired


def _load(timeline: Any, instant: Any) -> Savepoint:
    metadata = timeline.readSavepointMetadata(instant)
    return Savepoint(str(instant.requestedTime()), str(metadata.getSavepointedBy()), int(metadata.getSavepointedAt()))
