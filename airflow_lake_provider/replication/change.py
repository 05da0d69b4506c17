"""One change of one row: its text for readers, and the values in it by the types of the table's Avro schema.

All of it is JSON text: Spark makes it, and sinks pass it on. Dates and timestamps are ISO 8601 there, bytes base64,
decimals numbers with all of their digits. Sinks with types of their own read it by `RowTypes`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from zlib import crc32

from airflow_lake_provider.errors import RecordRefusedError, SourceRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


class Op(StrEnum):
    """What happened to the row; `READ` is a row of a snapshot. The first three are Hudi's own letters."""

    INSERT = "i"
    UPDATE = "u"
    DELETE = "d"
    READ = "r"


class ChangeMode(StrEnum):
    """What a sink receives of a change."""

    CHANGES = "changes"
    """Operation, row before and row after: requires a table with Hudi's change data capture."""
    LATEST = "latest"
    """The row as it is now; nothing (a tombstone) when it is deleted. Copy-on-write tables only."""


@dataclass(frozen=True, slots=True)
class CommitRef:
    """One completed commit of the table: its requested and completed time, in Hudi's format."""

    requested_time: str
    completed_time: str

    @property
    def order(self) -> tuple[str, str]:
        """The order of completion."""
        return self.completed_time, self.requested_time


class Change(NamedTuple):
    """One row's change. `key` is a JSON object of the key's fields; `before` and `after` are JSON objects or None.

    A tuple: one is made of each row, in a fifth of the time that a frozen dataclass takes.
    """

    op: Op
    key: str
    before: str | None
    after: str | None


Record: TypeAlias = tuple[bytes, bytes | None]
"""Key and text of a change in UTF-8, as readers get it; None is a tombstone."""


class ChangeColumns(Sequence[Change]):
    """Changes that are held by column. A row becomes an object only where a sink asks for rows."""

    @abstractmethod
    def to_records(self, commit: CommitRef, mode: ChangeMode) -> Iterable[Record]:
        """Return what `records_of` returns of the rows."""

    @abstractmethod
    def to_checksum(self) -> int:
        """Return what `checksum_of` returns of the rows."""

    @abstractmethod
    def to_bytes(self) -> int:
        """Return what `bytes_of` returns of the rows."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes of one commit, in order per key. A snapshot's rows carry the commit of the snapshot."""

    commit: CommitRef
    changes: Sequence[Change]
    generation: int
    """The number of snapshots in this sink; a reader that sees it rise must drop the rows of the one before."""
    begins_snapshot: bool = False
    """The first batch of a snapshot: the sink's rows of an earlier generation are out of date."""
    schema: str = ""
    """The table's Avro schema (JSON) as the commit wrote it, for sinks with typed formats; empty without one."""


def message_of(change: Change, commit: CommitRef, mode: ChangeMode) -> str | None:
    """Return the text that readers get; None is a tombstone (mode `latest`, a deleted row)."""
    if mode is ChangeMode.LATEST:
        return change.after
    return (
        f'{{"op":"{change.op.value}","commit":"{commit.requested_time}","completed":"{commit.completed_time}",'
        f'"key":{change.key},"before":{change.before or "null"},"after":{change.after or "null"}}}'
    )


def records_of(changes: Iterable[Change], commit: CommitRef, mode: ChangeMode) -> Iterable[Record]:
    """Return key and `message_of` each change, in UTF-8."""
    if isinstance(changes, ChangeColumns):
        return changes.to_records(commit, mode)
    texts = ((change.key, message_of(change, commit, mode)) for change in changes)
    return ((key.encode(), None if text is None else text.encode()) for key, text in texts)


_EXACT_JSON = json.JSONDecoder(parse_float=Decimal)
"""Made once: `json.loads` would make one of each text."""


def load_json(text: str) -> dict[str, Any]:
    """Parse a key or a row with all digits of its decimals, of which a float has fewer."""
    body: dict[str, Any] = _EXACT_JSON.decode(text)
    return body


def print_json(value: Any) -> str:
    """Print what `load_json` parses, as compact JSON: `json.dumps` rejects decimals."""
    if isinstance(value, dict):
        return f"{{{','.join(f'{json.dumps(name)}:{print_json(part)}' for name, part in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(map(print_json, value))}]"
    return str(value) if isinstance(value, Decimal) else json.dumps(value)


_EXACT = Context(prec=400)
"""Python's own rounds to 28 digits; a double has up to 309 before its point."""


def canonical(values: Mapping[str, Any]) -> str:
    """Return one text for equal rows, whatever wrote them: without nulls, in order of names, numbers by their value.

    Of times with a zone it is the time in UTC, so a column without zones that holds UTC is equal to one with them.
    """
    return json.dumps({name: _plain(value) for name, value in values.items() if value is not None}, sort_keys=True)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (int, float, Decimal)):
        number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        return f"{number.normalize(_EXACT):f}" if number.is_finite() else str(value)
    if isinstance(value, datetime):
        return (value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo is not None else value).isoformat()
    if isinstance(value, date):
        return value.isoformat()
    return base64.b64encode(value).decode() if isinstance(value, (bytes, bytearray, memoryview)) else value


def as_single(value: float) -> float:
    """Return a number of single precision as its shortest text has it: `0.1`, not `0.10000000149011612`."""
    single = struct.pack("f", value)
    for digits in range(1, 10):  # nine always suffice
        short = float(f"{value:.{digits}g}")
        try:
            if struct.pack("f", short) == single:
                return short
        except OverflowError:  # rounded up, past the largest one
            continue
    return value


def bytes_of(changes: Iterable[Change]) -> int:
    """Return the size of the changes as JSON, in bytes: keys and images, in UTF-8."""
    if isinstance(changes, ChangeColumns):
        return changes.to_bytes()
    texts = (text for change in changes for text in (change.key, change.before, change.after) if text is not None)
    return sum(len(text) if text.isascii() else len(text.encode()) for text in texts)


def checksum_of(changes: Iterable[Change], start: int = 0) -> int:
    """Add up the CRC-32 of each change, so that the order of rows does not matter; `start` is an earlier sum.

    That of `op`, `key`, `before` and `after` in UTF-8 with a zero byte between them; a missing image is empty.
    """
    if isinstance(changes, ChangeColumns):
        total = start + changes.to_checksum()
    else:
        texts = (f"{op}\0{key}\0{before or ''}\0{after or ''}" for op, key, before, after in changes)
        total = start + sum(crc32(text.encode()) for text in texts)
    return total & 0xFFFF_FFFF_FFFF_FFFF


def checksum_text(text: str) -> str:
    """Return a short digest of a text: 16 hexadecimal digits."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


# --- The values of a row, by the types in the table's Avro schema

META_PREFIX = "_hoodie_"
PARTITION_PATH = "_hoodie_partition_path"
"""A field of the key where Hudi makes the path of other fields: rows are unique by path and record key."""
Schema = Any
"""An Avro schema in its JSON form: a name, a list (union), or an object."""

_LOGICAL: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "date": date.fromisoformat,
        "timestamp-millis": datetime.fromisoformat,
        "timestamp-micros": datetime.fromisoformat,
        "local-timestamp-millis": datetime.fromisoformat,
        "local-timestamp-micros": datetime.fromisoformat,
        "decimal": lambda value: Decimal(value) if isinstance(value, (int, str)) else value,
    }
)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("not true or false")
    return value


def _integer(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("not an integer")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _bytes(value: Any) -> bytes:
    return base64.b64decode(value, validate=True)


_SCALARS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "boolean": _boolean,
        "int": _integer,
        "long": _integer,
        "float": float,
        "double": float,
        "bytes": _bytes,
        "fixed": _bytes,
        "string": _text,
        "enum": _text,
    }
)


class RowTypes:
    """The types of one table as one commit wrote it. `pairs` returns maps as lists of pairs, for Arrow."""

    def __init__(self, schema: str, *, pairs: bool = False) -> None:
        self._pairs = pairs
        self._named: dict[str, Schema] = {}
        try:
            body = json.loads(schema)
            fields = [field for field in body["fields"] if not field["name"].startswith(META_PREFIX)]
        except (ValueError, TypeError, KeyError) as error:
            raise SourceRefusedError(
                f"the commit names no Avro schema of the table's rows, only {schema[:200]!r}: use format json"
            ) from error
        self.record: dict[str, Any] = {**body, "fields": fields}
        self._collect(self.record, "")

    def resolve(self, schema: Schema) -> tuple[Schema, bool]:
        """Return a schema without null, with named types resolved, and whether null is allowed."""
        is_nullable = False
        if isinstance(schema, list):
            others = [branch for branch in schema if branch != "null"]
            is_nullable = len(others) < len(schema)
            if len(others) > 1:
                raise SourceRefusedError(f"a union of several types, {schema}, has no form here: use format json")
            schema = others[0] if others else "null"
        if isinstance(schema, str) and schema in self._named:
            schema = self._named[schema]
        return schema, is_nullable or schema == "null"

    def key_record(self, key: str) -> dict[str, Any]:
        """Return the schema of the key's fields; the table's own types where it has the field."""
        types = {field["name"]: field["type"] for field in self.record["fields"]}
        fields = [{"name": name, "type": types.get(name, ["null", "string"])} for name in load_json(key)]
        return {"type": "record", "name": "lake_key", "fields": fields}

    def row(self, text: str | None, schema: Schema = None) -> dict[str, Any] | None:
        """Return the values of a row, or of a key with its own schema. Raises RecordRefusedError, naming the field."""
        if text is None:
            return None
        record = schema or self.record
        values: dict[str, Any] = self._record(load_json(text), record, "")
        return values

    def _value(self, value: Any, schema: Schema, path: str) -> Any:
        kind, is_nullable = self.resolve(schema)
        if value is None:
            if not is_nullable:
                raise RecordRefusedError(f"field {path} is null, and its type in the table's schema is {kind}")
            return None
        name = kind if isinstance(kind, str) else kind["type"]
        nested: Mapping[str, Callable[[Any, Schema, str], Any]]
        nested = {"record": self._record, "array": self._array, "map": self._map}
        if name in nested:
            return nested[name](value, kind, path)
        logical = kind.get("logicalType") if isinstance(kind, dict) else None
        parse = _LOGICAL.get(logical or "") or _SCALARS.get(name)
        if parse is None:
            raise SourceRefusedError(f"field {path} is of type {kind}, which has no form here: use format json")
        try:
            return parse(value)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise RecordRefusedError(f"field {path}: {value!r} is not of type {kind}") from error

    def _record(self, value: dict[str, Any], schema: Schema, path: str) -> dict[str, Any]:
        path = f"{path}." if path else ""
        names = {field["name"] for field in schema["fields"]}
        # Rows are read with the table's newest schema: fields that were added later are null in earlier commits.
        later = next((name for name, part in value.items() if name not in names and part is not None), None)
        if later is not None:
            raise RecordRefusedError(f"field {path}{later} has a value and is not in the commit's schema")
        return {
            field["name"]: self._value(value.get(field["name"]), field["type"], f"{path}{field['name']}")
            for field in schema["fields"]
        }

    def _array(self, value: list[Any], schema: Schema, path: str) -> list[Any]:
        return [self._value(item, schema["items"], f"{path}[]") for item in value]

    def _map(self, value: dict[str, Any], schema: Schema, path: str) -> Any:
        pairs = [(key, self._value(item, schema["values"], f"{path}[{key}]")) for key, item in value.items()]
        return pairs if self._pairs else dict(pairs)

    def _collect(self, schema: Schema, space: str) -> None:
        """Store the named types: a schema may define one and name it again later."""
        if isinstance(schema, list):
            for branch in schema:
                self._collect(branch, space)
        if not isinstance(schema, dict):
            return
        space = schema.get("namespace", space)
        if schema["type"] in {"record", "fixed", "enum"}:
            self._named |= {schema["name"]: schema, f"{space}.{schema['name']}".lstrip("."): schema}
        for part in (*schema.get("fields", ()), schema.get("items"), schema.get("values")):
            inner = part.get("type") if isinstance(part, dict) and "name" in part and "fields" not in part else part
            self._collect(inner, space)
