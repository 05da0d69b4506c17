"""The records of log files, read and merged by this process as Hudi's own reader merges them.

It reads the plain case alone: blocks of Avro rows and of deletes, of whole versions of rows, each in a log file of the
commit that wrote it. Everything else raises NotAlikeError and is left to Spark: other blocks (rollbacks, change data,
Parquet, HFile), parts of rows, blocks that a log compaction made, damage, columns of other types.

Source: Hudi 1.2 `HoodieLogFileReader`, `HoodieAvroDataBlock`, `HoodieDeleteBlock`, `HoodieLogFile.LogFileComparator`,
`BaseHoodieLogRecordReader`, `KeyBasedFileGroupRecordBuffer`, `BufferedRecordMergerFactory`.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from lake_jobs.replication.change_columns import META_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from lake_jobs.replication.file_slices import DataFile

META_FIELDS = tuple(
    f"{META_PREFIX}{name}" for name in ("commit_time", "commit_seqno", "record_key", "partition_path", "file_name")
)
"""What each row begins with. With others, as the operation, a row may stand for a delete."""
_KEY_AT = META_FIELDS.index(f"{META_PREFIX}record_key")
_MAGIC = b"#HUDI#"
_FORMAT_VERSION = 1
_DELETE_BLOCK = 1
_AVRO_BLOCK = 3
_CONTENT_VERSIONS = {_DELETE_BLOCK: (3,), _AVRO_BLOCK: (1, 2, 3)}
_INSTANT = 0
_SCHEMA = 2
_POSITIONS = 5
_BASE_OF_POSITIONS = 8
_KNOWN_HEADERS = frozenset({_INSTANT, _SCHEMA, _POSITIONS, _BASE_OF_POSITIONS})
"""Not those of parts of rows, of rollbacks, and of blocks that were compacted. Positions only help to find rows."""
_NULL = 0
_INT_ORDER = 2
_LONG_ORDER = 3
"""What a delete's ordering value may be here, by the place of its type in Hudi's schema."""
_OF_NAME = re.compile(r"\.log\.(\d+)(?:_([^.]+))?$")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_DOUBLE = struct.Struct("<d")
_LAST_SHIFT = 63
_DAMAGE = (IndexError, struct.error, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError)

Row: TypeAlias = dict[str, Any]
Decode: TypeAlias = "Callable[[bytes, int], tuple[Any, int]]"
"""Returns the value at a place, and the place behind it."""


class NotAlikeError(Exception):
    """Spark has to read this commit: what this process would make of it is not certain to be the same."""


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record of a log file: a version of a row, or a delete of one."""

    key: str
    order: int = 0
    """Its ordering value; 0 for all where the later record always wins."""
    row: Row | None = None
    """None for a delete. Dates and times are as Arrow counts them."""
    always_wins: bool = False
    """A delete without an ordering value."""


@dataclass(frozen=True, slots=True)
class LogFiles:
    """Reads a table's log files.

    `read` returns a file's content by its path. Without a field of an ordering value the later record always wins.
    """

    read: Callable[[str], bytes]
    ordering: str = ""
    is_order_long: bool = True

    def records(self, partition: str, file: DataFile, schema: str, keys: Collection[str] | None) -> list[LogRecord]:
        """Return a file's records, of these keys alone if there are any, in order. Raises NotAlikeError or OSError.

        The columns must be those of `schema`, the commit's own.
        """
        content = self.read(f"{partition}/{file.name}".lstrip("/"))
        try:
            return list(self._records(content, file.instant, schema, keys))
        except _DAMAGE as error:
            raise NotAlikeError(f"log file {file.name}: {type(error).__name__}: {error}") from error

    def _records(self, content: bytes, instant: str, schema: str, keys: Collection[str] | None) -> Iterator[LogRecord]:
        for kind, header, block in _split_blocks(content):
            if header[_INSTANT].decode() != instant:
                raise NotAlikeError(f"a block of {header[_INSTANT].decode()} in a log file of {instant}")
            if kind == _AVRO_BLOCK:
                yield from self._rows(block, _row_form(header[_SCHEMA].decode(), schema), keys)
            else:
                yield from (record for record in self._deletes(block) if keys is None or record.key in keys)

    def _rows(self, block: bytes, form: _RowForm, keys: Collection[str] | None) -> Iterator[LogRecord]:
        (count,) = _INT.unpack_from(block, _INT.size)
        at = 2 * _INT.size
        for _ in range(count):
            (length,) = _INT.unpack_from(block, at)
            record, at = _take(block, at + _INT.size, length)
            key = form.key_of(record)
            if keys is not None and key not in keys:
                continue
            row = form.row_of(record)
            order = row[self.ordering] if self.ordering else 0
            if order is None:
                raise NotAlikeError(f"no value in {self.ordering}")
            yield LogRecord(key, order, row)
        if at != len(block):
            raise NotAlikeError(f"{len(block) - at} bytes behind the last record")

    def _deletes(self, block: bytes) -> Iterator[LogRecord]:
        (length,) = _INT.unpack_from(block, _INT.size)
        at = 2 * _INT.size
        if length != len(block) - at:
            raise NotAlikeError(f"deletes of {length} bytes in {len(block) - at}")
        count, at = _read_long(block, at)
        while count:
            if count < 0:
                # Followed by the size in bytes.
                count, (_, at) = -count, _read_long(block, at)
            for _ in range(count):
                key, at = _OPTIONAL_TEXT(block, at)
                _, at = _OPTIONAL_TEXT(block, at)
                kind, at = _read_long(block, at)
                order, at = _read_long(block, at) if kind != _NULL else (0, at)
                yield self._delete(key, kind, order)
            count, at = _read_long(block, at)
        if at != len(block):
            raise NotAlikeError(f"{len(block) - at} bytes behind the last delete")

    def _delete(self, key: str | None, kind: int, order: int) -> LogRecord:
        if key is None or kind not in (_NULL, _INT_ORDER, _LONG_ORDER):
            raise NotAlikeError(f"a delete with an ordering value of type {kind}")
        if not self.ordering:
            return LogRecord(key)
        if kind == _INT_ORDER and order == 0:
            return LogRecord(key, always_wins=True)
        if kind != (_LONG_ORDER if self.is_order_long else _INT_ORDER):
            raise NotAlikeError(f"a delete with an ordering value of type {kind}")
        return LogRecord(key, order)


def list_keys(content: bytes) -> set[str]:
    """Return the record keys of a log file, of its rows and of its deletes. Raises NotAlikeError."""
    found: set[str] = set()
    try:
        for kind, header, block in _split_blocks(content):
            if kind == _AVRO_BLOCK:
                schema = header[_SCHEMA].decode()
                found.update(_keys_of_rows(block, _row_form(schema, schema)))
            else:
                found.update(record.key for record in LogFiles(lambda _: b"")._deletes(block))
    except _DAMAGE as error:
        raise NotAlikeError(f"{type(error).__name__}: {error}") from error
    return found


def _keys_of_rows(block: bytes, form: _RowForm) -> Iterator[str]:
    (count,) = _INT.unpack_from(block, _INT.size)
    at = 2 * _INT.size
    for _ in range(count):
        (length,) = _INT.unpack_from(block, at)
        record, at = _take(block, at + _INT.size, length)
        yield form.key_of(record)


def in_order(logs: Iterable[DataFile]) -> list[DataFile]:
    """Return log files in the order in which Hudi merges them."""

    def place(log: DataFile) -> tuple[str, int, bool, str]:
        found = _OF_NAME.search(log.name)
        if found is None:
            raise NotAlikeError(f"log file {log.name}")
        return log.instant, int(found[1]), found[2] is not None, found[2] or ""

    return sorted(logs, key=place)


def merge_records(records: Iterable[LogRecord]) -> dict[str, LogRecord]:
    """Return what records, in order, make of each key; a delete stays, since later records compare with it."""
    merged: dict[str, LogRecord] = {}
    for record in records:
        held = merged.get(record.key)
        merged[record.key] = record if held is None else _merge(held, record)
    return merged


def wins_over_base(record: LogRecord, order: int | None) -> bool:
    """Whether a merged record takes the place of the base file's row, which has this ordering value."""
    if order is None:
        raise NotAlikeError("a row of a base file has no ordering value")
    return record.always_wins or record.order >= order


def _merge(held: LogRecord, record: LogRecord) -> LogRecord:
    if record.row is None and held.always_wins:
        # Hudi keeps the first one, and behind a delete without a value each row wins.
        return held
    return record if record.always_wins or held.always_wins or record.order >= held.order else held


# --- Blocks of a log file. Numbers are big-endian; both sizes of a block leave out 8 bytes, the first one the magic too


def _split_blocks(content: bytes) -> Iterator[tuple[int, Mapping[int, bytes], bytes]]:
    """Yield type, header and content of each block; of nothing but known ones."""
    at = 0
    while at < len(content):
        start = at
        at += len(_MAGIC)
        (size,) = _LONG.unpack_from(content, at)
        at += _LONG.size
        end = at + size
        version, kind = (_INT.unpack_from(content, at + offset)[0] for offset in (0, _INT.size))
        (size_again,) = _LONG.unpack_from(content, end - _LONG.size)
        if not content.startswith(_MAGIC, start) or size_again != size + len(_MAGIC) or end <= at:
            raise NotAlikeError(f"a damaged block at byte {start}")
        if version != _FORMAT_VERSION or kind not in _CONTENT_VERSIONS:
            raise NotAlikeError(f"a block of format {version} and type {kind}")
        header, at = _read_map(content, at + 2 * _INT.size)
        (length,) = _LONG.unpack_from(content, at)
        block, at = _take(content, at + _LONG.size, length)
        _, at = _read_map(content, at)
        if at != end - _LONG.size:
            raise NotAlikeError(f"a damaged block at byte {start}")
        if not header.keys() <= _KNOWN_HEADERS or _INT.unpack_from(block)[0] not in _CONTENT_VERSIONS[kind]:
            raise NotAlikeError(f"a block with the headers {sorted(header)}, or of another version")
        yield kind, header, block
        at = end


def _read_map(content: bytes, at: int) -> tuple[dict[int, bytes], int]:
    (count,), at = _INT.unpack_from(content, at), at + _INT.size
    found = {}
    for _ in range(count):
        key, length = (_INT.unpack_from(content, at + offset)[0] for offset in (0, _INT.size))
        found[key], at = _take(content, at + 2 * _INT.size, length)
    return found, at


def _take(content: bytes, at: int, length: int) -> tuple[bytes, int]:
    """Return so many bytes from a place on, and the place behind them: never one that was passed."""
    end = at + length
    if length < 0 or end > len(content):
        raise NotAlikeError(f"a length of {length} where {len(content) - at} bytes are left")
    return content[at:end], end


# --- Rows in Avro's binary form


@dataclass(frozen=True, slots=True)
class _RowForm:
    """The columns of a block's rows, in order, with what decodes them."""

    columns: Sequence[tuple[str, Decode]]

    def key_of(self, record: bytes) -> str:
        at = 0
        value = None
        for _ in range(_KEY_AT + 1):
            value, at = _OPTIONAL_TEXT(record, at)
        if value is None:
            raise NotAlikeError("a row without a record key")
        return str(value)

    def row_of(self, record: bytes) -> Row:
        at = 0
        row = {}
        for name, decode in self.columns:
            row[name], at = decode(record, at)
        if at != len(record):
            raise NotAlikeError(f"a record of {len(record)} bytes has {at}")
        return row


@lru_cache(maxsize=256)
def _row_form(schema: str, wanted: str) -> _RowForm:
    """Return how rows of one Avro schema are read. Raises NotAlikeError where it is not the commit's own, `wanted`.

    Of fields it compares names, order and types, for a default or a comment makes no difference.
    """
    fields, others = (json.loads(text)["fields"] for text in (schema, wanted))
    names = tuple(found["name"] for found in fields[: len(META_FIELDS)])
    data = fields[len(META_FIELDS) :]
    if names != META_FIELDS or any(found["name"].startswith(META_PREFIX) for found in data):
        raise NotAlikeError("rows with other meta fields than Hudi's five")
    others = [found for found in others if not found["name"].startswith(META_PREFIX)]
    if [_shape(found) for found in data] != [_shape(found) for found in others]:
        raise NotAlikeError("rows of another schema than the commit's")
    return _RowForm([(found["name"], _decoder(found["type"])) for found in fields])


def _shape(found: Mapping[str, Any]) -> tuple[Any, ...]:
    kind = found["type"]
    if isinstance(kind, list):
        kind = next(one for one in kind if one != "null")
    whole = kind if isinstance(kind, dict) else {"type": kind}
    return found["name"], *(whole.get(name) for name in ("type", "logicalType", "precision", "scale", "size"))


def _decoder(kind: Any) -> Decode:
    if isinstance(kind, list):
        if len(kind) != 2 or "null" not in kind:
            raise NotAlikeError(f"a column of the type {kind}")
        return _optional(_decoder(next(one for one in kind if one != "null")), kind.index("null"))
    base = kind["type"] if isinstance(kind, dict) else kind
    size = int(kind["size"]) if base == "fixed" else 0
    if isinstance(kind, dict) and kind.get("logicalType") == "decimal":
        scale = int(kind.get("scale", 0))
        return _decimal(_fixed(size) if base == "fixed" else _read_bytes, scale)
    known: dict[str, Decode] = {
        "string": _read_text,
        "int": _read_long,
        "long": _read_long,
        "boolean": _read_boolean,
        "double": _read_double,
        "bytes": _read_bytes,
    }
    if base not in known:
        raise NotAlikeError(f"a column of the type {base}")
    return known[base]


def _optional(decode: Decode, null_at: int) -> Decode:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        branch, at = _read_long(data, at)
        if branch not in (0, 1):
            raise NotAlikeError(f"branch {branch} of a type of two")
        return (None, at) if branch == null_at else decode(data, at)

    return read


def _read_long(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    value = byte & 0x7F
    shift = 7
    while byte & 0x80:
        if shift > _LAST_SHIFT:
            raise NotAlikeError("a number of more than 64 bits")
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        shift += 7
    return (value >> 1) ^ -(value & 1), at + 1


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = _read_long(data, at)
    return _take(data, at, length)


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    content, at = _read_bytes(data, at)
    return content.decode(), at


def _read_boolean(data: bytes, at: int) -> tuple[bool, int]:
    return data[at] != 0, at + 1


def _read_double(data: bytes, at: int) -> tuple[float, int]:
    return _DOUBLE.unpack_from(data, at)[0], at + _DOUBLE.size


def _fixed(size: int) -> Decode:
    return lambda data, at: _take(data, at, size)


def _decimal(decode: Decode, scale: int) -> Decode:
    def read(data: bytes, at: int) -> tuple[Decimal, int]:
        content, at = decode(data, at)
        # The constructor is exact, whatever the precision of the context.
        return Decimal(f"{int.from_bytes(content, 'big', signed=True)}E-{scale}"), at

    return read


_OPTIONAL_TEXT = _optional(_read_text, 0)
