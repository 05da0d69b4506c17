"""Changes of the tables that many triggers of one process wait for: one long poll, or the file system without it.

Nothing depends on this stream's memory. A trigger names its tables and gets their whole timeline at first; it
decides by its own cursor. So a restart of the server or of the triggerer loses and repeats nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_lake_provider.config.settings import TimelineServerMode
from airflow_lake_provider.errors import LakeError, TablesRefusedError, TimelineServerUnavailableError
from airflow_lake_provider.storage.table_storage import open_storage
from airflow_lake_provider.timeline_server.client import AsyncTimelineClient, TimelineEndpoint, error_of
from airflow_lake_provider.timeline_server.snapshot import TimelineSnapshot
from airflow_lake_provider.timeline_server.views import FileSystemTimelineView, TimelineViewManager
from airflow_lake_provider.timeline_server.wire import snapshot_from_dict

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from airflow_lake_provider.hudi.instant import ArchivedTimeline
    from airflow_lake_provider.storage.table_storage import Storage
    from airflow_lake_provider.timeline_server.archive_tail import ArchiveQuery

log = logging.getLogger(__name__)

# --- Which tables the watchers of one process wait for, how often each would be polled, and its last known version
#
# Used within one event loop.


class WatchedTables:
    """Counts watchers per table. A table is new until it was named to the server, and again for each new watcher."""

    def __init__(self) -> None:
        self._intervals: dict[str, Counter[float]] = {}
        self._unannounced: dict[str, Counter[float]] = {}
        self._versions: dict[str, str] = {}
        self._due_s: dict[str, float] = {}
        self._new: dict[str, None] = {}
        self._arrived = asyncio.Event()

    def add(self, base_paths: Iterable[str], interval_s: float, *, needs_unannounced: bool = False) -> None:
        """Add a watcher. It gets the tables' present state, even if others already have it.

        `needs_unannounced`: it waits for what no writer announces, so a poll is not replaced by waiting for a notice.
        """
        for base_path in base_paths:
            self._intervals.setdefault(base_path, Counter())[interval_s] += 1
            if needs_unannounced:
                self._unannounced.setdefault(base_path, Counter())[interval_s] += 1
            self._versions.pop(base_path, None)
            self._due_s.pop(base_path, None)
            self._new[base_path] = None
        self._arrived.set()

    def remove(self, base_paths: Sequence[str], interval_s: float, *, needs_unannounced: bool = False) -> list[str]:
        """Remove a watcher that was added so; return the tables without any watcher left."""
        unwatched = []
        for base_path in base_paths:
            intervals = self._intervals.get(base_path)
            if intervals is None:
                continue
            intervals[interval_s] -= 1
            if needs_unannounced and base_path in self._unannounced:
                self._unannounced[base_path][interval_s] -= 1
            if not +intervals:
                unwatched.append(base_path)
                for memory in (self._intervals, self._unannounced, self._versions, self._due_s, self._new):
                    memory.pop(base_path, None)
        return unwatched

    def has(self, base_path: str) -> bool:
        """Whether the table has a watcher."""
        return base_path in self._intervals

    def interval_s(self, base_path: str) -> float:
        """Return the shortest interval at which one of the table's watchers would poll it."""
        return min(+self._intervals[base_path])

    def unannounced_interval_s(self, base_path: str) -> float | None:
        """Return the same for watchers that wait for what no writer announces; None without any."""
        return min(+self._unannounced.get(base_path, Counter()), default=None)

    def version_of(self, base_path: str) -> str:
        """Return the version that all watchers of the table have; empty: none."""
        return self._versions.get(base_path, "")

    def was_seen(self, base_path: str, version: str) -> None:
        """Record that all watchers got this version; empty: that the table cannot be read."""
        self._versions[base_path] = version

    # --- for the server ------------------------------------------------------------------------------------

    def all_are_new(self) -> None:
        """Name every table to the server again."""
        self._new = dict.fromkeys(self._intervals)

    def add_new(self, base_paths: Iterable[str]) -> None:
        """Return tables that could not be named."""
        self._new |= {base_path: None for base_path in base_paths if base_path in self._intervals}

    def take_new(self, most: int) -> list[str]:
        """Take tables that are to be named to the server."""
        taken = list(self._new)[:most]
        for base_path in taken:
            del self._new[base_path]
        return taken

    async def wait_for_new(self) -> None:
        """Return when there are tables to name."""
        while not self._new:
            self._arrived.clear()
            await self._arrived.wait()

    # --- for the file system -------------------------------------------------------------------------------

    def take_due(self, now_s: float, most: int, among: Iterable[str] | None = None) -> list[str]:
        """Take tables whose interval has passed since the last refresh, longest waiting first; some alone, or all."""
        paths = self._intervals if among is None else among
        due = sorted((self._due_s.get(path, 0.0), path) for path in paths if self._due_s.get(path, 0.0) <= now_s)
        taken = [path for _, path in due[:most]]
        for path in taken:
            self._due_s[path] = now_s + self.interval_s(path)
        return taken


Seen: TypeAlias = "Mapping[str, TimelineSnapshot | LakeError]"
"""Tables that changed, by base path: the timeline, or why it cannot be read."""

WAIT_S = 25.0
RENEW_AFTER_S = 120.0
"""Tables are named again after this time: the server drops watches that are not renewed."""
SERVER_PAUSE_S = 5.0
_CHUNK = 200
_FEW = 8
_REFRESH_THREADS = 8
_IDLE_S = 0.2


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Where the stream reads from."""

    mode: TimelineServerMode = TimelineServerMode.AUTO
    endpoint: TimelineEndpoint | None = None
    open_table: Callable[[str], Storage] = open_storage

    @property
    def uses_server(self) -> bool:
        """Whether the stream reads from a server."""
        return self.mode is not TimelineServerMode.OFF and self.endpoint is not None


class TimelineStream:
    """Serves all watchers of one process. `watched` is where they register; `events` has one consumer."""

    def __init__(self, options: StreamOptions) -> None:
        self.watched = WatchedTables()
        self._options = options
        self._views: dict[str, FileSystemTimelineView] = {}
        self._archives: TimelineViewManager | None = None
        self._named_for: dict[str, str] = {}
        """Tables that are named to the server for this version of theirs, without an answer yet."""
        self._refused: dict[str, TablesRefusedError] = {}
        """Tables that the server does not serve, and why: one of them must not take the server from the others."""
        self._refresh_pool = ThreadPoolExecutor(_REFRESH_THREADS, thread_name_prefix="lake-watch")

    def close(self) -> None:
        """End its threads and connections; refreshes that run go on to their end."""
        self._refresh_pool.shutdown(wait=False, cancel_futures=True)
        if self._archives is not None:
            self._archives.close()

    async def events(self) -> AsyncIterator[Seen]:
        """Yield what changed, without end."""
        endpoint = self._options.endpoint
        while True:
            if endpoint is None or not self._options.uses_server:
                async for seen in self._file_system_rounds(None):
                    yield seen
                continue
            try:
                async for seen in self._server_rounds(endpoint):
                    yield seen
            except TimelineServerUnavailableError as error:
                log.warning("%s", error)
            if self._options.mode is TimelineServerMode.REQUIRED:
                await asyncio.sleep(SERVER_PAUSE_S)
                continue
            async for seen in self._file_system_rounds(SERVER_PAUSE_S):
                yield seen

    # --- the server ----------------------------------------------------------------------------------------

    async def _server_rounds(self, endpoint: TimelineEndpoint) -> AsyncIterator[Seen]:
        """Follow the server until it does not answer."""
        event_loop = asyncio.get_running_loop()
        client = AsyncTimelineClient(endpoint)
        try:
            # What another server reported, or this one before an outage, is compared by version.
            self.watched.all_are_new()
            cursor = ""
            named_s = event_loop.time()
            while True:
                if event_loop.time() - named_s > RENEW_AFTER_S:
                    self.watched.all_are_new()
                    named_s = event_loop.time()
                new = self.watched.take_new(_CHUNK)
                answer = await self._poll(client, cursor, new)
                if answer is None:  # a watcher arrived during the poll
                    continue
                # The cursor moves on with each answer, so that the server sends each change once: a table that an
                # answer reports without its timeline is remembered here, as a table that is still to be named.
                cursor = answer["cursor"]
                if answer.get("resync"):
                    self.watched.all_are_new()
                seen = {**await self._read_answer(client, answer["changed"]), **await self._read_refused()}
                if seen:
                    yield seen
        finally:
            await client.aclose()

    async def _poll(self, client: AsyncTimelineClient, cursor: str, new: Sequence[str]) -> dict[str, Any] | None:
        tables = [
            {
                "base_path": base_path,
                "version": self.watched.version_of(base_path),
                "poll_interval_s": self.watched.interval_s(base_path),
                "unannounced_interval_s": self.watched.unannounced_interval_s(base_path),
            }
            for base_path in new
        ]
        try:
            if new:
                return await self._name(client, cursor, tables)
            wait_s = min((WAIT_S, *(self.watched.interval_s(path) for path in self._refused)))
            poll = asyncio.ensure_future(client.poll(cursor, [], wait_s))
            has_new = asyncio.ensure_future(self.watched.wait_for_new())
            try:
                await asyncio.wait({poll, has_new}, return_when=asyncio.FIRST_COMPLETED)
                return poll.result() if poll.done() else None
            finally:
                for task in (poll, has_new):
                    task.cancel()
                await asyncio.gather(poll, has_new, return_exceptions=True)
        except TimelineServerUnavailableError:
            self.watched.add_new(new)
            raise

    async def _name(
        self, client: AsyncTimelineClient, cursor: str, tables: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Name tables to the server; where it refuses any, in halves until that one stands alone."""
        try:
            answer = await client.poll(cursor, tables, 0.0)
        except TablesRefusedError as error:
            if len(tables) == 1:
                self._refused[tables[0]["base_path"]] = error
                return {"cursor": cursor, "changed": []}
            half = len(tables) // 2
            first = await self._name(client, cursor, tables[:half])
            second = await self._name(client, first["cursor"], tables[half:])
            resync = bool(first.get("resync") or second.get("resync"))
            return {**second, "changed": [*first["changed"], *second["changed"]], "resync": resync}
        for table in tables:
            self._refused.pop(table["base_path"], None)
        return answer

    async def _read_refused(self) -> Seen:
        """Return what is new in tables that the server does not serve: from the file system, if that is allowed."""
        if self._options.mode is TimelineServerMode.REQUIRED:
            return dict(self._refused)
        now_s = asyncio.get_running_loop().time()
        due = self.watched.take_due(now_s, _REFRESH_THREADS * 4, self._refused)
        return await self._refresh_all(due)

    async def _read_answer(self, client: AsyncTimelineClient, changed: Sequence[Mapping[str, Any]]) -> Seen:
        seen: dict[str, TimelineSnapshot | LakeError] = {}
        mine = [entry for entry in changed if self.watched.has(str(entry.get("base_path", "")))]
        for entry in mine:
            base_path = str(entry["base_path"])
            if entry.get("error"):
                seen[base_path] = error_of(str(entry["error"]), str(entry.get("detail", "")))
            elif entry.get("timeline"):
                seen[base_path] = snapshot_from_dict(entry["timeline"])
        named = _without_timeline(mine)
        unseen = {path: version for path, version in named if version != self.watched.version_of(path)}
        if len(unseen) > _FEW:
            # Many tables: naming them again returns their timelines by the hundred instead of one by one. Once per
            # version: a server with less room than tables may have dropped the timeline again before the request.
            again = {path for path, version in unseen.items() if self._named_for.get(path) == version}
            self.watched.add_new(path for path in unseen if path not in again)
            self._named_for |= unseen
        else:
            again = set(unseen)
        for base_path in sorted(again):
            seen[base_path] = await self._get_view(client, base_path)
        for base_path, state in seen.items():
            self.watched.was_seen(base_path, state.version if isinstance(state, TimelineSnapshot) else "")
            self._named_for.pop(base_path, None)
        return seen

    @staticmethod
    async def _get_view(client: AsyncTimelineClient, base_path: str) -> TimelineSnapshot | LakeError:
        try:
            return await client.get_view(base_path, None)
        except TimelineServerUnavailableError:
            raise
        except LakeError as error:
            return error

    # --- the file system -----------------------------------------------------------------------------------

    async def _file_system_rounds(self, for_s: float | None) -> AsyncIterator[Seen]:
        """Refresh each table at its interval, for a time or until cancelled. Refreshes run in threads."""
        event_loop = asyncio.get_running_loop()
        until_s = None if for_s is None else event_loop.time() + for_s
        while until_s is None or event_loop.time() < until_s:
            due = self.watched.take_due(event_loop.time(), _REFRESH_THREADS * 4)
            if not due:
                await asyncio.sleep(_IDLE_S)
                continue
            seen = await self._refresh_all(due)
            if seen:
                yield seen

    async def _refresh_all(self, due: Sequence[str]) -> Seen:
        event_loop = asyncio.get_running_loop()
        refreshes = [event_loop.run_in_executor(self._refresh_pool, self._refresh, path) for path in due]
        states = await asyncio.gather(*refreshes)
        seen: dict[str, TimelineSnapshot | LakeError] = {}
        for base_path, state in zip(due, states, strict=True):
            version = state.version if isinstance(state, TimelineSnapshot) else ""
            if self.watched.has(base_path) and (not version or version != self.watched.version_of(base_path)):
                seen[base_path] = state
                self.watched.was_seen(base_path, version)
        return seen

    def _refresh(self, base_path: str) -> TimelineSnapshot | LakeError:
        try:
            view = self._views.get(base_path)
            if view is None:
                view = FileSystemTimelineView(base_path, self._options.open_table)
                self._views[base_path] = view
            return view.snapshot()
        except LakeError as error:
            return error

    async def archived_after(self, base_path: str, query: ArchiveQuery) -> ArchivedTimeline:
        """Return archived instants that a cursor has not passed; from memory, the server, or the file system."""
        if self._archives is None:
            self._archives = TimelineViewManager(self._options.mode, self._options.endpoint, self._options.open_table)
        view = self._archives.get_view(base_path)
        return await asyncio.get_running_loop().run_in_executor(self._refresh_pool, view.archived_after, query)

    def forget(self, base_paths: Sequence[str], interval_s: float, *, needs_unannounced: bool = False) -> None:
        """Remove a watcher; drop the tables without any watcher left."""
        for base_path in self.watched.remove(base_paths, interval_s, needs_unannounced=needs_unannounced):
            self._views.pop(base_path, None)
            self._named_for.pop(base_path, None)
            self._refused.pop(base_path, None)


def _without_timeline(changed: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return base path and version of each entry that brings neither the timeline nor an error."""
    return [
        (str(entry["base_path"]), str(entry.get("version", "")))
        for entry in changed
        if not entry.get("error") and not entry.get("timeline")
    ]
