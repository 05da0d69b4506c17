"""Compacts one table with Hudi's own client: log files into base files, log files into one, and its metadata table."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.job_contract import (
    COMPACTIONS_PASS_FROM,
    METADATA_TABLE,
    JobRequest,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
    ServiceResult,
)
from airflow_lake_provider.obstacles import find_emptied_logs
from airflow_lake_provider.shared.hudi_settings import CLEAN_TRIGGER_MAX_COMMITS, CLEAN_VERSIONS_RETAINED
from lake_jobs.driver.files import readable_bytes
from lake_jobs.hudi.plans import read_plan
from lake_jobs.hudi.table import (
    LoadedTable,
    PlanGoneError,
    be_sole_executor,
    find_instant,
    hold_lock,
    read_table_state,
    requested_times,
)
from lake_jobs.services.context import (
    ServiceContext,
    open_context,
    open_waiting_client,
    refuse_scheduling,
    require_merge_on_read,
    seconds_since,
)
from lake_jobs.services.metadata_withdrawal import withdraw_metadata_table
from lake_jobs.services.planned import PlannedService, remove_unbegun, run_plans, withdraw_plans

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession


def run_compaction(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Run one compaction request; see `run_plans` for what a second run does.

    Raises ServiceRefusedError, NoTableError, or Py4JJavaError when scheduling fails.
    """
    context = open_context(spark, job, request)
    require_merge_on_read(context)
    if request.mode is Mode.WITHDRAW:
        version = context.first_state.table_version
        if version < COMPACTIONS_PASS_FROM:
            raise ServiceRefusedError(
                f"table {job.table_name} at {job.base_path}: in table version {version} a compaction's plan stays, "
                f"because log files written since belong to it; run {request.service} with mode execute"
            )
        return withdraw_plans(context, COMPACTION)
    return run_plans(context, COMPACTION)


def _find_pending(state: LoadedTable) -> tuple[str, ...]:
    return requested_times(state.timeline.filterPendingCompactionTimeline())


def _find_completed(state: LoadedTable, instant: str) -> str | None:
    commit = find_instant(state.timeline.getCommitTimeline().filterCompletedInstants(), instant)
    if commit is None:
        return None
    metadata = state.timeline.readCommitMetadata(commit)
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
    hudi_keeps_heartbeat=True,
    withdraw=lambda context, client, instant: _withdraw(
        context,
        client,
        instant,
        lambda timeline: timeline.filterPendingCompactionTimeline(),
        lambda table, plan: table.rollbackInflightCompaction(plan, client.getTransactionManager()),
    ),
    read_plans=lambda context, state, instant: {instant: read_plan(context.spark, state, Service.COMPACTION, instant)},
)


# --- Log compaction: the log files of a file slice become one


def run_log_compaction(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Run one log compaction request: the log files of a file slice become one, and the base file stays.

    A plan that another executor left inflight cannot be resumed: Hudi rolls it back and removes it, and the result
    says so. Neither can one that failed here, so it is withdrawn. Nothing is planned during a pending compaction, which
    merges the same log files. Raises ServiceRefusedError, NoTableError, or Py4JJavaError when scheduling fails.
    """
    context = open_context(spark, job, request)
    require_merge_on_read(context)
    if request.mode is Mode.WITHDRAW:
        return withdraw_plans(context, LOG_COMPACTION)
    emptied = _find_emptied_logs(context.first_state)
    if emptied and request.mode is not Mode.EXECUTE and not _find_pending_log(context.first_state):
        return ServiceResult(Service.LOGCOMPACTION, Outcome.NOTHING_TO_DO, message=emptied)
    compactions = requested_times(context.first_state.timeline.filterPendingCompactionTimeline())
    if compactions and request.mode is not Mode.EXECUTE and not _find_pending_log(context.first_state):
        message = f"compaction {', '.join(compactions)} is pending, and merges the log files"
        return ServiceResult(Service.LOGCOMPACTION, Outcome.NOTHING_TO_DO, message=message)
    return run_plans(context, LOG_COMPACTION)


def _find_emptied_logs(state: LoadedTable) -> str:
    rollbacks = requested_times(state.timeline.getRollbackTimeline().filterCompletedInstants())
    return find_emptied_logs(state.table_version, max(rollbacks, default=""))


def _find_pending_log(state: LoadedTable) -> tuple[str, ...]:
    return requested_times(state.timeline.filterPendingLogCompactionTimeline())


def _find_completed_log(state: LoadedTable, instant: str) -> str | None:
    commit = find_instant(state.timeline.getDeltaCommitTimeline().filterCompletedInstants(), instant)
    if commit is None:
        return None
    metadata = state.timeline.readCommitMetadata(commit)
    # A writer's instant is a `deltacommit` as well.
    if metadata.getOperationType().name() != "LOG_COMPACT":
        return None
    return f"into {metadata.fetchTotalFiles()} log files ({readable_bytes(metadata.fetchTotalBytesWritten())})"


LOG_COMPACTION = PlannedService(
    Service.LOGCOMPACTION,
    find_pending=_find_pending_log,
    find_completed=_find_completed_log,
    schedule=lambda hudi, client: client.scheduleLogCompaction(hudi.common.util.Option.empty()),
    # The second argument makes Hudi commit.
    execute=lambda client, instant: client.logCompact(instant, True),  # noqa: FBT003 - py4j has no keywords
    nothing_new="no file slice with as many log blocks as hoodie.log.compaction.blocks.threshold",
    withdraw=lambda context, client, instant: _withdraw(
        context,
        client,
        instant,
        lambda timeline: timeline.filterPendingLogCompactionTimeline(),
        lambda table, plan: table.rollbackInflightLogCompaction(plan, client.getTransactionManager()),
    ),
    is_begun_anew=True,
    read_plans=lambda context, state, instant: {
        instant: read_plan(context.spark, state, Service.LOGCOMPACTION, instant)
    },
)


def _withdraw(
    context: ServiceContext,
    client: Any,
    instant: str,
    filter_pending: Callable[[Any], Any],
    roll_back: Callable[[Any, Any], object],
) -> None:
    """Roll back what was written for a plan, and remove the plan. Raises PlanGoneError, PlanBusyError."""

    def find_plan() -> Any:
        return find_instant(filter_pending(context.read_table_state().timeline), instant)

    def require_pending() -> None:
        if find_plan() is None:
            raise PlanGoneError(instant)

    with be_sole_executor(context.spark, client, instant, require_pending):
        plan = find_plan()
        if plan is not None and plan.isInflight():
            hudi = context.spark._jvm.org.apache.hudi
            roll_back(hudi.table.HoodieSparkTable.create(client.getConfig(), client.getEngineContext()), plan)
        with hold_lock(context.spark, client):
            remove_unbegun(context.read_table_state(), instant)


# --- The metadata table, where its writers left its compaction undone


def run_metadata_compaction(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Run one request: pending compactions of the metadata table are executed, and one of what was not compacted.

    It is what a writer does at the end of a commit: the metadata table's services, its own cleaning and archiving among
    them, with the table's lock held. Instants of the result are of the metadata table's timeline. Mode
    withdraw takes a metadata table that is lost out of the table's properties instead. Raises ServiceRefusedError for a
    request that only schedules, NoTableError, or Py4JJavaError when Hudi fails.
    """
    if request.mode is Mode.SCHEDULE:
        raise refuse_scheduling(job, "Hudi plans and executes the metadata table's compaction in one")
    context = open_context(spark, job, request)
    if not context.first_state.metadata_partitions:
        message = "the table has no metadata table"
        return ServiceResult(Service.METACOMPACTION, Outcome.NOTHING_TO_DO, message=message)
    if request.mode is Mode.WITHDRAW:
        return withdraw_metadata_table(context)
    before = _compactions(_read_metadata_state(context))
    started = time.monotonic()
    context.log_progress(f"compacting the metadata table, last compacted {max(before, default='never')}")
    with open_waiting_client(context) as client, hold_lock(spark, client):
        # It may have been removed during the wait for the lock, and this client would rebuild it.
        if context.read_table_state().metadata_partitions:
            _run_metadata_services(context, client)
    if not context.read_table_state().metadata_partitions:
        message = "the table's metadata table was removed meanwhile"
        return ServiceResult(Service.METACOMPACTION, Outcome.NOTHING_TO_DO, message=message)
    state = _read_metadata_state(context)
    done = tuple(instant for instant in _compactions(state) if instant not in before)
    pending = requested_times(state.timeline.filterPendingCompactionTimeline())
    if pending:
        message = f"compaction {', '.join(pending)} of the metadata table is still pending"
        return ServiceResult(Service.METACOMPACTION, Outcome.FAILED, completed_instants=done, message=message)
    if not done:
        message = "nothing was written to the metadata table since its last compaction"
        return ServiceResult(Service.METACOMPACTION, Outcome.NOTHING_TO_DO, message=message)
    context.log_progress(f"compacted the metadata table, {', '.join(done)}, in {seconds_since(started)}")
    return ServiceResult(Service.METACOMPACTION, Outcome.COMPLETED, completed_instants=done)


def _run_metadata_services(context: ServiceContext, client: Any) -> None:
    hudi = context.spark._jvm.org.apache.hudi
    table = hudi.table.HoodieSparkTable.create(client.getConfig(), client.getEngineContext())
    # No streaming writes, and no dropping of partitions that the settings do not name; py4j has no keywords.
    instant = client.createNewInstantTime(False)  # noqa: FBT003
    writer = table.getMetadataWriter(instant, False, False).get()  # noqa: FBT003
    versions = context.request.options.get(CLEAN_VERSIONS_RETAINED)
    try:
        writer.performTableServices(hudi.common.util.Option.empty(), True)  # noqa: FBT003
        if versions:
            _clean_metadata(context, writer, versions)
    finally:
        writer.close()


def _clean_metadata(context: ServiceContext, writer: Any, versions: str) -> None:
    """Clean the metadata table, as Hudi itself does once three instants have come after a compaction."""
    # Hudi derives a larger number from the data table's.
    for key, value in ((CLEAN_VERSIONS_RETAINED, versions), (CLEAN_TRIGGER_MAX_COMMITS, "1")):
        writer.getWriteConfig().setValue(key, value)
    client = _call_protected(context, writer, "getWriteClient")
    newest = max(requested_times(_read_metadata_state(context).timeline.getDeltaCommitTimeline()), default="")
    _call_protected(context, writer, "executeClean", client, newest)


def _call_protected(context: ServiceContext, owner: Any, name: str, *given: Any) -> Any:
    found = owner.getClass()
    while found is not None:
        for method in found.getDeclaredMethods():
            if str(method.getName()) == name and len(method.getParameterTypes()) == len(given):
                is_open = True
                method.setAccessible(is_open)
                gateway = context.spark.sparkContext._gateway
                values = gateway.new_array(context.spark._jvm.java.lang.Object, len(given))
                for at, value in enumerate(given):
                    values[at] = value
                return method.invoke(owner, values)
        found = found.getSuperclass()
    raise AttributeError(name)


def _read_metadata_state(context: ServiceContext) -> LoadedTable:
    return read_table_state(context.spark, f"{context.first_state.base_path}/{METADATA_TABLE}")


def _compactions(state: LoadedTable) -> tuple[str, ...]:
    return requested_times(state.timeline.getCommitAndReplaceTimeline().filterCompletedInstants())
