"""`TableTimelineView` (RFC-50): a table's complete timeline, whoever reads it from wherever."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from airflow_lake_provider.hudi.archive.archive import load_archive
from airflow_lake_provider.storage.table_storage import open_storage
from airflow_lake_provider.timeline_server.archive_tail import ArchiveTail
from airflow_lake_provider.timeline_server.refresh import PROPERTIES_AFTER_MS, Depth, Known, look
from airflow_lake_provider.timeline_server.snapshot import (
    NOW,
    Difference,
    TimelineChanges,
    add_up,
    find_difference,
    remember,
)
from airflow_lake_provider.timeline_server.watch import archive_begin

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_lake_provider.hudi.archive.timeline import ArchivedTimeline
    from airflow_lake_provider.hudi.instant import Action, Instant
    from airflow_lake_provider.hudi.timeline import Timeline
    from airflow_lake_provider.storage.table_storage import Storage
    from airflow_lake_provider.timeline_server.archive_tail import ArchiveQuestion
    from airflow_lake_provider.timeline_server.snapshot import Freshness, TimelineSnapshot


class TableTimelineView(ABC):
    """One table. Every question is answered from one snapshot; ask `snapshot` once to ask it several.

    All methods raise TableNotFoundError, UnsupportedTableError, DamagedFileError and StorageError of the table.
    """

    base_path: str

    @abstractmethod
    def snapshot(self, freshness: Freshness | None = None) -> TimelineSnapshot:
        """Return the complete timeline: requested, inflight and completed instants."""

    @abstractmethod
    def changes_since(self, version: str, freshness: Freshness | None = None) -> TimelineChanges:
        """Return what changed since a version; the complete timeline when that version is not remembered."""

    @abstractmethod
    def archived(self, *, after: str = "", until: str = "") -> ArchivedTimeline:
        """Return archived instants with requested times after `after` (exclusive) up to `until` (inclusive)."""

    @abstractmethod
    def archived_after(self, question: ArchiveQuestion) -> ArchivedTimeline:
        """Return the archived instants that a cursor has not passed; asks the storage only if some were archived."""

    def timeline(self) -> Timeline:
        """Return the complete active timeline."""
        return self.snapshot().timeline

    def latest_instant(self) -> Instant | None:
        """Return the instant that was requested last, in any state; None on an empty timeline."""
        instants = self.timeline().instants
        return instants[-1] if instants else None

    def latest_completed(self) -> Instant | None:
        """Return the instant that completed last; None when none did."""
        return self.timeline().latest_completed()

    def pending(self, *actions: Action) -> tuple[Instant, ...]:
        """Return requested and inflight instants, of the given actions or of all."""
        return self.timeline().pending(*actions)

    def latest_write_without_holes(self) -> Instant | None:
        """Return the last completed write before the first pending one."""
        return self.timeline().latest_write_without_holes()


# --- The view that asks the storage itself: what readers fall back on while no server answers


class FileSystemTimelineView(TableTimelineView):
    """Looks at each question, or takes the last look when the question allows that; a stat gates the listing."""

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
        self._steps: tuple[Difference, ...] = ()
        self._tail = ArchiveTail()

    def snapshot(self, freshness: Freshness | None = None) -> TimelineSnapshot:
        """See TableTimelineView."""
        with self._lock:
            now_ms = self._now_ms()
            # Nobody announces anything to this view.
            most_s = (freshness or NOW).most_s(is_announced=False)
            if self._known is not None and 0 <= now_ms - self._known.snapshot.as_of_ms < most_s * 1000:
                return self._known.snapshot
            known = look(
                self._storage, self._known, self._depth(now_ms, is_now=freshness is not None and most_s == 0), now_ms
            )
            if self._known is not None and known.snapshot.version != self._known.snapshot.version:
                self._steps = remember(self._steps, find_difference(self._known.snapshot, known.snapshot))
            self._known = known
            return known.snapshot

    def _depth(self, now_ms: int, *, is_now: bool) -> Depth:
        if not is_now and 0 <= now_ms - self._properties_ms <= PROPERTIES_AFTER_MS:
            return Depth.GATE
        self._properties_ms = now_ms
        return Depth.FULL

    def changes_since(self, version: str, freshness: Freshness | None = None) -> TimelineChanges:
        """See TableTimelineView; only versions that this very object has seen are remembered."""
        now = self.snapshot(freshness)
        return add_up(self.base_path, version, self._steps, now)

    def archived(self, *, after: str = "", until: str = "") -> ArchivedTimeline:
        """See TableTimelineView."""
        return load_archive(self._storage, self.snapshot().properties, after=after, until=until)

    def archived_after(self, question: ArchiveQuestion) -> ArchivedTimeline:
        """See TableTimelineView."""
        return self._tail.read(question, lambda: self.archived(after=archive_begin(question.after)))
