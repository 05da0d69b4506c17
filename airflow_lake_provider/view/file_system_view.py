"""The view that asks the storage itself: what readers fall back on while no server answers."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from airflow_lake_provider.timeline.archive import load_archive
from airflow_lake_provider.timeline.storage import open_storage
from airflow_lake_provider.view.archive_tail import ArchiveTail
from airflow_lake_provider.view.changes import archive_begin
from airflow_lake_provider.view.freshness import NOW
from airflow_lake_provider.view.look import PROPERTIES_AFTER_MS, Depth, Known, look
from airflow_lake_provider.view.snapshot import Difference, TimelineChanges, add_up, find_difference, remember
from airflow_lake_provider.view.timeline_view import TableTimelineView

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_lake_provider.timeline.archived_timeline import ArchivedTimeline
    from airflow_lake_provider.timeline.storage import Storage
    from airflow_lake_provider.view.archive_tail import ArchiveQuestion
    from airflow_lake_provider.view.freshness import Freshness
    from airflow_lake_provider.view.snapshot import TimelineSnapshot


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
