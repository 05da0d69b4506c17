"""The timelines of many tables in one process: hints, heartbeats, one look at a time per table, bounded memory.

Every reader of this process shares them, and `server.py` serves them to others. A hint makes a look due, a silence
beyond a table's rhythm does, a reader does who wants it newer; nothing else asks the storage.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import threading
import time
import uuid
from collections import Counter, OrderedDict, deque
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import LakeError, StorageError
from airflow_lake_provider.storage.table_storage import StorageCalls, open_storage
from airflow_lake_provider.timeline_server.archive_tail import ArchiveTails
from airflow_lake_provider.timeline_server.cached_table import Hints, Slot, new_commits
from airflow_lake_provider.timeline_server.refresh import (
    PROPERTIES_AFTER_MS,
    Depth,
    Known,
    folder_time,
    folder_time_lies,
    has_same_properties,
    look,
)
from airflow_lake_provider.timeline_server.schedule import NEVER, DueQueue, SharedLimits, fraction_of, pause_ms
from airflow_lake_provider.timeline_server.snapshot import ANY_AGE, Freshness, TimelineChanges, add_up, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.storage.table_storage import Storage
    from airflow_lake_provider.timeline_server.snapshot import TimelineSnapshot

log = logging.getLogger(__name__)

# --- Which tables changed, in the order in which this process saw it; readers wait for what comes after their cursor
#
# A cursor is `<epoch>.<number>`. The epoch is this log's own: whoever comes with another one (a restarted server, or
# another of two) is told that it is not known, and compares versions instead. So nothing depends on this log's
# memory.

_MOST_ENTRIES = 100_000


class ChangeLog:
    """Bounded log; `add` may be called from any thread, `wait` from any event loop."""

    def __init__(self, most_entries: int = _MOST_ENTRIES) -> None:
        self._epoch = uuid.uuid4().hex[:12]
        self._lock = threading.Lock()
        self._entries: deque[tuple[int, str]] = deque(maxlen=most_entries)
        self._last = 0
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    @property
    def cursor(self) -> str:
        """The place after the newest entry."""
        return f"{self._epoch}.{self._last}"

    def add(self, base_path: str) -> None:
        """Say that a table changed."""
        with self._lock:
            self._last += 1
            self._entries.append((self._last, base_path))
            waiters = tuple(self._waiters)
        for event_loop, event in waiters:
            with contextlib.suppress(RuntimeError):  # that event loop has ended
                event_loop.call_soon_threadsafe(event.set)

    def find_after(self, cursor: str) -> tuple[str, tuple[str, ...]] | None:
        """Return the new cursor and the tables that changed after the given one; None for a cursor not known here."""
        epoch, _, number = cursor.partition(".")
        if epoch != self._epoch or not (number.isascii() and number.isdigit()):
            return None
        after = int(number)
        with self._lock:
            forgotten = self._entries[0][0] - 1 if self._entries else self._last
            if after > self._last or after < forgotten:
                return None
            changed: dict[str, None] = {}
            for seq, base_path in reversed(self._entries):
                if seq <= after:
                    break
                changed[base_path] = None
            return f"{self._epoch}.{self._last}", tuple(reversed(changed))

    async def wait(self, cursor: str, timeout_s: float) -> None:
        """Return as soon as there is something after the cursor, or when the time is over."""
        event = asyncio.Event()
        waiter = (asyncio.get_running_loop(), event)
        with self._lock:
            self._waiters.add(waiter)
        try:
            found = self.find_after(cursor)
            if found is not None and not found[1]:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(event.wait(), timeout_s)
        finally:
            with self._lock:
                self._waiters.discard(waiter)


# --- Bounded memory of many tables: packed snapshots of the most recently used, unpacked ones of the hottest


class TableMemory:
    """Slots by base path. A slot that nobody needs goes with its snapshot; others keep version and schedule."""

    def __init__(self, max_tables: int, hot_tables: int, open_table: Callable[[str], Storage]) -> None:
        self.lock = threading.Lock()
        self.evictions = 0
        self._max_tables = max_tables
        self._hot_tables = hot_tables
        self._open_table = open_table
        self._slots: dict[str, Slot] = {}
        self._kept: OrderedDict[str, None] = OrderedDict()
        self._hot: OrderedDict[str, Known] = OrderedDict()

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def kept(self) -> int:
        """How many snapshots are kept."""
        return len(self._kept)

    def kept_bytes(self) -> int:
        """Return the size of the packed snapshots."""
        return sum(len(slot.packed or b"") for _, slot in self.kept_slots())

    def kept_slots(self) -> list[tuple[str, Slot]]:
        """Return the tables whose snapshots are kept."""
        with self.lock:
            return [(path, slot) for path in self._kept if (slot := self._slots.get(path)) is not None]

    def slots(self) -> list[Slot]:
        """Return all slots."""
        with self.lock:
            return list(self._slots.values())

    def open(self, base_path: str) -> Storage:
        """Open a table's storage without keeping anything."""
        return self._open_table(base_path)

    def find(self, base_path: str) -> Slot | None:
        """Return a table's slot; None when there is none."""
        return self._slots.get(base_path)

    def get(self, base_path: str) -> Slot:
        """Return a table's slot, made when there is none; its storage is not opened yet."""
        slot = self._slots.get(base_path)
        if slot is None:
            made = Slot(lambda: self._open_table(base_path))
            with self.lock:
                slot = self._slots.setdefault(base_path, made)
        return slot

    def known(self, base_path: str, slot: Slot) -> Known | None:
        """Return what the last look left, from the hot ones or unpacked; None when it was evicted."""
        with self.lock:
            hot = self._hot.get(base_path)
            if hot is not None:
                self._hot.move_to_end(base_path)
            if base_path in self._kept:
                self._kept.move_to_end(base_path)
        if hot is not None and hot.snapshot.version == slot.version and slot.packed is not None:
            if hot.snapshot.as_of_ms == slot.as_of_ms:
                return hot
            return replace(hot, snapshot=replace(hot.snapshot, as_of_ms=slot.as_of_ms))
        return slot.known()

    def keep(self, base_path: str, slot: Slot, known: Known | None, now_ms: int) -> list[str]:
        """Say that a slot has a new snapshot; return the tables that nobody needs and that are gone for it."""
        gone = []
        with self.lock:
            self._slots.setdefault(base_path, slot)
            self._kept[base_path] = None
            self._kept.move_to_end(base_path)
            if known is not None:
                self._hot[base_path] = known
                self._hot.move_to_end(base_path)
            while len(self._hot) > self._hot_tables:
                self._hot.popitem(last=False)
            while len(self._kept) > self._max_tables:
                evicted, _ = self._kept.popitem(last=False)
                self._hot.pop(evicted, None)
                self.evictions += 1
                other = self._slots.get(evicted)
                if other is not None:
                    other.evict()
                    if not other.is_needed(now_ms):
                        del self._slots[evicted]
                        gone.append(evicted)
        return gone

    def forget(self, base_path: str) -> None:
        """Drop a table altogether."""
        with self.lock:
            for memory in (self._slots, self._kept, self._hot):
                memory.pop(base_path, None)

    def pick_gated(self) -> str | None:
        """Return one table at random whose folder's time is believed; None when there is none."""
        gated = [path for path, slot in self.kept_slots() if slot.folder_ms]
        return random.choice(gated) if gated else None


# --- What a process's shared timelines did, counted


class TimelineStats:
    """Counters by name; safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._counts[name] += by

    def read(self) -> dict[str, int]:
        """Return all counters."""
        with self._lock:
            return dict(self._counts)


_RETRY_AFTER_MS = 1000
_MOST_BACKOFF_S = 600.0
PROPERTIES_AT_LATEST_MS = 1_800_000
"""Any look checks the properties after so long: a busy table has no heartbeats."""

_CHECKING = frozenset({Depth.FULL, Depth.FULL_LIST})
"""Looks that check the properties."""


class SharedTimelines:
    """Hands out snapshots. `on_unannounced` is told of commits that no writer announced, `on_loaded` of tables that
    were not known before: whether they went on meanwhile, only who keeps a record of them can tell.
    """

    def __init__(
        self,
        limits: SharedLimits | None = None,
        open_table: Callable[[str], Storage] = open_storage,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self.limits = limits or SharedLimits()
        self.log = ChangeLog()
        self.due = DueQueue()
        self.stats = TimelineStats()
        self.calls = StorageCalls()
        self.now_ms = now_ms
        self.on_unannounced: Callable[[str, tuple[Instant, ...]], None] = lambda _base_path, _instants: None
        self.on_loaded: Callable[[str, TimelineSnapshot], None] = lambda _base_path, _snapshot: None
        self.archives = ArchiveTails(self.limits.max_tables)
        self.memory = TableMemory(
            self.limits.max_tables, self.limits.hot_tables, lambda base_path: self._open(open_table, base_path)
        )

    def _open(self, open_table: Callable[[str], Storage], base_path: str) -> Storage:
        storage = open_table(base_path)
        storage.calls = self.calls
        return storage

    # --- being told ----------------------------------------------------------------------------------------

    def hint(self, base_path: str, instants: Iterable[str] = (), mark: int = 0, *, is_by_writer: bool = False) -> None:
        """Somebody says that the table changed; it is looked at soon, unless it shows the named instants already.

        `mark` is the number of the durable mark that this hint stands for.
        """
        slot = self.memory.get(base_path)
        with self.memory.lock:
            slot.hints.add(tuple(instants), frozenset({mark} if mark else ()), is_by_writer=is_by_writer)
        self.stats.count("hints")
        self.due.hint(base_path)

    def watch(self, base_path: str, poll_interval_s: float, until_ms: int) -> None:
        """Somebody waits for the table, and would else poll it himself at this interval."""
        slot = self.memory.get(base_path)
        now_ms = self.now_ms()
        others_s = slot.watched_pause_s(now_ms)
        slot.watched_s = poll_interval_s if others_s is None else min(poll_interval_s, others_s)
        slot.watched_until_ms = max(slot.watched_until_ms, until_ms)
        if slot.as_of_ms:
            self.due.put_earlier(base_path, slot.as_of_ms + pause_ms(base_path, slot, self.limits.heartbeat, now_ms))

    def register(self, base_path: str, fixed_pause_s: float | None = None, *, was_announced: bool = False) -> None:
        """Keep an eye on the table for good; `fixed_pause_s` replaces its adaptive heartbeat.

        `was_announced`: its last notice, to whichever process, was a writer's.
        """
        slot = self.memory.get(base_path)
        slot.is_announced = slot.is_announced or (was_announced and not slot.begun)
        slot.fixed_pause_s = fixed_pause_s
        if not slot.is_registered:
            slot.is_registered = True
            spread_ms = int(self.limits.cold_start_s * 1000 * fraction_of(base_path))
            self.due.put_earlier(base_path, self.now_ms() + spread_ms)

    # --- reading -------------------------------------------------------------------------------------------

    def snapshot(self, base_path: str, freshness: Freshness = ANY_AGE, covering: int = 0) -> TimelineSnapshot:
        """Return the table's timeline; look at the storage only if what is kept does not do.

        It does not when it is older than the freshness allows, when a hint waits, or when the durable mark `covering`
        came after it. Raises what a look raises.
        """
        known = self.find_current(base_path, freshness, covering)
        if known is not None:
            return known
        slot = self.memory.get(base_path)
        if slot.error is not None and slot.failed_ms + _RETRY_AFTER_MS > self.now_ms():
            raise slot.error
        if slot.hints.is_hinted and freshness == ANY_AGE:
            return self.look(base_path, Depth.LIST, covering)
        # Who asks for the table as it is now means its properties as well.
        is_now = freshness.most_s(is_announced=slot.is_announced) == 0
        return self.look(base_path, Depth.FULL if is_now else Depth.GATE, covering)

    def confirm_properties(self, snapshot: TimelineSnapshot) -> TimelineSnapshot:
        """Return the snapshot, or a newer one if hoodie.properties changed since it was read; one stat.

        Writers change the properties without an instant that says so: they begin an index with a commit, or drop one.
        """
        slot = self.memory.get(snapshot.base_path)
        if slot.version == snapshot.version and has_same_properties(slot.storage, slot.properties_stamp):
            return snapshot
        return self.look(snapshot.base_path, Depth.FULL_LIST)

    def find_current(
        self, base_path: str, freshness: Freshness = ANY_AGE, covering: int = 0
    ) -> TimelineSnapshot | None:
        """Return the snapshot in memory if it does (see `snapshot`), else None; asks no storage."""
        slot = self.memory.get(base_path)
        known = self.memory.known(base_path, slot) if self._is_current(slot, freshness, covering) else None
        return None if known is None else known.snapshot

    def find_shown(self, base_path: str) -> TimelineSnapshot | None:
        """Return what the last look showed if it is kept, also when a hint waits since; asks no storage."""
        slot = self.memory.get(base_path)
        known = self.memory.known(base_path, slot) if slot.shown and slot.error is None else None
        return None if known is None else known.snapshot

    def _is_current(self, slot: Slot, freshness: Freshness, covering: int) -> bool:
        # A restored snapshot (nobody looked yet) is compared with the storage first.
        if not slot.shown or slot.error is not None or slot.hints.is_hinted or slot.covered_mark < covering:
            return False
        most_s = freshness.most_s(is_announced=slot.is_announced)
        # A clock that was set back makes an answer no younger.
        return most_s == math.inf or 0 <= self.now_ms() - slot.as_of_ms < most_s * 1000

    def unreadable(self) -> int:
        """Return how many tables' last look failed."""
        return sum(slot.error is not None for slot in self.memory.slots())

    def changes_since(self, base_path: str, version: str, freshness: Freshness = ANY_AGE) -> TimelineChanges:
        """Return what changed since a version."""
        now = self.snapshot(base_path, freshness)
        return add_up(base_path, version, self.memory.get(base_path).steps, now)

    def pause_ms(self, base_path: str) -> int:
        """Return for how long the table may stay silent before it is looked at."""
        return pause_ms(base_path, self.memory.get(base_path), self.limits.heartbeat, self.now_ms())

    # --- looking -------------------------------------------------------------------------------------------

    def look(self, base_path: str, depth: Depth, covering: int = 0) -> TimelineSnapshot:
        """Look at the storage now, or share the look of somebody who began after this call. Raises what it raises."""
        slot = self.memory.get(base_path)
        asked = slot.begun
        with slot.lock:
            known = self.memory.known(base_path, slot)
            has_checked = depth not in _CHECKING or slot.properties_checked > asked
            if slot.shown > asked and depth is not Depth.VERIFY and has_checked:
                if slot.error is not None:
                    raise slot.error
                if known is not None:
                    slot.covered_mark = max(slot.covered_mark, covering)
                    return known.snapshot
            with self.memory.lock:
                hints, slot.hints = slot.hints, Hints()
                slot.begun += 1
            if hints.is_by_writer:
                slot.is_announced = True
            # One of our own jobs may have changed the properties, which a writer's commit rarely does.
            if depth is Depth.LIST and hints.is_hinted and not hints.is_by_writer:
                depth = Depth.FULL_LIST
            may_be_shown = depth is Depth.LIST and slot.error is None and slot.begun > 1
            is_news = False
            if known is not None and may_be_shown and hints.are_shown_by(known.snapshot, slot.covered_mark):
                self.stats.count("hints_shown_already")
                self._schedule(base_path, slot)
            else:
                known, is_news = self._look_at_storage(base_path, slot, known, (depth, hints))
            slot.shown = slot.begun
            slot.covered_mark = max(slot.covered_mark, hints.mark, covering)
            self._publish(base_path, slot, is_news=is_news)
            return known.snapshot

    def await_look(self, base_path: str, version: str) -> None:
        """Look soon, and log the table then if it has another version than the given one, changed or not.

        A reader who has that version and cannot be answered now is answered through the log.
        """
        slot = self.memory.get(base_path)
        with self.memory.lock:
            slot.awaited |= {version}
        self.due.put_earlier(base_path, self.now_ms())

    def _publish(self, base_path: str, slot: Slot, *, is_news: bool) -> None:
        # After `shown` is set: who reads the log finds the snapshot, and who came too late for this asks for a look.
        with self.memory.lock:
            awaited, slot.awaited = slot.awaited, frozenset()
        if is_news or awaited - {slot.version}:
            self.log.add(base_path)

    def look_if_due(self, base_path: str, *, is_hinted: bool) -> None:
        """Do what a taken entry of the due queue asks for; errors are kept with the table."""
        try:
            if is_hinted or not self._gate_says_unchanged(base_path):
                self.look(base_path, Depth.LIST if is_hinted else Depth.GATE)
        except LakeError as error:
            log.warning("timeline of %s cannot be read: %s", base_path, error)
        finally:
            self.due.give_back(base_path)

    def _gate_says_unchanged(self, base_path: str) -> bool:
        """Do a heartbeat's look with one stat and nothing unpacked; false when it takes more than that."""
        slot = self.memory.get(base_path)
        now_ms = self.now_ms()
        with slot.lock:
            is_gated = slot.folder_ms and slot.shown and not slot.hints.is_hinted and slot.error is None
            if not is_gated or self._depth(slot, Depth.GATE, now_ms) is not Depth.GATE:
                return False
            if folder_time(slot.storage, slot.timeline_path, now_ms) != slot.folder_ms:
                return False
            slot.begun += 1
            slot.shown, slot.as_of_ms = slot.begun, now_ms
            self.stats.count("looks_gate")
            self._schedule(base_path, slot)
            self._publish(base_path, slot, is_news=False)
            return True

    def verify_one(self) -> str | None:
        """List one table at random although its folder's time says that nothing changed; return it."""
        base_path = self.memory.pick_gated()
        if base_path is None:
            return None
        try:
            self.look(base_path, Depth.VERIFY)
        except LakeError as error:
            log.warning("timeline of %s cannot be verified: %s", base_path, error)
        return base_path

    def _look_at_storage(
        self, base_path: str, slot: Slot, before: Known | None, why: tuple[Depth, Hints]
    ) -> tuple[Known, bool]:
        """Look; return what is known now, and whether those who wait for changes are to be told."""
        asked, hints = why
        now_ms = self.now_ms()
        depth = self._depth(slot, asked, now_ms)
        try:
            after = look(slot.storage, before, depth, now_ms)
        except Exception as error:
            raise self._fail(base_path, slot, error, hints) from error
        self.stats.count(f"looks_{depth}")
        if depth in _CHECKING or before is None:
            slot.properties_ms, slot.properties_checked = now_ms, slot.begun
        if depth is Depth.VERIFY and before is not None and folder_time_lies(slot.storage, before, after):
            slot.gate_lies = True
            self.stats.count("gate_lies")
            log.error("the folder time of %s did not change with its timeline; it is listed from now on", base_path)
        step = slot.keep(before, after)
        is_news = step is not None or not slot.changed_ms
        if is_news:
            slot.changed_ms = now_ms
            self.stats.count("changes" if step is not None else "loads")
        commits = () if step is None or hints.is_hinted else new_commits(step, after.snapshot)
        if commits:
            # Its callback may still be on its way; the table is trusted again as soon as one arrives.
            slot.is_announced = False
            self.stats.count("unannounced_commits", len(commits))
            self.on_unannounced(base_path, commits)
        if before is None and not hints.is_hinted:
            self.on_loaded(base_path, after.snapshot)
        for gone in self.memory.keep(base_path, slot, after, now_ms):
            self.due.put(gone, NEVER)
        self._schedule(base_path, slot)
        return after, is_news

    @staticmethod
    def _depth(slot: Slot, asked: Depth, now_ms: int) -> Depth:
        unchecked_ms = now_ms - slot.properties_ms
        if asked is Depth.VERIFY:
            return asked
        must_list = asked in {Depth.LIST, Depth.FULL_LIST} or slot.gate_lies
        if asked in _CHECKING or unchecked_ms > (PROPERTIES_AT_LATEST_MS if must_list else PROPERTIES_AFTER_MS):
            return Depth.FULL_LIST if must_list else Depth.FULL
        return Depth.LIST if must_list else Depth.GATE

    def _fail(self, base_path: str, slot: Slot, error: Exception, hints: Hints) -> LakeError:
        slot.failures += 1
        slot.failed_ms = self.now_ms()
        slot.error = error if isinstance(error, LakeError) else StorageError(f"{base_path}: {error!r}")
        slot.shown = slot.begun
        if hints.is_hinted:  # what was announced is still to be seen
            with self.memory.lock:
                slot.hints.add(hints.instants, hints.marks, is_by_writer=hints.is_by_writer)
        self.stats.count("failed_looks")
        if slot.failures == 1:
            self.log.add(base_path)  # those who wait for it may want to know that it cannot be read
        self._schedule(base_path, slot)
        return slot.error

    # --- keeping -------------------------------------------------------------------------------------------

    def restore(self, base_path: str, known: Known, *, is_announced: bool) -> None:
        """Take a snapshot from an earlier process; the next look compares it with the storage."""
        slot = self.memory.get(base_path)
        with slot.lock:
            if slot.begun:
                return
            slot.packed, slot.version = pack(known.snapshot), known.snapshot.version
            slot.timeline_path, slot.is_announced = known.snapshot.properties.timeline_path, is_announced
            slot.folder_ms, slot.properties_stamp = known.folder_ms, known.properties_stamp
            slot.changed_ms = slot.as_of_ms = known.snapshot.as_of_ms
            self.memory.keep(base_path, slot, None, self.now_ms())

    def _schedule(self, base_path: str, slot: Slot) -> None:
        now_ms = self.now_ms()
        if slot.error is not None:
            is_hopeless = not slot.error.retriable and not slot.is_registered and slot.watched_pause_s(now_ms) is None
            if is_hopeless:
                self.memory.forget(base_path)
            backoff_s = min(2.0 ** min(slot.failures, 20), _MOST_BACKOFF_S)
            self.due.put(base_path, NEVER if is_hopeless else now_ms + int(backoff_s * 1000))
        elif slot.is_registered or slot.watched_pause_s(now_ms) is not None:
            self.due.put(base_path, now_ms + pause_ms(base_path, slot, self.limits.heartbeat, now_ms))
        else:
            self.due.put(base_path, NEVER)
