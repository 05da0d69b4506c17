"""Answer a long poll over many tables. It never waits for storage: what is not known is looked at and told later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_lake_provider.view.shared_timelines import SharedTimelines
    from airflow_lake_provider.view.snapshot import TimelineSnapshot
    from airflow_lake_provider.view.timeline_server import TimelineServer
    from airflow_lake_provider.view.wire import PollBody, WatchedTable

WATCH_TTL_MS = 300_000
"""How long a named table counts as waited for; callers name their tables again well before."""


async def answer_poll(
    server: TimelineServer, body: PollBody, to_answer: Callable[[TimelineSnapshot], dict[str, Any]]
) -> dict[str, Any]:
    """Return the shape of a PollAnswer."""
    timelines = server.timelines
    found = timelines.log.find_after(body.cursor)
    # The place is taken before the tables are compared: what changes meanwhile is told by the next poll.
    cursor = body.cursor if found is not None else timelines.log.cursor
    changed = [entry for table in body.tables if (entry := _compare(timelines, table, to_answer)) is not None]
    server.wake()
    is_unknown = bool(body.cursor) and found is None
    if not changed and not is_unknown and body.wait_s > 0:
        await timelines.log.wait(cursor, body.wait_s)
    found = timelines.log.find_after(cursor)
    if found is None:  # overtaken while it waited: the caller compares versions
        return {"cursor": timelines.log.cursor, "resync": True, "changed": changed}
    cursor, paths = found
    named = {entry["base_path"] for entry in changed}
    changed += [_state_of(timelines, path) for path in paths if path not in named]
    return {"cursor": cursor, "resync": is_unknown, "changed": changed}


def _compare(
    timelines: SharedTimelines, table: WatchedTable, to_answer: Callable[[TimelineSnapshot], dict[str, Any]]
) -> dict[str, Any] | None:
    now_ms = timelines.now_ms()
    timelines.watch(table.base_path, table.poll_interval_s, now_ms + WATCH_TTL_MS)
    slot = timelines.memory.get(table.base_path)
    if slot.error is not None:
        return _state_of(timelines, table.base_path) if not table.version else None
    # What the last look showed will do, also while a hint waits: what that one's look finds is logged.
    if slot.shown and slot.version == table.version:
        return None
    known = timelines.find_shown(table.base_path)
    if known is None:
        timelines.await_look(table.base_path, table.version)
        return None
    return _state_of(timelines, table.base_path) | {"version": known.version, "timeline": to_answer(known)}


def _state_of(timelines: SharedTimelines, base_path: str) -> dict[str, Any]:
    slot = timelines.memory.find(base_path)
    error = slot.error if slot is not None else None
    return {
        "base_path": base_path,
        "version": slot.version if slot is not None else "",
        "timeline": None,
        "error": type(error).__name__ if error is not None else "",
        "detail": str(error) if error is not None else "",
    }
