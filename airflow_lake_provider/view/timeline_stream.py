"""What changed in the tables that many triggers of one process wait for: one long poll, or the file system without it.

Nothing depends on this stream's memory. A trigger names its tables and is given their whole timeline at first; it
decides by its own cursor. So a restart of the server or of the triggerer loses and repeats nothing.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_lake_provider.config import TimelineServerMode
from airflow_lake_provider.errors import LakeError, TimelineServerUnavailableError
from airflow_lake_provider.timeline.storage import open_storage
from airflow_lake_provider.view.client import AsyncTimelineClient, TimelineEndpoint, error_of
from airflow_lake_provider.view.file_system_view import FileSystemTimelineView
from airflow_lake_provider.view.snapshot import TimelineSnapshot
from airflow_lake_provider.view.view_manager import TimelineViewManager
from airflow_lake_provider.view.watched_tables import WatchedTables
from airflow_lake_provider.view.wire import snapshot_from_dict

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from airflow_lake_provider.timeline.archived_timeline import ArchivedTimeline
    from airflow_lake_provider.timeline.storage import Storage
    from airflow_lake_provider.view.archive_tail import ArchiveQuestion

log = logging.getLogger(__name__)

Seen: TypeAlias = "Mapping[str, TimelineSnapshot | LakeError]"
"""Tables that changed, by base path: the timeline, or why it cannot be read."""

WAIT_S = 25.0
RENEW_AFTER_S = 120.0
"""Tables are named again after this time: the server forgets who no longer waits."""
SERVER_PAUSE_S = 5.0
_CHUNK = 200
_FEW = 8
_LOOK_THREADS = 8
_IDLE_S = 0.2


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Where the stream reads from."""

    mode: TimelineServerMode = TimelineServerMode.AUTO
    endpoint: TimelineEndpoint | None = None
    open_table: Callable[[str], Storage] = open_storage

    @property
    def asks_server(self) -> bool:
        """Whether there is a server to ask."""
        return self.mode is not TimelineServerMode.OFF and self.endpoint is not None


class TimelineStream:
    """Serves all watchers of one process. `watched` is where they come and go; `events` is consumed once."""

    def __init__(self, options: StreamOptions) -> None:
        self.watched = WatchedTables()
        self._options = options
        self._views: dict[str, FileSystemTimelineView] = {}
        self._archives: TimelineViewManager | None = None
        self._named_for: dict[str, str] = {}
        """Tables that are named to the server for this version of theirs, and not told yet."""
        self._lookers = ThreadPoolExecutor(_LOOK_THREADS, thread_name_prefix="lake-watch")

    async def events(self) -> AsyncIterator[Seen]:
        """Yield what changed, for ever."""
        endpoint = self._options.endpoint
        while True:
            if endpoint is None or not self._options.asks_server:
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
            # Whatever was said by another server, or before it went away, is compared by version.
            self.watched.all_are_new()
            cursor, named_s = "", event_loop.time()
            while True:
                if event_loop.time() - named_s > RENEW_AFTER_S:
                    self.watched.all_are_new()
                    named_s = event_loop.time()
                new = self.watched.take_new(_CHUNK)
                answer = await self._poll(client, cursor, new)
                if answer is None:  # somebody came while it waited
                    continue
                # The place moves on with each answer, so that the server sends each change once: what an answer says
                # of a table without its timeline is remembered here, as a table that is still to be named.
                cursor = answer["cursor"]
                if answer.get("resync"):
                    self.watched.all_are_new()
                seen = await self._read_answer(client, answer["changed"])
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
            }
            for base_path in new
        ]
        try:
            if new:
                return await client.poll(cursor, tables, 0.0)
            poll = asyncio.ensure_future(client.poll(cursor, [], WAIT_S))
            came = asyncio.ensure_future(self.watched.wait_for_new())
            try:
                await asyncio.wait({poll, came}, return_when=asyncio.FIRST_COMPLETED)
                return poll.result() if poll.done() else None
            finally:
                for task in (poll, came):
                    task.cancel()
                await asyncio.gather(poll, came, return_exceptions=True)
        except TimelineServerUnavailableError:
            self.watched.add_new(new)
            raise

    async def _read_answer(self, client: AsyncTimelineClient, changed: Sequence[Mapping[str, Any]]) -> Seen:
        seen: dict[str, TimelineSnapshot | LakeError] = {}
        mine = [entry for entry in changed if self.watched.has(str(entry.get("base_path", "")))]
        for entry in mine:
            base_path = str(entry["base_path"])
            if entry.get("error"):
                seen[base_path] = error_of(str(entry["error"]), str(entry.get("detail", "")))
            elif entry.get("timeline"):
                seen[base_path] = snapshot_from_dict(entry["timeline"])
        unseen = {path: version for path, version in _bare(mine) if version != self.watched.version_of(path)}
        if len(unseen) > _FEW:
            # Many at once: to name them again brings their timelines by the hundred instead of one by one. Once per
            # version: a server with less room than tables may have dropped the timeline again when it is asked.
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
        """Look at each table at its interval, for a time or until cancelled. Looks happen in threads."""
        event_loop = asyncio.get_running_loop()
        until_s = None if for_s is None else event_loop.time() + for_s
        while until_s is None or event_loop.time() < until_s:
            due = self.watched.take_due(event_loop.time(), _LOOK_THREADS * 4)
            if not due:
                await asyncio.sleep(_IDLE_S)
                continue
            looks = [event_loop.run_in_executor(self._lookers, self._look, path) for path in due]
            states = await asyncio.gather(*looks)
            seen: dict[str, TimelineSnapshot | LakeError] = {}
            for base_path, state in zip(due, states, strict=True):
                version = state.version if isinstance(state, TimelineSnapshot) else ""
                if self.watched.has(base_path) and (not version or version != self.watched.version_of(base_path)):
                    seen[base_path] = state
                    self.watched.was_seen(base_path, version)
            if seen:
                yield seen

    def _look(self, base_path: str) -> TimelineSnapshot | LakeError:
        try:
            view = self._views.get(base_path)
            if view is None:
                view = FileSystemTimelineView(base_path, self._options.open_table)
                self._views[base_path] = view
            return view.snapshot()
        except LakeError as error:
            return error

    async def archived_after(self, base_path: str, question: ArchiveQuestion) -> ArchivedTimeline:
        """Return archived instants that a cursor has not passed; from memory, the server, or the file system."""
        if self._archives is None:
            self._archives = TimelineViewManager(self._options.mode, self._options.endpoint, self._options.open_table)
        view = self._archives.get_view(base_path)
        return await asyncio.get_running_loop().run_in_executor(self._lookers, view.archived_after, question)

    def forget(self, base_paths: Sequence[str], interval_s: float) -> None:
        """Say that a watcher is gone; what nobody watches any more is dropped."""
        for base_path in self.watched.remove(base_paths, interval_s):
            self._views.pop(base_path, None)
            self._named_for.pop(base_path, None)


def _bare(changed: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return base path and version of each entry that brings neither the timeline nor an error."""
    return [
        (str(entry["base_path"]), str(entry.get("version", "")))
        for entry in changed
        if not entry.get("error") and not entry.get("timeline")
    ]
