"""The content of a timeline file: the one record of an Avro container, or a JSON object (layout 1).

The content decides which of them, not what the file's name promises.
"""

from __future__ import annotations

import io
import json
import time
from typing import TYPE_CHECKING, Any

import fastavro

from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.hudi.avro_schema import RecordSchema, parse_record_schema
from airflow_lake_provider.hudi.decoding_process import decode_apart
from airflow_lake_provider.storage.store import last_name

if TYPE_CHECKING:
    from airflow_lake_provider.storage.table_storage import Storage

AVRO_MAGIC = b"Obj\x01"


MAX_MEMORY_HERE_BYTES = 64 * 1024 * 1024
"""Python objects that one file may become in this process; a larger one is decoded in a process of its own."""
JSON_MEMORY_PER_BYTE = 32
"""The most that a byte of JSON becomes: `[{},{}...` has an object of 64 bytes in each three."""


def load_record(storage: Storage, path: str) -> dict[str, Any] | None:
    """Read and decode a timeline file. Raises what `decode` raises, FileNotFoundError and StorageError.

    Raises UnsupportedTableError for a table whose large records take too much of this process.
    """
    content = storage.read_bytes(path)
    storage.large_records.take(len(content), storage.base_path, time.monotonic())
    return decode(content, last_name(path))


def decode(content: bytes, file_name: str) -> dict[str, Any] | None:
    """Return the one record of a timeline file; None for an empty file.

    A large record comes without the fields that no reader asks for. Raises DamagedFileError that names the file: half
    written, not of either format, or not exactly one record.
    """
    return _decode(content, file_name, MAX_MEMORY_HERE_BYTES)


def decode_here(content: bytes, file_name: str) -> dict[str, Any] | None:
    """Return the same in this process, whatever memory it takes."""
    return _decode(content, file_name, None)


def _decode(content: bytes, file_name: str, memory_bytes: int | None) -> dict[str, Any] | None:
    if not content:
        return None
    if content.startswith(AVRO_MAGIC):
        return _decode_avro(content, file_name, memory_bytes)
    if content[:4096].lstrip()[:1] == b"{":
        if memory_bytes is not None and len(content) * JSON_MEMORY_PER_BYTE > memory_bytes:
            return decode_apart(content, file_name)
        return _decode_json(content, file_name)
    raise DamagedFileError(f"{file_name}: neither an Avro container nor JSON (begins with {content[:8]!r})")


def plain_text(value: Any) -> str:
    """Return a text of a record. Raises ValueError for another type, and for a character that no name can have."""
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"not a name: {str(value)[:80]!r}")
    return value


def _decode_json(content: bytes, file_name: str) -> dict[str, Any]:
    try:
        body = json.loads(content)
        if b"\\ud" in content or b"\\uD" in content:
            json.dumps(body, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{file_name}: damaged JSON: {error}") from error
    return dict(body)


def _decode_avro(content: bytes, file_name: str, memory_bytes: int | None) -> dict[str, Any]:
    try:
        schema, record = _open_container(content)
    except _DamageError as damage:
        raise DamagedFileError(f"{file_name}: damaged Avro container: {damage}") from damage
    except Exception as error:  # what the parser raises depends on what is wrong in the schema
        reason = f"{type(error).__name__} {error}"
        raise DamagedFileError(f"{file_name}: Avro container with a damaged schema: {reason}") from error
    if memory_bytes is not None and len(record) * schema.memory_per_byte > memory_bytes:
        return decode_apart(content, file_name)
    stream = io.BytesIO(record)
    try:
        value = fastavro.schemaless_reader(stream, schema.parsed, None)
    except Exception as error:  # decoders raise whatever a wrong byte makes them do
        raise DamagedFileError(f"{file_name}: damaged Avro record: {type(error).__name__} {error}") from error
    if stream.tell() != len(record) or not isinstance(value, dict):
        left = len(record) - stream.tell()
        raise DamagedFileError(f"{file_name}: damaged Avro record: {left} bytes after it")
    return value


# --- An Avro container: magic, metadata, a sync marker, then blocks of records that each end in the marker
#
# Source: Avro's specification, "Object Container Files". Hudi writes one record, so one block with a count of one. The
# decoder's own reader believes a block's count before the bytes are there.

_SYNC_BYTES = 16
_MAX_ENTRIES = 64


class _DamageError(Exception):
    """The container is not whole, or not one of Hudi's."""


def _open_container(content: bytes) -> tuple[RecordSchema, bytes]:
    """Return schema and bytes of the one record."""
    cursor = _Cursor(content, len(AVRO_MAGIC))
    metadata: dict[bytes, bytes] = {}
    while count := cursor.number():
        if count < 0:  # such a block of the map begins with its length as well
            count = -count
            cursor.number()
        if count + len(metadata) > _MAX_ENTRIES:
            raise _DamageError(f"a header of more than {_MAX_ENTRIES} entries")
        for _ in range(count):
            key = cursor.take(cursor.number())
            metadata[key] = cursor.take(cursor.number())
    sync = cursor.take(_SYNC_BYTES)
    # Hudi compresses none of its timeline files. Another codec is damage, and could unpack to any size.
    codec = metadata.get(b"avro.codec", b"null")
    if codec != b"null":
        raise _DamageError(f"codec {codec[:50]!r}")
    schema = parse_record_schema(metadata.get(b"avro.schema", b""))
    records = cursor.number()
    if records != 1:
        raise _DamageError(f"expected one record, the block announces {records}")
    record = cursor.take(cursor.number())
    if cursor.take(_SYNC_BYTES) != sync:
        raise _DamageError("the block does not end in the container's marker")
    if cursor.position != len(content):
        raise _DamageError(f"expected one block, {len(content) - cursor.position} bytes follow it")
    return schema, record


class _Cursor:
    """Reads forward; every length is checked before anything of it is copied."""

    def __init__(self, content: bytes, position: int) -> None:
        self.content = content
        self.position = position

    def take(self, length: int) -> bytes:
        if not 0 <= length <= len(self.content) - self.position:
            raise _DamageError(f"a length of {length} where {len(self.content) - self.position} bytes are left")
        self.position += length
        return self.content[self.position - length : self.position]

    def number(self) -> int:
        """Return a zigzag number of at most ten bytes."""
        number = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)
        raise _DamageError("a number of more than ten bytes")
