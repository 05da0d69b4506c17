"""Takes a table back to a savepoint with Hudi's own client, and compares what readers see then with the savepoint.

Hudi goes on with a restore to the same savepoint that was interrupted. So a run that died anywhere is repeated, and
ends in the same state; one that died after the restore's completion only compares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.job_contract import (
    RESTORE_TAKES_BACK,
    FailureKind,
    JobRequest,
    Outcome,
    Service,
    ServiceRequest,
    ServiceResult,
)
from airflow_lake_provider.shared.actions import WRITE_ACTIONS
from airflow_lake_provider.shared.hudi_settings import (
    LOCK_PROVIDER,
    MERGE_ON_READ,
    METADATA_ENABLE,
)
from airflow_lake_provider.shared.taken_back import TimedInstant, is_taken_back
from lake_jobs.hudi.settings import ALWAYS, METADATA_SETTINGS
from lake_jobs.hudi.table import find_instant, find_restores, hold_lock, open_client, parse_instants, requested_times
from lake_jobs.replication.file_slices import FIRST_VERSION_OF_OWN_LOGS, parse_name
from lake_jobs.replication.slice_reader import LAST_INSTANT, SliceReader
from lake_jobs.services.context import IN_PROCESS_LOCK, ServiceContext, open_context
from lake_jobs.services.living_writers import find_beating
from lake_jobs.services.restore_rules import MAX_NAMED, RestoreStep, decide_step, find_gone, slices_of
from lake_jobs.verify.execution import compared_fields, find_obstacle
from lake_jobs.verify.rows import NO_ROWS, UNIT, fingerprints
from lake_jobs.verify.seen_before import AS_WRITTEN, PARTITION_PATH

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lake_jobs.hudi.table import LoadedTable
    from lake_jobs.replication.slice_reader import NumberedSlice


def run_restore(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Take a table back to the savepoint that the request names. Repeated, it goes on where it was interrupted.

    Raises ServiceRefusedError where it would take back more than was checked, NoTableError, or Py4JJavaError.
    """
    if len(request.instants) != 1:
        raise ServiceRefusedError(f"table {job.table_name} at {job.base_path}: a restore names one savepoint")
    (savepoint,) = request.instants
    context = open_context(spark, job, request)
    with open_client(spark, job.base_path, context.settings, ALWAYS) as holder, hold_lock(spark, holder):
        # Under the lock no writer begins or commits, so what is read now is what the restore takes back.
        now = context.refreshed()
        alive = find_beating(spark, job.base_path, now.settings)
        if alive:
            message = f"writer or service {', '.join(alive)} lives: what it commits would not be in the restore's plan"
            return _failed(FailureKind.CONFLICT, message)
        step = _decide(now, savepoint)
        context.log_progress(f"restore to savepoint {savepoint}: {step}")
        if step is not RestoreStep.VERIFY:
            _restore(_without_metadata(now, holder), savepoint)
        after = context.read_table_state()
        restore = max(requested_times(after.timeline.getRestoreTimeline().filterCompletedInstants()), default="")
        written_since = _find_taken_back(after, savepoint)
        is_unfinished = bool(written_since) and step is not RestoreStep.VERIFY
        if find_restores(after) or not restore or is_unfinished:
            return _failed(FailureKind.OTHER, f"the restore to {savepoint} is not completed on the timeline")
        if written_since:
            compared = "nothing was compared: writers have written since"
        else:
            problem, compared = _compare(context, after, savepoint)
            if problem:
                return _failed(FailureKind.REFUSED, f"restore {restore} is completed, but {problem}")
    message = f"restored to savepoint {savepoint}; {compared}"
    context.log_progress(message)
    return ServiceResult(Service.SAVEPOINT, Outcome.COMPLETED, completed_instants=(restore,), message=message)


def _failed(kind: FailureKind, message: str) -> ServiceResult:
    return ServiceResult(Service.SAVEPOINT, Outcome.FAILED, failure_kind=kind, message=message)


def _without_metadata(context: ServiceContext, holder: Any) -> ServiceContext:
    """Return the context after the metadata table was taken away, where that is asked because it does not reach back.

    By Hudi's own call. It would leave it as it is, with files that a restore removes.
    """
    state = context.first_state
    if _asked(context, METADATA_ENABLE) != "false" or not state.metadata_partitions:
        return context
    hudi = context.spark._jvm.org.apache.hudi
    hudi.metadata.HoodieTableMetadataUtil.deleteMetadataTable(
        state.meta_client,
        holder.getEngineContext(),
        False,  # noqa: FBT003 - py4j has no keywords
    )
    context.log_progress("the metadata table does not reach back to the savepoint: it is removed")
    return context.refreshed()


def _restore(context: ServiceContext, savepoint: str) -> None:
    """Restore with a metadata table just where the table has one, whatever a writer would make."""
    partitions = context.first_state.metadata_partitions
    flags = {key: str(partition in partitions).lower() for partition, key in METADATA_SETTINGS.items()}
    settings = {**context.settings, **flags, LOCK_PROVIDER: IN_PROCESS_LOCK}
    must_hold = {**ALWAYS, METADATA_ENABLE: flags[METADATA_ENABLE]}
    with open_client(context.spark, context.job.base_path, settings, must_hold) as client:
        client.restoreToSavepoint(savepoint)


def _asked(context: ServiceContext, option: str) -> str:
    return {**context.job.hudi_options, **context.request.options}.get(option, "")


def _decide(context: ServiceContext, savepoint: str) -> RestoreStep:
    state = context.first_state
    plans = context.spark._jvm.org.apache.hudi.table.action.restore.RestoreUtils
    restores = state.timeline.getRestoreTimeline()
    return decide_step(
        savepoint,
        [name for name in _asked(context, RESTORE_TAKES_BACK).split(",") if name],
        [instant.requested_time for instant in _list_writes(state)],
        _find_taken_back(state, savepoint),
        {
            str(instant.requestedTime()): str(
                plans.getRestorePlan(state.meta_client, instant).getSavepointToRestoreTimestamp()
            )
            for instant in restores.filterInflightsAndRequested().getInstants()
        },
        requested_times(restores.filterCompletedInstants()),
    )


def _list_writes(state: LoadedTable) -> list[TimedInstant]:
    instants = state.timeline.getInstants()
    found = []
    for each in parse_instants(str(instants.toString()), int(instants.size())):
        if each.action not in WRITE_ACTIONS:
            continue
        known = each.completed_time if state.table_version >= FIRST_VERSION_OF_OWN_LOGS else ""
        completed = (known or each.requested_time) if each.state == "COMPLETED" else ""
        found.append(TimedInstant(each.action, each.requested_time, completed))
    return found


def _find_taken_back(state: LoadedTable, savepoint: str) -> list[str]:
    """Return what a restore takes back. Raises ServiceRefusedError without the savepoint's completed write."""
    writes = _list_writes(state)
    saved = next((each for each in writes if each.requested_time == savepoint and each.completed_time), None)
    if saved is None:
        raise ServiceRefusedError(f"the write of savepoint {savepoint} is not on the active timeline")
    merges_logs = state.table_type == MERGE_ON_READ
    return [each.requested_time for each in writes if is_taken_back(each, saved, merges_logs=merges_logs)]


# --- What readers see, compared with the files of the savepoint, which are read apart from any list of Hudi's


def _compare(context: ServiceContext, state: LoadedTable, savepoint: str) -> tuple[str, str]:
    """Return what is wrong, empty when nothing is, and what was compared."""
    spark = context.spark
    path = state.base_path
    instant = find_instant(state.timeline.getSavePointTimeline().filterCompletedInstants(), savepoint)
    if instant is None:
        return f"the savepoint {savepoint} is gone", ""
    reader = SliceReader(spark, path, AS_WRITTEN, nested_in_batches=False)
    storage = state.meta_client.getStorage()
    slices: list[NumberedSlice] = []
    gone: list[str] = []
    partitions = state.timeline.readSavepointMetadata(instant).getPartitionMetadata()
    for partition in sorted(map(str, partitions)):
        names = set(map(str, partitions[partition].getSavepointDataFile()))
        ids = {file.file_id for name in names if (file := parse_name(name)) is not None}
        listed = [file for files in reader.list_files(storage, partition, ids).values() for file in files]
        gone += [f"{partition}/{name}" for name in find_gone(names, {file.name for file in listed}, savepoint)]
        saved = [file for file in listed if file.name in names]
        for found in slices_of(saved, savepoint, state.table_version).values():
            slices.append((len(slices), partition, found))
    if gone:
        return f"files of the savepoint are gone: {', '.join(sorted(gone)[:MAX_NAMED])}", ""
    obstacle = find_obstacle(state, Service.COMPACTION)
    if obstacle:
        return "", f"the files of {len(slices)} file groups are there; rows were not compared: {obstacle}"
    seen = [_read(spark, path, uses_metadata=on) for on in ([True, False] if state.metadata_partitions else [False])]
    layout = reader.layout_at(spark.read.format("hudi").load(path))
    meta_fields = [PARTITION_PATH] if PARTITION_PATH in layout.schema.names else ()
    until = LAST_INSTANT if state.table_version >= FIRST_VERSION_OF_OWN_LOGS else savepoint
    saved_rows = reader.read([[each] for each in slices], layout, until, meta_fields).withColumn(UNIT, F.lit(0))
    sides = [saved_rows, *seen] if slices else [seen[0].limit(0), *seen]
    fields = compared_fields(state, layout.schema, None)
    held, *read = (found.get(0, NO_ROWS) for found in fingerprints(sides, fields))
    if any(each != held for each in read):
        counts = " or ".join(sorted({str(each.rows) for each in read}))
        return f"readers see {counts} rows, the savepoint's files hold {held.rows}, and their values differ", ""
    return "", f"compared {held.rows} rows of {len(slices)} file groups with what readers see: equal"


def _read(spark: SparkSession, path: str, *, uses_metadata: bool) -> DataFrame:
    rows = spark.read.format("hudi").option(METADATA_ENABLE, str(uses_metadata).lower()).load(path)
    return rows.withColumn(UNIT, F.lit(0))
