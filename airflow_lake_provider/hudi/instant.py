"""Instants, active and archived, and how each timeline layout writes them into file names.

Parsing and printing are inverses.

Source: Hudi 1.2 `InstantGeneratorV1`/`V2`, `InstantFileNameGeneratorV1`/`V2`, `InstantComparators`.

Layout 1 (table versions up to 6): `<requested>.<action>` when completed; the completion time is the file's modification
time. Layout 2 (versions 8 and 9): `<requested>_<completed>.<action>`. In both, pending states are
`<requested>.<action>.<state>`, except that an inflight `commit` is `<requested>.inflight`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.shared.actions import COMPARABLE_ACTION, COMPLETED_WRITE_ACTIONS, Action, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


STATE_RANK: Mapping[State, int] = MappingProxyType({State.REQUESTED: 0, State.INFLIGHT: 1, State.COMPLETED: 2})


@dataclass(frozen=True, slots=True)
class Instant:
    """One action on the timeline in its highest state.

    Times are Hudi's instant times (`yyyyMMddHHmmssSSS`, ordered as strings). `completed_time` is None while pending,
    and where the name lacks it, until the file's modification time is read.
    """

    requested_time: str
    action: Action
    state: State
    completed_time: str | None
    file_name: str

    @property
    def is_completed(self) -> bool:
        """Whether the instant is completed."""
        return self.state is State.COMPLETED

    @property
    def ordering_time(self) -> str:
        """When it completed; the requested time while no completed time is known."""
        return self.completed_time or self.requested_time

    @property
    def may_be_empty(self) -> bool:
        """Whether the instant's file may be empty: an inflight one, or the request of a write that plans nothing."""
        if self.state is State.REQUESTED:
            return self.action in {Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT, Action.SCHEMACOMMIT}
        return self.state is State.INFLIGHT

    @property
    def sort_key(self) -> tuple[str, str, int]:
        """Hudi's order of a timeline: requested time, action, state."""
        return self.requested_time, self.action.value, STATE_RANK[self.state]

    def to_dict(self) -> dict[str, str | None]:
        """Return the instant as the timeline server, sensors and the command line show it."""
        return {
            "requested_time": self.requested_time,
            "action": self.action.value,
            "state": self.state.value,
            "completed_time": self.completed_time,
        }


def instant_from_dict(body: Mapping[str, Any]) -> Instant:
    """Return the instant of `Instant.to_dict` and a `file_name`. Raises KeyError, ValueError."""
    completed_time = body["completed_time"]
    return Instant(
        str(body["requested_time"]),
        Action(body["action"]),
        State(body["state"]),
        None if completed_time is None else str(completed_time),
        str(body["file_name"]),
    )


@dataclass(frozen=True, slots=True)
class Suffix:
    """What stands behind the times in a file name."""

    action: Action
    state: State
    rank: int
    completed: str
    """The suffix of the action's completed state, as a plain string: an enumeration's hash is computed in Python."""
    comparable: str
    """That of the action under which it is compared."""


def _suffixes() -> dict[str, Suffix]:
    suffixes = {}
    for action in Action:
        for state in State:
            text = action.value if state is State.COMPLETED else f"{action.value}.{state.value.lower()}"
            if action is Action.COMMIT and state is State.INFLIGHT:
                text = "inflight"
            comparable = COMPARABLE_ACTION.get(action, action)
            suffixes[text] = Suffix(action, state, STATE_RANK[state], action.value, comparable.value)
    # Hudi's rule would also read this spelling, whichever process wrote it.
    suffixes["commit.inflight"] = suffixes["inflight"]
    return suffixes


SUFFIXES: Mapping[str, Suffix] = MappingProxyType(_suffixes())

# Local file systems of Hadoop write checksums; HDFS-like ones write `<name>.<uuid>` first and rename. Next to the
# instants of layout 1, Hudi keeps what it takes out of a metadata table as `.metadata_<index>_<time>`, and a whole one
# as `.metadata_<time>` (`HoodieTableMetadataUtil.deleteMetadataTablePartition`, `deleteMetadataTable`).
_KNOWN_STRANGER = re.compile(
    r"\..*\.crc|\d+(_\d+)?\.[a-z.]+\.[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|\.metadata_(?:.+_)?\d{17}", re.ASCII
)


class Layout(StrEnum):
    """Version of the timeline's layout (`hoodie.timeline.layout.version`). The only place that distinguishes them."""

    V1 = "1"
    V2 = "2"

    @property
    def completion_is_modification(self) -> bool:
        """Whether a completed instant's time of completion is the modification time of its file."""
        return self is Layout.V1

    def split_file_name(self, name: str) -> tuple[str, str, Suffix] | None:
        """Split a file name into requested time, completed time (may be empty) and suffix; None if it is no such name.

        Timelines have tens of thousands of files, of which two thirds are outdated states: this builds no instant.
        """
        times, _, rest = name.partition(".")
        suffix = SUFFIXES.get(rest)
        if suffix is None or not times.isascii():
            return None
        if times.isdigit():
            return times, "", suffix
        requested_time, _, completed_time = times.partition("_")
        completes = suffix.state is State.COMPLETED and self is Layout.V2
        if not (completes and requested_time.isdigit() and completed_time.isdigit()):
            return None
        return requested_time, completed_time, suffix

    def parse_file_name(self, name: str) -> Instant | None:
        """Parse the name of a timeline file; None when it is no such name in this layout."""
        parts = self.split_file_name(name)
        if parts is None:
            return None
        requested_time, completed_time, suffix = parts
        return Instant(requested_time, suffix.action, suffix.state, completed_time or None, name)

    def file_name(self, instant: Instant) -> str:
        """Print the name of an instant's file; the inverse of `parse_file_name`."""
        if instant.state is not State.COMPLETED:
            if instant.action is Action.COMMIT and instant.state is State.INFLIGHT:
                return f"{instant.requested_time}.inflight"
            return f"{instant.requested_time}.{instant.action.value}.{instant.state.value.lower()}"
        if self is Layout.V2 and instant.completed_time is not None:
            return f"{instant.requested_time}_{instant.completed_time}.{instant.action.value}"
        return f"{instant.requested_time}.{instant.action.value}"


def is_known_stranger(name: str) -> bool:
    """Whether what is no instant belongs next to instants: a checksum, a write that is not renamed yet, a backup."""
    return _KNOWN_STRANGER.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class TimelineProblem:
    """A file among the instants that is not understood, or an instant whose file is damaged."""

    file_name: str
    reason: str

    @staticmethod
    def of(file_name: str, error: Exception) -> TimelineProblem:
        """Return the problem that an error describes; the error may name the file, which appears once."""
        return TimelineProblem(file_name, str(error).removeprefix(f"{file_name}: "))


# --- Instants that were moved out of the active timeline, as values, whichever format they were archived in


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
    what `commit_metadata.decode` returns; None when they were not requested, and when the archive has none.
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
