"""What a server caches of one table between two refreshes: a packed snapshot and a few numbers."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cachetools import LRUCache

from airflow_lake_provider.hudi.archive.timeline import ArchivedTimeline
from airflow_lake_provider.hudi.instant import COMPLETED_WRITE_ACTIONS, WRITE_ACTIONS, Action, Layout
from airflow_lake_provider.timeline_server.refresh import UNKNOWN, Known
from airflow_lake_provider.timeline_server.schedule import find_commit_interval_s
from airflow_lake_provider.timeline_server.snapshot import find_new_names, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from airflow_lake_provider.errors import LakeError
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.hudi.timeline import Timeline
    from airflow_lake_provider.storage.table_storage import Storage
    from airflow_lake_provider.timeline_server.snapshot import TimelineSnapshot

_MOST_HINTED = 64
NOTHING: frozenset[str] = frozenset()
"""The empty set of all tables: one for each would take 216 bytes."""


@dataclass(slots=True)
class Hints:
    """What the hints since a table's last refresh contain."""

    is_hinted: bool = False
    is_by_writer: bool = False
    """Whether a writer announced a commit, not a task of the provider."""
    instants: tuple[str, ...] = ()
    """Requested times that hints named; cut when there are too many."""
    named: frozenset[str] = frozenset()
    """All requested times that hints named, whatever other hints there were."""
    named_marks: frozenset[int] = frozenset()
    """Numbers of the marks whose hints named instants."""
    names_nothing: bool = False
    """Whether a writer announced a commit without naming it, and without a mark."""
    marks: frozenset[int] = frozenset()
    """Numbers of the durable marks that caused the hints."""

    def add(self, instants: tuple[str, ...], marks: frozenset[int], *, is_by_writer: bool) -> None:
        """Add one hint."""
        # A hint without instants requests a refresh, whatever the others name.
        names_nothing = not instants or (self.is_hinted and not self.instants)
        self.named |= frozenset(instants)
        self.named_marks |= marks if instants else frozenset()
        self.names_nothing = self.names_nothing or (is_by_writer and not instants and not marks)
        self.instants = () if names_nothing else (*self.instants, *instants)[: _MOST_HINTED + 1]
        self.is_hinted = True
        self.is_by_writer = self.is_by_writer or is_by_writer
        self.marks |= marks

    @property
    def mark(self) -> int:
        """The newest mark; 0 without any."""
        return max(self.marks, default=0)

    def are_shown_by(self, snapshot: TimelineSnapshot, covered_mark: int) -> bool:
        """Whether the snapshot already has every named instant completed, so that no refresh is needed.

        Between `covered_mark` and the newest one there must be no mark that another process made: the instants of that
        one are not named here.
        """
        if not self.instants or len(self.instants) > _MOST_HINTED:
            return False
        if len([mark for mark in self.marks if mark > covered_mark]) < self.mark - covered_mark:
            return False
        completed = {instant.requested_time for instant in snapshot.timeline.instants if instant.is_completed}
        return completed.issuperset(self.instants)


@dataclass(slots=True)
class CachedTimeline:
    """One table. The thread that refreshes it holds `lock`; the other fields are read without it."""

    open_storage: Callable[[], Storage]
    lock: threading.Lock = field(default_factory=threading.Lock)
    commits_lock: threading.Lock = field(default_factory=threading.Lock)
    """Held by the thread that reads commit metadata for a view (`planner.table_view`)."""
    begun: int = 0
    """How many refreshes began; `shown` is the number of the one whose result is shown."""
    shown: int = 0
    packed: bytes | None = None
    version: str = ""
    timeline_path: str = ""
    as_of_ms: int = 0
    folder_ms: int = UNKNOWN
    properties_stamp: tuple[int, int] = (UNKNOWN, UNKNOWN)
    properties_ms: int = 0
    """When the properties were last checked, ms since the epoch."""
    properties_checked: int = 0
    """The number of the refresh that checked them."""
    changed_ms: int = 0
    commit_interval_s: float | None = None
    newest_completion: str = ""
    """The latest completion time of a write that was shown."""
    is_announced: bool = False
    unnamed: frozenset[str] = NOTHING
    """Requested times of active commits that writers made without a notice: a silent writer is at work."""
    volume: str = ""
    """The file system or store of the table, once its folder times were asked about."""
    hints: Hints = field(default_factory=Hints)
    covered_mark: int = 0
    awaited: frozenset[str] = NOTHING
    """Versions of readers that wait for an answer: the next refresh that shows another one is logged."""
    watched_s: float | None = None
    watched_until_ms: int = 0
    unannounced_s: float | None = None
    """How often watchers would poll it that wait for what no writer announces."""
    unannounced_until_ms: int = 0
    is_registered: bool = False
    fixed_pause_s: float | None = None
    failures: int = 0
    error: LakeError | None = None
    failed_ms: int = 0
    _storage: Storage | None = None

    @property
    def storage(self) -> Storage:
        """The table's storage, opened on first use: opening may read an Airflow connection."""
        if self._storage is None:
            self._storage = self.open_storage()
        return self._storage

    def known(self) -> Known | None:
        """Return what the last refresh left, unpacked; None when nothing is cached."""
        packed = self.packed
        if packed is None:
            return None
        snapshot = replace(unpack(packed), as_of_ms=self.as_of_ms)
        return Known(snapshot, self.folder_ms, self.properties_stamp)

    def keep(self, before: Known | None, after: Known) -> frozenset[str] | None:
        """Keep what a refresh read; return the file names of new instants, None when nothing changed."""
        snapshot = after.snapshot
        self.as_of_ms, self.folder_ms, self.properties_stamp = (
            snapshot.as_of_ms,
            after.folder_ms,
            after.properties_stamp,
        )
        self.failures, self.error = 0, None
        self.timeline_path = snapshot.properties.timeline_path
        if self.packed is not None and snapshot.version == self.version:
            return None
        new_names = None
        if before is not None and snapshot.version != before.snapshot.version:
            new_names = find_new_names(before.snapshot, snapshot)
        elif self.version and snapshot.version != self.version:  # evicted meanwhile: what is new is not known
            completed = snapshot.timeline.completed_writes
            new_names = frozenset(i.file_name for i in completed if (i.completed_time or "") > self.newest_completion)
        self.newest_completion = max((i.completed_time or "" for i in snapshot.timeline.completed_writes), default="")
        self.packed, self.version = pack(snapshot), snapshot.version
        self.commit_interval_s = find_commit_interval_s(snapshot.timeline)
        return new_names

    def evict(self) -> None:
        """Drop what is large; version and schedule stay."""
        self.packed = None

    def is_needed(self, now_ms: int) -> bool:
        """Whether the table is registered, watched, or hinted."""
        return self.is_registered or self.watched_until_ms > now_ms or self.hints.is_hinted

    def watched_pause_s(self, now_ms: int) -> float | None:
        """Return how often the watchers of the table would poll it; None without watchers."""
        return self.watched_s if self.watched_until_ms > now_ms else None

    def unannounced_pause_s(self, now_ms: int) -> float | None:
        """Return how often watchers would poll it that wait for what no writer announces; None without any."""
        return self.unannounced_s if self.unannounced_until_ms > now_ms else None


def completed_writes_among(names: frozenset[str], snapshot: TimelineSnapshot) -> tuple[Instant, ...]:
    """Return the completed writes among the instants with these file names."""
    return tuple(
        instant
        for instant in snapshot.timeline.instants
        if instant.file_name in names and instant.is_completed and instant.action in COMPLETED_WRITE_ACTIONS
    )


def find_unnamed(new: tuple[Instant, ...], after: Known, hints: Hints, other_marks: int) -> frozenset[str]:
    """Return the requested times of new commits that writers made and no notice stands for.

    `other_marks`: how many notices since the refresh before name nothing here, each of which stands for one commit. The
    callback of a writer names its own commits, never those of a compaction, log compaction or clustering.
    """
    properties, listing = after.snapshot.properties, after.listing
    own = {Action.DELTACOMMIT} if properties.table_type == "MERGE_ON_READ" else {Action.DELTACOMMIT, Action.COMMIT}
    names = frozenset() if listing is None else listing.names
    times = sorted(
        instant.requested_time
        for instant in new
        if instant.action in own and f"{instant.requested_time}.logcompaction.requested" not in names
    )
    unnamed = [time for time in times if time not in hints.named]
    return frozenset() if hints.names_nothing else frozenset(unnamed[: max(len(unnamed) - other_marks, 0)])


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
