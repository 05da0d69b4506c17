"""What one process remembers of many tables: in memory, within bounds, and on local disk for the process after it."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

from cachetools import LRUCache

from airflow_lake_provider.timeline_server.cached_table import CachedTimeline
from airflow_lake_provider.timeline_server.snapshot import Depth, Known, volume_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from airflow_lake_provider.storage.table_storage import Storage
    from airflow_lake_provider.timeline_server.schedule import SharedLimits

log = logging.getLogger(__name__)

# --- Bounded memory: packed snapshots of the most recently used tables, unpacked ones of the hottest

_HOT_MS = 10_000
"""A table that is refreshed twice within so long is also kept unpacked, until it is left alone (`TableMemory.cool`)."""
RETRY_AFTER_MS = 1000
"""For so long the readers of a table that failed get its error."""


UNPACKED = 90
"""So many times the bytes of a packed snapshot it takes unpacked: 76 (10 instants) to 92 (1,000)."""


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

    def __init__(self, limits: SharedLimits, open_table: Callable[[str], Storage]) -> None:
        self.lock = threading.Lock()
        self.refreshing = TableLocks()
        """Held by the thread that refreshes a table."""
        self.reading_commits = TableLocks()
        """Held by the thread that reads commit metadata for a view (`planner.table_view`)."""
        self.evictions = 0
        self._limits = limits
        self._open_table = open_table
        self._storages: LRUCache[str, Storage] = LRUCache(max(1, limits.hot_tables))
        # One bound method of all tables: each would take 64 bytes.
        self._open_kept = self._open_once
        self._timelines: dict[str, CachedTimeline] = {}
        self._kept: dict[str, None] = {}
        """The first one is evicted next, unless it was used since it came here: then it becomes the last one."""
        self._hot: OrderedDict[str, Known] = OrderedDict()
        """Unpacked: a few KiB each, so not of tables that change now and then."""
        self._unsummed_bytes = 0
        """Of snapshots that came since all were summed up: to do that at each one would take as long as the rest."""
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
        with self.lock:
            return self._sum_bytes(self._kept)

    def _sum_bytes(self, paths: Iterable[str]) -> int:
        return sum(cached.packed_bytes for path in paths if (cached := self._timelines.get(path)) is not None)

    def kept_timelines(self) -> Iterator[tuple[str, CachedTimeline]]:
        """Yield the tables whose snapshots are kept now; those that are dropped meanwhile are left out."""
        with self.lock:
            paths = tuple(self._kept)
        # One pair at a time: those of 10,000 tables together would take more than half a megabyte at each save.
        for path in paths:
            if (cached := self._timelines.get(path)) is not None:
                yield path, cached

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
        limits = self._limits
        with self.lock:
            # One string for each table, from wherever its path comes.
            base_path = cached.base_path
            self._timelines.setdefault(base_path, cached)
            cached.was_used = base_path in self._kept
            self._kept[base_path] = None
            if known is not None and (base_path in self._hot or now_ms - before_ms <= _HOT_MS):
                self._hot[base_path] = known
                self._use_hot(base_path)
            excess_bytes = self._measure(cached)
            while len(self._hot) > limits.hot_tables:
                self._used_hot.discard(self._hot.popitem(last=False)[0])
            while len(self._kept) > limits.max_tables or (excess_bytes > 0 and len(self._kept) > 1):
                evicted = self._take_least_used()
                self._hot.pop(evicted, None)
                self.evictions += 1
                other = self._timelines.get(evicted)
                if other is not None:
                    excess_bytes -= other.packed_bytes
                    other.evict()
                    if not other.is_needed(now_ms):
                        del self._timelines[evicted]
                        self._storages.pop(evicted, None)
                        dropped.append(evicted)
        return dropped

    def _measure(self, cached: CachedTimeline) -> int:
        """Sum up now and then; return by how many bytes the snapshots are too many. Hot ones that are too many go."""
        limits = self._limits
        self._unsummed_bytes += cached.packed_bytes
        most_bytes = limits.table_bytes * limits.max_tables
        most_hot = limits.hot_bytes // UNPACKED
        if self._unsummed_bytes <= min(most_bytes, most_hot) // 16:
            return 0
        self._unsummed_bytes = 0
        while len(self._hot) > 1 and self._sum_bytes(self._hot) > most_hot:
            self._used_hot.discard(self._hot.popitem(last=False)[0])
        return self._sum_bytes(self._kept) - most_bytes

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
        """Drop a table that failed, some time after its readers got its error (`RETRY_AFTER_MS`).

        Not if it is needed then, or has a snapshot: those are bounded as all others are.
        """
        with self.lock:
            self._failed.pop(base_path, None)
            self._failed[base_path] = None
            for path in tuple(self._failed):
                failed = self._timelines.get(path)
                if failed is not None and failed.error is not None:
                    if failed.failed_ms + RETRY_AFTER_MS > now_ms:
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


# --- File systems and stores with unreliable folder times

_COMPARE_AFTER_MS = 60_000


class FolderTimes:
    """Which file systems and stores have folder times that show changes; one wrong time discredits all of its store."""

    def __init__(self, now_ms: int) -> None:
        self._unreliable: set[str] = set()
        self._compared_ms = now_ms

    def is_unreliable(self, cached: CachedTimeline) -> bool:
        """Whether the folder times of the table's file system or store were wrong before."""
        return bool(self._unreliable) and _volume_of(cached) in self._unreliable

    def distrust(self, cached: CachedTimeline) -> None:
        """Trust no folder time of the table's file system or store any more: not only this table's may be wrong."""
        self._unreliable.add(_volume_of(cached))

    def may_compare(self, depth: Depth, now_ms: int) -> bool:
        """Whether to compare the folder's time with what was listed: one stat, so after notices only now and then."""
        if depth is Depth.LIST and now_ms - self._compared_ms >= _COMPARE_AFTER_MS:
            self._compared_ms = now_ms
            return True
        return depth is Depth.VERIFY


def _volume_of(cached: CachedTimeline) -> str:
    cached.volume = cached.volume or volume_of(cached.storage)
    return cached.volume
