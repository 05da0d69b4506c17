"""Writers' heartbeats: `.hoodie/.heartbeat/<instant>`, whose modification time is the beat.

Source: Hudi `HoodieHeartbeatClient`. Written only in multi-writer mode (failed-writes policy LAZY) and by table
services that guard themselves; a missing file counts as expired there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.hudi.properties import META_FOLDER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.storage.table_storage import Storage

HEARTBEAT_FOLDER = ".hoodie/.heartbeat"
DEFAULT_INTERVAL_MS = 60_000
DEFAULT_TOLERABLE_MISSES = 2
INTERVAL_OPTION = "hoodie.client.heartbeat.interval_in_ms"
TOLERABLE_MISSES_OPTION = "hoodie.client.heartbeat.tolerable.misses"


@dataclass(frozen=True, slots=True)
class HeartbeatRule:
    """When a writer counts as dead. Hudi keeps it in the writers' settings, not in the table's: all must agree."""

    interval_ms: int = DEFAULT_INTERVAL_MS
    tolerable_misses: int = DEFAULT_TOLERABLE_MISSES

    @property
    def most_ms(self) -> int:
        """The age of the oldest beat that still counts."""
        return self.interval_ms * self.tolerable_misses

    def is_live(self, beat_ms: int | None, now_ms: int) -> bool:
        """Whether the writer of a last beat counts as alive; one that never beat does not."""
        return is_live(beat_ms, now_ms, self.interval_ms, self.tolerable_misses)

    def has_expired(self, beat_ms: int | None, now_ms: int) -> bool:
        """Whether a last beat proves its writer dead; one that never beat proves nothing."""
        return beat_ms is not None and not self.is_live(beat_ms, now_ms)


def heartbeat_rule(hudi_options: Mapping[str, str]) -> HeartbeatRule:
    """Return the rule of a table's Hudi settings. Raises ConfigError for a value that is no whole number from 1."""
    return HeartbeatRule(
        _positive(hudi_options, INTERVAL_OPTION, DEFAULT_INTERVAL_MS),
        _positive(hudi_options, TOLERABLE_MISSES_OPTION, DEFAULT_TOLERABLE_MISSES),
    )


def _positive(hudi_options: Mapping[str, str], key: str, default: int) -> int:
    text = hudi_options.get(key, str(default)).strip()
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ConfigError(f"{key}={text!r} must be a whole number from 1")
    return int(text)


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


# --- When a pending instant last showed a sign of life beside its heartbeat: its file changed, or its markers did

MARKERS = f"{META_FOLDER}/.temp"


def load_markers_ms(storage: Storage, requested_time: str) -> int:
    """Return when an instant's markers last changed, ms since the epoch; 0 without any. Raises StorageError."""
    # One level is enough: server-based markers are files here, and a direct marker changes the folder that it is in.
    try:
        entries = storage.list_entries(f"{MARKERS}/{requested_time}")
    except FileNotFoundError:
        return 0
    return max((entry.modified_ms for entry in entries), default=0)


def load_touched_ms(storage: Storage, timeline_path: str, instant: Instant) -> int:
    """Return when a pending instant's file or its markers last changed, ms since the epoch. Raises StorageError."""
    entry = storage.stat(f"{timeline_path}/{instant.file_name}")
    return max(0 if entry is None else entry.modified_ms, load_markers_ms(storage, instant.requested_time))
