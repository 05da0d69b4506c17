"""Schedules and executes clusterings of one table, with Hudi's own client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.job_contract import (
    EXECUTOR_ENDED,
    JobRequest,
    Mode,
    Service,
    ServiceRequest,
    ServiceResult,
)
from airflow_lake_provider.shared.partition_filter import SORT_COLUMNS
from lake_jobs.driver.files import readable_bytes
from lake_jobs.hudi.plans import read_plan
from lake_jobs.hudi.table import (
    LoadedTable,
    PlanGoneError,
    be_sole_executor,
    find_instant,
    hold_lock,
    requested_times,
)
from lake_jobs.services.context import open_context
from lake_jobs.services.planned import PlannedService, remove_unbegun, run_plans, withdraw_plans
from lake_jobs.services.sort_columns import find_sort_problem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_jobs.services.context import ServiceContext


def run_clustering(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Run one clustering request; see `run_plans` for what a second run does.

    A plan that is scheduled and not executed makes Hudi refuse every update of its file groups. The strategies are
    Hudi's own unless the options name others. Raises ServiceRefusedError, NoTableError, or Py4JJavaError when
    scheduling fails.
    """
    context = open_context(spark, job, request)
    if request.mode is Mode.WITHDRAW:
        return withdraw_plans(context, CLUSTERING)
    if request.mode is not Mode.EXECUTE:
        _require_sortable(context)
    return run_plans(context, CLUSTERING)


def _require_sortable(context: ServiceContext) -> None:
    """Raise ServiceRefusedError when a new plan would sort by columns that the table does not have."""
    job = context.job
    named = {**job.hudi_options, **context.request.options}.get(SORT_COLUMNS, "")
    wanted = [name.strip() for name in named.split(",") if name.strip()]
    if not wanted:
        return
    schema = context.spark.read.format("hudi").load(job.base_path).schema
    problem = find_sort_problem(wanted, {field.name: field.dataType.simpleString() for field in schema.fields})
    if problem:
        raise ServiceRefusedError(f"table {job.table_name} at {job.base_path}: {problem}")


def _find_pending(state: LoadedTable) -> tuple[str, ...]:
    # Up to table version 6 its action is `replacecommit`, as that of an insert overwrite; Hudi distinguishes them.
    return requested_times(state.timeline.filterPendingClusteringTimeline())


def _find_completed(state: LoadedTable, instant: str) -> str | None:
    replacement = find_instant(state.timeline.getCompletedReplaceTimeline(), instant)
    if replacement is None:
        return None
    metadata = state.timeline.readReplaceCommitMetadata(replacement)
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
    withdraw=lambda context, client, instant: _withdraw(context, client, instant),
    gives_way=True,
    read_plans=lambda context, state, instant: {instant: read_plan(context.spark, state, Service.CLUSTERING, instant)},
)


# --- Withdrawal: takes pending plans from the timeline, so that writers may update their file groups again.


def _withdraw(context: ServiceContext, client: Any, instant: str) -> None:
    if context.request.options.get(EXECUTOR_ENDED) == "true":
        # The heartbeat that it left would count as fresh for two minutes, and the writer cannot wait.
        hudi = context.spark._jvm.org.apache.hudi
        meta_client = context.read_table_state().meta_client
        hudi.client.heartbeat.HeartbeatUtils.deleteHeartbeatFile(
            meta_client.getStorage(), context.job.base_path, instant
        )

    def require_pending() -> None:
        if instant not in CLUSTERING.find_pending(context.read_table_state()):
            raise PlanGoneError(instant)

    with be_sole_executor(context.spark, client, instant, require_pending):
        # Hudi rolls back the files of a plan that is being executed, and then deletes the plan; a plan that no
        # executor began has no files, and Hudi no call for it.
        if client.purgePendingClustering(instant):
            return
        with hold_lock(context.spark, client):
            state = context.read_table_state()
            if instant in CLUSTERING.find_pending(state):
                remove_unbegun(state, instant)
