"""When the server refreshes a cached table next, the bounds of its memory, and which tables changed."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import threading
import uuid
import zlib
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from airflow_lake_provider.timeline_server.cached_table import CachedTimeline

# --- When to refresh a table that sent no notice (RFC-43's heartbeat). Pure functions of a few numbers
#
# A table's commit interval shows how long a silence is normal. A table whose writers announced commits may stay silent
# for longer; one that changed without a notice is not trusted again until it announces the next change. What no writer
# announces (plans, cleans, writes in flight) is never expected to be: where a watcher waits for that, the table is
# refreshed as often as the watcher would poll.

SUSPICIOUS_AFTER_GAPS = 3.0
"""A silence of this many commit intervals causes a refresh."""
SILENCE_SHARE = 0.25
"""A table that has been silent for long is refreshed after another quarter of its silence."""


@dataclass(frozen=True, slots=True)
class HeartbeatLimits:
    """Bounds of the pause between two refreshes without a hint, in seconds."""

    least_s: float = 60.0
    most_s: float = 600.0
    """For a table whose writers are not known to announce commits."""
    most_announced_s: float = 21_600.0
    """For a table whose last change was announced."""


def next_pause_s(
    *,
    silent_s: float,
    commit_interval_s: float | None,
    is_announced: bool,
    watched_s: float | None,
    limits: HeartbeatLimits,
) -> float:
    """Return how long to wait before the next refresh, counted from the last one.

    `silent_s` is how long nothing has changed, `watched_s` how often a watcher of the table would poll it (None: no
    watcher); that counts while nothing proves that the table's writers announce their commits.
    """
    most_s = limits.most_announced_s if is_announced else limits.most_s
    if watched_s is not None and not is_announced:
        return min(watched_s, most_s)
    usual_s = SUSPICIOUS_AFTER_GAPS * commit_interval_s if commit_interval_s is not None else limits.least_s
    left_s = max(usual_s - silent_s, 0.0) if silent_s < usual_s else SILENCE_SHARE * silent_s
    return min(max(left_s, limits.least_s), most_s)


@dataclass(frozen=True, slots=True)
class SharedLimits:
    """Bounds of the shared timelines."""

    max_tables: int = 10_000
    table_bytes: int = 8_192
    """Snapshots take so many bytes for each of `max_tables` at most, in all: what 1,000 instants need."""
    hot_tables: int = 256
    """Tables that are also cached unpacked, with all file names; those refreshed often are parsed only once."""
    hot_bytes: int = 256 << 20
    """What these take, as far as it is known: 100 tables of 4,000 instants."""
    heartbeat: HeartbeatLimits = field(default_factory=HeartbeatLimits)
    cold_start_s: float = 60.0
    """Tables that are registered but not loaded are loaded over this time."""


def pause_ms(base_path: str, cached: CachedTimeline, limits: HeartbeatLimits, now_ms: int) -> int:
    """Return how long to wait after a refresh before the next one without a hint."""
    watched_s = cached.watched_pause_s(now_ms)
    pause_s = cached.fixed_pause_s
    if pause_s is None:
        pause_s = next_pause_s(
            silent_s=max(now_ms - cached.changed_ms, 0) / 1000,
            commit_interval_s=cached.commit_interval_s,
            is_announced=cached.is_announced,
            watched_s=watched_s,
            limits=limits,
        )
    elif watched_s is not None and not cached.is_announced:
        pause_s = min(watched_s, pause_s)
    unannounced_s = cached.unannounced_pause_s(now_ms)
    if unannounced_s is not None:
        pause_s = min(unannounced_s, pause_s)
    # Tables that were loaded together must not be refreshed together indefinitely.
    return int(pause_s * 1000 * (0.95 + 0.05 * fraction_of(base_path)))


def fraction_of(base_path: str) -> float:
    """Return a number from 0 to 1 that is always the same for a table."""
    return (zlib.crc32(base_path.encode("utf-8", "surrogatepass")) % 1000) / 1000


# --- Which tables to refresh next: hinted ones immediately, in order, the others when they are due
#
# A taken table is not returned again before it is given back; a hint that arrives meanwhile stays. A table takes one
# number, in its record; only those that are due within a minute are sorted, once a minute.

NEVER = 1 << 62
_SORTED_MS = 60_000


class DueQueue:
    """Thread-safe. Times are ms since the epoch; `due` holds those of the tables, and may refuse to hold one."""

    def __init__(self, due: MutableMapping[str, int] | None = None) -> None:
        self._lock = threading.Lock()
        self._hinted: dict[str, None] = {}
        self._due: MutableMapping[str, int] = {} if due is None else due
        self._soon: list[tuple[int, str]] = []
        """A heap of the tables that are due before `_sorted_until_ms`, and of outdated entries."""
        self._sorted_until_ms = 0
        self._later_ms = NEVER
        """No other table is due before."""
        self._taken: set[str] = set()

    def hint(self, base_path: str) -> None:
        """Make a table due as soon as possible."""
        with self._lock:
            self._hinted[base_path] = None

    def put(self, base_path: str, due_ms: int) -> None:
        """Set when a table is due without a hint; the last call counts, NEVER takes it out."""
        with self._lock:
            self._put(base_path, due_ms)

    def _put(self, base_path: str, due_ms: int) -> None:
        if due_ms >= NEVER:
            self._due.pop(base_path, None)
        elif self._due.get(base_path) != due_ms:
            self._due[base_path] = due_ms
            if due_ms >= self._sorted_until_ms:
                self._later_ms = min(self._later_ms, due_ms)
            else:
                heapq.heappush(self._soon, (due_ms, base_path))
        if len(self._soon) > 2 * len(self._due) + 1000:  # outdated entries are dropped when they outnumber
            self._sort(self._sorted_until_ms)

    def _sort(self, until_ms: int) -> None:
        self._sorted_until_ms = until_ms
        self._soon = [(due_ms, base_path) for base_path, due_ms in self._due.items() if due_ms < until_ms]
        heapq.heapify(self._soon)
        self._later_ms = min((due_ms for due_ms in self._due.values() if due_ms >= until_ms), default=NEVER)

    def put_earlier(self, base_path: str, due_ms: int) -> None:
        """Do the same as `put`, unless the table is due earlier anyway."""
        with self._lock:
            if self._due.get(base_path, NEVER) > due_ms:
                self._put(base_path, due_ms)

    def take(self, now_ms: int, most: int) -> list[tuple[str, bool]]:
        """Return up to `most` tables that are due, and whether each was hinted. Each must be given back."""
        taken: list[tuple[str, bool]] = []
        with self._lock:
            free = (path for path in self._hinted if path not in self._taken)
            for base_path in tuple(itertools.islice(free, most)):
                del self._hinted[base_path]
                taken.append((base_path, True))
                self._taken.add(base_path)
            if taken and not self._hinted:
                self._hinted = {}  # an emptied dict keeps the room of a burst
            if self._later_ms <= now_ms:
                self._sort(now_ms + _SORTED_MS)
            while self._soon and self._soon[0][0] <= now_ms and len(taken) < most:
                due_ms, base_path = heapq.heappop(self._soon)
                if self._due.get(base_path) != due_ms:
                    continue
                # Each refresh sets when the next one is due; if the worker crashes, the table is queued again.
                self._put(base_path, now_ms + 60_000)
                if base_path not in self._taken:
                    taken.append((base_path, False))
                    self._taken.add(base_path)
        return taken

    def give_back(self, base_path: str) -> None:
        """Return a taken table after its refresh."""
        with self._lock:
            self._taken.discard(base_path)

    def wait_ms(self, now_ms: int, most_ms: int) -> int:
        """Return how long nothing is due, at most `most_ms`."""
        with self._lock:
            if any(path not in self._taken for path in self._hinted):
                return 0
            next_ms = min(self._soon[0][0] if self._soon else NEVER, self._later_ms)
        return max(0, min(next_ms - now_ms, most_ms))

    def due_ms(self, base_path: str) -> int | None:
        """Return when a table is due without a hint; None when it never is."""
        return self._due.get(base_path)

    @property
    def hints(self) -> int:
        """How many hinted tables wait."""
        return len(self._hinted)


class Timelines(Protocol):
    """The tables of a process (`table_memory.TableMemory`)."""

    def find(self, base_path: str) -> CachedTimeline | None:
        """Return a table's entry; None when there is none."""

    def timelines(self) -> list[CachedTimeline]:
        """Return all entries."""

    def __len__(self) -> int: ...


class RecordedTimes(MutableMapping[str, int]):
    """When each table is due, in its record: a dict of numbers takes 90 bytes a table. A forgotten one has none."""

    def __init__(self, timelines: Timelines) -> None:
        self._timelines = timelines

    def __getitem__(self, base_path: str) -> int:
        cached = self._timelines.find(base_path)
        if cached is None or not cached.due_ms:
            raise KeyError(base_path)
        return cached.due_ms

    def __setitem__(self, base_path: str, due_ms: int) -> None:
        if (cached := self._timelines.find(base_path)) is not None:
            cached.due_ms = due_ms

    def __delitem__(self, base_path: str) -> None:
        cached = self._timelines.find(base_path)
        if cached is None or not cached.due_ms:
            raise KeyError(base_path)
        cached.due_ms = 0

    def __iter__(self) -> Iterator[str]:
        return (cached.base_path for cached in self._timelines.timelines() if cached.due_ms)

    def __len__(self) -> int:
        return len(self._timelines)


# --- Which tables changed, in the order in which this process saw it; readers wait for entries after their cursor
#
# A cursor is `<epoch>.<number>`. The epoch is this log's own: a reader with another one (of a restarted server, or of
# another of two) learns that it is unknown, and compares versions instead. So nothing depends on this log's memory.

_MAX_ENTRIES = 100_000


class ChangeLog:
    """Bounded log; `add` may be called from any thread, `wait` from any event loop."""

    def __init__(self, most_entries: int = _MAX_ENTRIES) -> None:
        self._epoch = uuid.uuid4().hex[:12]
        self._lock = threading.Lock()
        self._most_entries = most_entries
        self._entries: list[str] = []
        """A ring: the entry with the number n, from 0, is at n modulo `most_entries`. So a reader that is far behind
        finds its next entries as fast as one that is not."""
        self._last = 0
        """How many entries there ever were."""
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    @property
    def cursor(self) -> str:
        """The cursor after the newest entry."""
        return f"{self._epoch}.{self._last}"

    def add(self, base_path: str) -> None:
        """Record that a table changed."""
        with self._lock:
            if len(self._entries) < self._most_entries:
                self._entries.append(base_path)
            else:
                self._entries[self._last % self._most_entries] = base_path
            self._last += 1
            waiters = tuple(self._waiters)
        for event_loop, event in waiters:
            with contextlib.suppress(RuntimeError):  # that event loop has ended
                event_loop.call_soon_threadsafe(event.set)

    def find_after(self, cursor: str, most: int = _MAX_ENTRIES) -> tuple[str, tuple[str, ...]] | None:
        """Return tables that changed after the given cursor and the cursor after them; None for one not known here.

        At most the first `most` entries are read: the next call goes on behind them.
        """
        epoch, _, number = cursor.partition(".")
        if epoch != self._epoch or not (number.isascii() and number.isdigit()):
            return None
        after = int(number)
        with self._lock:
            if after > self._last or after < self._last - len(self._entries):
                return None
            until = min(self._last, after + most)
            newest_first = (self._entries[n % self._most_entries] for n in range(until - 1, after - 1, -1))
            changed = dict.fromkeys(newest_first)
            return f"{self._epoch}.{until}", tuple(reversed(changed))

    async def wait(self, cursor: str, timeout_s: float) -> None:
        """Return when there is an entry after the cursor, or after the timeout."""
        event = asyncio.Event()
        waiter = (asyncio.get_running_loop(), event)
        with self._lock:
            self._waiters.add(waiter)
        try:
            found = self.find_after(cursor, 1)
            if found is not None and not found[1]:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(event.wait(), timeout_s)
        finally:
            with self._lock:
                self._waiters.discard(waiter)
