"""The view of a reader that asks the timeline server over HTTP."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import TimelineServerUnavailableError
from airflow_lake_provider.timeline.archived_timeline import ArchivedInstant, ArchivedTimeline
from airflow_lake_provider.timeline.instant import Action
from airflow_lake_provider.timeline.timeline import TimelineProblem
from airflow_lake_provider.view.archive_tail import ArchiveTail
from airflow_lake_provider.view.changes import archive_begin
from airflow_lake_provider.view.timeline_view import TableTimelineView

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from airflow_lake_provider.view.archive_tail import ArchiveQuestion
    from airflow_lake_provider.view.client import TimelineClient
    from airflow_lake_provider.view.freshness import Freshness
    from airflow_lake_provider.view.snapshot import TimelineChanges, TimelineSnapshot


class RemoteTimelineView(TableTimelineView):
    """Answers from the server; raises TimelineServerUnavailableError when there is none."""

    def __init__(self, base_path: str, client: TimelineClient) -> None:
        self.base_path = base_path
        self._client = client
        self._lock = threading.Lock()
        self._known: TimelineSnapshot | None = None
        self._tail = ArchiveTail()

    def snapshot(self, freshness: Freshness | None = None) -> TimelineSnapshot:
        """See TableTimelineView; without bounds the server's own judgement decides on the age."""
        with self._lock:
            self._known = self._client.get_view(self.base_path, freshness, self._known)
            return self._known

    def changes_since(self, version: str, freshness: Freshness | None = None) -> TimelineChanges:
        """See TableTimelineView."""
        return self._client.get_changes(self.base_path, version, freshness)

    def archived(self, *, after: str = "", until: str = "") -> ArchivedTimeline:
        """See TableTimelineView."""
        return _archive_of(self._client.get_archive(self.base_path, after, until))

    def archived_after(self, question: ArchiveQuestion) -> ArchivedTimeline:
        """See TableTimelineView; the server is asked when instants may have been archived."""
        return self._tail.read(question, lambda: self._load_after(question))

    def _load_after(self, question: ArchiveQuestion) -> ArchivedTimeline:
        after = archive_begin(question.after)
        if not question.follows_writes:
            return self.archived(after=after)
        version = question.snapshot.version
        return _archive_of(self._client.get_archive(self.base_path, after, "", question.after, version))


def _archive_of(body: Mapping[str, Any]) -> ArchivedTimeline:
    try:
        return ArchivedTimeline(
            tuple(
                ArchivedInstant(
                    str(instant["requested_time"]),
                    Action(instant["action"]),
                    instant["completed_time"],
                    str(instant["file_name"]),
                )
                for instant in body["instants"]
            ),
            tuple(TimelineProblem(str(p["file_name"]), str(p["reason"])) for p in body["problems"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise TimelineServerUnavailableError(f"the timeline server's answer is no archive: {error!r}") from error
