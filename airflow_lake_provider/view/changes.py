"""What a reader of a timeline asks about: commits after a point, index builds that are pending. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from airflow_lake_provider.timeline.instant import Action, Instant, State

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from airflow_lake_provider.timeline.archived_timeline import ArchivedTimeline
    from airflow_lake_provider.timeline.timeline import Timeline

COMMIT_ACTIONS = frozenset({Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT})

LONGEST_WRITE = timedelta(days=7)
"""A commit that was requested so long before a point may still have completed after it."""
_SECONDS = 14


def find_commits_after(
    timeline: Timeline,
    after: str,
    actions: Collection[str] = COMMIT_ACTIONS,
    archive: ArchivedTimeline | None = None,
) -> tuple[Instant, ...]:
    """Return completed instants of the given actions that completed after `after` (exclusive), by completion.

    `after` is the requested time of an instant on the timeline, or a completed time; empty means from the beginning
    of the active timeline. A slow writer's commit that was requested before and completed after is returned: ordering
    by requested time would lose it. With an archive, what was archived meanwhile is returned as well.
    """
    completed = timeline.completed()
    if archive is not None:
        active = {(instant.requested_time, instant.action) for instant in completed}
        archived = _instants_of(archive)
        completed = (*(i for i in archived if (i.requested_time, i.action) not in active), *completed)
    boundary = _completed_time_of(completed, after)
    found = [
        instant
        for instant in completed
        if instant.action in actions and (instant.completed_time or instant.requested_time) > boundary
    ]
    return tuple(sorted(found, key=lambda instant: (instant.completed_time or "", instant.requested_time)))


def find_pending_index_builds(timeline: Timeline) -> tuple[Instant, ...]:
    """Return `indexing` instants that are requested or inflight, oldest first."""
    return tuple(timeline.pending(Action.INDEXING))


def archive_begin(after: str) -> str:
    """Return the requested time from which on archived commits may have completed after `after`."""
    try:
        moment = datetime.strptime(after[:_SECONDS], "%Y%m%d%H%M%S")  # noqa: DTZ007 - only moved back, in its own zone
    except ValueError:
        return ""
    return (moment - LONGEST_WRITE).strftime("%Y%m%d%H%M%S")


def _instants_of(archive: ArchivedTimeline) -> Iterable[Instant]:
    return (
        Instant(i.requested_time, i.action, State.COMPLETED, i.completed_time, i.file_name) for i in archive.instants
    )


def _completed_time_of(completed: Iterable[Instant], after: str) -> str:
    for instant in completed:
        if instant.requested_time == after and instant.completed_time:
            return instant.completed_time
    return after
