"""Which commits of a table become events of its asset, and what an event says; pure.

Commits are ordered by completion. A cursor remembers what was reported, so each commit is in exactly one event,
whatever dies in between: also one that a listing shows after commits that completed later.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.replication.feed import OPERATIONS_WITHOUT_CHANGES
from airflow_lake_provider.shared.actions import Action

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_lake_provider.hudi.commit_metadata import CommitMetadata
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.hudi.timeline import Timeline

COMMITS = "commits"
"""The kind of these events, in their `extra`."""
MAX_NAMED = 100
"""Maximum number of instants, and of partitions, that an event names."""
MAX_NAMES_CHARACTERS = 10_000
"""Maximum length of all partitions that an event names."""
MAX_DONE = 200
"""Maximum number of commits that a cursor remembers one by one; older ones only by their completion."""
_NEVER = "9" * 17


@dataclass(frozen=True, slots=True)
class EventCursor:
    """What was reported. All times are completed times; empty is before the first commit."""

    until: str = ""
    """The newest commit that was reported."""
    complete_until: str = ""
    """What the last event said of completeness."""
    floor: str = ""
    """Every commit that completed up to it was reported."""
    done: tuple[str, ...] = ()
    """Requested times of the reported commits that completed after the floor."""

    def to_text(self) -> str:
        """Return the cursor as the registry, and Airflow's state store, keep it; the inverse of `parse_cursor`."""
        return json.dumps(asdict(self), separators=(",", ":"))


def parse_cursor(text: str) -> EventCursor:
    """Return the cursor of its text. Raises ValueError for any other text."""
    try:
        body = json.loads(text)
        return EventCursor(body["until"], body["complete_until"], body["floor"], tuple(map(str, body["done"])))
    except (KeyError, TypeError) as error:
        raise ValueError(f"no cursor of commit events: {text[:100]!r}") from error


@dataclass(frozen=True, slots=True)
class CommitEvent:
    """The commits that completed after `after` (exclusive) up to `until` (inclusive): all of them, and no others."""

    after: str
    until: str
    complete_until: str = ""
    """Every write that began, or completed, up to this time is in this event or in an earlier one.

    It is before `until` while an older write is pending. What begins later completes later.
    """
    commits: int = 0
    instants: tuple[str, ...] = ()
    """Requested times (`_hoodie_commit_time` of their rows), in the order of completion; the first `MAX_NAMED`."""
    partitions: tuple[str, ...] = ()
    """Those that were written to, sorted; as many as the bounds allow."""
    partition_count: int = 0
    rows: int = 0
    """Inserted, updated and deleted ones, by the commits' own statistics."""
    written_bytes: int = 0
    restored: tuple[str, ...] = ()
    """Restores among the instants: rows that were reported are gone."""
    is_late: bool = False
    """A listing showed it after commits that completed later: a reader of the earlier event may have had it already."""
    is_cut: bool = False
    """The active timeline no longer shows all commits of the range: the numbers, and what is named, lack some."""

    def to_extra(self, base_path: str, table_name: str) -> dict[str, Any]:
        """Return the `extra` of Airflow's asset event."""
        return {"kind": COMMITS, "table": table_name, "base_path": base_path, **asdict(self)} | {
            "instants": list(self.instants),
            "partitions": list(self.partitions),
            "restored": list(self.restored),
        }


def begin_cursor(timeline: Timeline, commits: Mapping[str, CommitMetadata]) -> EventCursor:
    """Return the cursor of a table whose commits become events from now on."""
    changes = _find_changes(timeline, commits)
    return _advance(EventCursor(), timeline, changes, changes)


def find_events(
    cursor: EventCursor, timeline: Timeline, commits: Mapping[str, CommitMetadata]
) -> tuple[EventCursor, tuple[CommitEvent, ...]]:
    """Return the events of what was not reported yet, and the cursor after them.

    That is one event at most, but for commits that show late: each run of those is an event of its own, whose range
    has no other commit. When an older write that was pending ends without a commit, the event has no commit either: it
    says that the table is complete up to a later time.
    """
    changes = _find_changes(timeline, commits)
    fresh = _find_fresh(cursor, changes)
    after = _advance(cursor, timeline, changes, fresh)
    if not fresh:
        is_complete_later = cursor.complete_until < cursor.until and after.complete_until > cursor.complete_until
        nothing = (CommitEvent(cursor.until, cursor.until, after.complete_until),) if is_complete_later else ()
        return (after if nothing else cursor), nothing
    new = {instant.requested_time for instant in fresh}
    is_cut = bool(cursor.until) and not any(instant.ordering_time <= cursor.until for instant in changes)
    events = []
    before = cursor.floor
    for is_new, group in groupby(changes, lambda instant: instant.requested_time in new):
        instants = tuple(group)
        last = instants[-1].ordering_time
        if is_new:
            is_late = last <= cursor.until
            begin = before if is_late else max(before, cursor.until)
            event = _describe(instants, commits, begin, is_cut=is_cut and not is_late)
            events.append(replace(event, complete_until=after.complete_until, is_late=is_late))
        before = max(before, last)
    return after, tuple(events)


def find_unread(cursor: EventCursor, timeline: Timeline) -> tuple[Instant, ...]:
    """Return the completed writes whose metadata `find_events` needs after a cursor."""
    return tuple(_find_fresh(cursor, timeline.completed_writes))


def _find_fresh(cursor: EventCursor, completed: Iterable[Instant]) -> list[Instant]:
    done = frozenset(cursor.done)
    return [i for i in completed if i.ordering_time > cursor.floor and i.requested_time not in done]


def _find_changes(timeline: Timeline, commits: Mapping[str, CommitMetadata]) -> tuple[Instant, ...]:
    """Return completed writes that changed rows, and restores, by completion; what cannot be read may be a change."""
    changes = [instant for instant in timeline.completed() if instant.action is Action.RESTORE]
    for write in timeline.completed_writes:
        metadata = commits.get(write.requested_time)
        if metadata is None or metadata.operation not in OPERATIONS_WITHOUT_CHANGES:
            changes.append(write)
    return tuple(sorted(changes, key=lambda instant: (instant.ordering_time, instant.requested_time)))


def _advance(
    cursor: EventCursor, timeline: Timeline, changes: Sequence[Instant], fresh: Sequence[Instant]
) -> EventCursor:
    until = max((cursor.until, *(instant.ordering_time for instant in fresh)))
    # A write completes after it was requested: what is pending now completes after this bound.
    pending = min((write.requested_time for write in timeline.pending_writes()), default=_NEVER)
    complete = (instant.ordering_time for instant in changes if instant.ordering_time < pending)
    complete_until = max(cursor.complete_until, *complete, *([until] if pending > until else []), "")
    # A store may list the timeline in pages, and a write that begins and completes meanwhile is in none of them. So the
    # floor is what an earlier listing showed to be complete: what completed by then is in the one at hand.
    floor = max(cursor.floor, cursor.complete_until)
    above = [instant for instant in changes if instant.ordering_time > floor]
    floor = max((floor, *(instant.ordering_time for instant in above[:-MAX_DONE])))
    done = tuple(instant.requested_time for instant in above if instant.ordering_time > floor)
    return EventCursor(until, complete_until, floor, done)


def _describe(
    instants: Sequence[Instant],
    commits: Mapping[str, CommitMetadata],
    after: str,
    *,
    is_cut: bool,
) -> CommitEvent:
    restores = [instant.requested_time for instant in instants if instant.action is Action.RESTORE]
    writes = [instant.requested_time for instant in instants if instant.action is not Action.RESTORE]
    read = [commits[time] for time in writes if time in commits]
    partitions = sorted({stat.partition for commit in read for stat in commit.stats})
    return CommitEvent(
        after=after,
        until=instants[-1].ordering_time,
        commits=len(writes),
        instants=tuple(writes[:MAX_NAMED]),
        partitions=tuple(_bounded(partitions)),
        partition_count=len(partitions),
        rows=sum(commit.changed_rows for commit in read),
        written_bytes=sum(commit.written_bytes for commit in read),
        restored=tuple(restores[:MAX_NAMED]),
        is_cut=is_cut or len(read) < len(writes),
    )


def _bounded(names: Iterable[str]) -> list[str]:
    bounded: list[str] = []
    characters = 0
    for name in names:
        characters += len(name)
        if len(bounded) == MAX_NAMED or characters > MAX_NAMES_CHARACTERS:
            break
        bounded.append(name)
    return bounded
