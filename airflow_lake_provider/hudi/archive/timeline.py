"""Instants that were moved out of the active timeline, as values, whichever format they were archived in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.hudi.instant import COMPARABLE_ACTION, COMPLETED_WRITE_ACTIONS
from airflow_lake_provider.hudi.timeline import TimelineProblem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_lake_provider.hudi.instant import Action


@dataclass(frozen=True, slots=True)
class RequestedRange:
    """A range of requested times, `after` exclusive and `until` inclusive; empty is unbounded."""

    after: str = ""
    until: str = ""

    def contains(self, requested_time: str) -> bool:
        """Whether an instant lies in the range."""
        return self.after < requested_time and (not self.until or requested_time <= self.until)

    def overlaps(self, first: str, last: str) -> bool:
        """Whether any instant from `first` to `last`, both inclusive, can lie in the range."""
        return self.after < last and (not self.until or first <= self.until)


@dataclass(frozen=True, slots=True)
class ArchivedInstant:
    """One completed action that was archived.

    `completed_time` is None where the writer did not archive it (layout 1, before Hudi 0.14). `metadata` and `plan` are
    what `content.decode` reads; None when they were not requested, and when the archive has none.
    """

    requested_time: str
    action: Action
    completed_time: str | None
    file_name: str
    """The archive's file that it was read from."""
    metadata: bytes | None = None
    plan: bytes | None = None

    @property
    def is_write(self) -> bool:
        """Whether it is a commit, deltacommit or replacecommit."""
        return self.action in COMPLETED_WRITE_ACTIONS


@dataclass(frozen=True, slots=True)
class ArchivedTimeline:
    """Archived instants by requested time, none twice.

    What could not be read is a problem: instants may be missing while there are any.
    """

    instants: tuple[ArchivedInstant, ...] = ()
    problems: tuple[TimelineProblem, ...] = ()

    def completed_by_completion(self) -> tuple[ArchivedInstant, ...]:
        """Return all instants in the order in which they completed."""
        return tuple(sorted(self.instants, key=_completion_key))

    def completed_writes_by_completion(self) -> tuple[ArchivedInstant, ...]:
        """Return commits, deltacommits and replacecommits in the order in which they completed."""
        return tuple(instant for instant in self.completed_by_completion() if instant.is_write)


def _completion_key(instant: ArchivedInstant) -> tuple[str, str]:
    # Without a completion time the requested time is the nearest that is known, and what Hudi falls back to.
    return instant.completed_time or instant.requested_time, instant.requested_time


def archived_timeline_of(instants: Iterable[ArchivedInstant], problems: Iterable[TimelineProblem]) -> ArchivedTimeline:
    """Sort instants and drop doubles: one that was archived twice, or lies in a merged file and in its source too."""
    unique: dict[tuple[str, Action], ArchivedInstant] = {}
    found = set(problems)
    for instant in instants:
        key = (instant.requested_time, COMPARABLE_ACTION.get(instant.action, instant.action))
        known = unique.setdefault(key, instant)
        if known.completed_time != instant.completed_time:
            reason = (
                f"says that {instant.requested_time}.{instant.action} completed at {instant.completed_time}, "
                f"but {known.file_name} says {known.completed_time}"
            )
            found.add(TimelineProblem(instant.file_name, reason))
    return ArchivedTimeline(
        tuple(unique[key] for key in sorted(unique)),
        tuple(sorted(found, key=lambda problem: (problem.file_name, problem.reason))),
    )
