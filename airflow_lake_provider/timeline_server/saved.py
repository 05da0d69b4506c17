"""What a server knows, on local disk, so that the next one starts with a stat per table instead of a listing.

The file is a hint like any other: each restored table is compared with its storage before it is answered. A damaged
file is reported and used up to the damage. Record: two lengths (big-endian, 4 bytes each), CRC-32 of what follows,
a JSON header, the packed snapshot.
"""

from __future__ import annotations

import json
import logging
import os
import struct
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from airflow_lake_provider.errors import DamagedFileError, LakeError
from airflow_lake_provider.timeline_server.snapshot import Known, unpack

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from airflow_lake_provider.timeline_server.cache import SharedTimelines

log = logging.getLogger(__name__)


_MAGIC = b"lake timelines 2\n"
_PREFIX = struct.Struct(">III")
_MAX_RECORD_BYTES = 64 * 1024 * 1024


def save(timelines: SharedTimelines, path: Path) -> int:
    """Write all snapshots in memory; return how many. The old file stays until the new one is complete."""
    return write_records(path, _MAGIC, _records(timelines))


def _records(timelines: SharedTimelines) -> Iterator[tuple[dict[str, Any], bytes]]:
    for base_path, cached in timelines.memory.kept_timelines():
        packed = cached.packed
        if not packed or cached.error is not None:
            continue
        stamps = {"folder_ms": cached.folder_ms, "properties_stamp": list(cached.properties_stamp)}
        known = {
            "is_announced": cached.is_announced,
            "is_gate_unreliable": timelines.folder_times.is_unreliable(cached),
        }
        header = {"base_path": base_path, "version": cached.version, "as_of_ms": cached.as_of_ms}
        yield header | known | stamps, packed


def write_records(path: Path, magic: bytes, records: Iterable[tuple[Mapping[str, Any], bytes]]) -> int:
    """Write a file of records, each a header and bytes; return how many. The old file stays until it is complete.

    Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    saved = 0
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(magic)
            for entry, packed in records:
                header = json.dumps(entry).encode()
                stream.write(_PREFIX.pack(len(header), len(packed), zlib.crc32(header + packed)))
                stream.write(header + packed)
                saved += 1
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return saved


def restore(timelines: SharedTimelines, path: Path) -> int:
    """Restore the file's tables into the shared timelines; return how many. A missing file holds none."""
    restored = 0
    try:
        with path.open("rb") as stream:
            for base_path, known, header in _read(stream, path):
                try:
                    timelines.restore(base_path, known, is_announced=bool(header["is_announced"]))
                    if header.get("is_gate_unreliable"):
                        timelines.folder_times.distrust(timelines.memory.get(base_path))
                except LakeError as error:
                    log.warning("timeline of %s was not restored: %s", base_path, error)
                    continue
                restored += 1
    except FileNotFoundError:
        return 0
    except (OSError, DamagedFileError) as error:
        log.warning("timeline snapshot %s is used up to table %d: %s", path, restored, error)
    return restored


def _read(stream: BinaryIO, path: Path) -> Iterator[tuple[str, Known, dict[str, Any]]]:
    for header, packed in read_records(stream, _MAGIC, path):
        base_path = str(header["base_path"])
        known = Known(
            unpack(packed, base_path, str(header["version"]), int(header["as_of_ms"])),
            int(header["folder_ms"]),
            (int(header["properties_stamp"][0]), int(header["properties_stamp"][1])),
        )
        yield base_path, known, header


def read_records(stream: BinaryIO, magic: bytes, path: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Read what `write_records` wrote, up to the first damage. Raises DamagedFileError there, and OSError."""
    if stream.read(len(magic)) != magic:
        raise DamagedFileError(f"{path}: it does not begin with {magic!r}")
    while prefix := stream.read(_PREFIX.size):
        if len(prefix) < _PREFIX.size:
            raise DamagedFileError(f"{path}: cut off")
        header_bytes, packed_bytes, checksum = _PREFIX.unpack(prefix)
        if header_bytes + packed_bytes > _MAX_RECORD_BYTES:
            raise DamagedFileError(f"{path}: a record of {header_bytes + packed_bytes} bytes")
        body = stream.read(header_bytes + packed_bytes)
        if len(body) != header_bytes + packed_bytes or zlib.crc32(body) != checksum:
            raise DamagedFileError(f"{path}: a record is cut off or damaged")
        yield json.loads(body[:header_bytes]), body[header_bytes:]
