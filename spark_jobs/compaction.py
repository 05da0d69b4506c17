"""Schedules and executes compactions of one table, with Hudi's own client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hudi_table import TableLook, find_instant, requested_times
from job_contract import JobRequest, Service, ServiceRequest, ServiceResult
from planned_service import PlannedService, open_visit, require_merge_on_read, run_plans
from progress import readable_bytes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_compaction(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Run one compaction request; see `run_plans` for what a second run does.

    Raises ServiceRefusedError, NoTableError, or Py4JJavaError when scheduling fails.
    """
    visit = open_visit(spark, job, request)
    require_merge_on_read(visit)
    return run_plans(visit, COMPACTION)


def _find_pending(look: TableLook) -> tuple[str, ...]:
    return requested_times(look.timeline.filterPendingCompactionTimeline())


def _find_completed(look: TableLook, instant: str) -> str | None:
    commit = find_instant(look.timeline.getCommitTimeline().filterCompletedInstants(), instant)
    if commit is None:
        return None
    metadata = look.timeline.readCommitMetadata(commit)
    # A bulk insert into a merge-on-read table completes as a `commit` as well.
    if metadata.getOperationType().name() != "COMPACT":
        return None
    return (
        f"{metadata.getTotalLogFilesCompacted()} log files ({readable_bytes(metadata.getTotalLogFilesSize())}) into "
        f"{metadata.fetchTotalFiles()} base files ({readable_bytes(metadata.fetchTotalBytesWritten())})"
    )


COMPACTION = PlannedService(
    Service.COMPACTION,
    find_pending=_find_pending,
    find_completed=_find_completed,
    schedule=lambda hudi, client: client.scheduleCompaction(hudi.common.util.Option.empty()),
    # The second argument makes Hudi commit; without it the files are written and thrown away.
    execute=lambda client, instant: client.compact(instant, True),  # noqa: FBT003 - py4j has no keywords
    nothing_new="no new log files",
    hudi_beats=True,
)
