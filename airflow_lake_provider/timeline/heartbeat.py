"""Writers' heartbeats: `.hoodie/.heartbeat/<instant>`, whose modification time is the beat.

Source: Hudi `HoodieHeartbeatClient`. Written only in multi-writer mode (failed-writes policy LAZY) and by table
services that guard themselves; a missing file counts as expired there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_lake_provider.timeline.storage import Storage

HEARTBEAT_FOLDER = ".hoodie/.heartbeat"
DEFAULT_INTERVAL_MS = 60_000
DEFAULT_TOLERABLE_MISSES = 2


def load_heartbeats(storage: Storage) -> dict[str, int]:
    """Return the last beat of each instant, in ms since the epoch; empty where nobody ever beat."""
    try:
        entries = storage.list_entries(HEARTBEAT_FOLDER)
    except FileNotFoundError:
        return {}
    return {entry.name: entry.modified_ms for entry in entries if entry.name.isdigit()}


def is_live(
    beat_ms: int | None,
    now_ms: int,
    interval_ms: int = DEFAULT_INTERVAL_MS,
    tolerable_misses: int = DEFAULT_TOLERABLE_MISSES,
) -> bool:
    """Whether a beat is young enough for its writer to count as alive: at most interval times misses ago."""
    return beat_ms is not None and now_ms - beat_ms <= interval_ms * tolerable_misses
