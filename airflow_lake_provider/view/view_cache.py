"""Views of many tables in one process: refreshed incrementally, one refresh at a time per table, bounded.

A refresh costs one stat for each folder that a change must touch (`.hoodie`, and layout 2's timeline) while nothing
changed, on stores whose folders carry modification times; one listing when something did, and one read for each commit
that is new.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.timeline.commit_metadata import parse_commit_metadata
from airflow_lake_provider.timeline.content import decode
from airflow_lake_provider.timeline.loader import TimelineListing, load_listing
from airflow_lake_provider.timeline.properties import META_FOLDER, load_table_properties
from airflow_lake_provider.timeline.storage import open_storage
from airflow_lake_provider.timeline.timeline import TimelineProblem
from airflow_lake_provider.view.table_view import TableView

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_lake_provider.timeline.commit_metadata import CommitMetadata
    from airflow_lake_provider.timeline.properties import TableProperties
    from airflow_lake_provider.timeline.storage import Storage
    from airflow_lake_provider.timeline.timeline import Timeline

# A folder changed so shortly before it was listed may change again within the same tick of its clock.
SETTLED_AFTER_MS = 2000


@dataclass(slots=True)
class _Slot:
    """What is kept of one table between two refreshes."""

    storage: Storage
    lock: threading.Lock = field(default_factory=threading.Lock)
    view: TableView | None = None
    listing: TimelineListing | None = None
    begun: int = 0
    """How many refreshes began; `shown` is the number of the one that `view` is from."""
    shown: int = 0
    stamps: tuple[int, ...] = ()
    """Modification times of the folders that a change must touch; empty when they cannot be trusted."""


class TableViewCache:
    """Hands out current views; the least recently used table goes first when there are too many."""

    def __init__(
        self,
        max_tables: int,
        open_table: Callable[[str], Storage] = open_storage,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._max_tables = max_tables
        self._open_table = open_table
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._slots: OrderedDict[str, _Slot] = OrderedDict()

    def refresh(self, base_path: str) -> TableView:
        """Return the table as it is now. Raises what reading properties and timeline raises."""
        slot = self._slot(base_path)
        asked = slot.begun
        with slot.lock:
            if slot.view is not None and slot.shown > asked:
                return slot.view  # made by somebody who began after this call did, while it waited
            slot.begun += 1
            now_ms = self._now_ms()
            stamps = self._read_stamps(slot)
            if slot.view is None or not stamps or stamps != slot.stamps:
                slot.view = self._load(slot)
                slot.stamps = stamps if self._settled(stamps, now_ms) and not self._has_damaged_files(slot.view) else ()
            slot.shown = slot.begun
            return slot.view

    def __len__(self) -> int:
        with self._lock:
            return len(self._slots)

    def _slot(self, base_path: str) -> _Slot:
        with self._lock:
            slot = self._slots.get(base_path)
            if slot is None:
                slot = self._slots[base_path] = _Slot(self._open_table(base_path))
            self._slots.move_to_end(base_path)
            while len(self._slots) > self._max_tables:
                self._slots.popitem(last=False)
            return slot

    def _read_stamps(self, slot: _Slot) -> tuple[int, ...]:
        if not slot.storage.is_local or slot.view is None:
            folders: tuple[str, ...] = ()
        else:
            # hoodie.properties is replaced in `.hoodie`; in layout 1 both folders are the same.
            folders = tuple(dict.fromkeys((META_FOLDER, slot.view.properties.timeline_path)))
        entries = [slot.storage.stat(folder) for folder in folders]
        if any(entry is None or not entry.modified_ms for entry in entries):
            return ()
        return tuple(entry.modified_ms for entry in entries if entry is not None)

    @staticmethod
    def _settled(stamps: tuple[int, ...], now_ms: int) -> bool:
        return bool(stamps) and now_ms - max(stamps) > SETTLED_AFTER_MS

    @staticmethod
    def _has_damaged_files(view: TableView) -> bool:
        # A file can be mended in place, which no folder's time shows; an unknown name can only come or go.
        return len(view.problems) > len(view.timeline.problems)

    def _load(self, slot: _Slot) -> TableView:
        storage, properties = slot.storage, load_table_properties(slot.storage)
        listing = load_listing(storage, properties, self._comparable(slot, properties))
        commits, problems = self._load_commits(slot, properties, listing)
        if problems:
            # A writer may have been writing just then: look once more before anything is called damaged.
            listing = load_listing(storage, properties)
            commits, problems = self._load_commits(slot, properties, listing)
        slot.listing = listing
        return TableView(
            base_path=storage.base_path,
            properties=properties,
            timeline=listing.timeline,
            commits=MappingProxyType(commits),
            version=_version_of(listing.timeline, properties),
            problems=(*listing.timeline.problems, *problems),
        )

    @staticmethod
    def _comparable(slot: _Slot, properties: TableProperties) -> TimelineListing | None:
        if slot.view is None or slot.view.properties.timeline_path != properties.timeline_path:
            return None  # a table that was upgraded, or made anew
        return slot.listing

    def _load_commits(
        self, slot: _Slot, properties: TableProperties, listing: TimelineListing
    ) -> tuple[dict[str, CommitMetadata], list[TimelineProblem]]:
        known = slot.view.commits if slot.view is not None else {}
        known_names = slot.listing.names if slot.listing is not None else frozenset()
        commits: dict[str, CommitMetadata] = {}
        problems: list[TimelineProblem] = []
        for instant in listing.timeline.completed_writes_by_completion():
            time_ = instant.requested_time
            if time_ in known and instant.file_name in known_names:
                commits[time_] = known[time_]
                continue
            try:
                content = slot.storage.read_bytes(f"{properties.timeline_path}/{instant.file_name}")
                commits[time_] = parse_commit_metadata(decode(content, instant.file_name), instant.file_name)
            except FileNotFoundError:
                problems.append(TimelineProblem(instant.file_name, "vanished while the timeline was read"))
            except DamagedFileError as error:
                problems.append(TimelineProblem(instant.file_name, str(error)))
        return commits, problems


def _version_of(timeline: Timeline, properties: TableProperties) -> str:
    # In layout 2 a name says everything; in layout 1 the completion time is not part of it.
    names = [f"{i.file_name} {i.completed_time}" for i in timeline.instants]
    return hashlib.sha256("\n".join([repr(sorted(properties.raw.items())), *names]).encode()).hexdigest()
