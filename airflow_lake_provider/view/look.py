"""One look at a table's storage, as cheap as what is known of it allows.

Where a folder's modification time changes with its children, one stat tells that nothing happened. Else, or when it
did, the timeline's folder is listed once. `hoodie.properties` is read again only when its own stat changed; a listing
asks for that stat when instants vanished (an upgrade moves the timeline to another folder), and when an action
completed that leaves the properties changed: an index build lists its index there before it completes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.timeline.instant import Action
from airflow_lake_provider.timeline.loader import TimelineListing, load_listing
from airflow_lake_provider.timeline.properties import PROPERTIES_FILE, TableProperties, load_table_properties
from airflow_lake_provider.view.snapshot import TimelineSnapshot, version_of

if TYPE_CHECKING:
    from airflow_lake_provider.timeline.storage import Storage

# A folder changed so shortly before it was listed may change again within the same tick of its clock.
SETTLED_AFTER_MS = 2000
# The same for a store with a clock of its own, which may be that far behind ours.
SETTLED_REMOTELY_AFTER_MS = 60_000

_PROPERTIES_ACTIONS = frozenset({Action.INDEXING, Action.RESTORE, Action.SCHEMACOMMIT})

PROPERTIES_AFTER_MS = 600_000
"""A look without a reason also checks the properties when that was not done for so long."""

UNKNOWN = 0
"""A stamp that equals nothing: the next look has to list."""


class Depth(StrEnum):
    """How much of the storage a look asks."""

    LIST = "list"
    """Something happened, as somebody says: list at once."""
    GATE = "gate"
    """Ask the folder's time first."""
    FULL = "full"
    """Ask the properties' stat and the folder's time."""
    FULL_LIST = "full_list"
    """Ask the properties' stat and list."""
    VERIFY = "verify"
    """List whatever the folder's time says."""


@dataclass(frozen=True, slots=True)
class Known:
    """What one look leaves for the next."""

    snapshot: TimelineSnapshot
    folder_ms: int = UNKNOWN
    """Modification time of the timeline's folder before it was listed, when it can be trusted."""
    properties_stamp: tuple[int, int] = (UNKNOWN, UNKNOWN)
    """Modification time and size of hoodie.properties before it was read."""
    listing: TimelineListing | None = None
    """Names of all files, so that the next listing parses only new ones; may be dropped at any time."""


def look(storage: Storage, known: Known | None, depth: Depth, now_ms: int) -> Known:
    """Look at the table now. Raises what reading properties and timeline raises; `known` stays valid then."""
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
    except DamagedFileError:  # the folder is gone: an upgrade moves the timeline, a drop takes all of it
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
    # The same object while the content is the same: that is how a look tells.
    return (known.snapshot.properties if properties == known.snapshot.properties else properties), stamp


def _properties_stamp(storage: Storage) -> tuple[int, int]:
    entry = storage.stat(PROPERTIES_FILE)
    return (UNKNOWN, UNKNOWN) if entry is None else (entry.modified_ms, entry.size_bytes)


def folder_time(storage: Storage, timeline_path: str, now_ms: int) -> int:
    """Return the modification time of the timeline's folder, UNKNOWN when it says nothing; one stat."""
    if not storage.folders_tell_time:
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
    """Whether hoodie.properties still has the modification time and size that it had when it was read; one stat."""
    now = _properties_stamp(storage)
    return UNKNOWN not in now and now == stamp


def _has_lost(known: Known, listing: TimelineListing) -> bool:
    if known.listing is not None:
        return not known.listing.names <= listing.names
    names = {instant.file_name for instant in known.snapshot.timeline.instants}
    return not names <= listing.names
