"""The table that the sink `hudi` writes: its settings, its history as far as the sink must know it, one commit to it.

Each commit of the sink carries the stream and the checkpoint in its own extra metadata, so the timeline shows whether a
commit is the stream's and how far it was. Just before Hudi completes a commit, under the table's lock, the newest one
on the timeline must still be the one that this run continues from: of two rivals one finds the other's commit there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import types as T

from airflow_lake_provider.errors import (
    LakeError,
    SinkFencedError,
    SinkRefusedError,
    SinkUnavailableError,
)
from airflow_lake_provider.job_contract import FailureKind
from airflow_lake_provider.replication.feed import OPERATIONS_WITHOUT_CHANGES
from airflow_lake_provider.shared.hudi_settings import (
    BASE_PATH,
    LOCK_PROVIDER,
    TABLE_NAME,
    TIMELINE_ZONE,
    WRITE_LOCK_FILESYSTEM_EXPIRE,
    WRITE_OPERATION,
    WRITE_PARTITION_FIELDS,
    WRITE_RECORD_KEY,
)
from airflow_lake_provider.shared.plain_text import first_line
from airflow_lake_provider.sink_options.stores import HUDI_FIXED
from lake_jobs.driver.failure import classify
from lake_jobs.hudi.checked_write import write_checked
from lake_jobs.hudi.files import open_path
from lake_jobs.hudi.lock_file import find_causes
from lake_jobs.hudi.table import NoTableError, find_instant, list_times, open_client, read_table_state
from lake_jobs.replication.change_columns import data_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from airflow_lake_provider.sink_options.stores import TargetOptions
    from lake_jobs.hudi.table import LoadedTable

IS_DELETED = "_hoodie_is_deleted"
"""The column by which a writer of Hudi says that a row is gone."""
_PREFIX = "lake."
STREAM = f"{_PREFIX}stream"
CHECKPOINT = f"{_PREFIX}checkpoint"
GENERATION = f"{_PREFIX}generation"

_LOCK: Mapping[str, str] = MappingProxyType(
    {
        LOCK_PROVIDER: "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider",
        # A killed holder leaves its lock behind; it expires, and waiters wait longer than that.
        WRITE_LOCK_FILESYSTEM_EXPIRE: "2",
        "hoodie.write.lock.client.wait_time_ms_between_retry": "500",
        "hoodie.write.lock.client.num_retries": "480",
    }
)


@dataclass(frozen=True, slots=True)
class TargetKeys:
    """The names of the target's key and partition fields; together they name a row."""

    record_key: tuple[str, ...]
    partition_by: tuple[str, ...]

    def options(self) -> dict[str, str]:
        """Return them as Hudi's settings."""
        return {
            WRITE_RECORD_KEY: ",".join(self.record_key),
            WRITE_PARTITION_FIELDS: ",".join(self.partition_by),
        }


def target_keys_of(key: tuple[str, ...], partition_by: tuple[str, ...]) -> TargetKeys:
    """Return the layout of a new target: the partition's fields are no part of the record key unless they are all."""
    return TargetKeys(tuple(name for name in key if name not in partition_by) or key, partition_by)


class Target:
    """One table at one path, that belongs to one stream."""

    def __init__(self, spark: SparkSession, options: TargetOptions, stream: str, name: str) -> None:
        self._spark = spark
        self._options = options
        self._stream = stream
        self._name = options.hudi.get(TABLE_NAME, name)

    @property
    def path(self) -> str:
        """The base path."""
        return self._options.path

    def find_state(self) -> LoadedTable | None:
        """Return the table's present state; None before its first commit. Raises SinkRefusedError for other files."""
        try:
            return read_table_state(self._spark, self.path)
        except NoTableError:
            fs, folder = open_path(self._spark, self.path)
            if fs.exists(folder) and any(status.getPath().getName() != ".hoodie" for status in fs.listStatus(folder)):
                raise SinkRefusedError(
                    f"{self.path} holds files and no Hudi table: name a folder of the sink's own"
                ) from None
            return None

    def find_checkpoint(self, state: LoadedTable | None) -> str | None:
        """Return the checkpoint of the newest commit; None without any. Raises SinkRefusedError for another's commit.

        Table services change no rows, so their commits are passed over.
        """
        if state is None:
            return None
        done = state.timeline.getCommitsTimeline().filterCompletedInstants()
        is_served = False
        for requested, _ in sorted(list_times(done), key=lambda times: (times[1] or times[0], times[0]), reverse=True):
            metadata = state.timeline.readCommitMetadata(find_instant(done, requested))
            operation = metadata.getOperationType()
            if operation is None or str(operation.name()) not in OPERATIONS_WITHOUT_CHANGES:
                return self._require_own(requested, metadata)
            is_served = True
        if is_served:
            raise SinkRefusedError(
                f"table {self.path} was compacted or clustered, and its active timeline shows no commit of stream "
                f"{self._stream}: name another path"
            )
        return None

    def _require_own(self, requested: str, metadata: Any) -> str:
        stream = metadata.getMetadata(STREAM)
        text = metadata.getMetadata(CHECKPOINT)
        if stream is None or text is None:
            raise SinkRefusedError(
                f"commit {requested} of table {self.path} is of another writer, and the rows of a sink are its "
                f"stream's alone: restore the table to a commit of stream {self._stream}, or name another path"
            )
        if str(stream) != self._stream:
            raise SinkRefusedError(
                f"table {self.path} is stream {stream}'s (commit {requested}), not {self._stream}'s: name another path"
            )
        return str(text)

    def schema(self, state: LoadedTable | None) -> T.StructType | None:
        """Return the table's columns; None where it has none yet."""
        if state is None or not list_times(state.timeline.getCommitsTimeline().filterCompletedInstants()):
            return None
        return data_schema(self._spark.read.format("hudi").load(self.path).schema)

    def layout(self, state: LoadedTable) -> TargetKeys:
        """Return what a table's properties say of its key and its partitions."""
        config = state.meta_client.getTableConfig()
        key = config.getRecordKeyFields()
        partition = config.getPartitionFields()
        return TargetKeys(
            tuple(key.get()) if key.isPresent() else (), tuple(partition.get()) if partition.isPresent() else ()
        )

    def roll_back_the_dead(self, state: LoadedTable | None) -> None:
        """Roll back writes of runs that have died: those whose heartbeat has expired, as Hudi judges it."""
        if state is None:
            return
        pending = state.timeline.getCommitsTimeline().filterPendingExcludingCompaction()
        if pending.empty():
            return
        settings = self._settings() | {TABLE_NAME: self._name}
        with open_client(self._spark, self.path, settings, {}) as client:
            client.rollbackFailedWrites(state.meta_client)

    def commit(
        self,
        rows: DataFrame,
        layout: TargetKeys,
        extra: Mapping[str, str],
        expected: str | None,
        *,
        replaces: bool,
        zone: str = "",
    ) -> None:
        """Write rows and metadata as one commit, or raise and change nothing; `replaces` drops all earlier rows.

        `expected` is the checkpoint that must still be the newest. Raises SinkFencedError when another is.
        """
        settings = self._settings() | layout.options() | dict(extra)
        settings[WRITE_OPERATION] = "insert_overwrite_table" if replaces else "upsert"
        if zone:
            settings.setdefault(TIMELINE_ZONE, zone)
        settings["path"] = self.path
        try:
            is_written = write_checked(self._spark, rows, settings, lambda _: self._require_newest(expected))
        except Py4JJavaError as error:
            raise self._as_lake_error(error) or error from error
        if not is_written:
            raise SinkUnavailableError(f"Hudi did not commit to table {self.path}: its log on Spark's driver says why")

    def _require_newest(self, expected: str | None) -> None:
        if self.find_checkpoint(self.find_state()) != expected:
            raise SinkFencedError(f"another run of stream {self._stream} has committed to table {self.path}")

    def _settings(self) -> dict[str, str]:
        return {**_LOCK, **self._options.hudi, **HUDI_FIXED, TABLE_NAME: self._name, BASE_PATH: self.path}

    def _as_lake_error(self, error: Py4JJavaError) -> LakeError | None:
        causes = find_causes(self._spark, self.path, self._settings(), error)
        kind = classify(causes)
        last = causes[-1]
        what = f"table {self.path}: {first_line(last.message or last.class_name)}"
        if kind is FailureKind.CONFLICT:
            return SinkFencedError(f"{what} (another commit to the same files came first)")
        if kind is FailureKind.LOCK:
            return SinkUnavailableError(what)
        if kind is FailureKind.REFUSED:
            return SinkRefusedError(f"table {self.path}: {first_line(causes[0].message)}")
        if any("CompatibilityException" in cause.class_name for cause in causes):
            return SinkRefusedError(f"{what}: the table's columns do not take the stream's new schema")
        return None


def struct_of(spark: SparkSession, avro: str) -> T.StructType:
    """Return the columns of a table's Avro schema, as Spark's types."""
    jvm: Any = spark._jvm
    schema = jvm.org.apache.hudi.common.schema.HoodieSchema.parse(avro)
    struct = jvm.org.apache.hudi.HoodieSchemaConversionUtils.convertHoodieSchemaToStructType(schema)
    return data_schema(T.StructType.fromJson(json.loads(struct.json())))


def union_of(known: T.StructType | None, new: T.StructType | None) -> T.StructType | None:
    """Return the columns of both, the known ones first; types are the new ones where both name a column."""
    if known is None or new is None:
        return known if new is None else new
    kinds = {column.name: column.dataType for column in new.fields}
    names = dict.fromkeys((*known.names, *new.names))
    return T.StructType([T.StructField(name, kinds.get(name) or known[name].dataType) for name in names])
