"""The active timeline of one table, as a value with the questions one asks of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.timeline.instant import COMPARABLE_ACTION, WRITE_ACTIONS, Action, State

if TYPE_CHECKING:
    from airflow_lake_provider.timeline.instant import Instant

COMPLETED_WRITE_ACTIONS = frozenset({Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT})


@dataclass(frozen=True, slots=True)
class TimelineProblem:
    """A file beside the instants that is not understood, or an instant whose file is damaged."""

    file_name: str
    reason: str

    @staticmethod
    def of(file_name: str, error: Exception) -> TimelineProblem:
        """Return the problem that an error tells of; the error may name the file, which is said once."""
        return TimelineProblem(file_name, str(error).removeprefix(f"{file_name}: "))


@dataclass(frozen=True, slots=True)
class Timeline:
    """Instants in Hudi's order (requested time, action, state), each in its highest state."""

    instants: tuple[Instant, ...] = ()
    problems: tuple[TimelineProblem, ...] = ()

    def completed(self) -> tuple[Instant, ...]:
        """Return the completed instants of all actions, by requested time."""
        return tuple(instant for instant in self.instants if instant.state is State.COMPLETED)

    def pending(self, *actions: Action) -> tuple[Instant, ...]:
        """Return requested and inflight instants, of the given actions or of all, by requested time."""
        return tuple(
            instant
            for instant in self.instants
            if instant.state is not State.COMPLETED and (not actions or instant.action in actions)
        )

    def pending_writes(self) -> tuple[Instant, ...]:
        """Return the writers' instants that are not completed: no plans of table services."""
        services = frozenset(COMPARABLE_ACTION)
        return tuple(i for i in self.pending(*WRITE_ACTIONS) if i.action not in services)

    def completed_writes_by_completion(self) -> tuple[Instant, ...]:
        """Return completed commits, deltacommits and replacecommits in the order in which they completed."""
        writes = [instant for instant in self.completed() if instant.action in COMPLETED_WRITE_ACTIONS]
        return tuple(sorted(writes, key=lambda instant: (instant.completed_time or "", instant.requested_time)))

    def overtaking(self, log_compaction: Instant) -> Instant | None:
        """Return the newer compaction or commit behind which Hudi never executes a log compaction; None without one.

        Source: `BaseHoodieTableServiceClient.logCompact`.
        """
        for instant in self.instants:
            is_newer = instant.requested_time > log_compaction.requested_time
            if is_newer and instant.action in {Action.COMPACTION, Action.COMMIT}:
                return instant
        return None

    def latest_completed(self) -> Instant | None:
        """Return the instant that completed last, of any action; None on an empty timeline."""
        return max(
            self.completed(), key=lambda instant: (instant.completed_time or "", instant.requested_time), default=None
        )

    def latest_completed_time(self) -> str:
        """Return when an instant completed last (its requested time where layout 1 keeps no other); empty for never."""
        latest = self.latest_completed()
        return "" if latest is None else latest.completed_time or latest.requested_time

    def holes(self) -> tuple[Instant, ...]:
        """Return the pending writes and plans of services with completed writes behind them."""
        newest = max((i.requested_time for i in self.completed() if i.action in COMPLETED_WRITE_ACTIONS), default="")
        return tuple(instant for instant in self.pending(*WRITE_ACTIONS) if instant.requested_time < newest)

    def latest_write_without_holes(self) -> Instant | None:
        """Return the last completed write before the first pending one (Hudi: contiguous completed write timeline).

        Pending plans of table services are holes as well.
        """
        pending = self.pending(*WRITE_ACTIONS)
        boundary = pending[0].requested_time if pending else None
        writes = [
            instant
            for instant in self.completed()
            if instant.action in COMPLETED_WRITE_ACTIONS and (boundary is None or instant.requested_time < boundary)
        ]
        return writes[-1] if writes else None
