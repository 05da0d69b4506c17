"""`TableTimelineView` (RFC-50): a table's complete timeline, for any reader from any source."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from airflow_lake_provider.hudi.archive.archive import load_archive
from airflow_lake_provider.storage.table_storage import open_storage
from airflow_lake_provider.timeline_server.archive_tail import ArchiveTail
from airflow_lake_provider.timeline_server.refresh import (
    PROPERTIES_AFTER_MS,
    UNKNOWN,
    Depth,
    Known,
    is_folder_time_unreliable,
    refresh,
)
from airflow_lake_provider.timeline_server.snapshot import ANY_AGE, NOW
from airflow_lake_provider.timeline_server.watch import archive_begin

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_lake_provider.hudi.archive.timeline import ArchivedTimeline
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.hudi.timeline import Timeline
    from airflow_lake_provider.storage.table_storage import Storage
    from airflow_lake_provider.timeline_server.archive_tail import ArchiveQuery
    from airflow_lake_provider.timeline_server.cache import SharedTimelines
    from airflow_lake_provider.timeline_server.snapshot import Freshness, TimelineSnapshot


class TableTimelineView(ABC):
    """One table. Every answer comes from one snapshot; read `snapshot` once for several answers.

    All methods raise TableNotFoundError, UnsupportedTableError, DamagedFileError and StorageError of the table.
    """

    base_path: str

    @abstractmethod
    def snapshot(self, freshness: Freshness | None = None) -> TimelineSnapshot:
        """Return the complete timeline: requested, inflight and completed instants."""

    @abstractmethod
    def archived(self, *, after: str = "", until: str = "") -> ArchivedTimeline:
        """Return archived instants with requested times after `after` (exclusive) up to `until` (inclusive)."""

    @abstractmethod
    def archived_after(self, query: ArchiveQuery) -> ArchivedTimeline:
        """Return the archived instants that a cursor has not passed; reads the storage only if some were archived."""

    def timeline(self) -> Timeline:
        """Return the complete active timeline."""
        return self.snapshot().timeline

    def latest_write_without_holes(self) -> Instant | None:
        """Return the last completed write before the first pending one."""
        return self.timeline().latest_write_without_holes()


# --- The view that reads the storage itself: the fallback of readers while no server answers


class FileSystemTimelineView(TableTimelineView):
    """Refreshes on each request, or returns the last snapshot when the request allows it; a stat gates the listing."""

    def __init__(
        self,
        base_path: str,
        open_table: Callable[[str], Storage] = open_storage,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self.base_path = base_path
        self._storage = open_table(base_path)
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._known: Known | None = None
        self._properties_ms = 0
        self._verified_ms = 0
        self._is_unreliable = False
        self._tail = ArchiveTail()

    def snapshot(self, freshness: Freshness | None = None) -> TimelineSnapshot:
        """Return the timeline, refreshed unless the last snapshot is fresh enough."""
        with self._lock:
            now_ms = self._now_ms()
            # This view gets no notices.
            most_s = (freshness or NOW).most_s(is_announced=False)
            if self._known is not None and 0 <= now_ms - self._known.snapshot.as_of_ms < most_s * 1000:
                return self._known.snapshot
            self._verify(now_ms)
            known = refresh(
                self._storage, self._known, self._depth(now_ms, is_now=freshness is not None and most_s == 0), now_ms
            )
            self._known = known
            return known.snapshot

    def _verify(self, now_ms: int) -> None:
        """List now and then although the folder's time is unchanged; one that was wrong is not asked again."""
        if self._is_unreliable or 0 <= now_ms - self._verified_ms <= PROPERTIES_AFTER_MS:
            return
        self._verified_ms, before = now_ms, self._known
        if before is None or before.folder_ms == UNKNOWN:
            return
        self._known = refresh(self._storage, before, Depth.VERIFY, now_ms)
        self._is_unreliable = is_folder_time_unreliable(self._storage, before, self._known)

    def _depth(self, now_ms: int, *, is_now: bool) -> Depth:
        if self._is_unreliable:
            return Depth.FULL_LIST
        if not is_now and 0 <= now_ms - self._properties_ms <= PROPERTIES_AFTER_MS:
            return Depth.GATE
        self._properties_ms = now_ms
        return Depth.FULL

    def archived(self, *, after: str = "", until: str = "") -> ArchivedTimeline:
        """Return archived instants by requested time, from the storage."""
        return load_archive(self._storage, self.snapshot().properties, after=after, until=until)

    def archived_after(self, query: ArchiveQuery) -> ArchivedTimeline:
        """Return the archived instants that a cursor has not passed, from the storage."""
        return self._tail.read(query, lambda: self.archived(after=archive_begin(query.after)))


# --- The view of readers in the process that shares the timelines


class MemoryTimelineView(TableTimelineView):
    """Answers from the shared timelines."""

    def __init__(self, base_path: str, timelines: SharedTimelines) -> None:
        self.base_path = base_path
        self._timelines = timelines

    def snapshot(self, freshness: Freshness | None = None) -> TimelineSnapshot:
        """Return the shared timeline, as fresh as `freshness` requires."""
        return self._timelines.snapshot(self.base_path, freshness or ANY_AGE)

    def archived(self, *, after: str = "", until: str = "") -> ArchivedTimeline:
        """Return archived instants by requested time; reads the archive from the storage each time."""
        properties = self.snapshot().properties
        storage = self._timelines.memory.get(self.base_path).storage
        return load_archive(storage, properties, after=after, until=until)

    def archived_after(self, query: ArchiveQuery) -> ArchivedTimeline:
        """Return the archived instants that a cursor has not passed; all readers of this process share the archive."""
        tail = self._timelines.archives.get(self.base_path)
        return tail.read(query, lambda: self.archived(after=archive_begin(query.after)))
