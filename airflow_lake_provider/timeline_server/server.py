"""The timeline server's work in one process: refresh due tables, verify samples, read hints from a feed, save itself.

Refreshes use threads of their own, and so do readers. While several stores are busy each has at most half of them, so
the tables of other stores continue. A refresh that does not return for `_STUCK_S` (a hard-mounted NFS, a client without
time-outs) keeps its thread, and another thread takes its place: a store that never answers costs its own tables only.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from airflow_lake_provider.config.access import TokensSource
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hudi.base_path import require_allowed, store_of
from airflow_lake_provider.timeline_server import saved
from airflow_lake_provider.timeline_server.poll_limits import PollLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from airflow_lake_provider.timeline_server.cache import SharedTimelines

log = logging.getLogger(__name__)

T = TypeVar("T")

_IDLE_MS = 250
_BUSY_STORE_MS = 500
_STUCK_S = 10.0
_MAX_STORES_STUCK = 8
"""For so many stores that never answer there are threads."""
_ENCODERS = 2
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
"""As in glibc's malloc.h."""
_LARGE_BYTES = 128 * 1024
"""glibc's own default, which it raises by itself unless it is set."""
_SAVES_APART = 10
"""What is known of commits may be tens of megabytes, and what was not saved is only read again."""
_LOOPS = 3
"""Jobs of the server itself: the feed, the verification, the file of snapshots."""


@dataclass(frozen=True, slots=True)
class TableFeed:
    """One table from a feed: the server watches it permanently, and it may have changed."""

    base_path: str
    mark: int = 0
    instants: tuple[str, ...] = ()
    is_by_writer: bool = False
    fixed_pause_s: float | None = None


class KeptFile(Protocol):
    """A file with what a process knows, for the next one."""

    def save(self) -> None:
        """Write it, if there is something new. Raises OSError."""

    def restore(self) -> None:
        """Take what it has. Raises nothing."""


class HintFeed(Protocol):
    """Source of hints that other processes received; polled about once a second."""

    def is_registered(self, base_path: str) -> bool:
        """Whether the table is still to be watched."""

    def poll(self) -> Iterable[TableFeed]:
        """Return the tables that are new or were marked since the last call."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How the server works."""

    allowed_roots: tuple[str, ...] = ()
    service_tokens: tuple[str, ...] = ()
    refresh_threads: int = 8
    feed_interval_s: float = 1.0
    verify_interval_s: float = 60.0
    save_interval_s: float = 60.0
    snapshot_path: Path | None = None
    tokens_file: str = ""
    is_watching: bool = True
    """Whether it refreshes tables by itself; off in a process that only shares what its own readers read."""
    is_for_readers: bool = False
    """Whether it refreshes only what readers poll: another process watches the registered tables."""

    @property
    def watches_registered(self) -> bool:
        """Whether it watches each registered table permanently."""
        return self.is_watching and not self.is_for_readers


def use_one_heap() -> None:
    """Have the C library serve all threads from one heap, and give back what is large as soon as it is free.

    Python's lock lets one thread allocate at a time anyway. Without a fixed threshold glibc keeps up to 64 MiB on its
    heap once a large answer was freed. Does nothing where the C library is not glibc.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_ARENA_MAX, 1)
        library.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _LARGE_BYTES)


class TimelineServer:
    """Shared timelines with their background work. `run` works until it is cancelled."""

    def __init__(self, timelines: SharedTimelines, options: ServerOptions, feed: HintFeed | None = None) -> None:
        self.timelines = timelines
        self.options = options
        self.tokens = TokensSource((), options.service_tokens, options.tokens_file)
        self.poll_limits = PollLimits()
        self._feed = feed
        self.kept_file: KeptFile | None = None
        """Restored at the start; saved now and then, and at the end."""
        # Both start threads only when there is more to do than before.
        most = options.refresh_threads * (_MAX_STORES_STUCK + 1)
        self._refresh_pool = ThreadPoolExecutor(most, thread_name_prefix="lake-timeline-refresh")
        self._readers = ThreadPoolExecutor(most, thread_name_prefix="lake-read")
        self._encoders = ThreadPoolExecutor(_ENCODERS, thread_name_prefix="lake-encode")
        self._loops = ThreadPoolExecutor(_LOOPS, thread_name_prefix="lake-loop")
        self._busy: Counter[str] = Counter()
        self._reading: dict[str, asyncio.Semaphore] = {}
        self._wake: asyncio.Event | None = None
        self._event_loop: asyncio.AbstractEventLoop | None = None

    def require_allowed(self, base_path: str) -> None:
        """Raise PathNotAllowedError for a table outside the allowed roots."""
        require_allowed(base_path, self.options.allowed_roots)

    def pause_s(self, base_path: str) -> float:
        """Return the heartbeat pause of a silent table in seconds; 0 when this server does not watch tables."""
        return self.timelines.pause_ms(base_path) / 1000 if self.options.watches_registered else 0.0

    def hint(self, feed: TableFeed) -> None:
        """Accept a hint from any thread; the refresh begins when a thread is free, or with the next reader."""
        if self.options.is_for_readers and not self.timelines.is_polled(feed.base_path):
            self.timelines.outdate(feed.base_path, feed.mark)
            return
        self.timelines.hint(feed.base_path, feed.instants, feed.mark, is_by_writer=feed.is_by_writer)
        event_loop = self._event_loop
        wake = self._wake
        if event_loop is not None and wake is not None and not event_loop.is_closed():
            event_loop.call_soon_threadsafe(wake.set)

    def wake(self) -> None:
        """Process the due queue now; call it in the event loop."""
        if self._wake is not None:
            self._wake.set()

    async def read(self, query: Callable[[], T], base_path: str) -> T:
        """Run a query that may have to read a table's storage, off the event loop; at most so many of one store."""
        # A waiting query costs no thread, so a store that does not answer keeps only its own readers waiting.
        free = self._reading.setdefault(store_of(base_path), asyncio.Semaphore(self.options.refresh_threads))
        async with free:
            return await asyncio.get_running_loop().run_in_executor(self._readers, query)

    async def encode(self, make: Callable[[], T]) -> T:
        """Run what takes long and reads no storage off the event loop; stores that do not answer never delay it."""
        return await asyncio.get_running_loop().run_in_executor(self._encoders, make)

    async def run(self) -> None:
        """Work until cancelled; then save what is known."""
        self._event_loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        path = self.options.snapshot_path
        event_loop = asyncio.get_running_loop()
        if self.kept_file is not None:
            await event_loop.run_in_executor(self._loops, self.kept_file.restore)
        if path is not None:
            restored = await event_loop.run_in_executor(self._loops, saved.restore, self.timelines, path)
            log.info("timelines of %d tables restored from %s", restored, path)
        jobs = [self._repeat(self._take_feed, self.options.feed_interval_s)]
        if self.options.is_watching:
            jobs += [self._refresh_continuously(), self._repeat(self._verify, self.options.verify_interval_s)]
        if path is not None:
            jobs.append(self._repeat(self._save, self.options.save_interval_s))
        if self.kept_file is not None:
            jobs.append(self._repeat(self._save_kept, _SAVES_APART * self.options.save_interval_s))
        try:
            await asyncio.gather(*jobs)
        finally:
            self._refresh_pool.shutdown(wait=False, cancel_futures=True)
            self._readers.shutdown(wait=False, cancel_futures=True)
            self._encoders.shutdown(wait=False, cancel_futures=True)
            self._loops.shutdown(wait=False, cancel_futures=True)
            self._save()
            self._save_kept()

    async def _refresh_continuously(self) -> None:
        event_loop = asyncio.get_running_loop()
        wake = self._wake
        assert wake is not None
        free = asyncio.Semaphore(self.options.refresh_threads)
        while True:
            wake.clear()
            now_ms = self.timelines.now_ms()
            for base_path, is_hinted in self.timelines.due.take(now_ms, self.options.refresh_threads):
                await free.acquire()
                if not self._may_use(store_of(base_path)):
                    # Other stores' tables must not wait for a store that holds half of the threads already.
                    self.timelines.due.give_back(base_path)
                    self.timelines.due.put(base_path, now_ms + _BUSY_STORE_MS)
                    free.release()
                    continue
                self._busy[store_of(base_path)] += 1
                future = event_loop.run_in_executor(self._refresh_pool, self._refresh, base_path, is_hinted)
                stuck = event_loop.call_later(_STUCK_S, free.release)
                future.add_done_callback(partial(self._done, base_path, free, stuck))
            wait_ms = self.timelines.due.wait_ms(self.timelines.now_ms(), _IDLE_MS)
            if wait_ms:
                try:
                    await asyncio.wait_for(wake.wait(), wait_ms / 1000)
                except TimeoutError:
                    continue
            else:
                await asyncio.sleep(0)

    def _may_use(self, store: str) -> bool:
        most = self.options.refresh_threads
        # One that alone is busy may have all; those that do not return are among them.
        return self._busy[store] < (most if len(+self._busy) <= 1 else max(1, most // 2))

    def _refresh(self, base_path: str, is_hinted: bool) -> None:  # noqa: FBT001
        try:
            is_missing = self.timelines.refresh_if_due(base_path, is_hinted=is_hinted)
            # Another process may have had the registry forget it.
            if is_missing and self._feed is not None and not self._feed.is_registered(base_path):
                self.timelines.forget(base_path)
        except Exception:  # an unexpected error of one table must not stop the others
            log.exception("refreshing the timeline of %s failed unexpectedly", base_path)

    def _done(self, base_path: str, free: asyncio.Semaphore, stuck: asyncio.TimerHandle, _: object) -> None:
        self._busy[store_of(base_path)] -= 1
        if not stuck.cancelled() and stuck.when() > asyncio.get_running_loop().time():
            stuck.cancel()
            free.release()

    async def _repeat(self, job: Callable[[], None], interval_s: float) -> None:
        event_loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(interval_s)
            try:
                await event_loop.run_in_executor(self._loops, job)
            except Exception:  # the outermost loop: one failed round must not end all later ones
                log.exception("%s failed; again in %s s", getattr(job, "__name__", job), interval_s)

    def _take_feed(self) -> None:
        if self._feed is None:
            return
        for feed in self._feed.poll():
            try:
                if self.options.watches_registered:
                    was_announced = not feed.mark and feed.is_by_writer
                    self.timelines.register(feed.base_path, feed.fixed_pause_s, was_announced=was_announced)
                if self.options.is_for_readers and self.timelines.memory.find(feed.base_path) is None:
                    continue  # no reader has asked for it
                cached = self.timelines.memory.get(feed.base_path)
                if feed.mark > max(cached.covered_mark, cached.hints.mark):
                    self.hint(feed)
            except LakeError as error:
                log.warning("the server cannot watch table %s: %s", feed.base_path, error)

    def _verify(self) -> None:
        self.timelines.verify_one()

    def _save(self) -> None:
        path = self.options.snapshot_path
        if path is None:
            return
        try:
            saved.save(self.timelines, path)
        except OSError as error:
            log.warning("timelines are not saved to %s: %s", path, error)

    def _save_kept(self) -> None:
        if self.kept_file is None:
            return
        try:
            self.kept_file.save()
        except OSError as error:
            log.warning("what is known of commits is not saved: %s", error)
