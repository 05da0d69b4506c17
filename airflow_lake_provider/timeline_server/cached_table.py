"""What a server caches of one table between two refreshes: a packed snapshot and a few numbers."""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from airflow_lake_provider.shared.actions import COMPLETED_WRITE_ACTIONS, Action
from airflow_lake_provider.shared.hudi_settings import MERGE_ON_READ
from airflow_lake_provider.timeline_server.commit_interval import find_commit_interval_s
from airflow_lake_provider.timeline_server.snapshot import Known, find_new_names, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_lake_provider.errors import LakeError
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.storage.table_storage import Storage
    from airflow_lake_provider.timeline_server.snapshot import TimelineSnapshot

T = TypeVar("T", int, float, bool)

_MAX_HINTED = 64
NOTHING: frozenset[str] = frozenset()
"""The empty set of all tables: one for each would take 216 bytes."""


@dataclass(frozen=True, slots=True)
class Hints:
    """What the hints since a table's last refresh contain.

    A burst hints thousands of tables at once, so what is empty is one object of all of them, and marks are tuples.
    """

    is_hinted: bool = False
    is_by_writer: bool = False
    """Whether a writer announced a commit, not a task of the provider."""
    instants: tuple[str, ...] = ()
    """Requested times that hints named; cut when there are too many."""
    named: frozenset[str] = NOTHING
    """All requested times that hints named, whatever other hints there were."""
    named_marks: tuple[int, ...] = ()
    """Numbers of the marks whose hints named instants."""
    names_nothing: bool = False
    """Whether a writer announced a commit without naming it, and without a mark."""
    marks: tuple[int, ...] = ()
    """Numbers of the durable marks that caused the hints."""

    def and_one(self, instants: tuple[str, ...], marks: tuple[int, ...], *, is_by_writer: bool) -> Hints:
        """Return these hints and one more."""
        # A hint without instants requests a refresh, whatever the others name.
        names_nothing = not instants or (self.is_hinted and not self.instants)
        return Hints(
            is_hinted=True,
            is_by_writer=self.is_by_writer or is_by_writer,
            instants=() if names_nothing else (*self.instants, *instants)[: _MAX_HINTED + 1],
            named=self.named.union(instants) if instants else self.named,
            named_marks=_together(self.named_marks, marks) if instants else self.named_marks,
            names_nothing=self.names_nothing or (is_by_writer and not instants and not marks),
            marks=_together(self.marks, marks),
        )

    @property
    def mark(self) -> int:
        """The newest mark; 0 without any."""
        return max(self.marks, default=0)

    def are_shown_by(self, snapshot: TimelineSnapshot, covered_mark: int) -> bool:
        """Whether the snapshot already has every named instant completed, so that no refresh is needed.

        Between `covered_mark` and the newest one there must be no mark that another process made: the instants of that
        one are not named here.
        """
        if not self.instants or len(self.instants) > _MAX_HINTED:
            return False
        if len([mark for mark in self.marks if mark > covered_mark]) < self.mark - covered_mark:
            return False
        completed = {instant.requested_time for instant in snapshot.timeline.instants if instant.is_completed}
        return completed.issuperset(self.instants)


NO_HINTS = Hints()


def _together(some: tuple[int, ...], others: tuple[int, ...]) -> tuple[int, ...]:
    return tuple({*some, *others}) if some and others else some or others


# --- A table's record: a head of numbers (8 bytes each instead of the 40 of an attribute), the version of the newest
# snapshot, and that snapshot, packed. Each change of it is one step for all threads: one of them may register a table
# while another one refreshes it.


class _Number(Generic[T]):
    """A number in the head of a record, behind the one `after`."""

    def __init__(self, code: str, after: _Number[Any] | None = None) -> None:
        self._format: struct.Struct = struct.Struct(f"<{code}")
        self._begin: int = 0 if after is None else after.end
        self.end: int = self._begin + self._format.size

    def __get__(self, cached: CachedTimeline, _: type[CachedTimeline]) -> T:
        number: T = self._format.unpack_from(cached.record, self._begin)[0]
        return number

    def __set__(self, cached: CachedTimeline, number: T) -> None:
        self._format.pack_into(cached.record, self._begin, number)


_VERSION_BYTES = 16
_NO_SECONDS = -1.0


class CachedTimeline:
    """One table. The thread that refreshes it holds its lock (`TableMemory.refreshing`); others read without it."""

    __slots__ = (
        "awaited",
        "base_path",
        "error",
        "hints",
        "newest_completion",
        "open_table",
        "record",
        "timeline_path",
        "unnamed",
        "volume",
    )

    begun = _Number[int]("I")
    """How many refreshes began; `shown` is the number of the one whose result is shown."""
    shown = _Number[int]("I", begun)
    properties_checked = _Number[int]("I", shown)
    """The number of the refresh that checked the properties."""
    failures = _Number[int]("I", properties_checked)
    as_of_ms = _Number[int]("q", failures)
    folder_ms = _Number[int]("q", as_of_ms)
    _stamp_ms = _Number[int]("q", folder_ms)
    _stamp_bytes = _Number[int]("q", _stamp_ms)
    properties_ms = _Number[int]("q", _stamp_bytes)
    """When the properties were last checked, ms since the epoch."""
    changed_ms = _Number[int]("q", properties_ms)
    covered_mark = _Number[int]("q", changed_ms)
    failed_ms = _Number[int]("q", covered_mark)
    due_ms = _Number[int]("q", failed_ms)
    """When the next refresh without a hint is due, ms since the epoch; 0 for never."""
    watched_s = _Number[float]("f", due_ms)
    watched_until_ms = _Number[int]("q", watched_s)
    unannounced_s = _Number[float]("f", watched_until_ms)
    """How often watchers would poll it that wait for what no writer announces."""
    unannounced_until_ms = _Number[int]("q", unannounced_s)
    _commit_interval_s = _Number[float]("f", unannounced_until_ms)
    _fixed_pause_s = _Number[float]("f", _commit_interval_s)
    is_announced = _Number[bool]("?", _fixed_pause_s)
    is_registered = _Number[bool]("?", is_announced)
    was_used = _Number[bool]("?", is_registered)
    """Whether its snapshot was asked for, or refreshed again, since it last had the chance to be evicted."""
    _HEAD_BYTES: ClassVar[int] = was_used.end
    _SNAPSHOT: ClassVar[int] = was_used.end + _VERSION_BYTES

    def __init__(self, base_path: str, open_table: Callable[[str], Storage]) -> None:
        self.base_path = base_path
        self.open_table = open_table
        self.record = bytearray(self._HEAD_BYTES)
        self.timeline_path = ""
        self.newest_completion = ""
        """The latest completion time of a write that the evicted snapshot showed."""
        self.unnamed = NOTHING
        """Requested times of active commits that writers made without a notice: a silent writer is at work."""
        self.volume = ""
        """The file system or store of the table, once its folder times were asked about."""
        self.hints = NO_HINTS
        self.awaited: tuple[str, ...] = ()
        """Versions of readers that wait for an answer: the next refresh that shows another one is logged."""
        self.error: LakeError | None = None
        self.commit_interval_s = self.fixed_pause_s = None

    @property
    def version(self) -> str:
        """The version of the newest snapshot, whether it is kept or not; empty for none."""
        return self.record[self._HEAD_BYTES : self._SNAPSHOT].hex()

    @property
    def properties_stamp(self) -> tuple[int, int]:
        """Modification time and size of hoodie.properties before it was read."""
        return self._stamp_ms, self._stamp_bytes

    @property
    def commit_interval_s(self) -> float | None:
        """The usual gap between two commits; None without two."""
        return None if self._commit_interval_s == _NO_SECONDS else self._commit_interval_s

    @commit_interval_s.setter
    def commit_interval_s(self, interval_s: float | None) -> None:
        self._commit_interval_s = _NO_SECONDS if interval_s is None else interval_s

    @property
    def fixed_pause_s(self) -> float | None:
        """What replaces the table's adaptive heartbeat; None for nothing."""
        return None if self._fixed_pause_s == _NO_SECONDS else self._fixed_pause_s

    @fixed_pause_s.setter
    def fixed_pause_s(self, pause_s: float | None) -> None:
        self._fixed_pause_s = _NO_SECONDS if pause_s is None else pause_s

    @property
    def storage(self) -> Storage:
        """The table's storage."""
        return self.open_table(self.base_path)

    @property
    def packed(self) -> bytes:
        """The packed snapshot; empty when it was evicted, or when there was none yet."""
        return bytes(self.record[self._SNAPSHOT :])

    @property
    def packed_bytes(self) -> int:
        """How long the packed snapshot is."""
        return max(0, len(self.record) - self._SNAPSHOT)

    def known(self) -> Known | None:
        """Return what the last refresh left, unpacked; None when nothing is cached."""
        record = bytes(self.record[self._HEAD_BYTES :])
        version = record[:_VERSION_BYTES]
        packed = record[_VERSION_BYTES:]
        if not packed:
            return None
        snapshot = unpack(packed, self.base_path, version.hex(), self.as_of_ms)
        return Known(snapshot, self.folder_ms, self.properties_stamp)

    def take(self, known: Known) -> None:
        """Take what a refresh of this process, or of an earlier one, left."""
        snapshot = known.snapshot
        self.as_of_ms = snapshot.as_of_ms
        self.folder_ms = known.folder_ms
        self._stamp_ms, self._stamp_bytes = known.properties_stamp
        self.timeline_path = sys.intern(snapshot.properties.timeline_path)
        if not self.packed_bytes or snapshot.version != self.version:
            self.record[self._HEAD_BYTES :] = bytes.fromhex(snapshot.version) + pack(snapshot)

    def keep(self, before: Known | None, after: Known) -> frozenset[str] | None:
        """Keep what a refresh read; return the file names of new instants, None when nothing changed."""
        snapshot = after.snapshot
        version = self.version
        is_same = self.packed_bytes > 0 and snapshot.version == version
        self.take(after)
        self.failures = 0
        self.error = None
        if is_same:
            return None
        self.commit_interval_s = find_commit_interval_s(snapshot.timeline)
        if before is not None and snapshot.version != before.snapshot.version:
            return find_new_names(before.snapshot, snapshot)
        if version and snapshot.version != version:  # evicted meanwhile: what is new is not known
            completed = snapshot.timeline.completed_writes
            last = self.newest_completion
            return frozenset(i.file_name for i in completed if (i.completed_time or "") > last)
        return None

    def evict(self) -> None:
        """Drop what is large; version and schedule stay."""
        if (known := self.known()) is not None:
            completed = known.snapshot.timeline.completed_writes
            self.newest_completion = max((i.completed_time or "" for i in completed), default="")
            del self.record[self._SNAPSHOT :]

    def is_needed(self, now_ms: int) -> bool:
        """Whether the table is registered, watched, or hinted."""
        return self.is_followed(now_ms) or self.hints.is_hinted

    def is_followed(self, now_ms: int) -> bool:
        """Whether the table is registered or watched."""
        return self.is_registered or self.watched_until_ms > now_ms

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
    properties = after.snapshot.properties
    listing = after.listing
    own = {Action.DELTACOMMIT} if properties.table_type == MERGE_ON_READ else {Action.DELTACOMMIT, Action.COMMIT}
    names = frozenset() if listing is None else listing.names
    times = sorted(
        instant.requested_time
        for instant in new
        if instant.action in own and f"{instant.requested_time}.logcompaction.requested" not in names
    )
    unnamed = [time for time in times if time not in hints.named]
    return frozenset() if hints.names_nothing else frozenset(unnamed[: max(len(unnamed) - other_marks, 0)])
