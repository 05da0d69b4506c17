"""One refresh of a table from its storage, as cheap as the cached state allows.

Where a folder's modification time changes with its children, one stat shows that nothing happened. Otherwise, or when
something did, the refresh lists the timeline's folder once. It reads `hoodie.properties` again only when the file's
stat changed; a listing needs that stat when instants vanished (an upgrade moves the timeline to another folder), and
when an action completed that leaves the properties changed: an index build lists its index there before it completes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import struct
import tempfile
import threading
import zlib
from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from airflow_lake_provider.errors import DamagedFileError, LakeError
from airflow_lake_provider.hudi.instant import Action
from airflow_lake_provider.hudi.properties import PROPERTIES_FILE, TableProperties, load_table_properties
from airflow_lake_provider.hudi.timeline import TimelineListing, load_listing
from airflow_lake_provider.timeline_server.snapshot import TimelineSnapshot, unpack, version_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_lake_provider.storage.table_storage import Storage
    from airflow_lake_provider.timeline_server.cache import SharedTimelines

log = logging.getLogger(__name__)

# A folder that changed so shortly before its listing may change again within the same tick of its clock.
SETTLED_AFTER_MS = 2000
# The same for a store with a clock of its own, which may be that far behind this machine's.
SETTLED_REMOTELY_AFTER_MS = 60_000

_PROPERTIES_ACTIONS = frozenset({Action.INDEXING, Action.RESTORE, Action.SCHEMACOMMIT})

PROPERTIES_AFTER_MS = 600_000
"""A heartbeat's refresh also checks the properties when the last check is so long ago."""

UNKNOWN = 0
"""A stamp that equals nothing: the next refresh has to list."""


class Depth(StrEnum):
    """How much of the storage a refresh reads."""

    LIST = "list"
    """A hint reports a change: list immediately."""
    GATE = "gate"
    """Read the folder's time first."""
    FULL = "full"
    """Read the properties' stat and the folder's time."""
    FULL_LIST = "full_list"
    """Read the properties' stat and list."""
    VERIFY = "verify"
    """List whatever the folder's time is."""


@dataclass(frozen=True, slots=True)
class Known:
    """What one refresh leaves for the next."""

    snapshot: TimelineSnapshot
    folder_ms: int = UNKNOWN
    """Modification time of the timeline's folder before it was listed, when it can be trusted."""
    properties_stamp: tuple[int, int] = (UNKNOWN, UNKNOWN)
    """Modification time and size of hoodie.properties before it was read."""
    listing: TimelineListing | None = None
    """Names of all files, so that the next listing parses only new ones; may be dropped at any time."""


def refresh(storage: Storage, known: Known | None, depth: Depth, now_ms: int) -> Known:
    """Refresh the table. Raises what reading properties and timeline raises; `known` stays valid then."""
    if known is None:
        return _load(storage, now_ms)
    properties, stamp = known.snapshot.properties, known.properties_stamp
    checks_properties = depth in {Depth.FULL, Depth.FULL_LIST}
    if checks_properties:
        properties, stamp = _properties_again(storage, known)
    folder_ms = UNKNOWN
    if depth not in {Depth.LIST, Depth.FULL_LIST}:
        folder_ms = folder_time(storage, properties.timeline_path, now_ms)
        if _is_unchanged(known, folder_ms, properties) and depth is not Depth.VERIFY:
            return replace(known, snapshot=replace(known.snapshot, as_of_ms=now_ms), properties_stamp=stamp)
    try:
        listing = load_listing(storage, properties, _comparable(known, properties))
    except DamagedFileError:  # an upgrade moves the timeline, or has moved it; a drop removes all of it
        return _load(storage, now_ms)
    if not checks_properties and (_has_lost(known, listing) or _has_new_properties(known, listing)):
        again, stamp = _properties_again(storage, known)
        if again.timeline_path != properties.timeline_path or again.layout is not properties.layout:
            return _load(storage, now_ms)
        properties = again
    return _known(storage, properties, listing, now_ms, (folder_ms, stamp))


def _load(storage: Storage, now_ms: int) -> Known:
    stamp = _properties_stamp(storage)
    properties = load_table_properties(storage)
    folder_ms = folder_time(storage, properties.timeline_path, now_ms)
    return _known(storage, properties, load_listing(storage, properties), now_ms, (folder_ms, stamp))


def _known(
    storage: Storage,
    properties: TableProperties,
    listing: TimelineListing,
    now_ms: int,
    stamps: tuple[int, tuple[int, int]],
) -> Known:
    version = version_of(listing.timeline, properties)
    snapshot = TimelineSnapshot(storage.base_path, version, properties, listing.timeline, now_ms)
    return Known(snapshot, stamps[0], stamps[1], listing)


def _is_unchanged(known: Known, folder_ms: int, properties: TableProperties) -> bool:
    return folder_ms != UNKNOWN and folder_ms == known.folder_ms and properties is known.snapshot.properties


def _properties_again(storage: Storage, known: Known) -> tuple[TableProperties, tuple[int, int]]:
    stamp = _properties_stamp(storage)
    if UNKNOWN not in stamp and stamp == known.properties_stamp:
        return known.snapshot.properties, stamp
    properties = load_table_properties(storage)
    # The same object while the content is the same: a refresh compares by identity.
    return (known.snapshot.properties if properties == known.snapshot.properties else properties), stamp


def _properties_stamp(storage: Storage) -> tuple[int, int]:
    entry = storage.stat(PROPERTIES_FILE)
    return (UNKNOWN, UNKNOWN) if entry is None else (entry.modified_ms, entry.size_bytes)


def folder_time(storage: Storage, timeline_path: str, now_ms: int) -> int:
    """Return the modification time of the timeline's folder, UNKNOWN when it is unreliable; one stat."""
    if not storage.has_folder_times:
        return UNKNOWN
    entry = storage.stat(timeline_path)
    settled_after_ms = SETTLED_AFTER_MS if storage.is_local else SETTLED_REMOTELY_AFTER_MS
    if entry is None or now_ms - entry.modified_ms <= settled_after_ms:
        return UNKNOWN
    return entry.modified_ms


def _comparable(known: Known, properties: TableProperties) -> TimelineListing | None:
    return known.listing if known.snapshot.properties.timeline_path == properties.timeline_path else None


def _has_new_properties(known: Known, listing: TimelineListing) -> bool:
    now = [i for i in listing.timeline.instants if i.action in _PROPERTIES_ACTIONS and i.is_completed]
    return bool(now) and not {i.file_name for i in now} <= {i.file_name for i in known.snapshot.timeline.instants}


def has_same_properties(storage: Storage, stamp: tuple[int, int]) -> bool:
    """Whether hoodie.properties still has the modification time and size that it had when read; one stat."""
    now = _properties_stamp(storage)
    return UNKNOWN not in now and now == stamp


def _has_lost(known: Known, listing: TimelineListing) -> bool:
    if known.listing is not None:
        return not known.listing.names <= listing.names
    names = {instant.file_name for instant in known.snapshot.timeline.instants}
    return not names <= listing.names


# --- Detect a store with unreliable folder times: the gate shows no change, a listing does


def is_folder_time_unreliable(storage: Storage, before: Known, after: Known) -> bool:
    """Whether the timeline changed while its folder's modification time, read before and after, did not."""
    # A refresh that only lists reads no folder time before.
    was_gate_unchanged = before.folder_ms != UNKNOWN and after.folder_ms in {before.folder_ms, UNKNOWN}
    if not was_gate_unchanged or before.snapshot.timeline.instants == after.snapshot.timeline.instants:
        return False
    # A change between that stat and the listing appears the same; a second stat on a reliable store shows it.
    entry = storage.stat(after.snapshot.properties.timeline_path)
    return entry is not None and entry.modified_ms == before.folder_ms


def volume_of(storage: Storage) -> str:
    """Return what shares the behaviour of folder times: a file system of this machine, or a store."""
    if storage.is_local:
        with contextlib.suppress(OSError):
            return f"device {Path(storage.base_path).stat().st_dev}"
    scheme, _, rest = storage.base_path.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


# --- Counters of a process's shared timelines


class TimelineStats:
    """Counters by name; safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._counts[name] += by

    def read(self) -> dict[str, int]:
        """Return all counters."""
        with self._lock:
            return dict(self._counts)


# --- What a server knows, on local disk, so that the next one starts with a stat per table instead of a listing
#
# The file is a hint like any other: each restored table is compared with its storage before it is answered. A damaged
# file is reported and used up to the damage. Record: two lengths (big-endian, 4 bytes each), CRC-32 of what follows,
# a JSON header, the packed snapshot.

_MAGIC = b"lake timelines 2\n"
_PREFIX = struct.Struct(">III")
_MOST_FILE_BYTES = 64 * 1024 * 1024


def save(timelines: SharedTimelines, path: Path) -> int:
    """Write all snapshots in memory; return how many. The old file stays until the new one is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    saved = 0
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(_MAGIC)
            for base_path, cached in timelines.memory.kept_timelines():
                packed = cached.packed
                if not packed or cached.error is not None:
                    continue
                stamps = {"folder_ms": cached.folder_ms, "properties_stamp": list(cached.properties_stamp)}
                known = {"is_announced": cached.is_announced, "is_gate_unreliable": timelines.is_unreliable(cached)}
                entry = {
                    "base_path": base_path,
                    "version": cached.version,
                    "as_of_ms": cached.as_of_ms,
                    **known,
                    **stamps,
                }
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
                        timelines.distrust(base_path)
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
    if stream.read(len(_MAGIC)) != _MAGIC:
        raise DamagedFileError(f"{path}: not a snapshot of timelines")
    while prefix := stream.read(_PREFIX.size):
        if len(prefix) < _PREFIX.size:
            raise DamagedFileError(f"{path}: cut off")
        header_bytes, packed_bytes, checksum = _PREFIX.unpack(prefix)
        if header_bytes + packed_bytes > _MOST_FILE_BYTES:
            raise DamagedFileError(f"{path}: a record of {header_bytes + packed_bytes} bytes")
        body = stream.read(header_bytes + packed_bytes)
        if len(body) != header_bytes + packed_bytes or zlib.crc32(body) != checksum:
            raise DamagedFileError(f"{path}: a record is cut off or damaged")
        header = json.loads(body[:header_bytes])
        base_path = str(header["base_path"])
        known = Known(
            unpack(body[header_bytes:], base_path, str(header["version"]), int(header["as_of_ms"])),
            int(header["folder_ms"]),
            (int(header["properties_stamp"][0]), int(header["properties_stamp"][1])),
        )
        yield base_path, known, header
