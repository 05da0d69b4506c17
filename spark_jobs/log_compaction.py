"""Schedules and executes log compactions of one table, with Hudi's own client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hudi_table import TableLook, find_instant, requested_times
from job_contract import JobRequest, Mode, Outcome, Service, ServiceRequest, ServiceResult
from planned_service import PlannedService, open_visit, require_merge_on_read, run_plans
from progress import readable_bytes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_log_compaction(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Run one log compaction request: the log files of a file slice become one, and the base file stays.

    A plan that another executor left inflight cannot be taken up: Hudi rolls it back and forgets it, and the result
    says that the plan is gone. Nothing is planned beside a pending compaction, which merges the same log files.
    Raises ServiceRefusedError, NoTableError, or Py4JJavaError when scheduling fails.
    """
    visit = open_visit(spark, job, request)
    require_merge_on_read(visit)
    compactions = requested_times(visit.first_look.timeline.filterPendingCompactionTimeline())
    if compactions and request.mode is not Mode.EXECUTE and not _find_pending(visit.first_look):
        message = f"compaction {', '.join(compactions)} is pending, and merges the log files"
        return ServiceResult(Service.LOGCOMPACTION, Outcome.NOTHING_TO_DO, message=message)
    return run_plans(visit, LOG_COMPACTION)


def _find_pending(look: TableLook) -> tuple[str, ...]:
    return requested_times(look.timeline.filterPendingLogCompactionTimeline())


def _find_completed(look: TableLook, instant: str) -> str | None:
    commit = find_instant(look.timeline.getDeltaCommitTimeline().filterCompletedInstants(), instant)
    if commit is None:
        return None
    metadata = look.timeline.readCommitMetadata(commit)
    # A writer's instant is a `deltacommit` as well.
    if metadata.getOperationType().name() != "LOG_COMPACT":
        return None
    return f"into {metadata.fetchTotalFiles()} log files ({readable_bytes(metadata.fetchTotalBytesWritten())})"


LOG_COMPACTION = PlannedService(
    Service.LOGCOMPACTION,
    find_pending=_find_pending,
    find_completed=_find_completed,
    schedule=lambda hudi, client: client.scheduleLogCompaction(hudi.common.util.Option.empty()),
    # The second argument makes Hudi commit.
    execute=lambda client, instant: client.logCompact(instant, True),  # noqa: FBT003 - py4j has no keywords
    nothing_new="no file slice with as many log blocks as hoodie.log.compaction.blocks.threshold",
)
