"""A table's complete timeline at one moment, and what changed between two of them. Values and pure functions."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_lake_provider.timeline.instant import Instant
    from airflow_lake_provider.timeline.properties import TableProperties
    from airflow_lake_provider.timeline.timeline import Timeline, TimelineProblem

_VERSION_LENGTH = 32
_STEPS_REMEMBERED = 8


@dataclass(frozen=True, slots=True)
class TimelineSnapshot:
    """The active timeline with requested, inflight and completed instants.

    `version` is made of the content alone: it changes when, and only when, timeline or properties do, and is the same
    whoever looked, so it outlives any server. Storage was asked at `as_of_ms` (ms since the epoch); what happened
    later is not in it.
    """

    base_path: str
    version: str
    properties: TableProperties
    timeline: Timeline
    as_of_ms: int


@dataclass(frozen=True, slots=True)
class TimelineChanges:
    """What is different since a version: `put` are instants that are new or in a new state, `gone` were removed.

    When nobody remembers that version any more, `is_complete` is true and `put` is the whole timeline.
    """

    base_path: str
    version: str
    is_complete: bool
    put: tuple[Instant, ...]
    gone: tuple[str, ...] = ()
    """File names of instants that were rolled back, archived or deleted."""
    as_of_ms: int = 0


@dataclass(frozen=True, slots=True)
class Difference:
    """One step from a version to the next, by file name."""

    before: str
    after: str
    put: tuple[str, ...]
    gone: tuple[str, ...]


def version_of(timeline: Timeline, properties: TableProperties) -> str:
    """Return the version of a timeline: a hash of its instants and of the table's properties."""
    # In layout 2 a name says everything; in layout 1 the completion time is not part of it.
    names = [f"{i.file_name} {i.completed_time}" for i in timeline.instants]
    problems = [f"{problem.file_name} {problem.reason}" for problem in timeline.problems]
    text = "\n".join([repr(sorted(properties.raw.items())), *names, *problems])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_VERSION_LENGTH]


def find_difference(before: TimelineSnapshot, after: TimelineSnapshot) -> Difference:
    """Return what changed; a layout 1 file that was rewritten in place counts as put."""
    known = {(i.file_name, i.completed_time) for i in before.timeline.instants}
    now = {(i.file_name, i.completed_time) for i in after.timeline.instants}
    names_now = {name for name, _ in now}
    return Difference(
        before.version,
        after.version,
        tuple(sorted(name for name, _ in now - known)),
        tuple(sorted({name for name, _ in known} - names_now)),
    )


def remember(steps: tuple[Difference, ...], step: Difference) -> tuple[Difference, ...]:
    """Return the steps with a new one at their end; only the last few are kept."""
    return (*steps[1 - _STEPS_REMEMBERED :], step)


def add_up(base_path: str, since: str, steps: Iterable[Difference], now: TimelineSnapshot) -> TimelineChanges:
    """Return the changes from version `since` to `now`; complete when the steps do not lead from one to the other."""
    if since == now.version:
        return TimelineChanges(base_path, now.version, is_complete=False, put=(), as_of_ms=now.as_of_ms)
    names_now = {instant.file_name: instant for instant in now.timeline.instants}
    put: set[str] = set()
    gone: set[str] = set()
    at: str | None = None
    for step in steps:
        if step.before == since:
            # A table may come back to a version that it had before: only the last stay there counts.
            at, put, gone = since, set(), set()
        if at is None or step.before != at:
            at = None
            continue
        put |= set(step.put)
        gone |= set(step.gone)
        at = step.after
    if at != now.version:
        instants = now.timeline.instants
        return TimelineChanges(base_path, now.version, is_complete=True, put=instants, as_of_ms=now.as_of_ms)
    return TimelineChanges(
        base_path,
        now.version,
        is_complete=False,
        put=tuple(instant for name, instant in names_now.items() if name in put),
        gone=tuple(sorted(gone - names_now.keys())),
        as_of_ms=now.as_of_ms,
    )


def problems_text(problems: Iterable[TimelineProblem]) -> str:
    """Return problems as one line for a log or an answer."""
    return "; ".join(f"{problem.file_name}: {problem.reason}" for problem in problems)
