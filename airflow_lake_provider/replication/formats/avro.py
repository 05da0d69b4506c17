"""Changes in Avro: an envelope with the table's own row type, printed with the schema or with the schema's number.

Without a registry each message is an Avro object container file of one record, so it can be read alone. With one
(Confluent's wire format) it is a zero byte, the schema's number in four bytes, and the record.
"""

from __future__ import annotations

import hashlib
import io
import json
from typing import TYPE_CHECKING, Any

import fastavro

from airflow_lake_provider.errors import RecordRefusedError
from airflow_lake_provider.replication.change import Mode
from airflow_lake_provider.replication.formats.row_types import RowTypes

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_lake_provider.replication.change import Change, CommitRef


class AvroFormat:
    """Prints changes of one stream. `register` returns the number of a schema; None: the schema is in each message."""

    def __init__(self, mode: Mode, register: Callable[[str], int] | None = None) -> None:
        self._mode = mode
        self._register = register
        self._schema_text = ""
        self._printer: _Printer | None = None

    def message_of(self, change: Change, commit: CommitRef, schema: str) -> bytes | None:
        """Return the message; None is a tombstone. `schema` is the table's Avro schema as the commit wrote it."""
        if self._mode is Mode.LATEST and change.after is None:
            return None
        if self._printer is None or schema != self._schema_text:
            self._printer = _Printer(RowTypes(schema), self._mode, change.key, self._register)
            self._schema_text = schema
        return self._printer.print(change, commit)


class _Printer:
    """Prints the changes of commits with one schema."""

    def __init__(self, types: RowTypes, mode: Mode, key: str, register: Callable[[str], int] | None) -> None:
        self._types = types
        self._mode = mode
        self._key_schema = types.key_record(key)
        body = types.record if mode is Mode.LATEST else envelope_schema(types.record, self._key_schema)
        text = json.dumps(body, sort_keys=True)
        self._schema = fastavro.parse_schema(body)
        # One marker for each schema instead of a random one: messages of a batch then compress well.
        self._marker = hashlib.blake2b(text.encode(), digest_size=16).digest()
        self._prefix = b"" if register is None else b"\0" + register(text).to_bytes(4, "big")

    def print(self, change: Change, commit: CommitRef) -> bytes:
        record = self._types.row(change.after)
        if self._mode is not Mode.LATEST:
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
