"""Changes in Avro: an envelope with the table's own row type, printed with the schema or with the schema's number.

Without a registry each message is an Avro object container file of one record, so it can be read alone. With one
(Confluent's wire format) it is a zero byte, the schema's number in four bytes, and the record.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import io
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import fastavro

from airflow_lake_provider.errors import ConfigError, RecordRefusedError, SinkRefusedError, SinkUnavailableError
from airflow_lake_provider.replication.change import ChangeMode, RowTypes, load_json

if TYPE_CHECKING:
    from airflow_lake_provider.replication.change import Change, CommitRef


Register = Callable[[str], int]
"""Returns the number of a schema."""


class AvroFormat:
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
        self.reader = AvroReader(mode, find)
        self._mode = mode
        self._register = register
        self._register_key = register_key
        self._schema_text = ""
        self._printer: _Printer | None = None

    def message_of(self, change: Change, commit: CommitRef, schema: str) -> bytes | None:
        """Return the message; None is a tombstone. `schema` is the table's Avro schema as the commit wrote it."""
        if self._mode is ChangeMode.LATEST and change.after is None:
            return None
        return self._printer_of(change, schema).print(change, commit)

    def key_of(self, change: Change, schema: str) -> bytes:
        """Return the key of a change's record."""
        if self._register_key is None:
            return change.key.encode()
        return self._printer_of(change, schema).print_key(change)

    def _printer_of(self, change: Change, schema: str) -> _Printer:
        if self._printer is None or schema != self._schema_text:
            types = RowTypes(schema)
            self._printer = _Printer(types, self._mode, change.key, self._register, self._register_key)
            self._schema_text = schema
        return self._printer


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
        self._schemas: dict[int, Any] = {}

    def key(self, content: bytes) -> dict[str, Any]:
        """Return the values of a record's key."""
        if self._find is None or not content.startswith(b"\0"):
            return load_json(content.decode())
        values: dict[str, Any] = as_json(self._record(content))
        return values

    def after(self, content: bytes) -> dict[str, Any] | None:
        """Return the row that a message leaves; None for a delete."""
        found = as_json(self._record(content))
        row: dict[str, Any] | None = found if self._mode is ChangeMode.LATEST else found["after"]
        return row

    def _record(self, content: bytes) -> Any:
        stream = io.BytesIO(content)
        if self._find is None:
            return next(iter(fastavro.reader(stream)))
        number = int.from_bytes(stream.read(5)[1:], "big")
        if number not in self._schemas:
            self._schemas[number] = fastavro.parse_schema(json.loads(self._find(number)))
        return fastavro.schemaless_reader(stream, self._schemas[number], None)


def as_json(value: Any) -> Any:
    """Return a value that was read from Avro as Spark writes it into JSON."""
    if isinstance(value, dict):
        return {name: as_json(part) for name, part in value.items()}
    if isinstance(value, list):
        return [as_json(part) for part in value]
    if isinstance(value, datetime):
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return f"{text}Z" if value.tzinfo is not None else text
    if isinstance(value, date):
        return value.isoformat()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


# --- A schema registry with Confluent's interface: a schema is registered under a subject, the answer is its number

_JSON = "application/vnd.schemaregistry.v1+json"


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """One subject of a registry. Uses the standard library alone: Spark's driver may have no other client."""

    url: str
    subject: str
    user: str = ""
    password: str = ""
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(
                f"schema_registry is {self.url!r}, allowed: an address that begins with http:// or https://"
            )

    def register(self, schema: str) -> int:
        """Return the number of a schema, registered if it is new.

        Raises SinkRefusedError for a schema that the subject's rule of compatibility forbids and for a refused login,
        SinkUnavailableError for a registry that does not answer.
        """
        answer = self._ask(f"subjects/{self.subject}/versions", json.dumps({"schema": schema}).encode(), "id")
        return int(answer)

    def find(self, number: int) -> str:
        """Return the schema of a number. Raises as `register` does."""
        return str(self._ask(f"schemas/ids/{number}", None, "schema"))

    def _ask(self, path: str, body: bytes | None, wanted: str) -> Any:
        address = f"{self.url.rstrip('/')}/{path}"
        request = urllib.request.Request(address, body, {"Content-Type": _JSON, "Accept": _JSON})
        if self.user:
            login = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            request.add_header("Authorization", f"Basic {login}")
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as response:
                answer: Any = json.loads(response.read())
            return answer[wanted]
        except urllib.error.HTTPError as error:
            reason = f"the schema registry answers {error.code} for {address}: {_reason_of(error)}"
            if error.code in {408, 429} or error.code >= 500:
                raise SinkUnavailableError(reason) from error
            raise SinkRefusedError(reason) from error
        except (OSError, http.client.HTTPException) as error:
            raise SinkUnavailableError(f"the schema registry does not answer at {address}: {error}") from error
        except (ValueError, TypeError, KeyError) as error:
            raise SinkUnavailableError(f"the server at {address} is not a schema registry") from error


def _reason_of(error: urllib.error.HTTPError) -> str:
    return error.read(2000).decode("utf-8", "replace")
