"""The timelines of many tables in one process: hints, heartbeats, one refresh at a time per table, bounded memory.

Every reader of this process shares them, and `server.py` serves them to others. Storage is read only on a hint, after a
silence, or when a reader asks for fresher data.
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
import threading
import time
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

from cachetools import LRUCache

from airflow_lake_provider.errors import LakeError, StorageError, TableNotFoundError, backoff
from airflow_lake_provider.storage.table_storage import StorageCalls, open_storage
from airflow_lake_provider.timeline_server.cached_table import (
    NO_HINTS,
    NOTHING,
    CachedTimeline,
    completed_writes_among,
    find_unnamed,
)
from airflow_lake_provider.timeline_server.refresh import (
    PROPERTIES_AFTER_MS,
    Depth,
    Known,
    TimelineStats,
    folder_time,
    has_same_properties,
    is_folder_time_unreliable,
    refresh,
    volume_of,
)
from airflow_lake_provider.timeline_server.schedule import (
    NEVER,
    ChangeLog,
    DueQueue,
    RecordedTimes,
    SharedLimits,
    fraction_of,
    pause_ms,
)
from airflow_lake_provider.timeline_server.snapshot import ANY_AGE, Freshness
from airflow_lake_provider.timeline_server.watch import ArchiveTails

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.storage.table_storage import Storage
    from airflow_lake_provider.timeline_server.cached_table import Hints
    from airflow_lake_provider.timeline_server.snapshot import TimelineSnapshot

log = logging.getLogger(__name__)

# --- Bounded memory of many tables: packed snapshots of the most recently used, unpacked ones of the hottest

_HOT_MS = 10_000
"""A table that is refreshed twice within so long is also kept unpacked, until it is left alone (`TableMemory.cool`)."""


class TableLocks:
    """A lock for each table, which exists while a thread holds it or waits for it: a quiet table has none."""

    def __init__(self, make_lock: Callable[[], AbstractContextManager[object]] = threading.Lock) -> None:
        self._make_lock = make_lock
        self._lock = threading.Lock()
        self._used: dict[str, tuple[AbstractContextManager[object], int]] = {}

    @property
    def used(self) -> int:
        """How many tables have a lock now."""
        return len(self._used)

    @contextlib.contextmanager
    def hold(self, base_path: str) -> Iterator[None]:
        """Wait for the table's lock, and hold it."""
        with self._lock:
            lock, users = self._used.get(base_path) or (self._make_lock(), 0)
            self._used[base_path] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._lock:
                _, users = self._used.pop(base_path)
                if users > 1:
                    self._used[base_path] = (lock, users - 1)


class TableMemory:
    """Timelines by base path. An unneeded one is dropped with its snapshot; others keep version and schedule."""

    def __init__(self, max_tables: int, hot_tables: int, open_table: Callable[[str], Storage]) -> None:
        self.lock = threading.Lock()
        self.refreshing = TableLocks()
        """Held by the thread that refreshes a table."""
        self.reading_commits = TableLocks()
        """Held by the thread that reads commit metadata for a view (`planner.table_view`)."""
        self.evictions = 0
        self._max_tables = max_tables
        self._hot_tables = hot_tables
        self._open_table = open_table
        self._storages: LRUCache[str, Storage] = LRUCache(max(1, hot_tables))
        # One bound method of all tables: each would take 64 bytes.
        self._open_kept = self._open_once
        self._timelines: dict[str, CachedTimeline] = {}
        self._kept: dict[str, None] = {}
        """The first one is evicted next, unless it was used since it came here: then it becomes the last one."""
        self._hot: OrderedDict[str, Known] = OrderedDict()
        """Unpacked: a few KiB each, so not of tables that change now and then."""
        self._used_hot: set[str] = set()
        """Those that were read or refreshed since `cool` was last called."""
        self._failed: dict[str, None] = {}
        """Tables that no reader watched when their store failed, in this order."""

    def __len__(self) -> int:
        return len(self._timelines)

    @property
    def kept(self) -> int:
        """How many snapshots are kept."""
        return len(self._kept)

    def kept_bytes(self) -> int:
        """Return the size of the packed snapshots."""
        return sum(cached.packed_bytes for _, cached in self.kept_timelines())

    def kept_timelines(self) -> list[tuple[str, CachedTimeline]]:
        """Return the tables whose snapshots are kept."""
        with self.lock:
            return [(path, cached) for path in self._kept if (cached := self._timelines.get(path)) is not None]

    def timelines(self) -> list[CachedTimeline]:
        """Return all entries."""
        with self.lock:
            return list(self._timelines.values())

    def open(self, base_path: str) -> Storage:
        """Open a table's storage without caching it."""
        return self._open_table(base_path)

    def find(self, base_path: str) -> CachedTimeline | None:
        """Return a table's entry; None when there is none."""
        return self._timelines.get(base_path)

    def get(self, base_path: str) -> CachedTimeline:
        """Return a table's entry, created when there is none; its storage is not opened yet."""
        cached = self._timelines.get(base_path)
        if cached is None:
            made = CachedTimeline(base_path, self._open_kept)
            with self.lock:
                cached = self._timelines.setdefault(base_path, made)
        return cached

    def known(self, base_path: str, cached: CachedTimeline) -> Known | None:
        """Return what the last refresh left, from the hot ones or unpacked; None when it was evicted."""
        with self.lock:
            hot = self._hot.get(base_path)
            if hot is not None:
                self._use_hot(base_path)
            cached.was_used = True
        if hot is not None and hot.snapshot.version == cached.version and cached.packed_bytes:
            if hot.snapshot.as_of_ms == cached.as_of_ms:
                return hot
            return replace(hot, snapshot=replace(hot.snapshot, as_of_ms=cached.as_of_ms))
        return cached.known()

    def _use_hot(self, base_path: str) -> None:
        self._hot.move_to_end(base_path)
        self._used_hot.add(base_path)

    def keep(
        self, base_path: str, cached: CachedTimeline, known: Known | None, now_ms: int, before_ms: int = 0
    ) -> list[str]:
        """Record an entry's new snapshot; return the unneeded tables that were dropped for it.

        `before_ms`: when the one before was read; a table that was read shortly before is also kept unpacked.
        """
        dropped = []
        with self.lock:
            # One string for each table, from wherever its path comes.
            base_path = cached.base_path
            self._timelines.setdefault(base_path, cached)
            cached.was_used = base_path in self._kept
            self._kept[base_path] = None
            if known is not None and (base_path in self._hot or now_ms - before_ms <= _HOT_MS):
                self._hot[base_path] = known
                self._use_hot(base_path)
            while len(self._hot) > self._hot_tables:
                self._used_hot.discard(self._hot.popitem(last=False)[0])
            while len(self._kept) > self._max_tables:
                evicted = self._take_least_used()
                self._hot.pop(evicted, None)
                self.evictions += 1
                other = self._timelines.get(evicted)
                if other is not None:
                    other.evict()
                    if not other.is_needed(now_ms):
                        del self._timelines[evicted]
                        self._storages.pop(evicted, None)
                        dropped.append(evicted)
        return dropped

    def cool(self) -> None:
        """Drop what is kept unpacked of tables that were neither read nor refreshed since the last call."""
        with self.lock:
            for base_path in self._hot.keys() - self._used_hot:
                del self._hot[base_path]
            self._used_hot.clear()

    def _open_once(self, base_path: str) -> Storage:
        # Those of the most recently used tables: opening reads an Airflow connection at most every five minutes.
        with self.lock:
            storage = self._storages.get(base_path)
        if storage is None:
            storage = self._open_table(base_path)
            with self.lock:
                storage = self._storages.setdefault(base_path, storage)
        return storage

    def _take_least_used(self) -> str:
        while True:
            base_path = next(iter(self._kept))
            del self._kept[base_path]
            cached = self._timelines.get(base_path)
            if cached is None or not cached.was_used:
                return base_path
            cached.was_used = False
            self._kept[base_path] = None

    def forget(self, base_path: str) -> None:
        """Drop a table altogether."""
        with self.lock:
            self._forget(base_path)

    def forget_soon(self, base_path: str, now_ms: int) -> None:
        """Drop a table that failed, some time after its readers got its error (`_RETRY_AFTER_MS`).

        Not if it is needed then, or has a snapshot: those are bounded as all others are.
        """
        with self.lock:
            self._failed.pop(base_path, None)
            self._failed[base_path] = None
            for path in tuple(self._failed):
                failed = self._timelines.get(path)
                if failed is not None and failed.error is not None:
                    if failed.failed_ms + _RETRY_AFTER_MS > now_ms:
                        break
                    if not failed.packed_bytes and not failed.is_followed(now_ms):
                        self._forget(path)
                del self._failed[path]

    def _forget(self, base_path: str) -> None:
        for memory in (self._timelines, self._kept, self._hot, self._storages):
            memory.pop(base_path, None)

    def pick_gated(self) -> str | None:
        """Return a random table whose folder time is trusted; None when there is none."""
        gated = [path for path, cached in self.kept_timelines() if cached.folder_ms]
        return random.choice(gated) if gated else None


_RETRY_AFTER_MS = 1000
_FIRST_BACKOFF_S, _MOST_BACKOFF_S = 2.0, 600.0
_JUDGE_AFTER_MS = 60_000
PROPERTIES_AT_LATEST_MS = 1_800_000
"""Every refresh checks the properties after so long: a busy table has no heartbeats."""

_CHECKING = frozenset({Depth.FULL, Depth.FULL_LIST})
"""Refreshes that check the properties."""


class SharedTimelines:
    """Returns snapshots to readers. It calls `on_unannounced` for commits without a notice, and `on_loaded` for tables
    that were not known before: only a caller with a record of them can decide whether they changed meanwhile.
    """

    def __init__(
        self,
        limits: SharedLimits | None = None,
        open_table: Callable[[str], Storage] = open_storage,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self.limits = limits or SharedLimits()
        self.log = ChangeLog()
        self.stats = TimelineStats()
        self.calls = StorageCalls()
        self.now_ms = now_ms
        self.on_unannounced: Callable[[str, tuple[Instant, ...]], None] = lambda _base_path, _instants: None
        self.on_loaded: Callable[[str, TimelineSnapshot], None] = lambda _base_path, _snapshot: None
        self._unreliable: set[str] = set()
        self._judged_ms = now_ms()
        self.archives = ArchiveTails(self.limits.max_tables)
        self.memory = TableMemory(
            self.limits.max_tables, self.limits.hot_tables, lambda base_path: self._open(open_table, base_path)
        )
        self.due = DueQueue(RecordedTimes(self.memory))

    def _open(self, open_table: Callable[[str], Storage], base_path: str) -> Storage:
        storage = open_table(base_path)
        storage.calls = self.calls
        return storage

    # --- hints and watches ---------------------------------------------------------------------------------

    def hint(self, base_path: str, instants: Iterable[str] = (), mark: int = 0, *, is_by_writer: bool = False) -> None:
        """Record that the table may have changed; it is refreshed soon, unless it shows the named instants already.

        `mark` is the number of the durable mark that this hint stands for.
        """
        cached = self.memory.get(base_path)
        with self.memory.lock:
            marks = (mark,) if mark else ()
            cached.hints = cached.hints.and_one(tuple(instants), marks, is_by_writer=is_by_writer)
        self.stats.count("hints")
        self.due.hint(base_path)

    def watch(
        self, base_path: str, poll_interval_s: float, until_ms: int, unannounced_interval_s: float | None = None
    ) -> None:
        """Record that a reader waits for the table, which it would otherwise poll at this interval.

        `unannounced_interval_s` holds for what no writer announces; None when the reader does not wait for that.
        """
        cached = self.memory.get(base_path)
        now_ms = self.now_ms()
        if unannounced_interval_s is not None:
            pause_s = cached.unannounced_pause_s(now_ms)
            cached.unannounced_s = unannounced_interval_s if pause_s is None else min(unannounced_interval_s, pause_s)
            cached.unannounced_until_ms = max(cached.unannounced_until_ms, until_ms)
        others_s = cached.watched_pause_s(now_ms)
        cached.watched_s = poll_interval_s if others_s is None else min(poll_interval_s, others_s)
        cached.watched_until_ms = max(cached.watched_until_ms, until_ms)
        if cached.as_of_ms:
            self.due.put_earlier(
                cached.base_path, cached.as_of_ms + pause_ms(base_path, cached, self.limits.heartbeat, now_ms)
            )

    def register(self, base_path: str, fixed_pause_s: float | None = None, *, was_announced: bool = False) -> None:
        """Watch the table permanently; `fixed_pause_s` replaces its adaptive heartbeat.

        `was_announced`: its last notice, to any process, came from a writer.
        """
        cached = self.memory.get(base_path)
        cached.is_announced = cached.is_announced or (was_announced and not cached.begun)
        cached.fixed_pause_s = fixed_pause_s
        if not cached.is_registered:
            cached.is_registered = True
            spread_ms = int(self.limits.cold_start_s * 1000 * fraction_of(base_path))
            self.due.put_earlier(cached.base_path, self.now_ms() + spread_ms)

    # --- reading -------------------------------------------------------------------------------------------

    def snapshot(self, base_path: str, freshness: Freshness = ANY_AGE, covering: int = 0) -> TimelineSnapshot:
        """Return the table's timeline; read the storage only if the cached snapshot is too old.

        It is too old when its age exceeds the freshness, when a hint waits, or when the durable mark `covering` came
        after it. Raises what a refresh raises.
        """
        known = self.find_current(base_path, freshness, covering)
        if known is not None:
            return known
        cached = self.memory.get(base_path)
        if cached.error is not None and cached.failed_ms + _RETRY_AFTER_MS > self.now_ms():
            raise cached.error
        if cached.hints.is_hinted and freshness == ANY_AGE:
            return self.refresh(base_path, Depth.LIST, covering)
        # A request for the table as it is now includes its properties.
        is_now = freshness.most_s(is_announced=cached.is_announced) == 0
        return self.refresh(base_path, Depth.FULL if is_now else Depth.GATE, covering)

    def confirm_properties(self, snapshot: TimelineSnapshot) -> TimelineSnapshot:
        """Return the snapshot, or a newer one if hoodie.properties changed since it was read; one stat.

        Writers change the properties without an instant that shows it: they begin an index with a commit, or drop one.
        """
        cached = self.memory.get(snapshot.base_path)
        if cached.version == snapshot.version and has_same_properties(cached.storage, cached.properties_stamp):
            return snapshot
        return self.refresh(snapshot.base_path, Depth.FULL_LIST)

    def find_current(
        self, base_path: str, freshness: Freshness = ANY_AGE, covering: int = 0
    ) -> TimelineSnapshot | None:
        """Return the snapshot in memory if it is fresh enough (see `snapshot`), else None; reads no storage."""
        cached = self.memory.get(base_path)
        known = self.memory.known(base_path, cached) if self._is_current(cached, freshness, covering) else None
        return None if known is None else known.snapshot

    def is_current(self, base_path: str, freshness: Freshness = ANY_AGE) -> bool:
        """Whether `find_current` has an answer, as far as that shows without unpacking it."""
        cached = self.memory.get(base_path)
        is_current = self._is_current(cached, freshness, 0)
        cached.was_used = cached.was_used or is_current
        return is_current

    def find_shown(self, base_path: str) -> TimelineSnapshot | None:
        """Return the last refresh's result if it is cached, even when a hint waits; reads no storage."""
        cached = self.memory.get(base_path)
        known = self.memory.known(base_path, cached) if cached.shown and cached.error is None else None
        return None if known is None else known.snapshot

    def _is_current(self, cached: CachedTimeline, freshness: Freshness, covering: int) -> bool:
        # A restored snapshot that is not refreshed yet is compared with the storage first.
        if not cached.shown or cached.error is not None or cached.hints.is_hinted or cached.covered_mark < covering:
            return False
        most_s = freshness.most_s(is_announced=cached.is_announced)
        # A clock that was set back makes an answer no younger.
        return most_s == math.inf or 0 <= self.now_ms() - cached.as_of_ms < most_s * 1000

    def unreadable(self) -> int:
        """Return how many tables' last refresh failed."""
        return sum(cached.error is not None for cached in self.memory.timelines())

    def pause_ms(self, base_path: str) -> int:
        """Return how long the table may stay silent before it is refreshed."""
        return pause_ms(base_path, self.memory.get(base_path), self.limits.heartbeat, self.now_ms())

    # --- refreshing ----------------------------------------------------------------------------------------

    def refresh(self, base_path: str, depth: Depth, covering: int = 0) -> TimelineSnapshot:
        """Refresh from the storage, or share a refresh that began after this call. Raises what the refresh raises."""
        cached = self.memory.get(base_path)
        begun_before = cached.begun
        with self.memory.refreshing.hold(base_path):
            known = self.memory.known(base_path, cached)
            has_checked = depth not in _CHECKING or cached.properties_checked > begun_before
            if cached.shown > begun_before and depth is not Depth.VERIFY and has_checked:
                if cached.error is not None:
                    raise cached.error
                if known is not None:
                    cached.covered_mark = max(cached.covered_mark, covering)
                    return known.snapshot
            with self.memory.lock:
                hints, cached.hints = cached.hints, NO_HINTS
                cached.begun += 1
            cached.unnamed = cached.unnamed - hints.named or NOTHING
            if hints.is_by_writer:
                cached.is_announced = not cached.unnamed
            # A job of the provider may have changed the properties, which a writer's commit rarely does.
            if depth is Depth.LIST and hints.is_hinted and not hints.is_by_writer:
                depth = Depth.FULL_LIST
            may_be_shown = depth is Depth.LIST and cached.error is None and cached.begun > 1
            is_change = False
            if known is not None and may_be_shown and hints.are_shown_by(known.snapshot, cached.covered_mark):
                self.stats.count("hints_shown_already")
                self._schedule(base_path, cached)
            else:
                known, is_change = self._refresh_from_storage(base_path, cached, known, (depth, hints, covering))
            cached.shown = cached.begun
            cached.covered_mark = max(cached.covered_mark, hints.mark, covering)
            self._publish(base_path, cached, is_change=is_change)
            return known.snapshot

    def await_refresh(self, base_path: str, version: str) -> None:
        """Refresh soon, then log the table if its version differs from the given one, changed or not.

        A reader with that version that has to wait gets its answer through the log.
        """
        cached = self.memory.get(base_path)
        with self.memory.lock:
            if version not in cached.awaited:  # a set of one would take 216 bytes, of each table when all are loaded
                cached.awaited = (*cached.awaited, version)
        self.due.put_earlier(cached.base_path, self.now_ms())

    def _publish(self, base_path: str, cached: CachedTimeline, *, is_change: bool) -> None:
        # After `shown` is set: a reader of the log finds the snapshot, and a later reader requests a refresh.
        with self.memory.lock:
            awaited, cached.awaited = cached.awaited, ()
        if is_change or any(version != cached.version for version in awaited):
            self.log.add(cached.base_path)

    def refresh_if_due(self, base_path: str, *, is_hinted: bool) -> bool:
        """Refresh a table that the due queue returned; the entry stores errors. Return whether no table is there."""
        try:
            if is_hinted or not self._is_gate_unchanged(base_path):
                self.refresh(base_path, Depth.LIST if is_hinted else Depth.GATE)
        except LakeError as error:
            log.warning("timeline of %s cannot be read: %s", base_path, error)
            return isinstance(error, TableNotFoundError)
        finally:
            self.due.give_back(base_path)
        return False

    def forget(self, base_path: str) -> None:
        """Stop watching a table and drop its snapshot; a later request or hint loads it again."""
        self.memory.forget(base_path)
        self.due.put(base_path, NEVER)

    def _is_gate_unchanged(self, base_path: str) -> bool:
        """Do a heartbeat's refresh with one stat and nothing unpacked; false when it takes more than that."""
        cached = self.memory.get(base_path)
        now_ms = self.now_ms()
        with self.memory.refreshing.hold(base_path):
            is_gated = cached.folder_ms and cached.shown and not cached.hints.is_hinted and cached.error is None
            if not is_gated or self._depth(cached, Depth.GATE, now_ms) is not Depth.GATE:
                return False
            if folder_time(cached.storage, cached.timeline_path, now_ms) != cached.folder_ms:
                return False
            cached.begun += 1
            cached.shown, cached.as_of_ms = cached.begun, now_ms
            self.stats.count("refreshes_gate")
            self._schedule(base_path, cached)
            self._publish(base_path, cached, is_change=False)
            return True

    def verify_one(self) -> str | None:
        """List one table at random although its folder's time is unchanged; return it.

        The server calls it once a minute: tables that were left alone since are packed only.
        """
        self.memory.cool()
        base_path = self.memory.pick_gated()
        if base_path is None:
            return None
        try:
            self.refresh(base_path, Depth.VERIFY)
        except LakeError as error:
            log.warning("timeline of %s cannot be verified: %s", base_path, error)
        return base_path

    def _refresh_from_storage(
        self, base_path: str, cached: CachedTimeline, before: Known | None, why: tuple[Depth, Hints, int]
    ) -> tuple[Known, bool]:
        """Refresh; return what is known now, and whether readers that wait for changes need an answer."""
        requested, hints, covering = why
        now_ms = self.now_ms()
        depth = self._depth(cached, requested, now_ms)
        try:
            after = refresh(cached.storage, before, depth, now_ms)
        except Exception as error:
            raise self._fail(base_path, cached, error, hints) from error
        self.stats.count(f"refreshes_{depth}")
        if depth in _CHECKING or before is None:
            cached.properties_ms, cached.properties_checked = now_ms, cached.begun
        if before is not None and self._may_judge_folder_time(depth, now_ms):
            self._judge_folder_time(base_path, cached, before, after)
        new_names = cached.keep(before, after)
        is_change = new_names is not None or not cached.changed_ms
        if is_change:
            cached.changed_ms = now_ms
            self.stats.count("changes" if new_names is not None else "loads")
        new = () if new_names is None else completed_writes_among(new_names, after.snapshot)
        commits = () if hints.is_hinted else new
        marks = max(hints.mark, covering) - cached.covered_mark
        own_marks = sum(mark > cached.covered_mark for mark in hints.named_marks)
        unnamed = find_unnamed(new, after, hints, max(marks - own_marks, 0))
        active = {instant.requested_time for instant in after.snapshot.timeline.instants}
        cached.unnamed = (cached.unnamed | unnamed) & active or NOTHING
        if unnamed and hints.is_hinted:
            # A writer that announces nothing is at work as well, unless its callback is still on its way.
            cached.is_announced = False
            self.stats.count("unannounced_commits", len(unnamed))
        if commits:
            # Its callback may still be on its way; the table is trusted again when one arrives.
            cached.is_announced = False
            self.stats.count("unannounced_commits", len(commits))
            self.on_unannounced(base_path, commits)
        if before is None and not hints.is_hinted:
            self.on_loaded(base_path, after.snapshot)
        before_ms = 0 if before is None else before.snapshot.as_of_ms
        for dropped in self.memory.keep(base_path, cached, after, now_ms, before_ms):
            self.due.put(dropped, NEVER)
        self._schedule(base_path, cached)
        return after, is_change

    def _may_judge_folder_time(self, depth: Depth, now_ms: int) -> bool:
        """Whether to compare the folder's time with what was listed: one stat, so after notices only now and then."""
        if depth is Depth.LIST and now_ms - self._judged_ms >= _JUDGE_AFTER_MS:
            self._judged_ms = now_ms
            return True
        return depth is Depth.VERIFY

    def _judge_folder_time(self, base_path: str, cached: CachedTimeline, before: Known, after: Known) -> None:
        if not self.is_unreliable(cached) and is_folder_time_unreliable(cached.storage, before, after):
            self.stats.count("is_gate_unreliable")
            self.distrust(base_path)
            log.error(
                "the folder time of %s did not change with its timeline; the server lists all tables of %s from now on",
                base_path,
                cached.volume,
            )

    def distrust(self, base_path: str) -> None:
        """Trust no folder time of the table's file system or store any more: not only this table's may be wrong."""
        cached = self.memory.get(base_path)
        cached.volume = cached.volume or volume_of(cached.storage)
        self._unreliable.add(cached.volume)

    def is_unreliable(self, cached: CachedTimeline) -> bool:
        """Whether the folder times of the table's file system or store were wrong before."""
        if not self._unreliable:
            return False
        cached.volume = cached.volume or volume_of(cached.storage)
        return cached.volume in self._unreliable

    def _depth(self, cached: CachedTimeline, requested: Depth, now_ms: int) -> Depth:
        unchecked_ms = now_ms - cached.properties_ms
        if requested is Depth.VERIFY:
            return requested
        must_list = requested in {Depth.LIST, Depth.FULL_LIST} or self.is_unreliable(cached)
        if requested in _CHECKING or unchecked_ms > (PROPERTIES_AT_LATEST_MS if must_list else PROPERTIES_AFTER_MS):
            return Depth.FULL_LIST if must_list else Depth.FULL
        return Depth.LIST if must_list else Depth.GATE

    def _fail(self, base_path: str, cached: CachedTimeline, error: Exception, hints: Hints) -> LakeError:
        cached.failures += 1
        cached.failed_ms = self.now_ms()
        cached.error = error if isinstance(error, LakeError) else StorageError(f"{base_path}: {error!r}")
        cached.shown = cached.begun
        if hints.is_hinted:  # the announced instants are still to be read
            with self.memory.lock:
                cached.hints = cached.hints.and_one(hints.instants, hints.marks, is_by_writer=hints.is_by_writer)
        self.stats.count("failed_refreshes")
        if cached.failures == 1:
            self.log.add(cached.base_path)  # waiting readers need to know that it cannot be read
        self._schedule(base_path, cached)
        return cached.error

    # --- caching -------------------------------------------------------------------------------------------

    def restore(self, base_path: str, known: Known, *, is_announced: bool) -> None:
        """Restore a snapshot from an earlier process; the next refresh compares it with the storage."""
        cached = self.memory.get(base_path)
        with self.memory.refreshing.hold(base_path):
            if cached.begun:
                return
            cached.take(known)
            cached.is_announced, cached.changed_ms = is_announced, known.snapshot.as_of_ms
            self.memory.keep(base_path, cached, None, self.now_ms())

    def _schedule(self, base_path: str, cached: CachedTimeline) -> None:
        now_ms = self.now_ms()
        if cached.is_followed(now_ms):
            pause = pause_ms(base_path, cached, self.limits.heartbeat, now_ms)
            if cached.error is not None:
                pause = int(backoff(_FIRST_BACKOFF_S, cached.failures, _MOST_BACKOFF_S) * 1000)
            self.due.put(cached.base_path, now_ms + pause)
            return
        # No reader waits for a refresh; the next one requests it.
        self.due.put(base_path, NEVER)
        if cached.error is not None and cached.error.retriable:
            self.memory.forget_soon(base_path, now_ms)
        elif cached.error is not None:
            self.memory.forget(base_path)
