"""What must leave an active timeline before other instants do, and what must not leave it. Pure.

Hudi 1.2.0 knows of no archived write when it completed, unless it is older than the first active instant of any action
and state (`CompletionTimeQueryViewV2`: `getCompletionTime` of a later one is empty, and `isCompletedBefore` false). So
a compaction leaves the log files of such a write out. Hudi's archiver takes writes, cleans and rollbacks alone
(`TimelineArchiverV2`), so that an index build or a restore stays at the head while the writes behind it go.

Table versions up to 6 slice files by the name of the base file, and are not affected.

Standard library only: this file travels to Spark in the jobs' zip.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from airflow_lake_provider.shared.actions import COMPLETED_WRITE_ACTIONS, WRITE_ACTIONS, Action, State

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

COMPLETED = State.COMPLETED
OUTLASTS_WRITES = frozenset({Action.INDEXING, Action.RESTORE})
"""Completed actions that Hudi's archiver never takes."""
_ARCHIVED_BY_HUDI = COMPLETED_WRITE_ACTIONS | {Action.CLEAN, Action.ROLLBACK, Action.SAVEPOINT}


class TimelineInstant(NamedTuple):
    """An instant of the active timeline, as either side of Spark sees it."""

    requested_time: str
    action: str
    state: str

    @property
    def lets_writes_pass(self) -> bool:
        """Whether Hudi archives writes behind it while it stays, savepoints aside: it is no write, and is not archived.

        Hudi passes no pending write. Cleans and rollbacks are archived with the writes behind them; those that an
        upgrade from layout 1 left before archived writes harm nothing, because it compacts the table first.
        """
        if self.state == COMPLETED:
            return self.action not in _ARCHIVED_BY_HUDI
        return self.action not in WRITE_ACTIONS


@dataclass(frozen=True, slots=True)
class ArchivedBehind:
    """Archived writes that are younger than an active instant which has to be older than none of them."""

    head: TimelineInstant
    writes: tuple[str, ...]
    """Requested times, oldest first."""

    @property
    def is_savepoint(self) -> bool:
        """Whether the instant is a write: it has, or had, a savepoint, and readers leave the archived writes out."""
        return self.head.action in COMPLETED_WRITE_ACTIONS

    def describe(self) -> str:
        """Return what is wrong, in one sentence."""
        count = f"{len(self.writes)} write{'' if len(self.writes) == 1 else 's'}"
        if self.is_savepoint:
            return f"{count} after savepoint {self.head.requested_time} are archived, so Hudi's readers leave them out"
        state = "" if self.head.state == COMPLETED else "pending "
        return (
            f"{count} after the {state}{self.head.action} {self.head.requested_time}, which stays active, are "
            "archived, so a compaction leaves their log files out"
        )

    def refuse(self) -> str:
        """Return why a service that would make the loss final does not run, and what to do."""
        kind = "archived_behind_savepoint" if self.is_savepoint else "archived_behind_head"
        way_back = f"`airflow lake doctor` names the way back ({kind})"
        return f"{self.describe()}, and this service would make that final: {way_back}"


def find_archived_behind(
    active: Iterable[TimelineInstant], archived_writes: Iterable[str], *, slices_by_completion: bool
) -> ArchivedBehind | None:
    """Return the archived writes (requested times) that Hudi no longer takes for what they are; None without any.

    What the archiver has just written down may still be active. A savepoint's write is the graver case: readers leave
    out what is behind it, on every table. Any other instant harms merge-on-read tables from version 8 on alone, which
    `slices_by_completion` says.
    """
    instants = sorted(active)
    gone = sorted(set(archived_writes) - {instant.requested_time for instant in instants})
    writes = [
        instant for instant in instants if instant.action in COMPLETED_WRITE_ACTIONS and instant.state == COMPLETED
    ]
    passed = [instant for instant in instants if instant.lets_writes_pass] if slices_by_completion else []
    for head in (*writes[:1], *passed[:1]):
        behind = tuple(time for time in gone if time > head.requested_time)
        if behind:
            return ArchivedBehind(head, behind)
    return None


def needs_archive(active: Iterable[TimelineInstant], *, slices_by_completion: bool) -> bool:
    """Whether there may be archived writes that `find_archived_behind` finds, by the active timeline alone."""
    instants = sorted(active)
    first = min(
        (i.requested_time for i in instants if i.action in COMPLETED_WRITE_ACTIONS and i.state == COMPLETED), default=""
    )
    return any(
        i.action == Action.SAVEPOINT or (slices_by_completion and i.lets_writes_pass and i.requested_time < first)
        for i in instants
    )


# --- What archiving takes away itself, before Hudi archives the writes behind it


@dataclass(frozen=True, slots=True)
class HeadPlan:
    """What archiving does about instants that Hudi lets writes pass."""

    taken: tuple[TimelineInstant, ...] = ()
    """They leave the active timeline first, oldest first."""
    stays: TimelineInstant | None = None
    """The oldest one that cannot leave yet: no write behind it may be archived."""


def plan_heads(
    active: Iterable[TimelineInstant], completed_times: Mapping[str, str], before: str, covered_until: str | None
) -> HeadPlan:
    """Return which instants before a moment (requested times, exclusive) archiving takes away, and which one stays.

    An index build or a restore may leave once the metadata table was compacted after it completed: until then Hudi
    reads by it which of that table's log blocks count (`HoodieTableMetadataUtil.getValidInstantTimestamps`).
    `covered_until` is when that compaction was requested, None without a metadata table, empty without a compaction.
    """
    passed = [instant for instant in sorted(active) if instant.lets_writes_pass and instant.requested_time < before]

    def may_leave(instant: TimelineInstant) -> bool:
        if instant.state != COMPLETED or instant.action not in OUTLASTS_WRITES:
            return False
        completed = completed_times.get(instant.requested_time) or instant.requested_time
        return covered_until is None or completed < covered_until

    stays = next((instant for instant in passed if not may_leave(instant)), None)
    return HeadPlan(tuple(instant for instant in passed if may_leave(instant)), stays)


# --- The newest checkpoint of each stream, which stays: a stream finds its position on the active timeline alone
#
# Sources: `StreamerCheckpointUtils` and `CommitUtils.getValidCheckpointForCurrentWriter` (Structured Streaming) of Hudi
# 1.2.0; Hudi issue 17848, pull request 6098.

STREAMER_KEY = "streamer.checkpoint"
"""Part of the keys of HoodieStreamer and of the older DeltaStreamer, in both versions of checkpoints."""
MAX_STREAMS_CHARACTERS = 512 * 1024
"""A longer text of streams is not read: a commit may hold any."""
SPARK_SINK_KEY = "_hudi_streaming_sink_checkpoint"
"""Key of Structured Streaming's sink. Its value is a JSON object with one entry for each stream's identifier."""
MAX_CHECKPOINTS = 100
SCHEMA_KEY = "schema"


def name_checkpoints(extra: Mapping[str, object]) -> tuple[str, ...]:
    """Return what a commit may hold the position of: the keys of its metadata, the sink's with each stream."""
    names: list[str] = []
    for key, value in extra.items():
        if key == SPARK_SINK_KEY:
            names += [f"{key}/{stream}" for stream in _streams_in(value)]
        elif key != SCHEMA_KEY:
            names.append(key)
    return tuple(sorted(names)[:MAX_CHECKPOINTS])


def _streams_in(value: object) -> list[str]:
    text = str(value)
    try:
        found = json.loads(text) if len(text) <= MAX_STREAMS_CHARACTERS else None
    except (ValueError, RecursionError):
        return [""]
    return [str(stream) for stream in found] if isinstance(found, dict) else [""]


def is_checkpoint(name: str, keys: Collection[str]) -> bool:
    """Whether one of these names is a stream's; `keys` are those that the table's policy names besides."""
    key = name.partition("/")[0]
    return STREAMER_KEY in key or key == SPARK_SINK_KEY or name in keys


def find_checkpoint_limit(
    commits: Mapping[str, Collection[str]], keys: Collection[str], since: str
) -> tuple[str, str] | None:
    """Return the oldest write (requested time) that is the newest one with a stream's checkpoint, and the name of it.

    `commits` are the names (`name_checkpoints`) by requested time. A stream that left none since a moment is given up.
    """
    newest: dict[str, str] = {}
    for requested in sorted(commits):
        newest |= {name: requested for name in commits[requested] if is_checkpoint(name, keys)}
    return min(((requested, name) for name, requested in newest.items() if requested >= since), default=None)
