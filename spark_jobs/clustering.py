"""Schedules and executes clusterings of one table, with Hudi's own client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hudi_table import TableLook, find_instant, requested_times
from job_contract import JobRequest, Mode, Service, ServiceRequest, ServiceResult
from planned_service import PlannedService, open_visit, run_plans
from progress import readable_bytes
from withdrawal import withdraw_plans

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_clustering(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Run one clustering request; see `run_plans` for what a second run does.

    A plan that is scheduled and not executed makes Hudi refuse every update of its file groups. The strategies are
    Hudi's own unless the options name others. Raises ServiceRefusedError, NoTableError, or Py4JJavaError when
    scheduling fails.
    """
    visit = open_visit(spark, job, request)
    if request.mode is Mode.WITHDRAW:
        return withdraw_plans(visit, CLUSTERING)
    return run_plans(visit, CLUSTERING)


def _find_pending(look: TableLook) -> tuple[str, ...]:
    # Up to table version 6 its action is `replacecommit`, as that of an insert overwrite; Hudi tells them apart.
    return requested_times(look.timeline.filterPendingClusteringTimeline())


def _find_completed(look: TableLook, instant: str) -> str | None:
    replacement = find_instant(look.timeline.getCompletedReplaceTimeline(), instant)
    if replacement is None:
        return None
    metadata = look.timeline.readReplaceCommitMetadata(replacement)
    # An insert overwrite completes as a `replacecommit` as well.
    if metadata.getOperationType().name() != "CLUSTER":
        return None
    replaced = sum(len(file_ids) for file_ids in metadata.getPartitionToReplaceFileIds().values())
    return (
        f"{replaced} file groups into {metadata.fetchTotalFiles()} files "
        f"({readable_bytes(metadata.fetchTotalBytesWritten())})"
    )


CLUSTERING = PlannedService(
    Service.CLUSTERING,
    find_pending=_find_pending,
    find_completed=_find_completed,
    schedule=lambda hudi, client: client.scheduleClustering(hudi.common.util.Option.empty()),
    # The second argument makes Hudi commit.
    execute=lambda client, instant: client.cluster(instant, True),  # noqa: FBT003 - py4j has no keywords
    nothing_new="no files that the plan strategy would rewrite",
)
