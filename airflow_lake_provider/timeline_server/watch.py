"""Look at tables for a sensor: what is new since its cursor. Blocking; no Airflow in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hudi.instant import Action, Instant, State
from airflow_lake_provider.timeline_server.archive_tail import ArchiveQuestion
from airflow_lake_provider.timeline_server.snapshot import problems_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from airflow_lake_provider.hudi.archive.timeline import ArchivedTimeline
    from airflow_lake_provider.hudi.timeline import Timeline
    from airflow_lake_provider.timeline_server.snapshot import Freshness, TimelineSnapshot
    from airflow_lake_provider.timeline_server.view_manager import TimelineViewManager
    from airflow_lake_provider.timeline_server.views import TableTimelineView

# --- What a reader of a timeline asks about: commits after a point, index builds that are pending. Pure

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


FindMissing: TypeAlias = "Callable[[str, TimelineSnapshot], tuple[str, ...]]"
"""Says by base path and timeline what a table shall have and has not."""


def nothing_missing(base_path: str, snapshot: TimelineSnapshot) -> tuple[str, ...]:
    """Want nothing of any table."""
    return ()


class WatchKind(StrEnum):
    """What a watch waits for."""

    COMMIT = "commit"
    PENDING_INDEX = "pending_index"


@dataclass(frozen=True, slots=True)
class Watch:
    """Tables to look at. `after` of each table: see `find_commits_after`; pending index builds ignore it."""

    kind: WatchKind
    tables: tuple[tuple[str, str], ...]
    """Pairs of base path and `after`."""
    actions: frozenset[str] = COMMIT_ACTIONS
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    find_missing: FindMissing = nothing_missing
    """Asked by a watch for index builds, which are pending, or missing altogether."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one table shows: new instants, or why it could not be looked at."""

    base_path: str
    instants: tuple[Instant, ...] = ()
    missing: tuple[str, ...] = ()
    """Indexes that the table shall have and has not, by their folders in the metadata table."""
    error: LakeError | None = None
    incomplete: str = ""
    """Why instants of the archived timeline may be missing; empty when none are."""

    def to_dict(self) -> dict[str, Any]:
        """Return the shape that sensors push as XCom; `after` is the cursor to go on from."""
        return {
            "base_path": self.base_path,
            "instants": [
                {
                    "requested_time": instant.requested_time,
                    "action": str(instant.action),
                    "state": str(instant.state),
                    "completed_time": instant.completed_time,
                }
                for instant in self.instants
            ],
            "missing": list(self.missing),
            "after": max((i.completed_time or i.requested_time for i in self.instants), default=""),
            "error": None if self.error is None else str(self.error),
            "incomplete": self.incomplete,
        }


def look(watch: Watch, views: TimelineViewManager, freshness: Freshness) -> tuple[Finding, ...]:
    """Look at each table once; a table that cannot be read is a finding with its error and stops no other."""
    return tuple(_look_at(views.get_view(base_path), after, watch, freshness) for base_path, after in watch.tables)


def _look_at(view: TableTimelineView, after: str, watch: Watch, freshness: Freshness) -> Finding:
    try:
        snapshot = view.snapshot(freshness)
        archive = view.archived_after(question) if (question := ask_archive(watch, after, snapshot)) else None
    except LakeError as error:
        return Finding(view.base_path, error=error)
    return examine(watch, view.base_path, after, snapshot, archive)


def ask_archive(watch: Watch, after: str, snapshot: TimelineSnapshot) -> ArchiveQuestion | None:
    """Return what to ask of the archived timeline, for the answer may lie partly there; None without a cursor."""
    if watch.kind is not WatchKind.COMMIT or not after:
        return None
    return ArchiveQuestion(snapshot, after, watch.actions)


def examine(
    watch: Watch, base_path: str, after: str, snapshot: TimelineSnapshot, archive: ArchivedTimeline | None = None
) -> Finding:
    """Return what a timeline has for the watch. Pure."""
    if watch.kind is WatchKind.PENDING_INDEX:
        missing = watch.find_missing(base_path, snapshot)
        return Finding(base_path, find_pending_index_builds(snapshot.timeline), missing)
    instants = find_commits_after(snapshot.timeline, after, watch.actions, archive)
    return Finding(base_path, instants, incomplete="" if archive is None else problems_text(archive.problems))


def found(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings that have new instants, or something missing."""
    return [finding for finding in findings if finding.instants or finding.missing]


def tables_of(base_path: str, after: str, tables: Collection[Mapping[str, Any]] | None) -> tuple[tuple[str, str], ...]:
    """Build a watch's tables from a sensor's arguments: one table, or a list of mappings with both keys."""
    if tables is None:
        return ((base_path, after),)
    return tuple((str(table["base_path"]), str(table.get("after", ""))) for table in tables)
