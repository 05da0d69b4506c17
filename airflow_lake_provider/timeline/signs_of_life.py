"""When a pending instant last showed a sign of life beside its heartbeat: its file changed, or its markers did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.timeline.properties import META_FOLDER

if TYPE_CHECKING:
    from airflow_lake_provider.timeline.instant import Instant
    from airflow_lake_provider.timeline.storage import Storage

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
