"""`TimelineViewManager` (RFC-50): returns the right view of a table.

In mode `auto` a view reads from the timeline server while it answers, from the file system while it does not, and
retries the server after a pause; each request chooses on its own, so readers notice no more than a slower answer.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, TypeVar

from cachetools import LRUCache

from airflow_lake_provider.config.settings import TimelineServerMode
from airflow_lake_provider.errors import ConfigError, TimelineServerUnavailableError
from airflow_lake_provider.hudi.archive.timeline import ArchivedInstant, ArchivedTimeline
from airflow_lake_provider.hudi.instant import Action
from airflow_lake_provider.hudi.timeline import TimelineProblem
from airflow_lake_provider.storage.table_storage import open_storage
from airflow_lake_provider.timeline_server.archive_tail import ArchiveTail
from airflow_lake_provider.timeline_server.client import TimelineClient, TimelineEndpoint
from airflow_lake_provider.timeline_server.views import FileSystemTimelineView, TableTimelineView
from airflow_lake_provider.timeline_server.watch import archive_begin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from airflow_lake_provider.storage.table_storage import Storage
    from airflow_lake_provider.timeline_server.archive_tail import ArchiveQuery
    from airflow_lake_provider.timeline_server.snapshot import Freshness, TimelineSnapshot

log = logging.getLogger(__name__)

# --- The view of a reader that calls the timeline server over HTTP


class RemoteTimelineView(TableTimelineView):
    """Answers from the server; raises TimelineServerUnavailableError when there is none."""

    def __init__(self, base_path: str, client: TimelineClient) -> None:
        self.base_path = base_path
        self._client = client
        self._lock = threading.Lock()
        self._known: TimelineSnapshot | None = None
        self._tail = ArchiveTail()

    def snapshot(self, freshness: Freshness | None = None) -> TimelineSnapshot:
        """Return the server's timeline; without bounds the server decides on the age."""
        with self._lock:
            self._known = self._client.get_view(self.base_path, freshness, self._known)
            return self._known

    def archived(self, *, after: str = "", until: str = "") -> ArchivedTimeline:
        """Return archived instants by requested time, from the server."""
        return _archive_of(self._client.get_archive(self.base_path, after, until))

    def archived_after(self, query: ArchiveQuery) -> ArchivedTimeline:
        """Return the archived instants that a cursor has not passed; calls the server when some may be archived."""
        return self._tail.read(query, lambda: self._load_after(query))

    def _load_after(self, query: ArchiveQuery) -> ArchivedTimeline:
        after = archive_begin(query.after)
        if not query.follows_writes:
            return self.archived(after=after)
        version = query.snapshot.version
        return _archive_of(self._client.get_archive(self.base_path, after, "", query.after, version))


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
        raise TimelineServerUnavailableError(f"the timeline server's answer is not an archive: {error!r}") from error


T = TypeVar("T")

RETRY_SERVER_AFTER_S = 5.0
_MOST_VIEWS = 10_000


class TimelineViewManager:
    """Returns views; one object per process or task. `now_s` is a monotonic clock."""

    def __init__(
        self,
        mode: TimelineServerMode,
        endpoint: TimelineEndpoint | None = None,
        open_table: Callable[[str], Storage] = open_storage,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        if mode is TimelineServerMode.REQUIRED and endpoint is None:
            raise ConfigError("[lake] timeline_server = required, but the timeline server has no address; set one")
        self._mode = mode if endpoint is not None else TimelineServerMode.OFF
        self._endpoint = endpoint
        self._open_table = open_table
        self._now_s = now_s
        self._lock = threading.Lock()
        self._client: TimelineClient | None = None
        self._server_again_s = 0.0
        self._views: LRUCache[str, TableTimelineView] = LRUCache(_MOST_VIEWS)

    @property
    def uses_server(self) -> bool:
        """Whether the next request goes to the server."""
        if self._mode is TimelineServerMode.AUTO:
            return self._now_s() >= self._server_again_s
        return self._mode is TimelineServerMode.REQUIRED

    def get_view(self, base_path: str) -> TableTimelineView:
        """Return the table's view; the same object for the same table, so that its cache is used again."""
        with self._lock:
            view = self._views.get(base_path)
            if view is None:
                view = self._views[base_path] = self._make_view(base_path)
            return view

    def close(self) -> None:
        """Close the connections to the server."""
        if self._client is not None:
            self._client.close()

    def server_failed(self, error: TimelineServerUnavailableError) -> None:
        """Record that the server did not answer; views retry it after a pause."""
        if self.uses_server:
            log.warning("reading timelines from the file system for %s s: %s", RETRY_SERVER_AFTER_S, error)
        self._server_again_s = self._now_s() + RETRY_SERVER_AFTER_S

    def _make_view(self, base_path: str) -> TableTimelineView:
        if self._mode is TimelineServerMode.OFF or self._endpoint is None:
            return FileSystemTimelineView(base_path, self._open_table)
        if self._client is None:
            self._client = TimelineClient(self._endpoint)
        remote = RemoteTimelineView(base_path, self._client)
        if self._mode is TimelineServerMode.REQUIRED:
            return remote
        return _ServerFirstView(remote, lambda: FileSystemTimelineView(base_path, self._open_table), self)


class _ServerFirstView(TableTimelineView):
    """Reads from the server, else from the file system."""

    def __init__(
        self, remote: RemoteTimelineView, open_local: Callable[[], FileSystemTimelineView], manager: TimelineViewManager
    ) -> None:
        self.base_path = remote.base_path
        self._remote = remote
        self._open_local = open_local
        self._local: FileSystemTimelineView | None = None
        self._manager = manager

    def snapshot(self, freshness: Freshness | None = None) -> TimelineSnapshot:
        """Return the complete timeline."""
        return self._read(lambda view: view.snapshot(freshness))

    def archived(self, *, after: str = "", until: str = "") -> ArchivedTimeline:
        """Return archived instants by requested time."""
        return self._read(lambda view: view.archived(after=after, until=until))

    def archived_after(self, query: ArchiveQuery) -> ArchivedTimeline:
        """Return the archived instants that a cursor has not passed."""
        return self._read(lambda view: view.archived_after(query))

    def _read(self, read: Callable[[TableTimelineView], T]) -> T:
        if self._manager.uses_server:
            try:
                return read(self._remote)
            except TimelineServerUnavailableError as error:
                self._manager.server_failed(error)
        if self._local is None:
            self._local = self._open_local()
        return read(self._local)
