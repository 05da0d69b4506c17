"""The trigger of an `AssetWatcher` for a table's commits; it reads the timeline itself, and needs no manager.

Its cursor is in Airflow's state store of the asset. It moves when Airflow has stored the event, so no commit is lost
when the triggerer dies. The last event may then come twice, as the same one, because it was noted before it was sent.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from airflow.triggers.shared_stream import SharedStreamProducer

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hooks.open_tables import table_opener
from airflow_lake_provider.hudi.base_path import normalise_base_path
from airflow_lake_provider.hudi.commit_metadata import load_commit_metadata
from airflow_lake_provider.manager.loop.commit_events import begin_cursor, find_events, find_unread, parse_cursor
from airflow_lake_provider.timeline_server.snapshot import NOW
from airflow_lake_provider.timeline_server.views import FileSystemTimelineView
from airflow_lake_provider.triggers.polling import pause_of, read_table

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Sequence

    from airflow.sdk.execution_time.context import AssetStateStoreAccessor, AssetStateStoreAccessors
    from airflow.triggers.shared_stream import AdvanceItem

    from airflow_lake_provider.hudi.commit_metadata import CommitMetadata
    from airflow_lake_provider.manager.loop.commit_events import EventCursor

log = logging.getLogger(__name__)

STATE_KEY = "hudi_commits"
MAX_MEMORY_BYTES = 64 << 20
"""Commits' metadata that one reading keeps: other tables' triggers share the process."""


class HudiCommitTrigger(BaseEventTrigger):
    """Fires for the commits that completed since the last event, again and again.

    The events' payload is what the manager's events have as `extra` (`asset_events` in the tables file).

    :param base_path: the table's base path.
    :param poll_interval_s: how often the timeline is read, seconds: one stat of its folder while nothing changes.
    :param storage_options: how to open the store; without them the connection in `[lake] storage_conn_ids`.
    """

    def __init__(
        self, base_path: str, poll_interval_s: float = 30.0, storage_options: dict[str, Any] | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.base_path = base_path
        self.poll_interval_s = poll_interval_s
        self.storage_options = storage_options

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments."""
        return (
            "airflow_lake_provider.triggers.commits.HudiCommitTrigger",
            {
                "base_path": self.base_path,
                "poll_interval_s": self.poll_interval_s,
                "storage_options": self.storage_options,
            },
        )

    def shared_stream_key(self) -> Hashable:
        """Return a key of its own: of a shared stream Airflow says when an event is stored, else it does not."""
        return _key_of(self.serialize()[1])

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        """Return what follows the table, and moves the cursor when Airflow has stored an event."""
        return CommitProducer(_key_of(kwargs), CommitReader(**kwargs))

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        """Hand the asset's state store to the producer, which Airflow gives it not; fire for each of its events."""
        key = _key_of(self.serialize()[1])
        _STATES[key] = CursorState(self.asset_state_store)
        try:
            async for payload in shared_stream:
                yield TriggerEvent(payload)  # type: ignore[no-untyped-call]
        finally:
            _STATES.pop(key, None)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Do the same where Airflow shares no streams: the cursor then moves when the next event is due."""
        producer = CommitProducer("", CommitReader(**self.serialize()[1]), CursorState(self.asset_state_store))
        async with aclosing(producer.open_stream()) as stream:
            async for payload, _ in stream:
                yield TriggerEvent(payload)  # type: ignore[no-untyped-call]
                await producer.keep()


def _key_of(kwargs: dict[str, Any]) -> str:
    return json.dumps([STATE_KEY, kwargs], sort_keys=True, default=str)


class CursorState:
    """The cursor in the state store of the asset, and the events that were sent and are not known to be stored."""

    def __init__(self, stores: AssetStateStoreAccessors | None) -> None:
        self._store = _first_of(stores)
        self._memory: Any = None

    async def load(self) -> tuple[str, list[dict[str, Any]], str]:
        """Return the cursor, the events that were sent after it, and the cursor after these; empty texts for none."""
        body: Any = self._memory if self._store is None else await self._store.aget(STATE_KEY)
        if not isinstance(body, dict):
            return "", [], ""
        return str(body.get("cursor", "")), list(body.get("sent", [])), str(body.get("then", ""))

    async def keep(self, cursor: str, sent: Sequence[dict[str, Any]] = (), then: str = "") -> None:
        """Store what `load` returns."""
        body: dict[str, Any] = {"cursor": cursor, "sent": list(sent), "then": then}
        self._memory = body
        if self._store is not None:
            await self._store.aset(STATE_KEY, body)


def _first_of(stores: AssetStateStoreAccessors | None) -> AssetStateStoreAccessor | None:
    """Return the store of the first asset: watchers with the same arguments are one trigger of several assets."""
    if stores is None:
        return None
    named = stores._by_name  # Airflow has no other way to several
    return named[min(named)] if named else None


_STATES: dict[str, CursorState] = {}
"""Of the triggers of this process, by key."""


class CommitReader:
    """Reads what is new of one table; blocking. Not to be shared by threads."""

    def __init__(self, base_path: str, poll_interval_s: float, storage_options: dict[str, Any] | None) -> None:
        self.base_path = normalise_base_path(base_path)
        self.poll_interval_s = pause_of(poll_interval_s)
        self._storage_options = storage_options
        self._view: FileSystemTimelineView | None = None
        self._commits: dict[str, CommitMetadata] = {}
        self._version = ""

    def begin(self) -> EventCursor:
        """Return the cursor of the table as it is now. Raises LakeError."""
        return begin_cursor(self._open().snapshot(NOW).timeline, {})

    def read(self, cursor: EventCursor) -> tuple[EventCursor, list[dict[str, Any]]]:
        """Return the events after a cursor, and the cursor after them. Raises LakeError."""
        snapshot = self._open().snapshot(NOW)
        if snapshot.version == self._version:
            return cursor, []
        unread = find_unread(cursor, snapshot.timeline)
        storage = table_opener(self._storage_options)(self.base_path)
        known = {i.requested_time: self._commits[i.requested_time] for i in unread if i.requested_time in self._commits}
        left_bytes = MAX_MEMORY_BYTES - sum(commit.memory_bytes for commit in known.values())
        for instant in unread:
            if left_bytes < 0:
                break  # the event is cut: its range has the others, and its numbers do not
            if instant.requested_time not in known:
                try:
                    found = load_commit_metadata(storage, snapshot.properties.timeline_path, instant)
                except FileNotFoundError as error:
                    raise LakeError(f"{self.base_path}: {instant.file_name} vanished while it was read") from error
                known[instant.requested_time] = found
                left_bytes -= found.memory_bytes
        self._commits = known
        after, events = find_events(cursor, snapshot.timeline, known)
        if not events:
            self._version = snapshot.version
        name = snapshot.properties.name
        return after, [event.to_extra(self.base_path, name) for event in events]

    def _open(self) -> FileSystemTimelineView:
        if self._view is None:
            self._view = FileSystemTimelineView(self.base_path, table_opener(self._storage_options))
        return self._view


class CommitProducer(SharedStreamProducer):
    """Follows a table for one trigger: notes what it sends, and moves the cursor when Airflow has stored that."""

    def __init__(self, key: str, reader: CommitReader, state: CursorState | None = None) -> None:
        self._key = key
        self._reader = reader
        self._state = state
        self._then = ""
        self._unstored = 0
        self._is_stored = asyncio.Event()

    async def open_stream(self) -> AsyncGenerator[tuple[Any, Any]]:
        """Yield events, one batch at a time: the next one is searched for when the last one is stored."""
        text, sent, self._then = await self._load()
        cursor = parse_cursor(text) if text else None
        while True:
            if sent:
                self._unstored = len(sent)
                self._is_stored.clear()
                for payload in sent:
                    yield payload, None
                await self._is_stored.wait()
                cursor = parse_cursor(self._then)
            else:
                await asyncio.sleep(self._reader.poll_interval_s if cursor is not None else 0)
            try:
                cursor, sent = await self._find(cursor)
            except LakeError as error:
                log.warning("%s; it is read again in %s s", error, self._reader.poll_interval_s)
                sent = []
                await asyncio.sleep(self._reader.poll_interval_s)

    async def _find(self, cursor: EventCursor | None) -> tuple[EventCursor, list[dict[str, Any]]]:
        state = await self._wait_for_state()
        if cursor is None:
            cursor = await read_table(self._reader.begin)
            await state.keep(cursor.to_text())
            return cursor, []
        after, events = await read_table(self._reader.read, cursor)
        if events:
            stored, _, _ = await state.load()
            if stored and stored != cursor.to_text():
                # Airflow took this triggerer for dead, and another one runs the trigger.
                return parse_cursor(stored), []
            self._then = after.to_text()
            await state.keep(cursor.to_text(), events, self._then)
        return cursor, events

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Move the cursor behind a batch that is stored. Raises RuntimeError for what is not: it is sent again."""
        for item in batch:
            if not item.outcome.is_clean:
                raise RuntimeError(f"Airflow did not store an event of the commits of {self._reader.base_path}")
            await self.keep()

    async def keep(self) -> None:
        """Note that one more event of the batch is stored."""
        self._unstored -= 1
        if not self._unstored:
            await (await self._wait_for_state()).keep(self._then)
            self._is_stored.set()

    async def _load(self) -> tuple[str, list[dict[str, Any]], str]:
        return await (await self._wait_for_state()).load()

    async def _wait_for_state(self) -> CursorState:
        while self._state is None:
            # The trigger itself begins at the same moment.
            self._state = _STATES.get(self._key)
            if self._state is None:
                await asyncio.sleep(0.05)
        return self._state
