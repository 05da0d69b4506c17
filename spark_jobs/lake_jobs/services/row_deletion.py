"""Deletes chosen rows of one table under its lock, in one commit of Hudi's own Spark writer.

Each key is deleted in the file group in which it was read, so that no index of the writers is asked. Just before the
commit completes, the job compares what it deletes with what it read.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql import types as T

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.shared.hudi_settings import (
    BASE_PATH,
    LOCK_PROVIDER,
    MERGE_ON_READ,
    TABLE_NAME,
    WRITE_OPERATION,
)
from lake_jobs.hudi.checked_write import write_checked
from lake_jobs.hudi.table import LoadedTable, requested_times
from lake_jobs.replication.slice_reader import GROUP, RECORD_KEY, SliceReader
from lake_jobs.services.context import IN_PROCESS_LOCK, ServiceContext, act_under_lock, open_waiting_client
from lake_jobs.services.latest_slices import find_latest_slices
from lake_jobs.services.living_writers import load_living_writers, require_no_writer
from lake_jobs.services.ttl import (
    PartitionInUseError,
    completed_writes,
    require_untouched,
    undo,
    wait_for_writers,
)
from lake_jobs.verify.seen_before import AS_WRITTEN, PARTITION_PATH

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from lake_jobs.replication.slice_reader import NumberedSlice

COMMIT_TIME = "_hoodie_commit_time"
FILE_NAME = "_hoodie_file_name"
IS_CHOSEN = "_lake_is_chosen"
_SEQUENCE = "_hoodie_commit_seqno"
_PREPPED = "_hoodie.spark.sql.writes.prepped"
"""What Hudi's own `DELETE FROM` sets: rows name their file groups, and no index is asked."""


_PLAIN_PAYLOADS = frozenset(
    f"org.apache.hudi.common.model.{name}"
    for name in ("DefaultHoodieRecordPayload", "OverwriteWithLatestAvroPayload", "EventTimeAvroPayload")
)


class DeletionDiffersError(Exception):
    """Hudi would delete something else than the chosen rows; nothing was deleted."""


@dataclass(frozen=True, slots=True)
class DeletionGroup:
    """A file group of which rows are deleted."""

    partition: str
    file_id: str


@dataclass(frozen=True, slots=True)
class RowChoice:
    """Which rows are deleted: `mark` adds the column `IS_CHOSEN` to rows with key, partition and these columns."""

    what: str
    """What the rows are, for people: `expired`."""
    columns: frozenset[str]
    mark: Callable[[DataFrame], DataFrame]
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Further settings of the commit."""


@dataclass(frozen=True, slots=True)
class _Expected:
    """What a deletion must report: rows, and the keys that they have."""

    rows: int
    keys: int


def find_deletion_problem(state: LoadedTable) -> str:
    """Return why rows of a table cannot be deleted one by one; empty when they can."""
    config = state.meta_client.getTableConfig()
    if config.isCDCEnabled():
        return "it records change data (hoodie.table.cdc.enabled), for which a deletion of chosen rows was not tried"
    mode = config.getRecordMergeMode()
    # Tables of version 6 have no merge mode.
    is_known = str(config.getPayloadClass()) in _PLAIN_PAYLOADS if mode is None else str(mode.name()) != "CUSTOM"
    if state.table_type == MERGE_ON_READ and not is_known:
        return "its rows are merged by a payload's own rules, which may keep a row that was deleted"
    return ""


def delete_under_lock(context: ServiceContext, groups: Sequence[DeletionGroup], choice: RowChoice) -> tuple[str, int]:
    """Return the instant and how many rows were deleted; empty when no row is chosen any more.

    Raises PartitionInUseError, WriterInTheWayError, ServiceRefusedError, DeletionDiffersError, Py4JJavaError.
    """
    partitions = tuple(sorted({group.partition for group in groups}))
    _require_no_clustering(context.first_state)
    with open_waiting_client(context) as holder:
        wait_for_writers(context, partitions)
        with act_under_lock(context, holder) as (held, client):
            state = held.read_table_state()
            _require_no_clustering(state)
            require_no_writer(held, state, partitions)
            deletion = _Deletion(held, state, groups, choice)
            keys = deletion.keys.persist()
            try:
                expected = deletion.count(keys)
                instant = _write(held, client, state, (groups, choice), keys, expected) if expected.rows else ""
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
        groups: Sequence[DeletionGroup],
        choice: RowChoice,
    ) -> None:
        spark = context.spark
        self._table = f"table {context.job.table_name} at {context.job.base_path}"
        self._what = choice.what
        reader = SliceReader(spark, state.base_path, AS_WRITTEN)
        layout = reader.layout_at(spark.read.format("hudi").load(state.base_path))
        wanted = {RECORD_KEY, COMMIT_TIME, *choice.columns}
        needed = T.StructType([field for field in layout.schema.fields if field.name in wanted])
        slices = find_latest_slices(spark, state, {group.partition for group in groups})
        # A file group that a clustering replaced since has no slice any more.
        places = [g for g in groups if g.file_id in slices.get(g.partition, {})]
        tasks: list[list[NumberedSlice]] = [
            [(at, each.partition, slices[each.partition][each.file_id])] for at, each in enumerate(places)
        ]
        place = f"{GROUP} INT, {PARTITION_PATH} STRING, {FILE_NAME} STRING"
        names = spark.createDataFrame([(at, each.partition, each.file_id) for at, each in enumerate(places)], place)
        rows = reader.read(tasks, replace(layout, schema=needed), meta_fields=(COMMIT_TIME,))
        self._rows: DataFrame = choice.mark(rows.join(F.broadcast(names), GROUP))
        self.keys: DataFrame = (
            self._rows.where(IS_CHOSEN)
            .withColumn(_SEQUENCE, F.lit(""))
            .select(GROUP, COMMIT_TIME, _SEQUENCE, RECORD_KEY, PARTITION_PATH, FILE_NAME, *sorted(choice.columns))
        )
        """The chosen rows, each with its file group."""

    def count(self, keys: DataFrame) -> _Expected:
        """Count the chosen rows. Raises ServiceRefusedError where a key has chosen rows and others.

        Hudi deletes by key, and so would delete the others as well.
        """
        is_chosen = F.expr(f"CAST(coalesce({IS_CHOSEN}, false) AS INT)")
        mixed = (
            self._rows.groupBy(GROUP, RECORD_KEY)
            .agg(F.sum(is_chosen).alias("chosen"), F.count(F.lit(1)).alias("all"))
            .where("chosen > 0 AND chosen < all")
            .limit(1)
            .collect()
        )
        if mixed:
            raise ServiceRefusedError(
                f"{self._table}: key {mixed[0][RECORD_KEY]!r} has several rows in one file group, of which some are "
                f"{self._what} and others are not, and Hudi deletes by key: see duplicate_keys in docs/doctor.md"
            )
        counted = keys.agg(F.count(F.lit(1)), F.count_distinct(GROUP, RECORD_KEY)).first()
        return _Expected(int(counted[0]), int(counted[1])) if counted is not None else _Expected(0, 0)


def _write(
    context: ServiceContext,
    client: Any,
    state: LoadedTable,
    chosen: tuple[Sequence[DeletionGroup], RowChoice],
    keys: DataFrame,
    expected: _Expected,
) -> str:
    """Delete the keys in one commit and return its instant, or leave nothing behind.

    Raises PartitionInUseError, WriterInTheWayError, DeletionDiffersError, Py4JJavaError.
    """
    groups, choice = chosen
    partitions = frozenset(group.partition for group in groups)
    before = frozenset(requested_times(completed_writes(state)))
    pending = frozenset(requested_times(state.timeline.filterInflightsAndRequested()))
    living = frozenset(writer.instant for writer in load_living_writers(context, state))

    def check(metadata: Any) -> None:
        now = context.read_table_state()
        began = [w.instant for w in load_living_writers(context, now) if w.instant not in living]
        # Of several, one takes no lock: then each counts as in the way, this deletion too.
        require_no_writer(context, now, partitions, own=began[0] if len(began) == 1 else "")
        require_untouched(context, before, partitions)
        _require_only_deletions(metadata, groups, (expected, choice.what), state)

    try:
        unique = keys.dropDuplicates([GROUP, RECORD_KEY]).drop(GROUP)
        instant = write_checked(context.spark, unique, {**_settings(context, state), **choice.settings}, check)
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
    metadata: Any, chosen: Sequence[DeletionGroup], wanted_rows: tuple[_Expected, str], state: LoadedTable
) -> None:
    """Raise DeletionDiffersError unless the commit deletes the expected rows of the chosen file groups, and no more."""
    expected, what = wanted_rows
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
            f"Hudi would delete {deleted:,} rows and change {changed:,} where {wanted:,} are {what}"
            f"{f', also in file groups {sorted(others)[:3]}' if others else ''}; nothing was deleted"
        )


def _undo_new(context: ServiceContext, client: Any, pending: frozenset[str]) -> None:
    state = context.read_table_state()
    began = [at for at in requested_times(state.timeline.filterInflightsAndRequested()) if at not in pending]
    # Of several, one is another writer's, and a later rollback of failed writes finds which.
    if len(began) == 1:
        undo(context, client, began[0])
