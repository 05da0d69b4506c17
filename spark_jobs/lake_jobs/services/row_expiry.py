"""Deletes the rows of one table whose time, in a column, is too long ago, with Hudi's own Spark writer.

A search without the lock counts the expired rows of each file group. Under the table's lock the chosen file groups are
read again, and what is still expired there is deleted: each key in the file group in which it was read, so that no
index of the writers is asked. Just before the commit completes, the job compares what it deletes with what it read.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql import types as T

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.job_contract import FailureKind, JobRequest, Mode, Outcome, Service, ServiceResult
from airflow_lake_provider.shared.hudi_settings import BASE_PATH, LOCK_PROVIDER, TABLE_NAME, WRITE_OPERATION
from lake_jobs.hudi.checked_write import write_checked
from lake_jobs.hudi.store_clock import store_now_ms
from lake_jobs.hudi.table import MERGE_ON_READ, LoadedTable, list_times, requested_times
from lake_jobs.replication.slice_reader import GROUP, RECORD_KEY, SliceReader
from lake_jobs.services.context import (
    IN_PROCESS_LOCK,
    ServiceContext,
    act_under_lock,
    open_context,
    open_waiting_client,
    refuse_scheduling,
    seconds_since,
)
from lake_jobs.services.latest_slices import find_latest_slices
from lake_jobs.services.living_writers import WriterInTheWayError, load_living_writers, require_no_writer
from lake_jobs.services.row_expiry_rules import (
    ExpiredGroup,
    Expiry,
    RowRules,
    choose_groups,
    find_expiry,
    read_row_rules,
)
from lake_jobs.services.ttl import (
    PartitionInUseError,
    completed_writes,
    require_untouched,
    undo,
    wait_for_writers,
)
from lake_jobs.verify.seen_before import AS_WRITTEN, PARTITION_PATH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from airflow_lake_provider.job_contract import ServiceRequest
    from lake_jobs.replication.slice_reader import NumberedSlice

_COMMIT_TIME = "_hoodie_commit_time"
_FILE_NAME = "_hoodie_file_name"
_SEQUENCE = "_hoodie_commit_seqno"
_PREPPED = "_hoodie.spark.sql.writes.prepped"
"""What Hudi's own `DELETE FROM` sets: rows name their file groups, and no index is asked."""


_PLAIN_PAYLOADS = frozenset(
    f"org.apache.hudi.common.model.{name}"
    for name in ("DefaultHoodieRecordPayload", "OverwriteWithLatestAvroPayload", "EventTimeAvroPayload")
)


class DeletionDiffersError(Exception):
    """Hudi would delete something else than the expired rows; nothing was deleted."""


@dataclass(frozen=True, slots=True)
class _Expected:
    """What a deletion must report: rows, and the keys that they have."""

    rows: int
    keys: int


def run_row_expiry(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Run one request: find the expired rows, and delete those of the chosen file groups in one commit.

    Raises ServiceRefusedError when the request only schedules, or the table's rows cannot be deleted so,
    TtlSettingError, NoTableError, or Py4JJavaError when Hudi fails.
    """
    if request.mode is Mode.SCHEDULE:
        raise refuse_scheduling(job, "expired rows are found and deleted in one")
    context = open_context(spark, job, request)
    table = f"table {job.table_name} at {job.base_path}"
    rules = read_row_rules(request.options, table)
    if not list_times(completed_writes(context.first_state)):
        return ServiceResult(Service.TTL, Outcome.NOTHING_TO_DO, message="the table has no completed write")
    _require_deletable(context.first_state, rules, table)
    # The earlier of two clocks: one that is ahead would delete too much.
    now_ms = min(store_now_ms(spark, job.base_path), int(time.time() * 1000))
    rows = spark.read.options(**AS_WRITTEN).format("hudi").load(job.base_path)
    expiry = find_expiry(_type_of(rows, rules.column, table), rules, now_ms, table)
    started = time.monotonic()
    groups = _count_expired(rows, expiry, rules, table)
    found = (
        f"{sum(group.rows for group in groups):,} rows of {len(groups):,} file groups have a {rules.column} before "
        f"{expiry.limit}"
    )
    context.log_progress(found)
    if not groups or not rules.deletes:
        message = f"{found}; ttl.column_mode: report deletes none" if groups else f"no row is expired: {found}"
        return ServiceResult(Service.TTL, Outcome.NOTHING_TO_DO, message=message)
    try:
        chosen = choose_groups(groups, rules)
        instant, deleted = _delete_under_lock(context, chosen, expiry, rules)
    except (PartitionInUseError, WriterInTheWayError) as error:
        return ServiceResult(Service.TTL, Outcome.FAILED, failure_kind=FailureKind.CONFLICT, message=f"{error}")
    rest = f"; {len(groups) - len(chosen):,} file groups stay for later runs" if len(groups) > len(chosen) else ""
    if not instant:
        return ServiceResult(Service.TTL, Outcome.NOTHING_TO_DO, message=f"no row is expired any more{rest}")
    message = f"deleted {deleted:,} rows of {len(chosen):,} file groups, {rules.column} before {expiry.limit}{rest}"
    context.log_progress(f"{message}, in {seconds_since(started)}")
    return ServiceResult(Service.TTL, Outcome.COMPLETED, completed_instants=(instant,), message=message)


def _require_deletable(state: LoadedTable, rules: RowRules, table: str) -> None:
    """Raise ServiceRefusedError where a deletion could be wrong, or was not tried."""
    config = state.meta_client.getTableConfig()
    fields = config.getPartitionFields()
    if fields.isPresent() and rules.column in list(fields.get()):
        raise ServiceRefusedError(
            f"{table}: {rules.column} is a partition field, whose values Hudi may take from names of folders: name "
            "another ttl.column, or let partitions expire (ttl.retained_days)"
        )
    if config.isCDCEnabled():
        raise ServiceRefusedError(
            f"{table} records change data (hoodie.table.cdc.enabled), for which deletion of rows by ttl.column was not "
            "tried: let partitions expire (ttl.retained_days), or delete rows by a writer of the table"
        )
    mode = config.getRecordMergeMode()
    # Tables of version 6 have no merge mode.
    is_known = str(config.getPayloadClass()) in _PLAIN_PAYLOADS if mode is None else str(mode.name()) != "CUSTOM"
    if state.table_type == MERGE_ON_READ and not is_known:
        raise ServiceRefusedError(
            f"{table}: rows are merged by a payload's own rules, which may keep a row that was deleted: delete rows by "
            "a writer of the table"
        )


def _type_of(rows: DataFrame, column: str, table: str) -> str:
    types = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    if column not in types:
        raise ServiceRefusedError(f"{table} has no column {column}: correct ttl.column")
    return types[column]


def _count_expired(rows: DataFrame, expiry: Expiry, rules: RowRules, table: str) -> list[ExpiredGroup]:
    """Count the expired rows of each file group, as a reader sees them. Raises ServiceRefusedError."""
    counted = (
        rows.where(expiry.is_expired)
        .groupBy(F.col(PARTITION_PATH), F.substring_index(F.col(_FILE_NAME), "_", 1))
        .agg(F.count(F.lit(1)), F.min(F.expr(expiry.order)), F.max(F.expr(expiry.is_implausible)))
        .collect()
    )
    for row in counted:
        if row[4]:
            raise ServiceRefusedError(
                f"{table}: {rules.column} has {row[3]}, which counted in {rules.unit} is before 1980: correct "
                "ttl.column_unit, or write 0 or null where no time is known"
            )
    return [ExpiredGroup(row[0], row[1], row[2], row[3]) for row in counted]


def _delete_under_lock(
    context: ServiceContext, chosen: Sequence[ExpiredGroup], expiry: Expiry, rules: RowRules
) -> tuple[str, int]:
    """Return the instant and how many rows were deleted; empty when no row is expired any more."""
    partitions = tuple(sorted({group.partition for group in chosen}))
    _require_no_clustering(context.first_state)
    with open_waiting_client(context) as holder:
        wait_for_writers(context, partitions)
        with act_under_lock(context, holder) as (held, client):
            state = held.read_table_state()
            _require_no_clustering(state)
            require_no_writer(held, state, partitions)
            expired = _Deletion(held, state, chosen, expiry, rules)
            keys = expired.keys.persist()
            try:
                expected = expired.count(keys)
                instant = _write(held, client, state, chosen, keys, expected) if expected.rows else ""
                return instant, expected.rows
            finally:
                keys.unpersist()


def _require_no_clustering(state: LoadedTable) -> None:
    # Hudi refuses updates of file groups that a pending clustering reads.
    plans = requested_times(state.timeline.filterPendingClusteringTimeline())
    if plans:
        raise PartitionInUseError(f"waits for pending clustering {', '.join(plans)}, whose rows must stay")


class _Deletion:
    """The rows of the chosen file groups, read as they are now."""

    def __init__(
        self,
        context: ServiceContext,
        state: LoadedTable,
        chosen: Sequence[ExpiredGroup],
        expiry: Expiry,
        rules: RowRules,
    ) -> None:
        spark = context.spark
        self._table = f"table {context.job.table_name} at {context.job.base_path}"
        self._expiry = expiry
        reader = SliceReader(spark, state.base_path, AS_WRITTEN)
        layout = reader.layout_at(spark.read.format("hudi").load(state.base_path))
        wanted = {RECORD_KEY, _COMMIT_TIME, rules.column}
        needed = T.StructType([field for field in layout.schema.fields if field.name in wanted])
        slices = find_latest_slices(spark, state, {group.partition for group in chosen})
        # A file group that a clustering replaced since has no slice any more.
        places = [g for g in chosen if g.file_id in slices.get(g.partition, {})]
        tasks: list[list[NumberedSlice]] = [
            [(at, each.partition, slices[each.partition][each.file_id])] for at, each in enumerate(places)
        ]
        place = f"{GROUP} INT, {PARTITION_PATH} STRING, {_FILE_NAME} STRING"
        names = spark.createDataFrame([(at, each.partition, each.file_id) for at, each in enumerate(places)], place)
        self._rows = reader.read(tasks, replace(layout, schema=needed), meta_fields=(_COMMIT_TIME,))
        self.keys: DataFrame = (
            self._rows.where(expiry.is_expired)
            .join(F.broadcast(names), GROUP)
            .withColumn(_SEQUENCE, F.lit(""))
            .select(GROUP, _COMMIT_TIME, _SEQUENCE, RECORD_KEY, PARTITION_PATH, _FILE_NAME, rules.column)
        )
        """The expired rows, each with its file group."""

    def count(self, keys: DataFrame) -> _Expected:
        """Count the expired rows. Raises ServiceRefusedError where a key has expired rows and others.

        Hudi deletes by key, and so would delete the others as well.
        """
        is_expired = F.expr(f"CAST(coalesce({self._expiry.is_expired}, false) AS INT)")
        mixed = (
            self._rows.groupBy(GROUP, RECORD_KEY)
            .agg(F.sum(is_expired).alias("expired"), F.count(F.lit(1)).alias("all"))
            .where("expired > 0 AND expired < all")
            .limit(1)
            .collect()
        )
        if mixed:
            raise ServiceRefusedError(
                f"{self._table}: key {mixed[0][RECORD_KEY]!r} has several rows in one file group, of which some are "
                "expired and others are not, and Hudi deletes by key: see duplicate_keys in docs/doctor.md"
            )
        counted = keys.agg(F.count(F.lit(1)), F.count_distinct(GROUP, RECORD_KEY)).first()
        return _Expected(int(counted[0]), int(counted[1])) if counted is not None else _Expected(0, 0)


def _write(
    context: ServiceContext,
    client: Any,
    state: LoadedTable,
    chosen: Sequence[ExpiredGroup],
    keys: DataFrame,
    expected: _Expected,
) -> str:
    """Delete the keys in one commit and return its instant, or leave nothing behind.

    Raises PartitionInUseError, WriterInTheWayError, DeletionDiffersError, Py4JJavaError.
    """
    partitions = frozenset(group.partition for group in chosen)
    before = frozenset(requested_times(completed_writes(state)))
    pending = frozenset(requested_times(state.timeline.filterInflightsAndRequested()))
    living = frozenset(writer.instant for writer in load_living_writers(context, state))

    def check(metadata: Any) -> None:
        now = context.read_table_state()
        began = [w.instant for w in load_living_writers(context, now) if w.instant not in living]
        # Of several, one takes no lock: then each counts as in the way, this deletion too.
        require_no_writer(context, now, partitions, own=began[0] if len(began) == 1 else "")
        require_untouched(context, before, partitions)
        _require_only_deletions(metadata, chosen, expected, state)

    try:
        unique = keys.dropDuplicates([GROUP, RECORD_KEY]).drop(GROUP)
        instant = write_checked(context.spark, unique, _settings(context, state), check)
    except BaseException:
        _undo_new(context, client, pending)
        raise
    if not instant:
        _undo_new(context, client, pending)
        raise DeletionDiffersError("Hudi did not commit the deletion: its log on Spark's driver says why")
    return instant


def _settings(context: ServiceContext, state: LoadedTable) -> dict[str, str]:
    return {
        **context.settings,
        # The table's lock is held by this process already.
        LOCK_PROVIDER: IN_PROCESS_LOCK,
        "hoodie.datasource.write.table.type": state.table_type,
        "hoodie.datasource.meta.sync.enable": "false",
        "hoodie.datasource.hive_sync.enable": "false",
        WRITE_OPERATION: "delete",
        _PREPPED: "true",
        TABLE_NAME: str(state.meta_client.getTableConfig().getTableName()),
        BASE_PATH: state.base_path,
        "path": state.base_path,
    }


def _require_only_deletions(
    metadata: Any, chosen: Sequence[ExpiredGroup], expected: _Expected, state: LoadedTable
) -> None:
    """Raise DeletionDiffersError unless the commit deletes the expected rows of the chosen file groups, and no more."""
    # A log file counts the keys that it deletes, a new base file the rows that it lacks.
    wanted = expected.keys if state.table_type == MERGE_ON_READ else expected.rows
    groups = {(group.partition, group.file_id) for group in chosen}
    stats = [
        (str(partition), stat)
        for partition, of_partition in dict(metadata.getPartitionToWriteStats()).items()
        for stat in of_partition
    ]
    deleted = sum(int(stat.getNumDeletes()) for _, stat in stats)
    others = {(partition, str(stat.getFileId())) for partition, stat in stats} - groups
    changed = sum(int(stat.getNumInserts()) + int(stat.getNumUpdateWrites()) for _, stat in stats)
    if deleted != wanted or others or changed:
        raise DeletionDiffersError(
            f"Hudi would delete {deleted:,} rows and change {changed:,} where {wanted:,} are expired"
            f"{f', also in file groups {sorted(others)[:3]}' if others else ''}; nothing was deleted"
        )


def _undo_new(context: ServiceContext, client: Any, pending: frozenset[str]) -> None:
    state = context.read_table_state()
    began = [at for at in requested_times(state.timeline.filterInflightsAndRequested()) if at not in pending]
    # Of several, one is another writer's, and a later rollback of failed writes finds which.
    if len(began) == 1:
        undo(context, client, began[0])
