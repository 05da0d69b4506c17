"""The view of a reader that lives in the process of the shared timelines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.timeline.archive import load_archive
from airflow_lake_provider.view.changes import archive_begin
from airflow_lake_provider.view.freshness import ANY_AGE
from airflow_lake_provider.view.timeline_view import TableTimelineView

if TYPE_CHECKING:
    from airflow_lake_provider.timeline.archived_timeline import ArchivedTimeline
    from airflow_lake_provider.view.archive_tail import ArchiveQuestion
    from airflow_lake_provider.view.freshness import Freshness
    from airflow_lake_provider.view.shared_timelines import SharedTimelines
    from airflow_lake_provider.view.snapshot import TimelineChanges, TimelineSnapshot


class MemoryTimelineView(TableTimelineView):
    """Answers from the shared timelines."""

    def __init__(self, base_path: str, timelines: SharedTimelines) -> None:
        self.base_path = base_path
        self._timelines = timelines

    def snapshot(self, freshness: Freshness | None = None) -> TimelineSnapshot:
        """See TableTimelineView."""
        return self._timelines.snapshot(self.base_path, freshness or ANY_AGE)

    def changes_since(self, version: str, freshness: Freshness | None = None) -> TimelineChanges:
        """See TableTimelineView."""
        return self._timelines.changes_since(self.base_path, version, freshness or ANY_AGE)

    def archived(self, *, after: str = "", until: str = "") -> ArchivedTimeline:
        """See TableTimelineView; archives are read from the storage each time."""
        properties = self.snapshot().properties
        storage = self._timelines.memory.get(self.base_path).storage
        return load_archive(storage, properties, after=after, until=until)

    def archived_after(self, question: ArchiveQuestion) -> ArchivedTimeline:
        """See TableTimelineView; all readers of this process share what was read."""
        tail = self._timelines.archives.get(self.base_path)
        return tail.read(question, lambda: self.archived(after=archive_begin(question.after)))
