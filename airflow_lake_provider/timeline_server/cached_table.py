"""What a server keeps of one table between two looks: a packed snapshot and a few numbers."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from airflow_lake_provider.timeline_server.refresh import UNKNOWN, Known
from airflow_lake_provider.timeline_server.schedule import find_rhythm_s
from airflow_lake_provider.timeline_server.snapshot import Difference, find_difference, pack, remember, unpack
from airflow_lake_provider.timeline_server.watch import COMMIT_ACTIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_lake_provider.errors import LakeError
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.storage.table_storage import Storage
    from airflow_lake_provider.timeline_server.snapshot import TimelineSnapshot

_MOST_HINTED = 64


@dataclass(slots=True)
class Hints:
    """What was said of a table since its last look."""

    is_hinted: bool = False
    is_by_writer: bool = False
    """Whether a writer announced a commit, not one of our own tasks."""
    instants: tuple[str, ...] = ()
    """Requested times that were named; cut when there are too many."""
    marks: frozenset[int] = frozenset()
    """Numbers of the durable marks that the hints stand for."""

    def add(self, instants: tuple[str, ...], marks: frozenset[int], *, is_by_writer: bool) -> None:
        """Add one hint."""
        # A hint that names nothing asks for a look, whatever the others name.
        names_nothing = not instants or (self.is_hinted and not self.instants)
        self.instants = () if names_nothing else (*self.instants, *instants)[: _MOST_HINTED + 1]
        self.is_hinted = True
        self.is_by_writer = self.is_by_writer or is_by_writer
        self.marks |= marks

    @property
    def mark(self) -> int:
        """The newest mark; 0 without any."""
        return max(self.marks, default=0)

    def are_shown_by(self, snapshot: TimelineSnapshot, covered_mark: int) -> bool:
        """Whether the snapshot already has every named instant completed, so that nobody need look.

        Between `covered_mark` and the newest one there must be no mark that another process took: what that one
        stands for is not named here.
        """
        if not self.instants or len(self.instants) > _MOST_HINTED:
            return False
        if len([mark for mark in self.marks if mark > covered_mark]) < self.mark - covered_mark:
            return False
        completed = {instant.requested_time for instant in snapshot.timeline.instants if instant.is_completed}
        return completed.issuperset(self.instants)


@dataclass(slots=True)
class Slot:
    """One table. Whoever looks holds `lock`; the other fields are read without it."""

    open_storage: Callable[[], Storage]
    lock: threading.Lock = field(default_factory=threading.Lock)
    begun: int = 0
    """How many looks began; `shown` is the number of the one whose result is shown."""
    shown: int = 0
    packed: bytes | None = None
    version: str = ""
    timeline_path: str = ""
    as_of_ms: int = 0
    folder_ms: int = UNKNOWN
    properties_stamp: tuple[int, int] = (UNKNOWN, UNKNOWN)
    properties_ms: int = 0
    """When the properties were last checked, ms since the epoch."""
    properties_checked: int = 0
    """The number of the look that checked them."""
    changed_ms: int = 0
    rhythm_s: float | None = None
    is_announced: bool = False
    gate_lies: bool = False
    hints: Hints = field(default_factory=Hints)
    covered_mark: int = 0
    awaited: frozenset[str] = frozenset()
    """Versions of readers who could not be answered: the next look that shows another one is logged."""
    watched_s: float | None = None
    watched_until_ms: int = 0
    is_registered: bool = False
    fixed_pause_s: float | None = None
    failures: int = 0
    error: LakeError | None = None
    failed_ms: int = 0
    steps: tuple[Difference, ...] = ()
    _storage: Storage | None = None

    @property
    def storage(self) -> Storage:
        """The table's storage, opened when it is first asked: to do so may read an Airflow connection."""
        if self._storage is None:
            self._storage = self.open_storage()
        return self._storage

    def known(self) -> Known | None:
        """Return what the last look left, unpacked; None when nothing is kept."""
        packed = self.packed
        if packed is None:
            return None
        snapshot = replace(unpack(packed), as_of_ms=self.as_of_ms)
        return Known(snapshot, self.folder_ms, self.properties_stamp)

    def keep(self, before: Known | None, after: Known) -> Difference | None:
        """Keep a look's result; return what changed, None when nothing did."""
        snapshot = after.snapshot
        self.as_of_ms, self.folder_ms, self.properties_stamp = (
            snapshot.as_of_ms,
            after.folder_ms,
            after.properties_stamp,
        )
        self.failures, self.error = 0, None
        self.timeline_path = snapshot.properties.timeline_path
        if self.packed is not None and snapshot.version == self.version:
            return None
        step = None
        if before is not None and snapshot.version != before.snapshot.version:
            step = find_difference(before.snapshot, snapshot)
            self.steps = remember(self.steps, step)
        elif self.version and snapshot.version != self.version:  # evicted meanwhile: what changed is not known
            self.steps = ()
            names = tuple(instant.file_name for instant in snapshot.timeline.instants)
            step = Difference(self.version, snapshot.version, names, ())
        self.packed, self.version = pack(snapshot), snapshot.version
        self.rhythm_s = find_rhythm_s(snapshot.timeline)
        return step

    def evict(self) -> None:
        """Drop what is large; version and schedule stay."""
        self.packed = None
        self.steps = ()

    def is_needed(self, now_ms: int) -> bool:
        """Whether the table is registered, waited for, or hinted."""
        return self.is_registered or self.watched_until_ms > now_ms or self.hints.is_hinted

    def watched_pause_s(self, now_ms: int) -> float | None:
        """Return how often those who wait for the table would poll it; None when nobody waits."""
        return self.watched_s if self.watched_until_ms > now_ms else None


def new_commits(step: Difference | None, snapshot: TimelineSnapshot) -> tuple[Instant, ...]:
    """Return the completed commits among the instants that a step put."""
    put = set(step.put) if step is not None else set()
    return tuple(
        instant
        for instant in snapshot.timeline.instants
        if instant.file_name in put and instant.is_completed and instant.action in COMMIT_ACTIONS
    )
