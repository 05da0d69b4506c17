"""What a reader of a timeline asks about: commits after a point, index builds that are pending. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.timeline.instant import Action

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow_lake_provider.timeline.instant import Instant
    from airflow_lake_provider.timeline.timeline import Timeline

COMMIT_ACTIONS = frozenset({Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT})


def find_commits_after(
    timeline: Timeline, after: str, actions: Collection[str] = COMMIT_ACTIONS
) -> tuple[Instant, ...]:
    """Return completed instants of the given actions that completed after `after` (exclusive), by completion.

    `after` is the requested time of an instant on the timeline, or a completed time; empty means from the beginning.
    A slow writer's commit that was requested before and completed after is returned: ordering by requested time
    would lose it.
    """
    boundary = _completed_time_of(timeline, after)
    found = [
        instant
        for instant in timeline.completed()
        if instant.action in actions and (instant.completed_time or instant.requested_time) > boundary
    ]
    return tuple(sorted(found, key=lambda instant: (instant.completed_time or "", instant.requested_time)))


def find_pending_index_builds(timeline: Timeline) -> tuple[Instant, ...]:
    """Return `indexing` instants that are requested or inflight, oldest first."""
    return tuple(timeline.pending(Action.INDEXING))


def _completed_time_of(timeline: Timeline, after: str) -> str:
    for instant in timeline.completed():
        if instant.requested_time == after and instant.completed_time:
            return instant.completed_time
    return after
