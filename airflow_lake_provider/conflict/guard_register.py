"""Before a write begins: which instant is whose among guarded writes, what a guard reserves, and what is in the way.

Storage does not show which job an instant belongs to. Where every writer of a table runs under a guard, the guards
establish it with entries on storage: each guard writes an entry before its job begins, and adds its instant as soon as
that is certain. It is certain when exactly one new instant is in no entry, and no other guard lacked its instant in the
meantime. A guard reads the timeline first and the entries after it, so it finds the entry of each job whose instant it
saw. Two guards that began together name no instant, and no write is ended on a guess.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, replace
from datetime import UTC
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_lake_provider.conflict.claims import Reservation
from airflow_lake_provider.conflict.contention import UNSET, WriteIntent, WriterRule, must_yield, partitions_of
from airflow_lake_provider.conflict.marker_reader import ActiveInstant, Role
from airflow_lake_provider.conflict.strategies import SimpleTransactionDirectMarkerBased, StrategySettings
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.hudi.commit_metadata import file_group_key
from airflow_lake_provider.instant_clock import format_instant_time
from airflow_lake_provider.shared.actions import Action

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from airflow_lake_provider.conflict.activity import ConflictTable, TableActivity
    from airflow_lake_provider.storage.table_storage import Storage
    from airflow_lake_provider.timeline_server.snapshot import TimelineSnapshot

GUARD_FOLDER = ".hoodie/.locks/guards"
MAX_ENTRY_BYTES = 1024
KEPT_MS = 3_600_000
"""After an hour without a sign of life an entry is removed, and its job is taken for ended."""
_ENTRY = re.compile(r"\d+-[0-9a-f]{32}", re.ASCII)


class GuardState(StrEnum):
    """What a guard's job is about."""

    WAITING = "waiting"
    """It will begin when no other guard's job is about to name its instant."""
    STARTED = "started"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class GuardEntry:
    """One guard. `instant` is empty until it is certain; `modified_ms` by the store's clock."""

    name: str
    state: GuardState
    instant: str
    modified_ms: int

    @property
    def is_open(self) -> bool:
        """Whether its job may have an instant, or may yet get one, that it has not named."""
        return self.state is not GuardState.WAITING and not self.instant


def find_own_instant(pending: Iterable[str], before: Collection[str], others: Iterable[GuardEntry]) -> str:
    """Return the one new instant that no other guard named; empty when there is none, or more than one. Pure."""
    named = {entry.instant for entry in others}
    new = [instant for instant in pending if instant not in before and instant not in named]
    return new[0] if len(new) == 1 else ""


class GuardRegister:
    """The entry of one guard. `start` before its job, `identify` while it runs, `end` after it. Not for two threads.

    `now_ms` names the entry only. Methods raise StorageError; making one raises ConfigError for a store whose listings
    may lag behind.
    """

    def __init__(self, storage: Storage, now_ms: int) -> None:
        if not storage.lists_at_once:
            raise ConfigError(
                f"table {storage.base_path!r}: guards can share a table on a local file system, HDFS and S3 only; give "
                "the guard its write's instant instead of every_writer_is_guarded"
            )
        self._storage = storage
        self._name = f"{now_ms}-{uuid.uuid4().hex}"
        self._begun_ms = 0
        self._before: frozenset[str] = frozenset()
        self.instant = ""
        self.is_certain = True
        """False once another guard's job had no named instant at the same time as this one's."""

    def wait(self) -> bool:
        """Ask for the turn to start; True when no other guard's job is about to name its instant."""
        entries = self._load()
        if self._name not in entries:
            self._write(GuardState.WAITING)
            entries = self._load()
        for entry in entries.values():
            if entries[self._name].modified_ms - entry.modified_ms > KEPT_MS:
                self._storage.remove(_path(entry.name))
        return not any(
            (entry.state is GuardState.STARTED and not entry.instant)
            or (entry.state is GuardState.WAITING and entry.name < self._name)
            for entry in entries.values()
            if entry.name != self._name
        )

    def start(self, snapshot: TimelineSnapshot) -> None:
        """Announce that the job begins now. `snapshot` was read after the last `wait`."""
        self._before = frozenset(instant.requested_time for instant in snapshot.timeline.instants)
        self._write(GuardState.STARTED)
        self._begun_ms = self._load()[self._name].modified_ms

    def identify(self, snapshot: TimelineSnapshot) -> str:
        """Return the job's instant once it is certain, else an empty text. `snapshot` was read before."""
        if self.instant or not self.is_certain:
            return self.instant
        entries = self._load()
        if self._name not in entries:  # taken for ended
            self.is_certain = False
            return ""
        others = [entry for entry in entries.values() if entry.name != self._name]
        if any(entry.is_open and entry.modified_ms >= self._begun_ms - _RACE_MS for entry in _at_large(others)):
            self.is_certain = False
            return ""
        pending = [instant.requested_time for instant in snapshot.timeline.pending_writes()]
        self.instant = find_own_instant(pending, self._before, others)
        self._write(GuardState.STARTED)  # with the instant, or as a sign of life
        return self.instant

    def end(self) -> None:
        """Leave the entry behind as that of an ended job; without an instant only others' certainty needs it."""
        self._write(GuardState.ENDED)

    def _write(self, state: GuardState) -> None:
        self._storage.write(_path(self._name), f"{state.value} {self.instant}".encode())

    def _load(self) -> dict[str, GuardEntry]:
        try:
            listed = self._storage.list_entries(GUARD_FOLDER)
        except FileNotFoundError:
            return {}
        found = {}
        for item in listed:
            if _ENTRY.fullmatch(item.name) is None:
                continue
            try:
                state, _, instant = self._storage.read_bytes(_path(item.name), MAX_ENTRY_BYTES).decode().partition(" ")
                found[item.name] = GuardEntry(item.name, GuardState(state), instant.strip(), item.modified_ms)
            except (FileNotFoundError, ValueError):
                # Just removed, or being written: it may be anything, so nothing is certain.
                found[item.name] = GuardEntry(item.name, GuardState.STARTED, "", item.modified_ms)
        return found


_RACE_MS = 2_000
"""Stores print times in seconds at the coarsest."""


def _at_large(others: Iterable[GuardEntry]) -> list[GuardEntry]:
    # A started job without an instant counts whenever it began: its instant may come at any time.
    return [replace(e, modified_ms=1 << 62) if e.state is GuardState.STARTED else e for e in others]


def _path(name: str) -> str:
    return f"{GUARD_FOLDER}/{name}"


# --- Partitions that a guard reserves before its job begins (RFC-56's transactional strategy)

RESERVED_ID = "lake-guard-reservation"
"""Not the id of any file group: stock writers pass it, guards of one partition meet in it."""
_NAMES_MS = 864_000_000


class PartitionReservation:
    """Holds partitions for one guarded write: of all guards that reserve one of them exactly one gets it.

    `beat` must come once per heartbeat interval; a reservation whose owner dies ends with its heartbeat.
    """

    def __init__(self, storage: Storage, table: ConflictTable, partitions: Collection[str]) -> None:
        self._storage = storage
        self._table = table
        self._partitions = tuple(partitions)
        self._keys = frozenset(file_group_key(partition, RESERVED_ID) for partition in partitions)
        self._reservation: Reservation | None = None

    def take(self, now_ms: int) -> tuple[str, ...]:
        """Take all partitions, or return what is in the way. Raises StorageError, ConfigError."""
        activity = self._table.read_activity(now_ms)
        writers = replace(activity, actives=tuple(active for active in activity.actives if active.action))
        obstacles = find_obstacles(writers, self._partitions)
        if obstacles:
            return obstacles
        # No two reservations may have one name, and its order counts for none of them.
        instant = format_instant_time(now_ms - uuid.uuid4().int % _NAMES_MS, UTC)
        # A younger claim found its partitions free first: so the older one waits too.
        strategy = SimpleTransactionDirectMarkerBased(
            StrategySettings(reserve=lambda name: Reservation(self._storage, name))
        )
        verdict = strategy.check(
            self._table, WriteIntent(instant, self._keys, since=instant, comes_first=False), now_ms
        )
        if verdict.is_free:
            self._reservation = Reservation(self._storage, instant)
            return ()
        return (*(f"reservation {clash.instant}" for clash in verdict.clashes), *verdict.unread)

    def beat(self) -> None:
        """Renew it."""
        if self._reservation is not None:
            self._reservation.beat()

    def release(self) -> None:
        """Give the partitions back."""
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None


# --- What would conflict with a write that begins now; for users' own writers, before they begin. Pure

_WORDS = {
    Role.WRITER: "writer",
    Role.CLUSTERING: "pending clustering",
    Role.COMPACTION: "compaction",
    Role.LOG_COMPACTION: "running log compaction",
}


_NEWEST = WriteIntent("9" * 17, frozenset())
"""A write that begins now."""


def find_obstacles(
    activity: TableActivity,
    partitions: Collection[str],
    rule: WriterRule = UNSET,
) -> tuple[str, ...]:
    """Describe which instants touch, or may touch, one of the partitions; none named means the whole table.

    These count: live writers unless they are non-blocking, because the younger of two on one file group loses at its
    commit; pending clusterings, because Hudi refuses updates of their file groups; log compactions that began, because
    Hudi rejects a writer of their file groups at its commit. Under `PreferWriter...` services give way, so the last two
    do not count. Compactions and dead writers never do. While a restore is pending, Hudi refuses each write
    (`BaseHoodieWriteClient.startCommit`).
    """
    restores = tuple(
        f"restore {restore.requested_time}, during which Hudi refuses each write"
        for restore in activity.snapshot.timeline.pending(Action.RESTORE)
    )
    return restores + tuple(
        _describe_touching(active, touched)
        for active in activity.actives
        if must_yield(_NEWEST, active, rule=rule)
        and ((touched := _touched(active)) is None or not partitions or touched & set(partitions))
    )


def _touched(active: ActiveInstant) -> frozenset[str] | None:
    """Return all partitions that it touches; None when that is not known."""
    if active.partitions is None or active.unread:
        return None
    return active.partitions | partitions_of(active.markers.file_groups())


def _describe_touching(active: ActiveInstant, touched: frozenset[str] | None) -> str:
    where = (
        "somewhere: it has not named its partitions"
        if touched is None
        else f"in {', '.join(sorted(touched)) or 'the table'}"
    )
    return f"{_WORDS[active.role]} {active.instant} ({active.action or 'not on the timeline yet'}) {where}"
