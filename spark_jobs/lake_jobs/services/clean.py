"""Schedules and executes cleans of one table, with Hudi's own client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.job_contract import (
    INDEX_CLASH,
    SAFEPOINT,
    FailureKind,
    JobRequest,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
    ServiceResult,
    have_index_clash,
)
from airflow_lake_provider.shared.hudi_settings import FAILED_WRITES_POLICY
from lake_jobs.hudi.table import LoadedTable, SettingLostError, find_instant, read_clean_plan, requested_times
from lake_jobs.services.clean_plans import require_needed_kept
from lake_jobs.services.context import ServiceContext, open_context
from lake_jobs.services.planned import PlannedService, is_ours, refuse_others, run_plans

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_clean(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Run one clean request; see `run_plans` for what a second run does.

    Hudi's own clean first rolls back every pending write without a living heartbeat, as those of single-writer mode
    are. This service rolls nothing back: the service rollback does, and needs proof. A clean that overtakes a pending
    clustering may remove files that it reads (Hudi issues 8232, 11440), so it fails. Raises ServiceRefusedError (also
    for a table whose writers would fail afterwards), NoTableError, or Py4JJavaError when scheduling fails.
    """
    context = open_context(spark, job, request)
    if have_index_clash(context.first_state.metadata_partitions):
        raise ServiceRefusedError(f"table {job.table_name} at {job.base_path} is not cleaned: {INDEX_CLASH}")
    clusterings = requested_times(context.first_state.timeline.filterPendingClusteringTimeline())
    if clusterings:
        message = (
            f"waits for the pending clustering {', '.join(clusterings)}, which may still read what would be removed"
        )
        return ServiceResult(Service.CLEAN, Outcome.FAILED, failure_kind=FailureKind.CONFLICT, message=message)
    pending = _find_pending(context.first_state)
    if request.mode is Mode.SCHEDULE and pending:
        # A second plan would name the same files.
        message = f"clean {', '.join(pending)} is pending already"
        context.log_progress(message)
        return ServiceResult(Service.CLEAN, Outcome.NOTHING_TO_DO, message=message)
    begun = requested_times(context.first_state.timeline.getCleanerTimeline().filterInflights())
    others = [
        instant for instant in begun if instant not in request.instants and not is_ours(context, instant, is_begun=True)
    ]
    if others and request.mode is not Mode.SCHEDULE:
        # Hudi would execute all that are pending, whatever was named.
        return refuse_others(Service.CLEAN, others)
    return run_plans(context, CLEAN)


def _clean(client: Any) -> None:
    # Multi-writer mode sets LAZY whatever the settings are, and LAZY would roll back writers that may be alive.
    client.getConfig().setValue(FAILED_WRITES_POLICY, "NEVER")
    policy = client.getConfig().getFailedWritesCleanPolicy().name()
    if policy != "NEVER":
        raise SettingLostError(f"{FAILED_WRITES_POLICY} is {policy} in Hudi's client, not NEVER")
    client.clean(False)  # noqa: FBT003 - py4j has no keywords


def _find_pending(state: LoadedTable) -> tuple[str, ...]:
    return requested_times(state.timeline.getCleanerTimeline().filterInflightsAndRequested())


def _find_hold(context: ServiceContext, state: LoadedTable) -> str:
    """Return why a pending plan passes the safepoint; empty when none does.

    Retention is raised when a plan is made; a plan that others made knows nothing of it, and commits may have come
    between counting them and planning.
    """
    safepoint = context.request.options.get(SAFEPOINT, "")
    if not safepoint:
        return ""
    pending = state.timeline.getCleanerTimeline().filterInflightsAndRequested().getInstants()
    for instant in pending:
        kept, deletes = read_clean_plan(_load_plan(context, state, instant))
        if deletes and (not kept or kept > safepoint):
            what = f"keeps what readers since {kept} need" if kept else "does not count commits"
            return (
                f"clean plan {instant.requestedTime()} deletes {deletes} files and {what}, and a sink of replication, "
                f"or a reader, still needs those since {safepoint}"
            )
    return ""


def _load_plan(context: ServiceContext, state: LoadedTable, pending: Any) -> Any:
    """Return the plan of a pending clean: the file of one that was begun is empty. Raises Py4JJavaError."""
    return context.spark._jvm.org.apache.hudi.common.util.CleanerUtils.getCleanerPlan(state.meta_client, pending)


def _read_plans(context: ServiceContext, state: LoadedTable) -> dict[str, str]:
    """Return the pending plans in Avro's JSON, by requested time: Hudi executes all of them."""
    return {
        str(pending.requestedTime()): str(_load_plan(context, state, pending).toString())
        for pending in state.timeline.getCleanerTimeline().filterInflightsAndRequested().getInstants()
    }


def _check_plans(context: ServiceContext, client: Any) -> None:
    state = context.read_table_state()
    require_needed_kept(context.spark, client, state, _read_plans(context, state))


def _find_completed(state: LoadedTable, instant: str) -> str | None:
    cleaned = find_instant(state.timeline.getCleanerTimeline().filterCompletedInstants(), instant)
    if cleaned is None:
        return None
    metadata = state.timeline.readCleanMetadata(cleaned)
    kept = metadata.getEarliestCommitToRetain()
    since = f", kept what readers since {kept} need" if kept else ""
    return f"{metadata.getTotalFilesDeleted()} files deleted{since}"


CLEAN = PlannedService(
    Service.CLEAN,
    find_pending=_find_pending,
    find_completed=_find_completed,
    schedule=lambda hudi, client: client.scheduleTableService(
        hudi.common.util.Option.empty(), hudi.common.model.TableServiceType.CLEAN
    ),
    # Hudi has no call for one plan: this executes all that are pending, and schedules none.
    execute=lambda client, _instant: _clean(client),
    nothing_new="no files older than what is retained",
    find_hold=_find_hold,
    read_plans=lambda context, state, _instant: _read_plans(context, state),
    check_plans=_check_plans,
)
