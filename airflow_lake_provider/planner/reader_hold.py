"""What a reader of a table needs kept: from which instant on, and since when a newer commit replaces it. Pure.

A clean that keeps what commits since an instant need leaves, of each file group, the newest file slice before that
instant (Hudi `CleanPlanner.getFilesToCleanKeepingLatestCommits`), by the time at which a commit was *requested*. So a
commit counts that was pending as the reader began, whenever it completes: its file slice must not pass for that newest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import HoldRefusedError
from airflow_lake_provider.instant_clock import instant_time_ms
from airflow_lake_provider.shared.actions import WRITE_ACTIONS

if TYPE_CHECKING:
    from datetime import tzinfo

    from airflow_lake_provider.hudi.timeline import Timeline

BEYOND = "9"
"""Sorts after every instant time: the newest snapshot."""


@dataclass(frozen=True, slots=True)
class NeededFiles:
    """What a reader needs."""

    instant: str
    """Requested time from which on files and instants are needed, as that of a sink's hold."""
    replaced_ms: int
    """Since when a newer commit replaces some of it, ms since the epoch; now, while none does."""


def find_needed(timeline: Timeline, at: str, zone: tzinfo, now_ms: int) -> NeededFiles:
    """Return what a reader needs of the table as of an instant (a requested or a completed time; empty: as it is now).

    Raises HoldRefusedError for an instant before the first commit of the active timeline.
    """
    until = at or BEYOND
    writes = timeline.completed_writes
    seen = [write.requested_time for write in writes if write.requested_time <= until]
    if not seen:
        first = f"the first on its active timeline is {writes[0].requested_time}" if writes else "it has none"
        raise HoldRefusedError(f"no commit of the table was there at {at or 'this moment'}: {first}")
    newer = [write for write in writes if write.ordering_time > until]
    later = [write.requested_time for write in (*newer, *timeline.pending(*WRITE_ACTIONS))]
    # A commit that is read as of its own requested time replaces nothing of that.
    replacing = next((write.ordering_time for write in newer if write.requested_time > until), "")
    replaced_ms = instant_time_ms(replacing, zone) if replacing else now_ms
    # A clock that is ahead must not lengthen a hold.
    return NeededFiles(min((max(seen), *later)), min(now_ms, now_ms if replaced_ms is None else replaced_ms))
