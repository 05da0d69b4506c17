"""A Hudi table as a sink: the newest version of each row, upserted, one commit of the target for each of the source.

Rows and checkpoint are one commit of the target, so they are there together or not at all; that of a snapshot replaces
all rows of the one before, and readers see the old table until then.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from typing import TYPE_CHECKING, Protocol, TypeAlias

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from airflow_lake_provider.errors import ConfigError, SinkRefusedError, SinkUnavailableError
from airflow_lake_provider.replication.change import ChangeMode, Op, load_json, print_json
from airflow_lake_provider.replication.checkpoint import to_text
from airflow_lake_provider.replication.sink import json_row
from airflow_lake_provider.shared.hudi_settings import WRITE_URL_ENCODING
from airflow_lake_provider.sink_options.options import TakenOptions
from airflow_lake_provider.sink_options.stores import take_hudi
from airflow_lake_provider.table_layout import INDEX_TYPE
from lake_jobs.hudi.files import open_path
from lake_jobs.replication.change_columns import JSON_OPTIONS, data_schema, key_json, row_json
from lake_jobs.replication.hudi_target import (
    CHECKPOINT,
    GENERATION,
    IS_DELETED,
    STREAM,
    Target,
    TargetKeys,
    struct_of,
    target_keys_of,
    union_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame

    from airflow_lake_provider.replication.change import Batch, Change
    from airflow_lake_provider.replication.checkpoint import Checkpoint
    from airflow_lake_provider.replication.sink import Row, SinkSettings

MAX_ROWS = 100_000
MAX_BYTES = 64 * 1024 * 1024
_SPOOLED = "name string, number long, row string, gone boolean"
_Spooled: TypeAlias = tuple[int, str, bool]


class FollowedTable(Protocol):
    """What the sink takes from the table that its stream follows, where the target has none of its own yet."""

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key's fields."""

    @property
    def partition(self) -> tuple[str, ...]:
        """The names of the fields by whose values the table is partitioned."""

    @property
    def schema(self) -> T.StructType:
        """The columns of its newest schema."""

    @property
    def time_zone(self) -> str:
        """The zone in which its instants are named, as Hudi's setting says it."""


class HudiSink:
    """Options: `path`, `partition_by` (comma list; the followed table's unless set), `hoodie.*` for the writer."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings
        options = TakenOptions(settings.options, f"the hudi sink of {settings.table_name}")
        self._options = take_hudi(options)
        options.end()
        self._followed: FollowedTable | None = None
        self._target: Target | None = None
        self._layout: TargetKeys | None = None
        self._schema: T.StructType | None = None
        self._avro = ""
        self._durable: str | None = None
        self._spool: Spool | None = None
        self._replaces = False

    def follow(self, table: FollowedTable) -> None:
        """Take key, partitions and schema of a new target from this table."""
        self._followed = table

    def open(self) -> str | None:
        """Find the target and its newest checkpoint; roll back what runs that died have left."""
        target = self._target = Target(
            _spark(), self._options, self._settings.stream, self._settings.table_name.replace(".", "_")
        )
        state = target.find_state()
        self._durable = target.find_checkpoint(state)
        target.roll_back_the_dead(state)
        if state is not None:
            self._layout = target.layout(state)
            self._schema = target.schema(state)
            wanted = self._options.partition_by
            if wanted is not None and wanted != self._layout.partition_by:
                raise ConfigError(
                    f"table {target.path} is partitioned by {', '.join(self._layout.partition_by) or 'nothing'}, and "
                    f"partition_by is {', '.join(wanted) or 'empty'}: name another path, or leave it out"
                )
        self._spool = Spool(_spark(), _spool_path(target.path))
        self._spool.sweep()
        return self._durable

    def write(self, batch: Batch) -> None:
        """Keep the changes until the commit, beyond some megabytes in files next to the target."""
        _, spool = self._opened()
        self._avro = batch.schema or self._avro
        if batch.begins_snapshot:
            spool.clear()
            self._replaces = True
        if not batch.changes:
            return
        layout = self._require_layout(tuple(load_json(batch.changes[0].key)))
        is_named_by_key = set(layout.partition_by) <= set(load_json(batch.changes[0].key))
        if not is_named_by_key:
            self._require_movable(layout)
        for change in batch.changes:
            row = change.before or change.key if change.op is Op.DELETE else change.after
            if row is None:
                raise SinkRefusedError(f"change {change.key} brings no row")
            name = change.key if is_named_by_key else self._name(change, row, layout)
            if change.op is Op.UPDATE and not is_named_by_key:
                # Hudi searches a key in the row's own partition, and would keep the row in its earlier one as well.
                before = change.before or change.key
                was = self._name(change, before, layout)
                if was != name:
                    spool.add(was, before, is_gone=True)
            spool.add(name, row, is_gone=change.op is Op.DELETE)

    def commit(self, checkpoint: Checkpoint) -> None:
        """Write the rows and the checkpoint as one commit. A part of a snapshot waits for the last one."""
        target, spool = self._opened()
        if checkpoint.snapshot is not None:
            return
        text = to_text(checkpoint)
        schema = union_of(self._schema, struct_of(_spark(), self._avro) if self._avro else None)
        if schema is None and self._followed is not None:
            schema = self._followed.schema
        if schema is None:
            raise SinkRefusedError(f"there is no schema of stream {self._settings.stream} yet")
        extra = {STREAM: checkpoint.stream, GENERATION: str(checkpoint.generation), CHECKPOINT: text}
        try:
            target.commit(
                _typed(spool.rows(), schema),
                self._require_layout(self._followed.key if self._followed is not None else ()),
                extra,
                self._durable,
                replaces=self._replaces,
                zone=self._followed.time_zone if self._followed is not None else "",
            )
        finally:
            self._replaces = False
            spool.clear()
        self._durable = text
        self._schema = schema

    def close(self) -> None:
        """Drop what was not committed."""
        spool, self._spool = self._spool, None
        if spool is not None:
            with contextlib.suppress(Py4JJavaError):
                spool.clear()

    def read_rows(self, key: Sequence[str], checkpoint: Checkpoint) -> Iterator[Row]:
        """Return the target's rows, as an ordinary query finds them."""
        _ = checkpoint
        rows = _spark().read.format("hudi").load(self._options.path)
        found = rows.select(key_json(key), row_json(data_schema(rows.schema)))
        for name, row in found.toLocalIterator(prefetchPartitions=True):
            yield print_json(load_json(name)), load_json(row)

    def count_rows(self) -> int:
        """Return how many rows the target has, those of one key counted each."""
        return int(_spark().read.format("hudi").load(self._options.path).count())

    def as_read(self, change: Change) -> Row:
        """Return a row as it is: the target has its types."""
        return json_row(change)

    def _require_layout(self, key: tuple[str, ...]) -> TargetKeys:
        if self._layout is None:
            if not key:
                raise SinkRefusedError(f"there is no key of stream {self._settings.stream} yet")
            wanted = self._options.partition_by
            if wanted is None:
                wanted = self._followed.partition if self._followed is not None else ()
            self._layout = target_keys_of(key, wanted)
        return self._layout

    def _require_movable(self, layout: TargetKeys) -> None:
        """Refuse what would keep rows in partitions that they have left, where the key does not say the partition."""
        fields = ", ".join(layout.partition_by)
        if self._settings.mode is ChangeMode.LATEST:
            raise SinkRefusedError(
                f"table {self._options.path} is partitioned by {fields}, which the key does not name, and mode: latest "
                "does not say of which partition a row was: set mode: changes, or a key with those fields"
            )
        index = self._options.hudi.get(INDEX_TYPE, "").upper()
        if "GLOBAL" in index or index == "RECORD_INDEX":
            raise SinkRefusedError(
                f"table {self._options.path} is partitioned by {fields}, which the key does not name, and "
                f"{INDEX_TYPE} is {index}: leave the index out, since the sink itself moves rows between partitions"
            )

    def _name(self, change: Change, row: str, layout: TargetKeys) -> str:
        """Return what names a row whose key does not say its partition."""
        values = load_json(row)
        if not set(layout.partition_by) <= values.keys():
            raise SinkRefusedError(
                f"change {change.key} does not say of which partition ({', '.join(layout.partition_by)}) its row was: "
                "set mode: changes, or a key with those fields"
            )
        parts = [str(values[name]) for name in layout.partition_by]
        is_encoded = self._options.hudi.get(WRITE_URL_ENCODING, "").lower() == "true"
        if len(parts) > 1 and not is_encoded and any("/" in part for part in parts):
            raise SinkRefusedError(
                f"change {change.key} is of partition {', '.join(parts)}: with a slash in one of several values no "
                f"reader could separate them: set {WRITE_URL_ENCODING}: true before the table's first commit"
            )
        return json.dumps([change.key, *parts])

    def _opened(self) -> tuple[Target, Spool]:
        if self._target is None or self._spool is None:
            raise SinkUnavailableError(f"the sink to {self._options.path} is not open")
        return self._target, self._spool


class Spool:
    """The newest version of each row of one commit; what is too much for memory lies in files of the target's store."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark = spark
        self._all = folder
        self._own = f"{folder}/{uuid.uuid4().hex}"
        self._rows: dict[str, _Spooled] = {}
        self._bytes = self._number = self._files = 0

    def add(self, name: str, row: str, *, is_gone: bool) -> None:
        """Keep a row; a later one of the same name counts."""
        self._number += 1
        self._rows[name] = (self._number, row, is_gone)
        self._bytes += len(row)
        if len(self._rows) >= MAX_ROWS or self._bytes >= MAX_BYTES:
            self._in_memory().write.parquet(f"{self._own}/{self._files}")
            self._files += 1
            self._rows = {}
            self._bytes = 0

    def rows(self) -> DataFrame:
        """Return `row` (JSON) and `gone` of each."""
        found = self._in_memory()
        if not self._files:
            return found.select("row", "gone")
        stored = self._spark.read.schema(found.schema).parquet(*(f"{self._own}/{at}" for at in range(self._files)))
        newest = F.max_by(F.struct("row", "gone"), "number").alias("newest")
        return stored.unionByName(found).groupBy("name").agg(newest).select("newest.row", "newest.gone")

    def clear(self) -> None:
        """Drop all rows. Raises Py4JJavaError."""
        had_files = self._files > 0
        self._rows = {}
        self._bytes = 0
        self._number = 0
        self._files = 0
        if had_files:
            self._remove(self._own)

    def sweep(self) -> None:
        """Remove what runs that died have left. Raises Py4JJavaError."""
        self._remove(self._all)

    def _remove(self, path: str) -> None:
        fs, folder = open_path(self._spark, path)
        if fs.exists(folder):
            recursive = True
            fs.delete(folder, recursive)

    def _in_memory(self) -> DataFrame:
        rows = [(name, *found) for name, found in self._rows.items()]
        return self._spark.createDataFrame(rows, _SPOOLED)


def _typed(rows: DataFrame, schema: T.StructType) -> DataFrame:
    """Return the rows with the table's own types, and whether each is gone. What does not parse is an error."""
    columns = T.StructType([T.StructField(column.name, column.dataType) for column in schema.fields])
    parsed = rows.select(F.from_json("row", columns, {**JSON_OPTIONS, "mode": "FAILFAST"}).alias("row"), "gone")
    return parsed.select(
        *[F.col(f"row.`{name}`").alias(name) for name in columns.names], F.col("gone").alias(IS_DELETED)
    )


def _spool_path(path: str) -> str:
    """Return a folder next to the target: Hudi takes a folder with anything inside it for a table."""
    parent, _, name = path.rpartition("/")
    return f"{parent}/.{name}.lake_spool"


def _spark() -> SparkSession:
    # The active session is one thread's alone.
    session = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    if session is None:
        raise ConfigError("the hudi sink runs inside a Spark job only")
    return session
