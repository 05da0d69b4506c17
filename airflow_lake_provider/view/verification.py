"""Find a store whose folder times lie: the gate said that nothing changed, a listing shows that something did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.view.look import UNKNOWN

if TYPE_CHECKING:
    from airflow_lake_provider.timeline.storage import Storage
    from airflow_lake_provider.view.look import Known


def folder_time_lies(storage: Storage, before: Known, after: Known) -> bool:
    """Whether the timeline changed while its folder's modification time, asked before and after, did not."""
    gate_said_unchanged = before.folder_ms != UNKNOWN and after.folder_ms == before.folder_ms
    if not gate_said_unchanged or before.snapshot.timeline.instants == after.snapshot.timeline.instants:
        return False
    # A change between that stat and the listing looks the same; asked again, an honest store shows it.
    entry = storage.stat(after.snapshot.properties.timeline_path)
    return entry is not None and entry.modified_ms == before.folder_ms
