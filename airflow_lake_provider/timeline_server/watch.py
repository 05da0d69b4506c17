"""Read tables for a sensor: what is new since its cursor. Blocking; no Airflow in it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from cachetools import LRUCache

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hudi.instant import (
    COMPLETED_WRITE_ACTIONS,
    WRITE_ACTIONS,
    Action,
    ArchivedTimeline,
    Instant,
    Layout,
    State,
)
from airflow_lake_provider.instant_clock import DAY_MS, shift_instant_time
from airflow_lake_provider.timeline_server.snapshot import Freshness, problems_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from airflow_lake_provider.hudi.timeline import Timeline
    from airflow_lake_provider.timeline_server.snapshot import TimelineSnapshot
    from airflow_lake_provider.timeline_server.views import TableTimelineView, TimelineViewManager

# --- The archived instants that a cursor has not passed: the archive is read once per archival, not once per request
#
# A commit that completed after a cursor may be archived although the active timeline begins before the cursor: Hudi
# archives writes by *requested* time, so a slow writer's commit goes first, and it never archives `indexing` and
# `restore`, which stay at the timeline's head. So no comparison of a cursor with the active timeline shows that the
# archive holds nothing for it. One fact shows it: nothing was archived since the last reading of the archive.
#
# Hudi's archivers take completed writes in the order of their requested times, all but savepoints, and stop at the
# first that must stay. An instant that was archived since the last reading was either on the timeline then, and is
# missing now; or it was requested later than each instant of that time, and then the completed writes of that time
# without a savepoint were archived before it, and are missing now. So if no write of that time is missing, and there
# is such a completed write, nothing was archived. Cleans and rollbacks are archived together with the writes around
# them; layout 1 archives them separately, so a query for those reads the archive each time.
#
# Source: Hudi 1.2 `TimelineArchiverV2.getCommitInstantsToArchive`, `TimelineArchiverV1.getCleanInstantsToArchive`.
# Both delete instants from the active timeline after they are in the archive, so the active timeline is read first.

_ARCHIVED_APART = frozenset({Action.CLEAN, Action.ROLLBACK})


@dataclass(frozen=True, slots=True)
class ArchiveQuery:
    """A query for archived instants that completed after `after` (exclusive), beyond those that the snapshot shows."""

    snapshot: TimelineSnapshot
    after: str
    actions: Collection[str]

    @property
    def follows_writes(self) -> bool:
        """Whether the queried instants leave the active timeline together with writes."""
        return self.snapshot.properties.layout is not Layout.V1 or _ARCHIVED_APART.isdisjoint(self.actions)


class ArchiveTail:
    """The end of one table's archive, as far back as a cursor needed it. Thread-safe; small."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: _Writes | None = None
        self._since = ""
        self._tail = ArchivedTimeline()

    def read(self, query: ArchiveQuery, load: Callable[[], ArchivedTimeline]) -> ArchivedTimeline:
        """Return what was archived and completed after the cursor; `load` reads that, or more, from the archive."""
        if not query.follows_writes:
            return _completed_after(load(), query.after)
        now = _Writes.of(query.snapshot.timeline)
        with self._lock:
            is_known = self._seen is not None and not now.may_lack_archived(self._seen)
            if not is_known or query.after < self._since:
                self._tail, self._since = _completed_after(load(), query.after), query.after
            self._seen = now
            return _completed_after(self._tail, query.after)


class ArchiveTails:
    """Tails of the tables with the most recent queries."""

    def __init__(self, most_tables: int) -> None:
        self._lock = threading.Lock()
        self._tails: LRUCache[str, ArchiveTail] = LRUCache(most_tables)

    def get(self, base_path: str) -> ArchiveTail:
        """Return the table's tail."""
        with self._lock:
            return self._tails.setdefault(base_path, ArchiveTail())


@dataclass(frozen=True, slots=True)
class _Writes:
    """The requested times of a timeline's writes, as text, because the process stores those of thousands of tables."""

    all: str
    completed: str
    """Those that completed and have no savepoint."""

    @classmethod
    def of(cls, timeline: Timeline) -> _Writes:
        saved = {i.requested_time for i in timeline.instants if i.action is Action.SAVEPOINT}
        writes = [i for i in timeline.instants if i.action in WRITE_ACTIONS]
        completed = [i.requested_time for i in writes if i.is_completed and i.action in COMPLETED_WRITE_ACTIONS]
        return cls(
            " ".join(instant.requested_time for instant in writes),
            " ".join(requested for requested in completed if requested not in saved),
        )

    def may_lack_archived(self, before: _Writes) -> bool:
        """Whether instants may have been archived since `before` was the active timeline (see the module)."""
        if self.all == before.all and self.completed == before.completed:
            return not self.completed
        if not set(before.all.split()) <= set(self.all.split()):
            return True
        return set(before.completed.split()).isdisjoint(self.completed.split())


def _completed_after(archive: ArchivedTimeline, after: str) -> ArchivedTimeline:
    instants = tuple(i for i in archive.instants if (i.completed_time or i.requested_time) > after)
    return archive if len(instants) == len(archive.instants) else replace(archive, instants=instants)


# --- What a reader selects from a timeline: commits after a point, pending index builds. Pure

LONGEST_WRITE_MS = 7 * DAY_MS
"""A commit that was requested so long before a point may still have completed after it."""


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


def archive_begin(after: str) -> str:
    """Return the requested time from which on archived commits may have completed after `after`."""
    return shift_instant_time(after, -LONGEST_WRITE_MS)[:14]


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
