"""What several rules ask of a timeline: the completed writes after a point, and a key that stays for a while. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_lake_provider.timeline.instant import Action, Instant
    from airflow_lake_provider.timeline.timeline import Timeline


def writes_after(timeline: Timeline, after: str) -> tuple[Instant, ...]:
    """Return completed writes that completed after `after` (exclusive), by completion."""
    writes = timeline.completed_writes_by_completion()
    return tuple(write for write in writes if (write.completed_time or write.requested_time) > after)


def last_completed(timeline: Timeline, action: Action) -> Instant | None:
    """Return the completed instant of an action that was requested last; None when there is none."""
    found = [instant for instant in timeline.completed() if instant.action is action]
    return found[-1] if found else None


def stable_key(writes: Sequence[Instant], every: int) -> str:
    """Return the requested time of the first write, later of every n-th one.

    A service that is due, runs and finds nothing to do leaves no trace on the timeline. With this key it is not run
    again for the next commit, but for the n-th one.
    """
    if not writes:
        return ""
    full_buckets = len(writes) // every
    return writes[max(full_buckets * every - 1, 0)].requested_time
