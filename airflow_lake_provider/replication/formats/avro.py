"""Changes in Avro: an envelope with the table's own row type, printed with the schema or with the schema's number.

Without a registry each message is an Avro object container file of one record, so it can be read alone. With one
(Confluent's wire format) it is a zero byte, the schema's number in four bytes, and the record.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Callable
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import fastavro

from airflow_lake_provider.errors import RecordRefusedError
from airflow_lake_provider.replication.change import ChangeMode, RowTypes, as_single, load_json
from airflow_lake_provider.replication.formats import TypedFormat

if TYPE_CHECKING:
    from airflow_lake_provider.replication.change import Change, CommitRef, Schema


Register = Callable[[str], int]
"""Returns the number of a schema."""


class AvroFormat(TypedFormat):
    """Prints changes of one stream. `register` returns the number of a schema; None: the schema is in each message.

    With `register_key` keys are Avro as well; without it they are JSON, of the same bytes under every schema.
    """

    def __init__(
        self,
        mode: ChangeMode,
        register: Register | None = None,
        register_key: Register | None = None,
        find: Callable[[int], str] | None = None,
    ) -> None:
        super().__init__(mode)
        self.reader = AvroReader(mode, find)
        self._register = register
        self._register_key = register_key

    def make_printer(self, types: RowTypes, key: str) -> _Printer:
        """Return what prints rows of these types; `key` is one of their keys."""
        return _Printer(types, self.mode, key, self._register, self._register_key)

    def key_of(self, change: Change, schema: str) -> bytes:
        """Return the key of a change's record."""
        return change.key.encode() if self._register_key is None else super().key_of(change, schema)


class _Printer:
    """Prints the changes of commits with one schema."""

    def __init__(
        self, types: RowTypes, mode: ChangeMode, key: str, register: Register | None, register_key: Register | None
    ) -> None:
        self._types = types
        self._mode = mode
        self._key_schema = types.key_record(key)
        body = types.record if mode is ChangeMode.LATEST else envelope_schema(types.record, self._key_schema)
        text = json.dumps(body, sort_keys=True)
        self._schema = fastavro.parse_schema(body)
        # One marker for each schema instead of a random one: messages of a batch then compress well.
        self._marker = hashlib.blake2b(text.encode(), digest_size=16).digest()
        self._prefix = _prefix_of(text, register)
        # Parsed apart: the envelope's own schema defines the key's record as well.
        self._parsed_key = fastavro.parse_schema(json.loads(json.dumps(self._key_schema)))
        self._key_prefix = _prefix_of(json.dumps(self._key_schema, sort_keys=True), register_key)

    def print_key(self, change: Change) -> bytes:
        stream = io.BytesIO(self._key_prefix)
        stream.seek(0, io.SEEK_END)
        fastavro.schemaless_writer(stream, self._parsed_key, self._types.row(change.key, self._key_schema))
        return stream.getvalue()

    def print(self, change: Change, commit: CommitRef) -> bytes:
        record = self._types.row(change.after)
        if self._mode is not ChangeMode.LATEST:
            record = {
                "op": change.op.value,
                "commit": commit.requested_time,
                "completed": commit.completed_time,
                "key": self._types.row(change.key, self._key_schema),
                "before": self._types.row(change.before),
                "after": record,
            }
        stream = io.BytesIO(self._prefix)
        stream.seek(0, io.SEEK_END)
        try:
            if self._prefix:
                fastavro.schemaless_writer(stream, self._schema, record)
            else:
                fastavro.writer(stream, self._schema, [record], sync_marker=self._marker)
        except (ValueError, TypeError, OverflowError) as error:
            raise RecordRefusedError(f"record {change.key} does not fit the table's Avro schema: {error}") from error
        return stream.getvalue()


def _prefix_of(schema: str, register: Register | None) -> bytes:
    return b"" if register is None else b"\0" + register(schema).to_bytes(4, "big")


def envelope_schema(row: dict[str, Any], key: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a change; the row's type is defined where it comes first and named where it comes again."""
    name = f"{row['namespace']}.{row['name']}" if row.get("namespace") else row["name"]
    fields: list[dict[str, Any]] = [{"name": part, "type": "string"} for part in ("op", "commit", "completed")]
    fields += [
        {"name": "key", "type": key},
        {"name": "before", "type": ["null", row], "default": None},
        {"name": "after", "type": ["null", name], "default": None},
    ]
    return {"type": "record", "name": "lake_change", "fields": fields}


# --- Read back: values as the table's JSON has them


class AvroReader:
    """Reads keys and messages of one stream; `find` returns the schema of a number."""

    def __init__(self, mode: ChangeMode, find: Callable[[int], str] | None = None) -> None:
        self._mode = mode
        self._find = find
        self._by_number: dict[int, tuple[Any, RowTypes]] = {}
        self._by_schema: dict[str, RowTypes] = {}

    def key(self, content: bytes) -> dict[str, Any]:
        """Return the values of a record's key."""
        if self._find is None or not content.startswith(b"\0"):
            return load_json(content.decode())
        return self._values(content)

    def after(self, content: bytes) -> dict[str, Any] | None:
        """Return the row that a message leaves; None for a delete."""
        values = self._values(content)
        row: dict[str, Any] | None = values if self._mode is ChangeMode.LATEST else values["after"]
        return row

    def _values(self, content: bytes) -> dict[str, Any]:
        stream = io.BytesIO(content)
        if self._find is None:
            reader = fastavro.reader(stream)
            text = reader.metadata["avro.schema"]
            types = self._by_schema[text] = self._by_schema.get(text) or RowTypes(text)
            record: Any = next(iter(reader))
        else:
            number = int.from_bytes(stream.read(5)[1:], "big")
            if number not in self._by_number:
                text = self._find(number)
                self._by_number[number] = fastavro.parse_schema(json.loads(text)), RowTypes(text)
            parsed, types = self._by_number[number]
            record = fastavro.schemaless_reader(stream, parsed, None)
        values: dict[str, Any] = as_json(record, types.record, types)
        return values


def as_json(value: Any, schema: Schema, types: RowTypes) -> Any:
    """Return a value that was read from Avro as Spark writes it into JSON."""
    kind, _ = types.resolve(schema)
    if isinstance(value, dict):
        if kind["type"] == "map":
            return {name: as_json(part, kind["values"], types) for name, part in value.items()}
        return {field["name"]: as_json(value[field["name"]], field["type"], types) for field in kind["fields"]}
    if isinstance(value, list):
        return [as_json(part, kind["items"], types) for part in value]
    if isinstance(value, float) and kind == "float":
        return as_single(value)
    if isinstance(value, datetime):
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return f"{text}Z" if value.tzinfo is not None else text
    if isinstance(value, date):
        return value.isoformat()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
