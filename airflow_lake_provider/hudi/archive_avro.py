"""Read the Avro data of a Hudi log file, whose schema comes out of the same file and need not be written by Hudi."""

from __future__ import annotations

import io
import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import fastavro

from airflow_lake_provider.errors import DamagedFileError, UnsupportedTableError
from airflow_lake_provider.hudi.avro_schema import parse_record_schema

if TYPE_CHECKING:
    from collections.abc import Iterator


class RecordReader:
    """Reads records of one schema: a few of their fields, which is quick, or all."""

    def __init__(self, schema: bytes, fields: frozenset[str], where: str) -> None:
        try:
            self._schema = parse_record_schema(schema).parsed
            plain = json.loads(schema)
            few = [entry for entry in plain["fields"] if entry["name"] in fields]
            self._few = fastavro.parse_schema({**plain, "fields": few})
        except Exception as error:  # what the parser raises depends on what is wrong in the schema
            raise DamagedFileError(f"{where}: damaged Avro schema: {type(error).__name__} {error}") from error

    def read_fields(self, record: bytes, where: str) -> dict[str, Any]:
        """Return the few fields of a record. Raises DamagedFileError."""
        return self._read(record, self._few, where)

    def read_all(self, record: bytes, where: str) -> dict[str, Any]:
        """Return a whole record. Raises DamagedFileError."""
        return self._read(record, None, where)

    def _read(self, record: bytes, reader_schema: Any, where: str) -> dict[str, Any]:
        stream = io.BytesIO(record)
        try:
            value = fastavro.schemaless_reader(stream, self._schema, reader_schema)
        except Exception as error:  # decoders raise whatever a wrong byte makes them do
            raise DamagedFileError(f"{where}: damaged Avro record: {type(error).__name__} {error}") from error
        if stream.tell() != len(record) or not isinstance(value, dict):
            raise DamagedFileError(f"{where}: damaged Avro record: {len(record) - stream.tell()} bytes too many")
        return value


def to_json(value: Any, where: str) -> bytes:
    """Print a decoded value. Raises DamagedFileError."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise DamagedFileError(f"{where}: an Avro value that is not plain data: {error}") from error


# --- Blocks of a Hudi log file, as far as archives have them: Avro data. Everything else is reported or refused
#
# Source: Hudi 1.2 `HoodieLogFormat`, `HoodieLogFileReader`, `HoodieLogBlock`, `HoodieAvroDataBlock`. Numbers are
# big-endian. Both sizes of a block leave out 8 bytes; the first one leaves out the magic as well.

MAGIC = b"#HUDI#"
FORMAT_VERSION = 1
DATA_VERSIONS = (1, 2, 3)
AVRO_DATA_BLOCK = 3
# Hudi never puts these into archives, and skips them there; they hold no instants.
BLOCKS_WITHOUT_DATA = {0: "command", 1: "delete", 2: "corrupt"}
SCHEMA_HEADER = 2
MAX_MAP_ENTRIES = 64

_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class DataBlock:
    """The records of one block, each in Avro's binary encoding, and the schema they were written with."""

    schema: bytes
    records: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class DamagedBlock:
    """A part of the file, `start` to `end`, that gave no records."""

    start: int
    end: int
    reason: str


class _DamageError(Exception):
    """A block is not whole."""


@dataclass(slots=True)
class _Cursor:
    """Reads forward within `end`; every length is checked before anything of it is copied."""

    content: bytes
    position: int
    end: int

    def take(self, length: int) -> bytes:
        if not 0 <= length <= self.end - self.position:
            raise _DamageError(f"a length of {length} where {self.end - self.position} bytes are left")
        self.position += length
        return self.content[self.position - length : self.position]

    def int32(self) -> int:
        return int(_INT.unpack(self.take(_INT.size))[0])

    def int64(self) -> int:
        return int(_LONG.unpack(self.take(_LONG.size))[0])

    def map(self) -> dict[int, bytes]:
        count = self.int32()
        if not 0 <= count <= MAX_MAP_ENTRIES:
            raise _DamageError(f"a header of {count} entries")
        entries = {}
        for _ in range(count):
            key = self.int32()
            entries[key] = self.take(self.int32())
        return entries


def read_blocks(content: bytes, where: str) -> Iterator[DataBlock | DamagedBlock]:
    """Yield what a log file consists of; damage is skipped up to the next magic, as Hudi does.

    Raises UnsupportedTableError for formats and types that may hold instants but are not known, DamagedFileError for
    a whole block with content that contradicts itself.
    """
    position = 0
    damaged: tuple[int, str] | None = None
    while position < len(content):
        try:
            end = _find_end(content, position)
        except _DamageError as damage:
            damaged = damaged or (position, f"a damaged or unfinished block ({damage})")
            found = content.find(MAGIC, position + 1)
            position = found if found >= 0 else len(content)
            continue
        if damaged:
            yield DamagedBlock(damaged[0], position, damaged[1])
            damaged = None
        yield _parse_block(content, position, end, where)
        position = end
    if damaged:
        yield DamagedBlock(damaged[0], position, damaged[1])


def _find_end(content: bytes, start: int) -> int:
    """Return where a block ends, after Hudi's rule of what makes it whole."""
    cursor = _Cursor(content, start, len(content))
    if cursor.take(len(MAGIC)) != MAGIC:
        raise _DamageError("no magic")
    size = cursor.int64()
    end = cursor.position + size
    cursor.take(size - _LONG.size)
    if cursor.int64() != size + len(MAGIC):
        raise _DamageError("its two sizes differ")
    if end < len(content) and not content.startswith(MAGIC, end):
        raise _DamageError("no other block follows")
    return end


def _parse_block(content: bytes, start: int, end: int, where: str) -> DataBlock | DamagedBlock:
    cursor = _Cursor(content, start + len(MAGIC) + _LONG.size, end - _LONG.size)
    try:
        version = cursor.int32()
        block_type = cursor.int32()
        if version != FORMAT_VERSION:
            raise UnsupportedTableError(
                f"{where}: a log block of format {version}, this package reads {FORMAT_VERSION} (at byte {start})"
            )
        if block_type in BLOCKS_WITHOUT_DATA:
            return DamagedBlock(start, end, f"a {BLOCKS_WITHOUT_DATA[block_type]} block, which no archive should have")
        if block_type != AVRO_DATA_BLOCK:
            raise UnsupportedTableError(
                f"{where}: a log block of type {block_type}, this package reads {AVRO_DATA_BLOCK} (at byte {start})"
            )
        header = cursor.map()
        length = cursor.int64()
        data = _Cursor(content, cursor.position, cursor.position + length)
        cursor.take(length)
        cursor.map()
        if cursor.position != cursor.end:
            raise _DamageError(f"{cursor.end - cursor.position} bytes too many")
        return DataBlock(_schema_of(header), _split_records(data, where))
    except _DamageError as damage:
        raise DamagedFileError(f"{where}: damaged log block at byte {start}: {damage}") from damage


def _schema_of(header: dict[int, bytes]) -> bytes:
    schema = header.get(SCHEMA_HEADER)
    if schema is None:
        raise _DamageError("no schema")
    return schema


def _split_records(data: _Cursor, where: str) -> tuple[bytes, ...]:
    version = data.int32()
    if version not in DATA_VERSIONS:
        raise UnsupportedTableError(f"{where}: a data block of version {version}, this package reads {DATA_VERSIONS}")
    count = data.int32()
    if not 0 <= count <= (data.end - data.position) // _INT.size:
        raise _DamageError(f"{count} records in {data.end - data.position} bytes")
    records = tuple(data.take(data.int32()) for _ in range(count))
    if data.position != data.end:
        raise _DamageError(f"{data.end - data.position} bytes after the last record")
    return records
