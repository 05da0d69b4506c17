"""Look at tables for a sensor: what is new since its cursor. Blocking; no Airflow in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.view.archive_tail import ArchiveQuestion
from airflow_lake_provider.view.changes import (
    COMMIT_ACTIONS,
    find_commits_after,
    find_pending_index_builds,
)
from airflow_lake_provider.view.snapshot import problems_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from airflow_lake_provider.timeline.archived_timeline import ArchivedTimeline
    from airflow_lake_provider.timeline.instant import Instant
    from airflow_lake_provider.view.freshness import Freshness
    from airflow_lake_provider.view.snapshot import TimelineSnapshot
    from airflow_lake_provider.view.timeline_view import TableTimelineView
    from airflow_lake_provider.view.view_manager import TimelineViewManager


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
