"""Changes in Debezium's envelope, in the JSON of Kafka Connect's converter, as the readers of both know it.

Where Debezium has a choice, the options are Debezium's own, by name and default. Nested columns (records, arrays, maps)
are `io.debezium.data.Json`, its connectors' type for columns of JSON: relational readers have no other place for them.
Nothing of Debezium is used here; the tests read the records with its connector.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from functools import lru_cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_lake_provider.errors import RecordRefusedError, SourceRefusedError
from airflow_lake_provider.instant_clock import instant_time_ms
from airflow_lake_provider.replication.change import Op, RowTypes, load_json, print_json
from airflow_lake_provider.sink_options.kafka import DOUBLE, STRING, DebeziumOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_lake_provider.replication.change import Batch, Change, CommitRef

_LETTERS: Mapping[Op, str] = MappingProxyType({Op.INSERT: "c", Op.UPDATE: "u", Op.DELETE: "d", Op.READ: "r"})

# --- The events


class DebeziumFormat:
    """Prints the changes of one stream, in their order."""

    def __init__(self, options: DebeziumOptions, version: str, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._options = options
        self._version = version
        self._now_ns = now_ns
        self._printer: _Printer | None = None
        self._events = 0
        self._is_first = False

    def begin(self, batch: Batch) -> list[tuple[str | None, str]]:
        """Return what precedes a batch's changes: the event that empties the target, where a snapshot begins again."""
        self._is_first = batch.begins_snapshot
        # None before the first: the target has nothing of the stream, and Debezium's JDBC sink would make the table
        # from this event, which has no key, so without a primary key.
        if not batch.begins_snapshot or not self._options.empties or batch.generation <= 1:
            return []
        printer = self._printer_of(batch.schema, "{}")
        # No row: the count of events has it, and the first row of the snapshot is still the first.
        return [(None, printer.value(self._envelope(batch, printer, "t", "null", "null")))]

    def records_of(self, change: Change, batch: Batch) -> list[tuple[str, str | None]]:
        """Return key and value of a change's event, and of the tombstone that follows a delete.

        Raises RecordRefusedError, SourceRefusedError.
        """
        printer = self._printer_of(batch.schema, change.key)
        key = printer.key(change.key)
        before = printer.row(change.before)
        after = printer.row(change.after)
        value = printer.value(self._envelope(batch, printer, _LETTERS[change.op], before, after))
        if change.op is Op.DELETE and self._options.has_tombstones:
            return [(key, value), (key, None)]
        return [(key, value)]

    def begin_transaction(self, commit: CommitRef) -> tuple[str, str]:
        """Return key and value of the record that announces a commit's events."""
        self._events = 0
        return self._boundary("BEGIN", commit, "null", "null")

    def continue_transaction(self, events: int) -> None:
        """Count on from the events of a commit that readers have already."""
        self._events = events

    def end_transaction(self, commit: CommitRef) -> tuple[str, str]:
        """Return key and value of the record with the number of a commit's events."""
        of_table = f'{{"data_collection":{json.dumps(self._options.table)},"event_count":{self._events}}}'
        return self._boundary("END", commit, str(self._events), f"[{of_table}]" if self._events else "[]")

    def _boundary(self, status: str, commit: CommitRef, count: str, collections: str) -> tuple[str, str]:
        name = f'{{"id":"{commit.requested_time}"}}'
        body = (
            f'{{"status":"{status}","id":"{commit.requested_time}","event_count":{count},'
            f'"data_collections":{collections},"ts_ms":{_ms_of(commit.completed_time)}}}'
        )
        if not self._options.has_schemas:
            return name, body
        return _with_schema(_TRANSACTION_KEY, name), _with_schema(_TRANSACTION_VALUE, body)

    def _printer_of(self, schema: str, key: str) -> _Printer:
        printer = self._printer
        if printer is None or schema != printer.schema or (printer.has_no_key and key != "{}"):
            printer = self._printer = _Printer(schema, key, self._options)
        return printer

    def _envelope(self, batch: Batch, printer: _Printer, op: str, before: str, after: str) -> str:
        commit = batch.commit
        options = self._options
        snapshot = "false"
        if op == "r":
            snapshot, self._is_first = "first" if self._is_first else "true", False
        self._events += 1
        at = _ms_of(commit.completed_time)
        now = self._now_ns()
        source = (
            f'{{"version":"{self._version}","connector":"hudi","name":{json.dumps(options.topic)},"ts_ms":{at},'
            f'"snapshot":"{snapshot}","db":{json.dumps(options.database)},"sequence":null,"ts_us":{at}000,'
            f'"ts_ns":{at}000000,"table":{json.dumps(options.table)},"commit":"{commit.requested_time}",'
            f'"completed":"{commit.completed_time}","generation":{batch.generation},"schema_id":"{printer.schema_id}"}}'
        )
        number = self._events
        transaction = "null"
        if options.transaction_topic:
            transaction = f'{{"id":"{commit.requested_time}","total_order":{number},"data_collection_order":{number}}}'
        return (
            f'{{"before":{before},"after":{after},"source":{source},"transaction":{transaction},"op":"{op}",'
            f'"ts_ms":{now // 1_000_000},"ts_us":{now // 1000},"ts_ns":{now}}}'
        )


@lru_cache(maxsize=64)
def _ms_of(instant: str) -> int:
    return instant_time_ms(instant, UTC) or 0


class _Column(NamedTuple):
    schema: dict[str, Any]
    """Connect's, as its JSON converter prints it."""
    print: Callable[[Any], str]
    is_nullable: bool


class _Printer:
    """Prints keys and rows of commits with one schema."""

    def __init__(self, schema: str, key: str, options: DebeziumOptions) -> None:
        types = RowTypes(schema)
        self.schema = schema
        self.schema_id = hashlib.blake2b(schema.encode(), digest_size=8).hexdigest()
        self.has_no_key = key == "{}"
        self._columns = _columns_of(types, types.record["fields"], options)
        self._key_columns = _columns_of(types, types.key_record(key)["fields"], options)
        self._has_schemas = options.has_schemas
        name = re.sub(r"[^A-Za-z0-9_.]", "_", options.topic)
        self._key_schema = print_json(_struct(self._key_columns, f"{name}.Key"))
        self._value_schema = print_json(_envelope_schema(_struct(self._columns, f"{name}.Value"), name))

    def key(self, text: str) -> str:
        printed = _print_row(self._key_columns, text)
        return _with_schema(self._key_schema, printed) if self._has_schemas else printed

    def row(self, text: str | None) -> str:
        return "null" if text is None else _print_row(self._columns, text)

    def value(self, envelope: str) -> str:
        return _with_schema(self._value_schema, envelope) if self._has_schemas else envelope


def _with_schema(schema: str, payload: str) -> str:
    return f'{{"schema":{schema},"payload":{payload}}}'


def _print_row(columns: Mapping[str, _Column], text: str) -> str:
    values = load_json(text)
    later = next((name for name, value in values.items() if name not in columns and value is not None), None)
    if later is not None:
        raise RecordRefusedError(f"field {later} has a value and is not in the commit's schema")
    parts = []
    for name, column in columns.items():
        value = values.get(name)
        if value is None and not column.is_nullable:
            raise RecordRefusedError(f"field {name} is null, and the table's schema does not allow that")
        try:
            parts.append(f"{json.dumps(name)}:{'null' if value is None else column.print(value)}")
        except (ValueError, TypeError, ArithmeticError) as error:
            raise RecordRefusedError(f"field {name}: {value!r} is not of type {column.schema}") from error
    return f"{{{','.join(parts)}}}"


# --- Types: Connect's, with Debezium's names for what they mean


def _columns_of(types: RowTypes, fields: list[dict[str, Any]], options: DebeziumOptions) -> dict[str, _Column]:
    return {field["name"]: _column_of(types, field["name"], field["type"], options) for field in fields}


def _column_of(types: RowTypes, name: str, schema: Any, options: DebeziumOptions) -> _Column:
    kind, is_nullable = types.resolve(schema)
    base = kind if isinstance(kind, str) else kind["type"]
    logical = kind.get("logicalType", "") if isinstance(kind, dict) else ""
    if logical == "decimal":
        connect, show = _decimal_of(int(kind["precision"]), int(kind.get("scale", 0)), options.decimals)
    else:
        found = _LOGICAL.get(logical) or _PLAIN.get(base)
        if found is None:
            raise SourceRefusedError(f"field {name} is of type {kind}, which has no form here: use format json")
        connect, show = found
    return _Column({**connect, "optional": is_nullable, "field": name}, show, is_nullable)


def _decimal_of(precision: int, scale: int, mode: str) -> tuple[dict[str, Any], Callable[[Any], str]]:
    if mode == STRING:
        return {"type": "string"}, lambda value: f'"{_number(value):f}"'
    if mode == DOUBLE:
        return {"type": "double"}, lambda value: repr(float(_number(value)))
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    connect = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "version": 1, "parameters": parameters}
    return connect, partial(_unscaled, scale=scale)


_EXACT = Context(prec=200)


def _unscaled(value: Any, scale: int) -> str:
    """Return the unscaled number as Connect has it: two's complement, the highest byte first, in base64."""
    shifted = _EXACT.scaleb(_number(value), scale)
    unscaled = int(shifted)
    if shifted != unscaled:
        raise ValueError("too many digits behind the point")
    return f'"{base64.b64encode(unscaled.to_bytes(unscaled.bit_length() // 8 + 1, signed=True)).decode()}"'


def _number(value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        raise TypeError("not a number")
    return Decimal(value)


def _print_boolean(value: Any) -> str:
    if not isinstance(value, bool):
        raise TypeError("not true or false")
    return "true" if value else "false"


def _print_integer(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("not an integer")
    return str(value)


def _print_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return json.dumps(value)


def _print_days(value: Any) -> str:
    return str((date.fromisoformat(value) - date(1970, 1, 1)).days)


def _print_moment(value: Any, unit: timedelta) -> str:
    return str((datetime.fromisoformat(value).replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // unit)


def _print_nested(value: Any) -> str:
    return json.dumps(print_json(value))


def _semantic(base: str, name: str) -> dict[str, Any]:
    return {"type": base, "name": name, "version": 1}


# A NaN is a text in Spark's JSON, and no number of JSON: it is refused, since Connect's converter would read 0.
_PLAIN: Mapping[str, tuple[dict[str, Any], Callable[[Any], str]]] = MappingProxyType(
    {
        "boolean": ({"type": "boolean"}, _print_boolean),
        "int": ({"type": "int32"}, _print_integer),
        "long": ({"type": "int64"}, _print_integer),
        "float": ({"type": "float"}, lambda value: str(_number(value))),
        "double": ({"type": "double"}, lambda value: str(_number(value))),
        "bytes": ({"type": "bytes"}, _print_text),
        "fixed": ({"type": "bytes"}, _print_text),
        "string": ({"type": "string"}, _print_text),
        "enum": ({"type": "string"}, _print_text),
        **dict.fromkeys(("record", "array", "map"), (_semantic("string", "io.debezium.data.Json"), _print_nested)),
    }
)
_ZONED = _semantic("string", "io.debezium.time.ZonedTimestamp"), _print_text
_LOGICAL: Mapping[str, tuple[dict[str, Any], Callable[[Any], str]]] = MappingProxyType(
    {
        "date": (_semantic("int32", "io.debezium.time.Date"), _print_days),
        "timestamp-millis": _ZONED,
        "timestamp-micros": _ZONED,
        "local-timestamp-millis": (
            _semantic("int64", "io.debezium.time.Timestamp"),
            partial(_print_moment, unit=timedelta(milliseconds=1)),
        ),
        "local-timestamp-micros": (
            _semantic("int64", "io.debezium.time.MicroTimestamp"),
            partial(_print_moment, unit=timedelta(microseconds=1)),
        ),
    }
)

# --- Read back, by the schema that a record brings: values as the table's JSON has them


def read_key(text: str) -> dict[str, Any]:
    """Return the values of a record's key."""
    body = load_json(text)
    return _read_struct(body["payload"], body["schema"])


def read_after(text: str) -> dict[str, Any] | None:
    """Return the row after an event; None for a delete. Raises KeyError for a record without its schema."""
    body = load_json(text)
    (schema,) = (field for field in body["schema"]["fields"] if field["field"] == "after")
    row = body["payload"]["after"]
    return None if row is None else _read_struct(row, schema)


def _read_struct(values: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    return {field["field"]: _read_value(values[field["field"]], field) for field in schema["fields"]}


def _read_value(value: Any, schema: Mapping[str, Any]) -> Any:
    name = schema.get("name", "")
    if value is None:
        return None
    if name == "org.apache.kafka.connect.data.Decimal":
        unscaled = int.from_bytes(base64.b64decode(value), signed=True)
        return _EXACT.scaleb(Decimal(unscaled), -int(schema["parameters"]["scale"]))
    read = _READ.get(name)
    return value if read is None else read(value)


def _read_moment(value: int, unit: timedelta) -> str:
    return (datetime(1970, 1, 1) + value * unit).isoformat(timespec="microseconds")  # noqa: DTZ001 - it has no zone


_READ: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "io.debezium.time.Date": lambda days: (date(1970, 1, 1) + timedelta(days=days)).isoformat(),
        "io.debezium.time.Timestamp": partial(_read_moment, unit=timedelta(milliseconds=1)),
        "io.debezium.time.MicroTimestamp": partial(_read_moment, unit=timedelta(microseconds=1)),
        "io.debezium.data.Json": partial(json.loads, parse_float=Decimal),
    }
)

# --- Connect's schemas of the envelope


def _struct(columns: Mapping[str, _Column], name: str) -> dict[str, Any]:
    return {"type": "struct", "fields": [column.schema for column in columns.values()], "optional": False, "name": name}


def _field(name: str, base: str, *, optional: bool = False) -> dict[str, Any]:
    return {"type": base, "optional": optional, "field": name}


_SNAPSHOT = {
    **_semantic("string", "io.debezium.data.Enum"),
    "optional": True,
    "parameters": {"allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"},
    "default": "false",
    "field": "snapshot",
}
_SOURCE = {
    "type": "struct",
    "fields": [
        *(_field(name, "string") for name in ("version", "connector", "name")),
        _field("ts_ms", "int64"),
        _SNAPSHOT,
        _field("db", "string"),
        _field("sequence", "string", optional=True),
        *(_field(name, "int64", optional=True) for name in ("ts_us", "ts_ns")),
        *(_field(name, "string") for name in ("table", "commit", "completed")),
        _field("generation", "int64"),
        _field("schema_id", "string"),
    ],
    "optional": False,
    "name": "lake.hudi.Source",
    "field": "source",
}
_ORDER = [_field("id", "string"), _field("total_order", "int64"), _field("data_collection_order", "int64")]
_BLOCK = {
    "type": "struct", "fields": _ORDER, "optional": True, "name": "event.block", "version": 1, "field": "transaction"
}  # fmt: skip
_COLLECTION = {
    "type": "struct",
    "fields": [_field("data_collection", "string"), _field("event_count", "int64")],
    "optional": False,
    "name": "event.collection",
    "version": 1,
}
_TRANSACTION_KEY = print_json(
    {
        "type": "struct",
        "fields": [_field("id", "string")],
        "optional": False,
        "name": "io.debezium.connector.common.TransactionMetadataKey",
        "version": 1,
    }
)
_TRANSACTION_VALUE = print_json(
    {
        "type": "struct",
        "fields": [
            _field("status", "string"),
            _field("id", "string"),
            _field("event_count", "int64", optional=True),
            {"type": "array", "items": _COLLECTION, "optional": True, "field": "data_collections"},
            _field("ts_ms", "int64"),
        ],
        "optional": False,
        "name": "io.debezium.connector.common.TransactionMetadataValue",
        "version": 1,
    }
)


def _envelope_schema(row: dict[str, Any], name: str) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [
            {**row, "optional": True, "field": "before"},
            {**row, "optional": True, "field": "after"},
            _SOURCE,
            _BLOCK,
            _field("op", "string"),
            *(_field(unit, "int64", optional=True) for unit in ("ts_ms", "ts_us", "ts_ns")),
        ],
        "optional": False,
        "name": f"{name}.Envelope",
        "version": 2,
    }
