"""Read tables for a sensor: what is new since its cursor. Blocking; no Airflow in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hudi.instant import ArchivedTimeline, Instant
from airflow_lake_provider.shared.actions import COMPLETED_WRITE_ACTIONS, Action, State
from airflow_lake_provider.timeline_server.archive_tail import ArchiveQuery
from airflow_lake_provider.timeline_server.snapshot import Freshness, problems_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from airflow_lake_provider.hudi.timeline import Timeline
    from airflow_lake_provider.timeline_server.snapshot import TimelineSnapshot
    from airflow_lake_provider.timeline_server.views import TableTimelineView, TimelineViewManager

# --- What a reader selects from a timeline: commits after a point, pending index builds. Pure


def find_commits_after(
    timeline: Timeline,
    after: str,
    actions: Collection[str] = COMPLETED_WRITE_ACTIONS,
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
"""Returns by base path and timeline what a table must have and lacks."""


def nothing_missing(base_path: str, snapshot: TimelineSnapshot) -> tuple[str, ...]:
    """Return nothing: the watch requires no index."""
    return ()


class WatchKind(StrEnum):
    """What a watch waits for."""

    COMMIT = "commit"
    PENDING_INDEX = "pending_index"


@dataclass(frozen=True, slots=True)
class Watch:
    """Tables to read. `after` of each table: see `find_commits_after`; pending index builds ignore it."""

    kind: WatchKind
    tables: tuple[tuple[str, str], ...]
    """Pairs of base path and `after`."""
    actions: frozenset[str] = COMPLETED_WRITE_ACTIONS
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    find_missing: FindMissing = nothing_missing
    """Called by a watch for index builds, which are pending, or missing altogether."""

    @property
    def needs_unannounced(self) -> bool:
        """Whether it waits for what no writer announces: a callback reports completed writes only."""
        return self.kind is not WatchKind.COMMIT or not self.actions <= COMPLETED_WRITE_ACTIONS

    def freshness(self, most_s: float) -> Freshness:
        """Return what bounds an answer's age to so long, where no writer would have announced what is newer."""
        return Freshness(max_age_s=most_s) if self.needs_unannounced else Freshness(unannounced_max_age_s=most_s)


@dataclass(frozen=True, slots=True)
class TableChange:
    """What changed in one table: new instants, or why it could not be read."""

    base_path: str
    instants: tuple[Instant, ...] = ()
    missing: tuple[str, ...] = ()
    """Indexes that the table must have and lacks, by their folders in the metadata table."""
    error: LakeError | None = None
    incomplete: str = ""
    """Why instants of the archived timeline may be missing; empty when none are."""

    def to_dict(self) -> dict[str, Any]:
        """Return the shape that sensors push as XCom; `after` is the cursor to continue from."""
        return {
            "base_path": self.base_path,
            "instants": [instant.to_dict() for instant in self.instants],
            "missing": list(self.missing),
            "after": max((i.completed_time or i.requested_time for i in self.instants), default=""),
            "error": None if self.error is None else str(self.error),
            "incomplete": self.incomplete,
        }


def find_changes(watch: Watch, views: TimelineViewManager, freshness: Freshness) -> tuple[TableChange, ...]:
    """Read each table once; a table that cannot be read yields its error and stops no other."""
    return tuple(
        _find_in_table(views.get_view(base_path), after, watch, freshness) for base_path, after in watch.tables
    )


def _find_in_table(view: TableTimelineView, after: str, watch: Watch, freshness: Freshness) -> TableChange:
    try:
        snapshot = view.snapshot(freshness)
        archive = view.archived_after(query) if (query := archive_query(watch, after, snapshot)) else None
    except LakeError as error:
        return TableChange(view.base_path, error=error)
    return examine(watch, view.base_path, after, snapshot, archive)


def archive_query(watch: Watch, after: str, snapshot: TimelineSnapshot) -> ArchiveQuery | None:
    """Return the query of the archived timeline, because the answer may lie partly there; None without a cursor."""
    if watch.kind is not WatchKind.COMMIT or not after:
        return None
    return ArchiveQuery(snapshot, after, watch.actions)


def examine(
    watch: Watch, base_path: str, after: str, snapshot: TimelineSnapshot, archive: ArchivedTimeline | None = None
) -> TableChange:
    """Return the part of a timeline that the watch waits for. Pure."""
    if watch.kind is WatchKind.PENDING_INDEX:
        missing = watch.find_missing(base_path, snapshot)
        return TableChange(base_path, find_pending_index_builds(snapshot.timeline), missing)
    instants = find_commits_after(snapshot.timeline, after, watch.actions, archive)
    return TableChange(base_path, instants, incomplete="" if archive is None else problems_text(archive.problems))


def found(findings: Sequence[TableChange]) -> list[TableChange]:
    """Return the changes with new instants, or with something missing."""
    return [finding for finding in findings if finding.instants or finding.missing]


def tables_of(base_path: str, after: str, tables: Collection[Mapping[str, Any]] | None) -> tuple[tuple[str, str], ...]:
    """Build a watch's tables from a sensor's arguments: one table, or a list of mappings with both keys."""
    if tables is None:
        return ((base_path, after),)
    return tuple((str(table["base_path"]), str(table.get("after", ""))) for table in tables)
