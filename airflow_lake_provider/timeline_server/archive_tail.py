"""The archived instants that a cursor has not passed: the archive is read once per archival, not once per request.

A commit that completed after a cursor may be archived although the active timeline begins before the cursor: Hudi
archives writes by *requested* time, so a slow writer's commit goes first, and it never archives `indexing` and
`restore`, which stay at the timeline's head. So no comparison of a cursor with the active timeline shows that the
archive holds nothing for it. One fact shows it: nothing was archived since the last reading of the archive.

Hudi's archivers take completed writes in the order of their requested times, all but savepoints, and stop at the
first that must stay. An instant that was archived since the last reading was either on the timeline then, and is
missing now; or it was requested later than each instant of that time, and then the completed writes of that time
without a savepoint were archived before it, and are missing now. So if no write of that time is missing, and there
is such a completed write, nothing was archived. Cleans and rollbacks are archived together with the writes around
them; layout 1 archives them separately, so a query for those reads the archive each time.

Source: Hudi 1.2 `TimelineArchiverV2.getCommitInstantsToArchive`, `TimelineArchiverV1.getCleanInstantsToArchive`.
Both delete instants from the active timeline after they are in the archive, so the active timeline is read first.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cachetools import LRUCache

from airflow_lake_provider.hudi.instant import ArchivedTimeline, Layout
from airflow_lake_provider.instant_clock import DAY_MS, shift_instant_time
from airflow_lake_provider.shared.actions import COMPLETED_WRITE_ACTIONS, WRITE_ACTIONS, Action

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from airflow_lake_provider.hudi.timeline import Timeline
    from airflow_lake_provider.timeline_server.snapshot import TimelineSnapshot

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
                self._tail = _completed_after(load(), query.after)
                self._since = query.after
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


LONGEST_WRITE_MS = 7 * DAY_MS
"""A commit that was requested so long before a point may still have completed after it."""


def archive_begin(after: str) -> str:
    """Return the requested time from which on archived commits may have completed after `after`."""
    return shift_instant_time(after, -LONGEST_WRITE_MS)[:14]
