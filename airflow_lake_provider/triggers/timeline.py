"""The trigger of all timeline sensors. All of them in one triggerer share one stream: one long poll for any number."""

from __future__ import annotations

import json
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hooks.open_tables import stream_options
from airflow_lake_provider.indexing.wanted_indexes import parse_wanted
from airflow_lake_provider.timeline_server.subscription import TimelineStream
from airflow_lake_provider.timeline_server.watch import TableChange, Watch, WatchKind, archive_query, examine, found
from airflow_lake_provider.triggers.polling import pause_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Hashable

    from airflow_lake_provider.timeline_server.snapshot import TimelineSnapshot
    from airflow_lake_provider.timeline_server.subscription import Seen


@dataclass
class _SharedStream:
    stream: TimelineStream
    users: int = 0


# Streams in use, by key; Airflow runs all triggers of this process in one event loop. The last user closes the stream:
# credentials that change would leave one behind each time, with its threads.
_STREAMS: dict[str, _SharedStream] = {}


class TimelineTrigger(BaseEventTrigger):
    """Fires once, when one of the tables has what the sensor waits for, or when none of them can ever be read.

    The event is `{"status": "success", "findings": [...]}` or `{"status": "error", "message": ...}`. Its whole state
    is in its arguments, so a restarted triggerer continues without losing or repeating anything.
    """

    def __init__(
        self,
        kind: str,
        tables: list[list[str]],
        poll_interval_s: float,
        actions: list[str],
        storage_options: dict[str, Any],
        lake_conn_id: str = "lake_default",
        indexes: dict[str, list[str]] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kind = kind
        self.tables = tables
        self.poll_interval_s = poll_interval_s
        self.actions = actions
        self.storage_options = storage_options
        self.lake_conn_id = lake_conn_id
        # By base path; a trigger that was stored by an older version has none.
        self.indexes = indexes or {}

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments."""
        return (
            "airflow_lake_provider.triggers.timeline.TimelineTrigger",
            {
                "kind": self.kind,
                "tables": self.tables,
                "poll_interval_s": self.poll_interval_s,
                "actions": self.actions,
                "storage_options": self.storage_options,
                "lake_conn_id": self.lake_conn_id,
                "indexes": self.indexes,
            },
        )

    def shared_stream_key(self) -> Hashable:
        """Triggers that read with the same connection and the same credentials share a stream."""
        return stream_key(self.lake_conn_id, self.storage_options)

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[Any]:
        """Yield which tables changed, for all triggers of the key."""
        lake_conn_id = kwargs["lake_conn_id"]
        storage_options = kwargs["storage_options"]
        async with _use_stream(lake_conn_id, storage_options) as stream:
            async for seen in stream.events():
                yield seen

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        """Pick this trigger's tables out of the stream; fire once."""
        async with (
            _use_stream(self.lake_conn_id, self.storage_options) as stream,
            aclosing(self._follow(stream, shared_stream)) as events,
        ):
            async for event in events:
                yield event

    async def _follow(self, stream: TimelineStream, shared_stream: AsyncIterator[Any]) -> AsyncGenerator[TriggerEvent]:
        watch = Watch(
            WatchKind(self.kind),
            tuple((base_path, after) for base_path, after in self.tables),
            frozenset(self.actions),
            self.storage_options,
            parse_wanted(self.indexes).find_missing,
        )
        paths = sorted({base_path for base_path, _ in watch.tables})
        interval_s = pause_of(self.poll_interval_s)
        stream.watched.add(paths, interval_s, needs_unannounced=watch.needs_unannounced)
        try:
            permanent: dict[str, TableChange] = {}
            async for seen in shared_stream:
                findings = await self._examine(stream, watch, seen, permanent)
                new = found(findings)
                if new:
                    yield _event(status="success", findings=[finding.to_dict() for finding in new])
                    return
                if len(permanent) == len(paths):
                    messages = "; ".join(str(finding.error) for finding in permanent.values())
                    yield _event(status="error", message=messages)
                    return
        finally:
            stream.forget(paths, interval_s, needs_unannounced=watch.needs_unannounced)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Do the same with the stream for itself; used where streams are not shared."""
        async with _use_stream(self.lake_conn_id, self.storage_options) as stream:
            async for event in self._follow(stream, stream.events()):
                yield event

    async def _examine(
        self, stream: TimelineStream, watch: Watch, seen: Seen, permanent: dict[str, TableChange]
    ) -> list[TableChange]:
        """Examine the stream's changes; remember tables that can never be read."""
        findings = []
        for base_path, after in watch.tables:
            state = seen.get(base_path)
            if state is None:
                continue
            finding = await _examine_one(stream, watch, base_path, after, state)
            if finding.error is not None and not finding.error.retriable:
                permanent[base_path] = finding
            else:
                permanent.pop(base_path, None)
            findings.append(finding)
        return findings


async def _examine_one(
    stream: TimelineStream, watch: Watch, base_path: str, after: str, state: TimelineSnapshot | LakeError
) -> TableChange:
    if isinstance(state, LakeError):
        return TableChange(base_path, error=state)
    query = archive_query(watch, after, state)
    if query is None:
        return examine(watch, base_path, after, state)
    try:
        archive = await stream.archived_after(base_path, query)
    except LakeError as error:
        return TableChange(base_path, error=error)
    return examine(watch, base_path, after, state, archive)


def stream_key(lake_conn_id: str, storage_options: dict[str, Any]) -> str:
    """Return the key of a stream: triggers with the same key share one."""
    return json.dumps([lake_conn_id, storage_options], sort_keys=True, default=str)


@asynccontextmanager
async def _use_stream(lake_conn_id: str, storage_options: dict[str, Any]) -> AsyncIterator[TimelineStream]:
    key = stream_key(lake_conn_id, storage_options)
    if key not in _STREAMS:
        options = await stream_options(lake_conn_id, storage_options)
        _STREAMS.setdefault(key, _SharedStream(TimelineStream(options)))
    shared = _STREAMS[key]
    shared.users += 1
    try:
        yield shared.stream
    finally:
        shared.users -= 1
        if not shared.users:
            del _STREAMS[key]
            shared.stream.close()


def _event(**payload: Any) -> TriggerEvent:
    return TriggerEvent(payload)  # type: ignore[no-untyped-call]
