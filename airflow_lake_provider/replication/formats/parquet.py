"""A Parquet file of changes that grows batch by batch, with the checkpoint in its footer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_lake_provider.errors import CheckpointDamagedError, RecordRefusedError, SourceRefusedError
from airflow_lake_provider.replication.change import ChangeMode, RowTypes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_lake_provider.replication.change import Batch, Change

CHECKPOINT_KEY = "lake.checkpoint"
_MAX_DECIMAL_DIGITS = 38

_LOGICAL: Mapping[str, Callable[[], pa.DataType]] = {
    "date": pa.date32,
    "timestamp-millis": lambda: pa.timestamp("ms", tz="UTC"),
    "timestamp-micros": lambda: pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": lambda: pa.timestamp("ms"),
    "local-timestamp-micros": lambda: pa.timestamp("us"),
}
_SCALARS: Mapping[str, Callable[[], pa.DataType]] = {
    "null": pa.null,
    "boolean": pa.bool_,
    "int": pa.int32,
    "long": pa.int64,
    "float": pa.float32,
    "double": pa.float64,
    "bytes": pa.binary,
    "fixed": pa.binary,
    "string": pa.string,
    "enum": pa.string,
}


class ParquetPart:
    """One file: `op`, `commit`, `completed`, `key`, `before`, `after`; in mode latest `key`, `deleted` and `row`."""

    def __init__(self, stream: BinaryIO, mode: ChangeMode) -> None:
        self._stream = stream
        self._mode = mode
        self._writer: pq.ParquetWriter | None = None
        self._types: RowTypes | None = None
        self._key_schema: dict[str, Any] = {}
        self._columns = pa.schema([])

    def write(self, batch: Batch) -> None:
        """Append changes. Raises RecordRefusedError, SourceRefusedError."""
        if not batch.changes:
            return
        types = self._types or self._begin(batch)
        rows = [self._row_of(change, batch, types) for change in batch.changes]
        try:
            table = pa.Table.from_pylist(rows, schema=self._columns)
        except (pa.ArrowException, OverflowError) as error:
            raise RecordRefusedError(
                f"a row of commit {batch.commit.requested_time} does not fit the table's schema: {error}"
            ) from error
        self._open().write_table(table)

    def finish(self, checkpoint: str) -> None:
        """Write the footer, with the checkpoint in it; the stream stays open."""
        writer = self._open()
        writer.add_key_value_metadata({CHECKPOINT_KEY: checkpoint})
        writer.close()
        self._writer = None

    def close(self) -> None:
        """Drop the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _begin(self, batch: Batch) -> RowTypes:
        types = self._types = RowTypes(batch.schema, pairs=True)
        self._key_schema = types.key_record(batch.changes[0].key)
        row = arrow_type(types, types.record)
        key = arrow_type(types, self._key_schema)
        if self._mode is ChangeMode.LATEST:
            fields = [("key", key), ("deleted", pa.bool_()), ("row", row)]
        else:
            fields = [(name, pa.string()) for name in ("op", "commit", "completed")]
            fields += [("key", key), ("before", row), ("after", row)]
        self._columns = pa.schema(fields)
        return types

    def _row_of(self, change: Change, batch: Batch, types: RowTypes) -> dict[str, Any]:
        key = types.row(change.key, self._key_schema)
        after = types.row(change.after)
        if self._mode is ChangeMode.LATEST:
            return {"key": key, "deleted": after is None, "row": after}
        return {
            "op": change.op.value,
            "commit": batch.commit.requested_time,
            "completed": batch.commit.completed_time,
            "key": key,
            "before": types.row(change.before),
            "after": after,
        }

    def _open(self) -> pq.ParquetWriter:
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._stream, self._columns)
        return self._writer


def checkpoint_in(stream: BinaryIO, path: str) -> str:
    """Return the checkpoint of a file. Raises CheckpointDamagedError."""
    try:
        found = (pq.read_metadata(stream).metadata or {}).get(CHECKPOINT_KEY.encode())
    except pa.ArrowException as error:
        raise CheckpointDamagedError(f"{path} is not a complete Parquet file: {error}") from error
    if found is None:
        raise CheckpointDamagedError(f"{path} has no checkpoint in its footer ({CHECKPOINT_KEY})")
    return bytes(found).decode()


def arrow_type(types: RowTypes, schema: Any) -> pa.DataType:
    """Return Arrow's type for an Avro schema. Raises SourceRefusedError for a type without a form in Parquet."""
    kind, _ = types.resolve(schema)
    name = kind if isinstance(kind, str) else kind["type"]
    if name == "record":
        return pa.struct([(field["name"], arrow_type(types, field["type"])) for field in kind["fields"]])
    if name == "array":
        return pa.list_(arrow_type(types, kind["items"]))
    if name == "map":
        return pa.map_(pa.string(), arrow_type(types, kind["values"]))
    logical = kind.get("logicalType", "") if isinstance(kind, dict) else ""
    if logical == "decimal" and kind["precision"] <= _MAX_DECIMAL_DIGITS:
        return pa.decimal128(kind["precision"], kind.get("scale", 0))
    make = _LOGICAL.get(logical) or _SCALARS.get(name)
    if make is None or logical == "decimal":
        raise SourceRefusedError(f"type {kind} has no form in Parquet here: use format json")
    return make()
