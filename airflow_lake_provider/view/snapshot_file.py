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
from typing import TYPE_CHECKING, BinaryIO

from airflow_lake_provider.errors import DamagedFileError, LakeError
from airflow_lake_provider.view.look import Known
from airflow_lake_provider.view.packed import unpack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_lake_provider.view.shared_timelines import SharedTimelines

log = logging.getLogger(__name__)

_MAGIC = b"lake timelines 1\n"
_PREFIX = struct.Struct(">III")
_MOST_BYTES = 64 * 1024 * 1024


def save(timelines: SharedTimelines, path: Path) -> int:
    """Write all snapshots that are in memory; return how many. The old file stays until the new one is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    saved = 0
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(_MAGIC)
            for base_path, slot in timelines.memory.kept_slots():
                packed = slot.packed
                if packed is None or slot.error is not None:
                    continue
                stamps = {"folder_ms": slot.folder_ms, "properties_stamp": list(slot.properties_stamp)}
                kept = {"base_path": base_path, "is_announced": slot.is_announced, **stamps}
                header = json.dumps(kept).encode()
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
    """Give the shared timelines what the file holds; return how many tables. A missing file holds none."""
    restored = 0
    try:
        with path.open("rb") as stream:
            for base_path, known, is_announced in _read(stream, path):
                try:
                    timelines.restore(base_path, known, is_announced=is_announced)
                except LakeError as error:
                    log.warning("timeline of %s was not restored: %s", base_path, error)
                    continue
                restored += 1
    except FileNotFoundError:
        return 0
    except (OSError, DamagedFileError) as error:
        log.warning("timeline snapshot %s is used up to table %d: %s", path, restored, error)
    return restored


def _read(stream: BinaryIO, path: Path) -> Iterator[tuple[str, Known, bool]]:
    if stream.read(len(_MAGIC)) != _MAGIC:
        raise DamagedFileError(f"{path}: not a snapshot of timelines")
    while prefix := stream.read(_PREFIX.size):
        if len(prefix) < _PREFIX.size:
            raise DamagedFileError(f"{path}: cut off")
        header_bytes, packed_bytes, checksum = _PREFIX.unpack(prefix)
        if header_bytes + packed_bytes > _MOST_BYTES:
            raise DamagedFileError(f"{path}: a record of {header_bytes + packed_bytes} bytes")
        body = stream.read(header_bytes + packed_bytes)
        if len(body) != header_bytes + packed_bytes or zlib.crc32(body) != checksum:
            raise DamagedFileError(f"{path}: a record is cut off or damaged")
        header = json.loads(body[:header_bytes])
        known = Known(
            unpack(body[header_bytes:]),
            int(header["folder_ms"]),
            (int(header["properties_stamp"][0]), int(header["properties_stamp"][1])),
        )
        yield str(header["base_path"]), known, bool(header["is_announced"])
