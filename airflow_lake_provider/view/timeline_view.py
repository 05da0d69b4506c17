"""`TableTimelineView` (RFC-50): a table's complete timeline, whoever reads it from wherever."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_lake_provider.timeline.archived_timeline import ArchivedTimeline
    from airflow_lake_provider.timeline.instant import Action, Instant
    from airflow_lake_provider.timeline.timeline import Timeline
    from airflow_lake_provider.view.archive_tail import ArchiveQuestion
    from airflow_lake_provider.view.freshness import Freshness
    from airflow_lake_provider.view.snapshot import TimelineChanges, TimelineSnapshot


class TableTimelineView(ABC):
    """One table. Every question is answered from one snapshot; ask `snapshot` once to ask it several.

    All methods raise TableNotFoundError, UnsupportedTableError, DamagedFileError and StorageError of the table.
    """

    base_path: str

    @abstractmethod
    def snapshot(self, freshness: Freshness | None = None) -> TimelineSnapshot:
        """Return the complete timeline: requested, inflight and completed instants."""

    @abstractmethod
    def changes_since(self, version: str, freshness: Freshness | None = None) -> TimelineChanges:
        """Return what changed since a version; the complete timeline when that version is not remembered."""

    @abstractmethod
    def archived(self, *, after: str = "", until: str = "") -> ArchivedTimeline:
        """Return archived instants with requested times after `after` (exclusive) up to `until` (inclusive)."""

    @abstractmethod
    def archived_after(self, question: ArchiveQuestion) -> ArchivedTimeline:
        """Return the archived instants that a cursor has not passed; asks the storage only if some were archived."""

    def timeline(self) -> Timeline:
        """Return the complete active timeline."""
        return self.snapshot().timeline

    def latest_instant(self) -> Instant | None:
        """Return the instant that was requested last, in any state; None on an empty timeline."""
        instants = self.timeline().instants
        return instants[-1] if instants else None

    def latest_completed(self) -> Instant | None:
        """Return the instant that completed last; None when none did."""
        return self.timeline().latest_completed()

    def pending(self, *actions: Action) -> tuple[Instant, ...]:
        """Return requested and inflight instants, of the given actions or of all."""
        return self.timeline().pending(*actions)

    def latest_write_without_holes(self) -> Instant | None:
        """Return the last completed write before the first pending one."""
        return self.timeline().latest_write_without_holes()
