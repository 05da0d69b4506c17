"""A Hudi table as replication reads it: its timeline, one commit alone, and a snapshot at an instant.

Hudi 1.2 compares the range of a change data query with *requested* times, whatever its documents state: a range behind
a completion time skips the commits of slow writers for good. So each commit is read alone, by its requested time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from airflow_lake_provider.errors import SourceRefusedError
from airflow_lake_provider.instant_clock import shift_instant_time
from airflow_lake_provider.replication.change import Change, CommitRef, Mode, Op
from airflow_lake_provider.replication.feed import OPERATIONS_WITHOUT_CHANGES, SourceTimeline
from airflow_lake_provider.replication.job import MERGE_ON_READ, require_mode_fits
from lake_jobs.hudi.files import open_path
from lake_jobs.hudi.table import TableState, read_table_state, requested_times
from lake_jobs.replication.change_columns import (
    cdc_changes,
    data_schema,
    find_decimal,
    in_order_per_key,
    key_json,
    row_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql import types as T

    from airflow_lake_provider.replication.checkpoint import SnapshotProgress

_RECORD_KEY, _PARTITION = "_hoodie_record_key", "_hoodie_partition_path"
_FIRST_VERSION_WITH_COMPLETION_TIMES = 8
_OPS = {op.value: op for op in Op}


class HudiSource:
    """Reads one table. The session's time zone must be UTC. Raises SourceRefusedError for what Hudi would garble."""

    def __init__(
        self, spark: SparkSession, base_path: str, mode: Mode, key: tuple[str, ...] = (), stream: str = ""
    ) -> None:
        self._spark = spark
        self._base_path = base_path
        self._mode = mode
        table = read_table_state(spark, base_path)
        require_mode_fits(mode, table.table_type, base_path, stream)
        config = table.meta_client.getTableConfig()
        self._is_merge_on_read = table.table_type == MERGE_ON_READ
        self._version = table.table_version
        self._has_cdc = bool(config.isCDCEnabled())
        fields = config.getRecordKeyFields()
        self._key = key or (tuple(fields.get()) if fields.isPresent() else ())
        self._operations: dict[str, CommitFacts] = {}
        self._cleans: dict[str, tuple[str, int]] = {}
        self._newest = ""
        self._schemas: dict[str, T.StructType] = {}
        self._require_replicable(bool(config.populateMetaFields()))

    def read_timeline(self) -> SourceTimeline:
        """Read the present active timeline."""
        table = read_table_state(self._spark, self._base_path)
        timeline = table.timeline
        writes = timeline.getCommitsTimeline()
        completed, silent, compacted, newest = [], set(), set(), ""
        for instant in writes.filterCompletedInstants().getInstants():
            requested_time = str(instant.requestedTime())
            completed_time = str(instant.getCompletionTime() or requested_time)
            newest = max(newest, completed_time)
            operation = self._metadata(timeline, instant).operation
            if operation == "COMPACT":
                compacted.add(requested_time)
            if operation in OPERATIONS_WITHOUT_CHANGES:
                silent.add(requested_time)
            else:
                completed.append(CommitRef(requested_time, completed_time))
        self._newest = newest
        retained_from, unbounded = self._read_cleans(timeline)
        return SourceTimeline(
            completed=tuple(completed),
            silent=frozenset(silent),
            pending=_pending_writes(timeline),
            compactions=frozenset((*compacted, *requested_times(timeline.filterPendingCompactionTimeline()))),
            earliest=min(requested_times(writes), default=""),
            retained_from=retained_from,
            cleaned_without_bound=unbounded,
            has_history=self._has_history(table),
            has_savepoints=not timeline.getSavePointTimeline().empty(),
            restored=max(requested_times(timeline.getRestoreTimeline()), default=""),
        )

    def read(self, commit: CommitRef) -> Iterator[Change]:
        """Return the changes of one completed commit alone, in order per key."""
        found = self._changes(commit) if self._mode is Mode.CHANGES else self._latest(commit)
        rows = in_order_per_key(found).select("op", "key", "before", "after")
        # Unpacked, not read by name: a row searches for a name each time, and this code runs for each row.
        for op, key, before, after in rows.toLocalIterator(prefetchPartitions=True):
            yield Change(_OPS[op], key, before, after)

    def read_snapshot(self, progress: SnapshotProgress) -> Iterator[tuple[tuple[str, str], Change]]:
        """Return the rows of the table at an instant behind `progress.after`, in the order of key and partition."""
        rows = self._reader().option("as.of.instant", progress.instant).load(self._base_path)
        if progress.after is not None:
            key, partition = progress.after
            rows = rows.where(
                (F.col(_RECORD_KEY) > key) | ((F.col(_RECORD_KEY) == key) & (F.col(_PARTITION) > partition))
            )
        found = rows.select(
            F.col(_RECORD_KEY).alias("record_key"),
            F.col(_PARTITION).alias("partition"),
            key_json(self._key).alias("key"),
            row_json(data_schema(rows.schema)).alias("after"),
        )
        for row in found.orderBy("record_key", "partition").toLocalIterator():
            yield (row.record_key, row.partition), Change(Op.READ, row.key, None, row.after)

    def schema_of(self, commit: CommitRef) -> str:
        """Return the Avro schema that the commit wrote with; empty when it names none."""
        known = self._operations.get(commit.requested_time)
        return "" if known is None else str(known.schema)

    def _changes(self, commit: CommitRef) -> DataFrame:
        return cdc_changes(self._cdc_rows(commit), self._schema(), self._key)

    def _latest(self, commit: CommitRef) -> DataFrame:
        rows = self._latest_rows(commit)
        none = F.lit(None).cast("string")
        present = rows.select(
            F.lit("u").alias("op"),
            key_json(self._key).alias("key"),
            none.alias("before"),
            row_json(data_schema(rows.schema)).alias("after"),
        )
        if not self._may_delete(commit):
            return present
        if not self._has_cdc:
            raise SourceRefusedError(
                f"commit {commit.requested_time} of table {self._base_path} deletes rows, and Hudi does not say which "
                "without change data capture: set hoodie.table.cdc.enabled=true when the table is made"
            )
        deleted = cdc_changes(self._cdc_rows(commit).where("op = 'd'"), self._schema(), self._key)
        # A row that moved to another partition is deleted there, and present.
        removed = deleted.join(present.select("key"), on="key", how="left_anti")
        return present.unionByName(removed.select("op", "key", none.alias("before"), none.alias("after")))

    def _cdc_rows(self, commit: CommitRef) -> DataFrame:
        begin, end = one_ms_before(commit.requested_time), commit.requested_time
        return self._incremental(begin, end, "cdc").where(F.col("ts_ms") == commit.requested_time)

    def _latest_rows(self, commit: CommitRef) -> DataFrame:
        # This query does compare completion times, on tables that have them.
        has_completion = self._version >= _FIRST_VERSION_WITH_COMPLETION_TIMES
        end = commit.completed_time if has_completion else commit.requested_time
        rows = self._incremental(one_ms_before(end), end, "latest_state")
        return rows.where(F.col("_hoodie_commit_time") == commit.requested_time)

    def _incremental(self, begin: str, end: str, form: str) -> DataFrame:
        reader = self._reader().option("hoodie.datasource.query.type", "incremental")
        reader = reader.option("hoodie.datasource.query.incremental.format", form)
        reader = reader.option("hoodie.datasource.read.begin.instanttime", begin)
        reader = reader.option("hoodie.datasource.read.end.instanttime", end)
        # Otherwise Hudi silently leaves out rows of files that a clean has removed.
        return reader.option("hoodie.datasource.read.incr.fallback.fulltablescan.enable", "false").load(self._base_path)

    def _reader(self) -> DataFrameReader:
        return self._spark.read.format("hudi")

    def _schema(self) -> T.StructType:
        # Of the newest commit: what it added is null in the rows of earlier ones. Opening the table takes a while.
        if self._newest not in self._schemas:
            self._schemas = {self._newest: data_schema(self._reader().load(self._base_path).schema)}
        return self._schemas[self._newest]

    def _metadata(self, timeline: Any, instant: Any) -> CommitFacts:
        requested_time = str(instant.requestedTime())
        if requested_time not in self._operations:
            metadata = timeline.readCommitMetadata(instant)
            self._operations[requested_time] = CommitFacts(metadata, str(instant.getAction()))
        return self._operations[requested_time]

    def _may_delete(self, commit: CommitRef) -> bool:
        facts = self._operations.get(commit.requested_time)
        return facts is None or facts.may_delete

    def _read_cleans(self, timeline: Any) -> tuple[str, str]:
        """Return what cleans keep, and the last clean that does not record it."""
        cleans = timeline.getCleanerTimeline()
        for instant in cleans.filterCompletedInstants().getInstants():
            requested_time = str(instant.requestedTime())
            if requested_time not in self._cleans:
                metadata = timeline.readCleanMetadata(instant)
                kept = str(metadata.getEarliestCommitToRetain() or "")
                self._cleans[requested_time] = (kept, int(metadata.getTotalFilesDeleted()))
        known = dict(self._cleans)
        for instant in cleans.filterInflightsAndRequested().getInstants():
            # It may be deleting files just now.
            known[str(instant.requestedTime())] = _read_clean_plan(timeline.readCleanerPlan(instant))
        unbounded = [requested for requested, (kept, files) in known.items() if files and not kept]
        return max((kept for kept, _ in known.values()), default=""), max(unbounded, default="")

    def _has_history(self, table: TableState) -> bool:
        fs, folder = open_path(self._spark, str(table.meta_client.getArchivePath()))
        if not fs.exists(folder):
            return False
        names = [str(status.getPath().getName()) for status in fs.listStatus(folder)]
        return any(name.endswith(".parquet") or ".archive" in name for name in names)

    def _require_replicable(self, has_meta_fields: bool) -> None:  # noqa: FBT001 - the table's own property
        what = f"table {self._base_path}"
        if not has_meta_fields:
            raise SourceRefusedError(
                f"{what} has no meta fields (hoodie.populate.meta.fields=false), so its rows carry no keys"
            )
        if not self._key:
            raise SourceRefusedError(f"{what} has no record key: name the fields in key")
        if self._mode is not Mode.CHANGES:
            return
        if not self._has_cdc:
            raise SourceRefusedError(
                f"{what} has no change data: mode changes needs hoodie.table.cdc.enabled=true, set when the table is "
                f"made; {self._describe_latest('does not')}"
            )
        if self._version < _FIRST_VERSION_WITH_COMPLETION_TIMES:
            raise SourceRefusedError(f"{what} has version {self._version}: Hudi 1.2 fails to read its change data")
        decimal = find_decimal(self._schema())
        if decimal is not None:
            raise SourceRefusedError(
                f"{what} has the decimal column {decimal}, whose values Hudi 1.2 loses in change data: "
                f"{self._describe_latest('has them')}"
            )

    def _describe_latest(self, what: str) -> str:
        if self._is_merge_on_read:
            return f"mode latest {what}, and is for copy-on-write tables only, which this one is not"
        return f"mode latest {what}"


class CommitFacts:
    """What replication needs of a completed commit's metadata, read once."""

    def __init__(self, metadata: Any, action: str) -> None:
        operation = metadata.getOperationType()
        self.operation = "UNKNOWN" if operation is None else str(operation.name())
        self.schema = str(metadata.getMetadata("schema") or "")
        replaces = action == "replacecommit"
        self.may_delete = replaces or int(metadata.getTotalRecordsDeleted()) > 0


def one_ms_before(instant: str) -> str:
    """Return the instant time one millisecond earlier (`yyyyMMddHHmmssSSS`); ranges exclude their begin."""
    return shift_instant_time(instant, -1)


def _read_clean_plan(plan: Any) -> tuple[str, int]:
    """Return what a clean's plan keeps, empty when it does not count commits, and how much it deletes."""
    earliest = plan.getEarliestInstantToRetain()
    files = plan.getFilePathsToBeDeletedPerPartition() or {}
    partitions = plan.getPartitionsToBeDeleted() or []
    deletes = sum(len(found) for found in files.values()) + len(partitions)
    return (str(earliest.getTimestamp() or "") if earliest is not None else ""), deletes


def _pending_writes(timeline: Any) -> tuple[str, ...]:
    pending: Mapping[str, None] = dict.fromkeys(
        requested_times(timeline.getCommitsTimeline().filterPendingExcludingCompaction())
    )
    services = {
        *requested_times(timeline.filterPendingClusteringTimeline()),
        *requested_times(timeline.filterPendingLogCompactionTimeline()),
    }
    return tuple(instant for instant in pending if instant not in services)
