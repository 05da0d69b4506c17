"""`TimelineViewManager` (RFC-50): hands out the right view of a table.

In mode `auto` a view asks the timeline server while it answers, the file system while it does not, and the server
again after a pause: by itself, question by question, so that no reader notices more than a slower answer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, TypeVar

from airflow_lake_provider.config import TimelineServerMode
from airflow_lake_provider.errors import ConfigError, TimelineServerUnavailableError
from airflow_lake_provider.timeline.storage import open_storage
from airflow_lake_provider.view.client import TimelineClient, TimelineEndpoint
from airflow_lake_provider.view.file_system_view import FileSystemTimelineView
from airflow_lake_provider.view.remote_view import RemoteTimelineView
from airflow_lake_provider.view.timeline_view import TableTimelineView

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_lake_provider.timeline.archived_timeline import ArchivedTimeline
    from airflow_lake_provider.timeline.storage import Storage
    from airflow_lake_provider.view.archive_tail import ArchiveQuestion
    from airflow_lake_provider.view.freshness import Freshness
    from airflow_lake_provider.view.snapshot import TimelineChanges, TimelineSnapshot

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_SERVER_AFTER_S = 5.0
_MOST_VIEWS = 10_000


class TimelineViewManager:
    """Hands out views; one object per process or task. `now_s` is a monotonic clock."""

    def __init__(
        self,
        mode: TimelineServerMode,
        endpoint: TimelineEndpoint | None = None,
        open_table: Callable[[str], Storage] = open_storage,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        if mode is TimelineServerMode.REQUIRED and endpoint is None:
            raise ConfigError("[lake] timeline_server = required, but no address of the timeline server is known")
        self._mode = mode if endpoint is not None else TimelineServerMode.OFF
        self._endpoint = endpoint
        self._open_table = open_table
        self._now_s = now_s
        self._lock = threading.Lock()
        self._client: TimelineClient | None = None
        self._server_again_s = 0.0
        self._views: OrderedDict[str, TableTimelineView] = OrderedDict()

    @property
    def is_asking_server(self) -> bool:
        """Whether the next question goes to the server."""
        if self._mode is TimelineServerMode.AUTO:
            return self._now_s() >= self._server_again_s
        return self._mode is TimelineServerMode.REQUIRED

    def get_view(self, base_path: str) -> TableTimelineView:
        """Return the table's view; the same object for the same table, so that what it knows is used again."""
        with self._lock:
            view = self._views.get(base_path)
            if view is None:
                view = self._views[base_path] = self._make_view(base_path)
                if len(self._views) > _MOST_VIEWS:
                    self._views.popitem(last=False)
            return view

    def close(self) -> None:
        """Close the connections to the server."""
        if self._client is not None:
            self._client.close()

    def server_failed(self, error: TimelineServerUnavailableError) -> None:
        """Say that the server did not answer; it is asked again after a pause."""
        if self.is_asking_server:
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
    """Asks the server, else the file system."""

    def __init__(
        self, remote: RemoteTimelineView, open_local: Callable[[], FileSystemTimelineView], manager: TimelineViewManager
    ) -> None:
        self.base_path = remote.base_path
        self._remote = remote
        self._open_local = open_local
        self._local: FileSystemTimelineView | None = None
        self._manager = manager

    def snapshot(self, freshness: Freshness | None = None) -> TimelineSnapshot:
        """See TableTimelineView."""
        return self._ask(lambda view: view.snapshot(freshness))

    def changes_since(self, version: str, freshness: Freshness | None = None) -> TimelineChanges:
        """See TableTimelineView."""
        return self._ask(lambda view: view.changes_since(version, freshness))

    def archived(self, *, after: str = "", until: str = "") -> ArchivedTimeline:
        """See TableTimelineView."""
        return self._ask(lambda view: view.archived(after=after, until=until))

    def archived_after(self, question: ArchiveQuestion) -> ArchivedTimeline:
        """See TableTimelineView."""
        return self._ask(lambda view: view.archived_after(question))

    def _ask(self, question: Callable[[TableTimelineView], T]) -> T:
        if self._manager.is_asking_server:
            try:
                return question(self._remote)
            except TimelineServerUnavailableError as error:
                self._manager.server_failed(error)
        if self._local is None:
            self._local = self._open_local()
        return question(self._local)
