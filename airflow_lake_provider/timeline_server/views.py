"""`TableTimelineView` and `TimelineViewManager` (RFC-50): a table's complete timeline, for any reader from any source.

In mode `auto` a view reads from the timeline server while it answers, from the file system while it does not, and
retries the server after a pause; each request chooses on its own, so readers notice no more than a slower answer.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeVar

from cachetools import LRUCache

from airflow_lake_provider.config.settings import TimelineServerMode
from airflow_lake_provider.errors import ConfigError, TimelineServerUnavailableError
from airflow_lake_provider.hudi.archive import load_archive
from airflow_lake_provider.hudi.instant import ArchivedInstant, ArchivedTimeline, TimelineProblem
from airflow_lake_provider.hudi.pending import PlanMemory
from airflow_lake_provider.shared.actions import Action
from airflow_lake_provider.storage.table_storage import open_storage
from airflow_lake_provider.timeline_server.archive_tail import ArchiveTail, archive_begin
from airflow_lake_provider.timeline_server.snapshot import (
    ANY_AGE,
    NOW,
    PROPERTIES_AFTER_MS,
    UNKNOWN,
    Depth,
    Known,
    PlannedSnapshot,
    is_folder_time_unreliable,
    refresh,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.hudi.timeline import Timeline
    from airflow_lake_provider.storage.table_storage import Storage
    from airflow_lake_provider.timeline_server.archive_tail import ArchiveQuery
    from airflow_lake_provider.timeline_server.cache import SharedTimelines
    from airflow_lake_provider.timeline_server.client import TimelineClient, TimelineEndpoint
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
    def plans(self, freshness: Freshness | None = None) -> PlannedSnapshot:
        """Return the complete timeline with its pending plans; a plan is read once, however often it is asked for."""

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


def read_plans(
    memory: PlanMemory,
    storage: Storage,
    read_snapshot: Callable[[Freshness | None], TimelineSnapshot],
    freshness: Freshness | None,
) -> PlannedSnapshot:
    """Return the timeline with its plans; one that has ended or is still being written causes one more refresh."""
    snapshot = read_snapshot(freshness)
    plans, problems = memory.read(storage, snapshot.properties, snapshot.timeline)
    if problems:
        snapshot = read_snapshot(NOW)
        plans, problems = memory.read(storage, snapshot.properties, snapshot.timeline)
    return PlannedSnapshot(snapshot, plans, problems)


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
        self._plans = PlanMemory()

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
        self._verified_ms = now_ms
        before = self._known
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

    def plans(self, freshness: Freshness | None = None) -> PlannedSnapshot:
        """Return the timeline with its plans, from the storage."""
        return read_plans(self._plans, self._storage, self.snapshot, freshness)

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

    def plans(self, freshness: Freshness | None = None) -> PlannedSnapshot:
        """Return the timeline with its plans; all readers of this process share them."""
        storage = self._timelines.memory.get(self.base_path).storage
        return read_plans(self._timelines.plans, storage, self.snapshot, freshness)

    def archived(self, *, after: str = "", until: str = "") -> ArchivedTimeline:
        """Return archived instants by requested time; reads the archive from the storage each time."""
        properties = self.snapshot().properties
        storage = self._timelines.memory.get(self.base_path).storage
        return load_archive(storage, properties, after=after, until=until)

    def archived_after(self, query: ArchiveQuery) -> ArchivedTimeline:
        """Return the archived instants that a cursor has not passed; all readers of this process share the archive."""
        tail = self._timelines.archives.get(self.base_path)
        return tail.read(query, lambda: self.archived(after=archive_begin(query.after)))


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

    def plans(self, freshness: Freshness | None = None) -> PlannedSnapshot:
        """Return the server's timeline with its plans."""
        return self._client.get_plans(self.base_path, freshness)

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
_MAX_VIEWS = 10_000


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
        self._views: LRUCache[str, TableTimelineView] = LRUCache(_MAX_VIEWS)

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
            # Readers of files run where no HTTP client is installed, next to Spark.
            from airflow_lake_provider.timeline_server.client import TimelineClient

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

    def plans(self, freshness: Freshness | None = None) -> PlannedSnapshot:
        """Return the complete timeline with its plans."""
        return self._read(lambda view: view.plans(freshness))

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
