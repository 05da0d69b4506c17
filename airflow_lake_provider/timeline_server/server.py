"""The timeline server's work in one process: look at what is due, verify samples, take hints from a feed, save itself.

Looks happen in threads of its own. A store that does not answer can hold at most half of them, so the tables of other
stores go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hudi.base_path import require_allowed
from airflow_lake_provider.timeline_server import refresh as snapshot_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from airflow_lake_provider.timeline_server.cache import SharedTimelines

log = logging.getLogger(__name__)

T = TypeVar("T")

_IDLE_MS = 250
_BUSY_STORE_MS = 500


@dataclass(frozen=True, slots=True)
class FedTable:
    """What a feed says of a table: it is to be watched for good, and perhaps it changed."""

    base_path: str
    mark: int = 0
    instants: tuple[str, ...] = ()
    is_by_writer: bool = False
    fixed_pause_s: float | None = None


class HintFeed(Protocol):
    """Where hints that other processes took are found; asked about once a second."""

    def poll(self) -> Iterable[FedTable]:
        """Return the tables that are new or were marked since the last call."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How the server works."""

    allowed_roots: tuple[str, ...] = ()
    service_tokens: tuple[str, ...] = ()
    look_threads: int = 8
    feed_interval_s: float = 1.0
    verify_interval_s: float = 60.0
    save_interval_s: float = 60.0
    snapshot_path: Path | None = None
    is_watching: bool = True
    """Whether it looks at tables by itself; off in a process that only shares what its own readers ask."""


class TimelineServer:
    """Shared timelines with their background work. `run` works until it is cancelled."""

    def __init__(self, timelines: SharedTimelines, options: ServerOptions, feed: HintFeed | None = None) -> None:
        self.timelines = timelines
        self.options = options
        self._feed = feed
        self._lookers = ThreadPoolExecutor(options.look_threads, thread_name_prefix="lake-look")
        self._readers = ThreadPoolExecutor(options.look_threads, thread_name_prefix="lake-read")
        self._busy: Counter[str] = Counter()
        self._wake: asyncio.Event | None = None
        self._event_loop: asyncio.AbstractEventLoop | None = None

    def require_allowed(self, base_path: str) -> None:
        """Raise PathNotAllowedError for a table outside the allowed roots."""
        require_allowed(base_path, self.options.allowed_roots)

    def pause_s(self, base_path: str) -> float:
        """Return for how long this server leaves a silent table alone; 0 when it does not watch tables."""
        return self.timelines.pause_ms(base_path) / 1000 if self.options.is_watching else 0.0

    def hint(self, fed: FedTable) -> None:
        """Take a hint from any thread; the look begins at once when a thread is free."""
        self.timelines.hint(fed.base_path, fed.instants, fed.mark, is_by_writer=fed.is_by_writer)
        event_loop, wake = self._event_loop, self._wake
        if event_loop is not None and wake is not None and not event_loop.is_closed():
            event_loop.call_soon_threadsafe(wake.set)

    def wake(self) -> None:
        """Look at the due queue now; to be called in the event loop."""
        if self._wake is not None:
            self._wake.set()

    async def read(self, question: Callable[[], T]) -> T:
        """Run a question that may have to look at storage, off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, question)

    async def run(self) -> None:
        """Work until cancelled; then save what is known."""
        self._event_loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        path = self.options.snapshot_path
        if path is not None:
            restored = await self.read(lambda: snapshot_file.restore(self.timelines, path))
            log.info("timelines of %d tables restored from %s", restored, path)
        jobs = [self._repeat(self._take_feed, self.options.feed_interval_s)]
        if self.options.is_watching:
            jobs += [self._look_forever(), self._repeat(self._verify, self.options.verify_interval_s)]
        if path is not None:
            jobs.append(self._repeat(self._save, self.options.save_interval_s))
        try:
            await asyncio.gather(*jobs)
        finally:
            self._lookers.shutdown(wait=False, cancel_futures=True)
            self._readers.shutdown(wait=False, cancel_futures=True)
            self._save()

    async def _look_forever(self) -> None:
        event_loop, wake = asyncio.get_running_loop(), self._wake
        assert wake is not None
        free = asyncio.Semaphore(self.options.look_threads)
        while True:
            wake.clear()
            now_ms = self.timelines.now_ms()
            for base_path, is_hinted in self.timelines.due.take(now_ms, self.options.look_threads):
                await free.acquire()
                if not self._may_use(_store_of(base_path)):
                    # Other stores' tables must not wait for a store that holds half of the threads already.
                    self.timelines.due.give_back(base_path)
                    self.timelines.due.put(base_path, now_ms + _BUSY_STORE_MS)
                    free.release()
                    continue
                self._busy[_store_of(base_path)] += 1
                future = event_loop.run_in_executor(self._lookers, self._look, base_path, is_hinted)
                future.add_done_callback(lambda _, path=base_path: self._done(path, free))  # type: ignore[misc]
            wait_ms = self.timelines.due.wait_ms(self.timelines.now_ms(), _IDLE_MS)
            if wait_ms:
                try:
                    await asyncio.wait_for(wake.wait(), wait_ms / 1000)
                except TimeoutError:
                    continue
            else:
                await asyncio.sleep(0)

    def _may_use(self, store: str) -> bool:
        return self._busy[store] < max(1, self.options.look_threads // 2) or len(+self._busy) <= 1

    def _look(self, base_path: str, is_hinted: bool) -> None:  # noqa: FBT001
        try:
            self.timelines.look_if_due(base_path, is_hinted=is_hinted)
        except Exception:  # one table's surprise must not stop the others
            log.exception("looking at the timeline of %s failed unexpectedly", base_path)

    def _done(self, base_path: str, free: asyncio.Semaphore) -> None:
        self._busy[_store_of(base_path)] -= 1
        free.release()

    async def _repeat(self, job: Callable[[], None], interval_s: float) -> None:
        event_loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(interval_s)
            try:
                await event_loop.run_in_executor(self._readers, job)
            except Exception:  # the outermost loop: one bad round must not end all later ones
                log.exception("%s failed; again in %s s", getattr(job, "__name__", job), interval_s)

    def _take_feed(self) -> None:
        if self._feed is None:
            return
        for fed in self._feed.poll():
            try:
                if self.options.is_watching:
                    was_announced = not fed.mark and fed.is_by_writer
                    self.timelines.register(fed.base_path, fed.fixed_pause_s, was_announced=was_announced)
                slot = self.timelines.memory.get(fed.base_path)
                if fed.mark > max(slot.covered_mark, slot.hints.mark):
                    self.hint(fed)
            except LakeError as error:
                log.warning("table %s cannot be watched: %s", fed.base_path, error)

    def _verify(self) -> None:
        self.timelines.verify_one()

    def _save(self) -> None:
        path = self.options.snapshot_path
        if path is None:
            return
        try:
            snapshot_file.save(self.timelines, path)
        except OSError as error:
            log.warning("timelines are not saved to %s: %s", path, error)


def _store_of(base_path: str) -> str:
    scheme, separator, rest = base_path.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}" if separator else ""
