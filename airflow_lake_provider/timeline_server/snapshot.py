"""A table's complete timeline at one moment, what is new since another, and the refresh from the table's storage.

Where a folder's modification time changes with its children, one stat shows that nothing happened. Otherwise, or when
something did, the refresh lists the timeline's folder once. It reads `hoodie.properties` again only when the file's
stat changed; a listing needs that stat when instants vanished (an upgrade moves the timeline to another folder), and
when an action completed that leaves the properties changed: an index build lists its index there before it completes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import threading
import zlib
from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.hudi.instant import Instant, Layout, TimelineProblem
from airflow_lake_provider.hudi.properties import (
    PROPERTIES_FILE,
    TableProperties,
    build_table_properties,
    load_table_properties,
)
from airflow_lake_provider.hudi.timeline import Timeline, TimelineListing, load_listing
from airflow_lake_provider.shared.actions import COMPARABLE_ACTION, Action

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_lake_provider.hudi.pending import PendingPlan
    from airflow_lake_provider.storage.table_storage import Storage

_VERSION_LENGTH = 32


@dataclass(frozen=True, slots=True)
class TimelineSnapshot:
    """The active timeline with requested, inflight and completed instants.

    `version` depends on the content alone: it changes when, and only when, timeline or properties do, and is the same
    for every reader, so it outlives any server. The storage was read at `as_of_ms` (ms since the epoch); later changes
    are not in it.
    """

    base_path: str
    version: str
    properties: TableProperties
    timeline: Timeline
    as_of_ms: int


@dataclass(frozen=True, slots=True)
class PlannedSnapshot:
    """A timeline with what its pending services will rewrite or build. `problems` are plans that cannot be read.

    `snapshot.version` is the version of both: it has the name of each plan's file, which does not change.
    """

    snapshot: TimelineSnapshot
    plans: tuple[PendingPlan, ...] = ()
    problems: tuple[TimelineProblem, ...] = ()


def version_of(timeline: Timeline, properties: TableProperties) -> str:
    """Return the version of a timeline: a hash of its instants and of the table's properties."""
    # In layout 2 a name contains everything; in layout 1 the completion time is not part of it.
    names = [f"{i.file_name} {i.completed_time}" for i in timeline.instants]
    problems = [f"{problem.file_name} {problem.reason}" for problem in timeline.problems]
    text = "\n".join([repr(sorted(properties.raw.items())), *names, *problems])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_VERSION_LENGTH]


def find_new_names(before: TimelineSnapshot, after: TimelineSnapshot) -> frozenset[str]:
    """Return the file names of instants that are new or in a new state; a layout 1 file rewritten in place is new."""
    known = {(i.file_name, i.completed_time) for i in before.timeline.instants}
    now = {(i.file_name, i.completed_time) for i in after.timeline.instants}
    return frozenset(name for name, _ in now - known)


def problems_text(problems: Iterable[TimelineProblem]) -> str:
    """Return problems as one line for a log or an answer."""
    return "; ".join(f"{problem.file_name}: {problem.reason}" for problem in problems)


# --- A snapshot in few bytes: what a server caches of ten thousand tables, and what its snapshot file holds
#
# Packing and unpacking are inverses. Ten instants and the properties of a table are 150 bytes: the text that most
# tables have in common is in a dictionary. A change of that, or of the format, makes older snapshot files unreadable:
# `saved._MAGIC` has their version.

_LEVEL = 6
_MAX_BYTES = 256 * 1024 * 1024
_RAW_WINDOW = -15
"""Without zlib's own header and checksum: 6 bytes less a table."""

# What is most frequent comes last, because nearer text takes fewer bits.
_COMMON = (
    b'"hoodie.table.initial.version":"9","hoodie.table.base.file.format":"PARQUET","hoodie.populate.meta.fields":"true",'
    b'"hoodie.table.multiple.base.file.formats.enable":"false","hoodie.datasource.write.drop.partition.columns":"false",'
    b'"hoodie.datasource.write.hive_style_partitioning":"false","hoodie.datasource.write.partitionpath.urlencode":"false",'
    b'"hoodie.table.cdc.enabled":"false","hoodie.table.log.file.format":"HOODIE_LOG","hoodie.archivelog.folder":"archived",'
    b'"hoodie.timeline.history.path":"history","hoodie.timeline.path":"timeline","hoodie.database.name":"",'
    b'"hoodie.table.partition.fields":"","hoodie.table.recordkey.fields":"","hoodie.table.keygenerator.type":"SIMPLE",'
    b'"hoodie.table.keygenerator.class":"org.apache.hudi.keygen.","hoodie.table.ordering.fields":"ts",'
    b'"hoodie.table.precombine.field":"ts","hoodie.record.merge.mode":"EVENT_TIME_ORDERING",'
    b'"hoodie.record.merge.strategy.id":"eeb8d96f-b1e4-49fd-bbf8-28ac514178e5","hoodie.compaction.payload.class":'
    b'"org.apache.hudi.common.model.DefaultHoodieRecordPayload","hoodie.table.create.schema":"{\\"type\\":\\"record\\",'
    b'\\"name\\":\\"\\",\\"fields\\":[{\\"name\\":\\"\\",\\"type\\":[\\"null\\",\\"string\\"],\\"default\\":null},",'
    b'"hoodie.table.metadata.partitions.inflight":"","hoodie.table.metadata.partitions":"column_stats,files,partition_stats",'
    b'"hoodie.table.index.defs.path":".hoodie/.index_defs/index.json","COPY_ON_WRITE",'
    b'"hoodie.table.name":"","hoodie.table.type":"MERGE_ON_READ","hoodie.table.version":"9","hoodie.timeline.layout.version":"2",'
    b'"hoodie.table.timeline.timezone":"UTC","hoodie.table.checksum":"'
    b'.indexing",".savepoint",".rollback.requested",".rollback.inflight",".replacecommit.requested",".clustering.requested",'
    b'".compaction.requested",".compaction.inflight",".inflight",".replacecommit",".rollback",".clean",".commit","20'
    b'.deltacommit.requested",".deltacommit.inflight",".deltacommit","20'
)


def pack(snapshot: TimelineSnapshot) -> bytes:
    """Return properties, instants and problems as bytes; base path, version and age are not among them."""
    layout = snapshot.properties.layout
    record = [
        dict(snapshot.properties.raw),
        [_line(layout, instant) for instant in snapshot.timeline.instants],
        [[problem.file_name, problem.reason] for problem in snapshot.timeline.problems],
    ]
    text = json.dumps(record, separators=(",", ":")).encode()
    packer = zlib.compressobj(_LEVEL, wbits=_RAW_WINDOW, zdict=_COMMON)
    return packer.compress(text) + packer.flush()


def unpack(packed: bytes, base_path: str, version: str, as_of_ms: int) -> TimelineSnapshot:
    """Return what was packed, with what was not. Raises DamagedFileError for anything else."""
    try:
        unpacker = zlib.decompressobj(_RAW_WINDOW, zdict=_COMMON)
        text = unpacker.decompress(packed, _MAX_BYTES)
        if not unpacker.eof:
            raise ValueError("cut off")
        values, lines, problems = json.loads(text)
        properties = build_table_properties(values, base_path)
        timeline = Timeline(
            tuple(_instant(properties.layout, line) for line in lines),
            tuple(TimelineProblem(str(name), str(reason)) for name, reason in problems),
        )
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise DamagedFileError(f"not a packed timeline: {type(error).__name__} {error}") from error
    return TimelineSnapshot(base_path, version, properties, timeline, as_of_ms)


def _line(layout: Layout, instant: Instant) -> str | list[str]:
    parsed = layout.parse_file_name(instant.file_name)
    # Layout 1's completion times, and those of early writers of layout 2, are not in the name.
    return instant.file_name if parsed == instant else [instant.file_name, instant.completed_time or ""]


def _instant(layout: Layout, line: str | Sequence[str]) -> Instant:
    name, completed_time = (line, None) if isinstance(line, str) else (line[0], line[1])
    instant = layout.parse_file_name(name)
    if instant is None:
        raise ValueError(f"{name!r} is no instant's file name")
    if completed_time is None:
        return instant
    return Instant(instant.requested_time, instant.action, instant.state, completed_time or None, name)


# --- How old an answer may be


@dataclass(frozen=True, slots=True)
class Freshness:
    """Bounds of an answer's age in seconds; None is no bound.

    `max_age_s` always holds. `unannounced_max_age_s` holds unless the table's writers are known to announce their
    commits: the server would have got a notice.
    """

    max_age_s: float | None = None
    unannounced_max_age_s: float | None = None

    def most_s(self, *, is_announced: bool) -> float:
        """Return the bound for a table whose writers are, or are not, known to announce their commits."""
        bounds = [self.max_age_s, None if is_announced else self.unannounced_max_age_s]
        return min((bound for bound in bounds if bound is not None), default=math.inf)


ANY_AGE = Freshness()
"""Any age that the server considers current."""

NOW = Freshness(max_age_s=0.0)
"""The storage is read after the request."""


# --- One refresh of a table from its storage, as cheap as the cached state allows

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
    properties = known.snapshot.properties
    stamp = known.properties_stamp
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
        if _has_gone_back(known, listing):
            listing = load_listing(storage, properties)
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


def _has_gone_back(known: Known, listing: TimelineListing) -> bool:
    """Whether an instant that had completed is pending now: one more listing shows whether that is so.

    An object store lists page by page. An archiver that deletes an instant between two pages leaves its requested and
    inflight files in the listing, and not the completed one, whose name comes later. It is really so only while a
    completed commit is rolled back.
    """
    pending = {(i.requested_time, COMPARABLE_ACTION.get(i.action, i.action)) for i in listing.timeline.pending()}
    return bool(pending) and any((i.requested_time, i.action) in pending for i in known.snapshot.timeline.completed())


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
