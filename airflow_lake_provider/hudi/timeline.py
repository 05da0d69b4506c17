"""Load a table's active timeline: one listing, no file is opened.

In layout 2 the names carry everything (but for files of early writers, which are stat'ed). In layout 1 the completion
time is the modification time of the completed file, so the listing carries times. A name that is not understood is
reported, never skipped in silence.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from datetime import UTC
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

from airflow_lake_provider.errors import DamagedFileError, HalfMovedError, TableNotFoundError
from airflow_lake_provider.hudi.instant import STATE_RANK, Instant, Layout, TimelineProblem, is_known_stranger
from airflow_lake_provider.hudi.properties import load_table_properties, zone_of_jobs
from airflow_lake_provider.instant_clock import format_instant_time, offsets_of_writers, stamps_of
from airflow_lake_provider.job_contract import METADATA_TABLE
from airflow_lake_provider.shared.actions import (
    COMPARABLE_ACTION,
    COMPLETED_WRITE_ACTIONS,
    WRITE_ACTIONS,
    Action,
    State,
)
from airflow_lake_provider.shared.collector import collector_paused
from airflow_lake_provider.shared.hudi_settings import PROPERTIES_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_lake_provider.hudi.instant import Suffix
    from airflow_lake_provider.hudi.properties import TableProperties
    from airflow_lake_provider.storage.table_storage import Storage

# --- The active timeline of one table, as a value with its queries


@dataclass(frozen=True)
class Timeline:
    """Instants in Hudi's order (requested time, action, state), each in its highest state."""

    instants: tuple[Instant, ...] = ()
    problems: tuple[TimelineProblem, ...] = ()

    def completed(self) -> tuple[Instant, ...]:
        """Return the completed instants of all actions, by requested time."""
        return tuple(instant for instant in self.instants if instant.state is State.COMPLETED)

    def pending(self, *actions: Action) -> tuple[Instant, ...]:
        """Return requested and inflight instants, of the given actions or of all, by requested time."""
        return tuple(instant for instant in self._pending if not actions or instant.action in actions)

    @cached_property
    def _pending(self) -> tuple[Instant, ...]:
        return tuple(instant for instant in self.instants if instant.state is not State.COMPLETED)

    def pending_writes(self) -> tuple[Instant, ...]:
        """Return the writers' instants that are not completed: no plans of table services."""
        services = frozenset(COMPARABLE_ACTION)
        return tuple(i for i in self.pending(*WRITE_ACTIONS) if i.action not in services)

    @cached_property
    def completed_writes(self) -> tuple[Instant, ...]:
        """The completed commits, deltacommits and replacecommits in the order in which they completed."""
        writes = [instant for instant in self.completed() if instant.action in COMPLETED_WRITE_ACTIONS]
        return tuple(sorted(writes, key=_completion_key))

    def last_completed(self, action: Action) -> Instant | None:
        """Return the completed instant of an action that was requested last; None when there is none."""
        return next((i for i in reversed(self.instants) if i.action is action and i.is_completed), None)

    def overtaking(self, log_compaction: Instant) -> Instant | None:
        """Return the newer compaction or commit behind which Hudi never executes a log compaction; None without one.

        Source: `BaseHoodieTableServiceClient.logCompact`.
        """
        for instant in self.instants:
            is_newer = instant.requested_time > log_compaction.requested_time
            if is_newer and instant.action in {Action.COMPACTION, Action.COMMIT}:
                return instant
        return None

    def latest_completed(self, *actions: Action) -> Instant | None:
        """Return the instant that completed last, of the given actions or of all; None when there is none."""
        completed = (instant for instant in self.completed() if not actions or instant.action in actions)
        return max(completed, key=_completion_key, default=None)

    def latest_completed_time(self) -> str:
        """Return when an instant completed last (its requested time where layout 1 keeps no other); empty for never."""
        latest = self.latest_completed()
        return "" if latest is None else latest.ordering_time

    def holes(self) -> tuple[Instant, ...]:
        """Return the pending writes and plans of services with completed writes behind them."""
        newest = max((write.requested_time for write in self.completed_writes), default="")
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


def _completion_key(instant: Instant) -> tuple[str, str]:
    return instant.ordering_time, instant.requested_time


_LAYOUT_2_FOLDER = "timeline"

# What lies in the timeline's folder and is no instant: folders of either layout, and files of layout 1's `.hoodie`.
_KNOWN_NAMES = frozenset(
    {
        PROPERTIES_FILE,
        "hoodie.properties.backup",
        "hoodie.properties.updated",
        "history",
        "archived",
        "metadata",
        "timeline",
        ".temp",
        ".heartbeat",
        ".aux",
        ".schema",
        ".locks",
        ".index_defs",
        ".bucket_index",
        ".hashing_meta",
        ".expr_index_defs",
        "lock",
        "partition_metadata",
    }
)


@dataclass(frozen=True, slots=True)
class TimelineListing:
    """A timeline and the names that it was built from, so that the next one need only parse new names."""

    timeline: Timeline
    names: frozenset[str]


def load_timeline(storage: Storage, properties: TableProperties) -> Timeline:
    """List the timeline's folder and build the timeline.

    Raises StorageError; DamagedFileError when the folder has vanished, or while an upgrade moves the instants.
    """
    return load_listing(storage, properties).timeline


def load_listing(
    storage: Storage, properties: TableProperties, previous: TimelineListing | None = None
) -> TimelineListing:
    """Do as `load_timeline`; with an earlier listing of the same table, only names that were added are parsed."""
    try:
        if properties.layout.completion_is_modification:
            entries = storage.list_entries(properties.timeline_path)
            modified_ms = {entry.name: entry.modified_ms for entry in entries}
            if _LAYOUT_2_FOLDER in modified_ms:
                _require_not_moved(storage, f"{properties.timeline_path}/{_LAYOUT_2_FOLDER}")
            timeline = build_timeline(properties.layout, modified_ms, modified_ms, properties.time_zone)
            return TimelineListing(timeline, frozenset(modified_ms))
        names = storage.list_names(properties.timeline_path)
    except FileNotFoundError as error:
        raise DamagedFileError(
            f"table {storage.base_path!r}: its timeline folder {properties.timeline_path} is missing"
        ) from error
    added = names if previous is None else [name for name in names if name not in previous.names]
    if previous is not None and len(names) - len(added) == len(previous.names):  # no name has vanished
        timeline = extend_timeline(properties.layout, previous.timeline, added)
        return TimelineListing(_with_legacy_completions(storage, properties, timeline), previous.names.union(added))
    timeline = build_timeline(properties.layout, names)
    return TimelineListing(_with_legacy_completions(storage, properties, timeline), frozenset(names))


def _require_not_moved(storage: Storage, folder: str) -> None:
    """Raise HalfMovedError while instants of a table of layout 1 lie in layout 2's folder.

    An upgrade moves them there one by one before it writes the new version; a downgrade leaves an empty folder behind.
    Source: Hudi 1.2 `SevenToEightUpgradeHandler`, `EightToSevenDowngradeHandler`.
    """
    try:
        names = storage.list_names(folder)
    except FileNotFoundError:
        return
    if any(Layout.V2.split_file_name(name) is not None for name in names):
        raise HalfMovedError(
            f"table {storage.base_path!r}: an upgrade to version 8 or later is moving its timeline to {folder}; wait "
            "for its end, or run lake_upgrade if it died: Hudi's own second try may delete files"
        )


def _with_legacy_completions(storage: Storage, properties: TableProperties, timeline: Timeline) -> Timeline:
    """Stat the few completed files of layout 2 whose writers put no completion time into the name, as Hudi does."""
    modified_ms = {}
    for instant in timeline.completed():
        if instant.completed_time is None:
            names = [instant.file_name]
            if properties.time_zone != "UTC":
                names.append(f"{instant.requested_time}.{instant.action}.requested")
            for name in names:
                entry = storage.stat(f"{properties.timeline_path}/{name}")
                modified_ms[name] = entry.modified_ms if entry is not None else 0
    if not modified_ms:
        return timeline
    return replace(timeline, instants=tuple(_complete(timeline.instants, modified_ms, properties.time_zone)))


def build_timeline(
    layout: Layout, names: Iterable[str], modified_ms: Mapping[str, int] | None = None, time_zone: str = "LOCAL"
) -> Timeline:
    """Build a timeline from the names in its folder.

    `modified_ms` gives layout 1 its completion times, printed in the zone in which the instants were named.
    """
    with collector_paused():
        highest, problems = _collect_highest(layout, names)
        instants = [_instant_of(candidate) for candidate in highest.values()]
        if modified_ms is not None:
            instants = _complete(instants, modified_ms, time_zone)
        return _timeline_of(instants, problems)


def extend_timeline(layout: Layout, timeline: Timeline, added: Iterable[str]) -> Timeline:
    """Build what `build_timeline` would from the timeline's names and the added ones (layout 2)."""
    highest, problems = _collect_highest(layout, added)
    kept = []
    for instant in timeline.instants:
        key = f"{instant.requested_time}.{COMPARABLE_ACTION.get(instant.action, instant.action)}"
        newer = highest.get(key)
        if newer is None or newer[:2] < (STATE_RANK[instant.state], instant.file_name):
            kept.append(instant)
            highest.pop(key, None)
    added_instants = [_instant_of(candidate) for candidate in highest.values()]
    return _timeline_of([*kept, *added_instants], [*timeline.problems, *problems])


# A file that may be the highest state of its instant: rank, name, requested time, completed time, suffix. They are
# compared as tuples and names differ, so the name decides between equal ranks, whatever the listing's order. Most are
# outlived by a higher state, and never become an Instant.
_Candidate: TypeAlias = "tuple[int, str, str, str, Suffix]"


def _collect_highest(layout: Layout, names: Iterable[str]) -> tuple[dict[str, _Candidate], list[TimelineProblem]]:
    """Return the highest state per requested time and comparable action, and what is not understood."""
    highest: dict[str, _Candidate] = {}
    problems: list[TimelineProblem] = []
    split = layout.split_file_name
    pending: list[str] = []
    others: list[str] = []
    for name in names:
        (pending if name.endswith(_PENDING) else others).append(name)
    # Sorted by name they are nearly in the order of the timeline, and sorted again in no time.
    others.sort()
    completed: set[str] = set()
    # Two thirds of a long timeline are outlived: searching a set costs a fifth of splitting a name.
    left = (name for name in pending if name.rpartition(".")[0] not in completed)
    for name in chain(others, left):
        parts = split(name)
        if parts is None:
            if name not in _KNOWN_NAMES and not is_known_stranger(name):
                # Names need not be text; problems are printed and sent as such.
                printable = name.encode("utf-8", "backslashreplace").decode()
                problems.append(TimelineProblem(printable, "not a name of the timeline that this package knows"))
            continue
        requested_time, completed_time, suffix = parts
        key = f"{requested_time}.{suffix.comparable}"
        known = highest.get(key)
        candidate = (suffix.rank, name, requested_time, completed_time, suffix)
        if known is None or candidate > known:
            highest[key] = candidate
        if suffix.state is State.COMPLETED:
            completed.add(f"{requested_time}.{suffix.completed}")
    return highest, problems


_PENDING = tuple(f".{state.value.lower()}" for state in (State.REQUESTED, State.INFLIGHT))


def _instant_of(candidate: _Candidate) -> Instant:
    _, name, requested_time, completed_time, suffix = candidate
    return Instant(requested_time, suffix.action, suffix.state, completed_time or None, name)


def _timeline_of(instants: list[Instant], problems: list[TimelineProblem]) -> Timeline:
    instants.sort(key=_SORT_KEY)
    return Timeline(tuple(instants), tuple(sorted(problems, key=lambda problem: problem.file_name)))


# At most one instant per requested time and comparable action is left, so the state never decides the order.
_SORT_KEY = attrgetter("requested_time", "action")


# Requested and completed times are compared as text, so both must have the zone of the writer's clock. With LOCAL only
# the files show it; this process's zone, in which Hudi would print the times here, may be another one.


def _complete(instants: Iterable[Instant], modified_ms: Mapping[str, int], time_zone: str) -> list[Instant]:
    """Return the instants, completed ones without a completed time with that of their file."""
    clock = _WritersClock(modified_ms, time_zone)
    return [
        replace(instant, completed_time=clock.print(instant.requested_time, modified_ms.get(instant.file_name, 0)))
        if instant.is_completed and instant.completed_time is None
        else instant
        for instant in instants
    ]


class _WritersClock:
    """Prints files' times as the clock that named an instant would have.

    An instant whose own files do not show its zone has that of the nearest earlier one which do, else of the first one.
    Without any, such as in a copied table, it is the zone of the jobs by default.
    """

    def __init__(self, modified_ms: Mapping[str, int], time_zone: str) -> None:
        self._default = zone_of_jobs(time_zone, {})
        # In a table with UTC all names are UTC.
        shown = {} if time_zone == "UTC" else offsets_of_writers(stamps_of(modified_ms.items()))
        self._instants = sorted(shown)
        self._offsets_ms = [shown[instant] for instant in self._instants]

    def print(self, requested_time: str, time_ms: int) -> str:
        if not self._instants:
            return format_instant_time(time_ms, self._default.zone)
        nearest = max(0, bisect_right(self._instants, requested_time) - 1)
        return format_instant_time(time_ms + self._offsets_ms[nearest], UTC)


# --- The metadata table (`.hoodie/metadata`): a table with a timeline of its own, below the table that it describes


def metadata_storage(storage: Storage) -> Storage:
    """Return the storage of a table's metadata table, whether there is one or not."""
    return replace(storage, base_path=f"{storage.base_path}/{METADATA_TABLE}", root=f"{storage.root}/{METADATA_TABLE}")


def load_metadata_timeline(storage: Storage) -> Timeline | None:
    """Return the metadata table's active timeline, None when there is no such table. Raises StorageError."""
    metadata = metadata_storage(storage)
    try:
        return load_timeline(metadata, load_table_properties(metadata))
    except (TableNotFoundError, DamagedFileError):
        return None
