"""When a table that is kept in memory is looked at next, and the bounds of that memory."""

from __future__ import annotations

import heapq
import itertools
import threading
import zlib
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_lake_provider.hudi.timeline import Timeline
    from airflow_lake_provider.timeline_server.cached_table import Slot

# --- When a table that nobody speaks of is looked at once (RFC-43's heartbeat). Pure functions of a few numbers
#
# A table's own rhythm says how long a silence is normal. A table whose writers were heard to announce their commits
# is left alone for longer; one that changed without a word is not trusted again until it announces the next change.

SUSPICIOUS_AFTER_GAPS = 3.0
"""A silence of this many usual gaps is worth a look."""
SILENCE_SHARE = 0.25
"""A table that has been silent for long is looked at after another quarter of its silence."""
_GAPS = 10
_SECONDS = 14


@dataclass(frozen=True, slots=True)
class HeartbeatLimits:
    """Bounds of the pause between two looks without a reason, in seconds."""

    least_s: float = 60.0
    most_s: float = 600.0
    """For a table of which nobody knows whether its writers announce commits."""
    most_announced_s: float = 21_600.0
    """For a table whose last change was announced."""


def find_rhythm_s(timeline: Timeline) -> float | None:
    """Return the usual gap between two completed writes in seconds (median of the last ten); None without two."""
    times = [time for i in timeline.completed_writes_by_completion()[-_GAPS - 1 :] if (time := i.completed_time)]
    moments = [moment for time in times if (moment := _parse(time)) is not None]
    gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(moments)]
    return median(gaps) if gaps else None


def next_pause_s(
    *,
    silent_s: float,
    rhythm_s: float | None,
    is_announced: bool,
    watched_s: float | None,
    limits: HeartbeatLimits,
) -> float:
    """Return how long to wait before the next look, counted from the last one.

    `silent_s` is how long nothing has changed, `watched_s` how often somebody who waits for the table would poll it
    himself (None: nobody waits); that holds while nothing proves that the table's writers announce their commits.
    """
    most_s = limits.most_announced_s if is_announced else limits.most_s
    if watched_s is not None and not is_announced:
        return min(watched_s, most_s)
    usual_s = SUSPICIOUS_AFTER_GAPS * rhythm_s if rhythm_s is not None else limits.least_s
    left_s = max(usual_s - silent_s, 0.0) if silent_s < usual_s else SILENCE_SHARE * silent_s
    return min(max(left_s, limits.least_s), most_s)


def _parse(instant_time: str) -> datetime | None:
    # Only differences are taken, so the table's time zone does not matter here.
    try:
        return datetime.strptime(instant_time[:_SECONDS], "%Y%m%d%H%M%S")  # noqa: DTZ007
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class SharedLimits:
    """Bounds of the shared timelines."""

    max_tables: int = 10_000
    hot_tables: int = 256
    """Tables that are also kept unpacked, with all file names; what is looked at often is parsed only once."""
    heartbeat: HeartbeatLimits = field(default_factory=HeartbeatLimits)
    cold_start_s: float = 60.0
    """Tables that are registered but not loaded are loaded over this time."""


def pause_ms(base_path: str, slot: Slot, limits: HeartbeatLimits, now_ms: int) -> int:
    """Return how long to wait after a look before the next one without a reason."""
    watched_s = slot.watched_pause_s(now_ms)
    pause_s = slot.fixed_pause_s
    if pause_s is None:
        pause_s = next_pause_s(
            silent_s=max(now_ms - slot.changed_ms, 0) / 1000,
            rhythm_s=slot.rhythm_s,
            is_announced=slot.is_announced,
            watched_s=watched_s,
            limits=limits,
        )
    elif watched_s is not None and not slot.is_announced:
        pause_s = min(watched_s, pause_s)
    # Tables that were loaded together shall not be looked at together for ever.
    return int(pause_s * 1000 * (0.95 + 0.05 * fraction_of(base_path)))


def fraction_of(base_path: str) -> float:
    """Return a number from 0 to 1 that is always the same for a table."""
    return (zlib.crc32(base_path.encode("utf-8", "surrogatepass")) % 1000) / 1000


# --- Which tables are to be looked at next: hinted ones at once, in order, the others when their time has come
#
# A table that was taken is not handed out again before it is given back; a hint that comes meanwhile is kept.

NEVER = 1 << 62


class DueQueue:
    """Thread-safe. Times are ms since the epoch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hinted: dict[str, None] = {}
        self._due: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        self._taken: set[str] = set()

    def hint(self, base_path: str) -> None:
        """Say that a table is to be looked at as soon as possible."""
        with self._lock:
            self._hinted[base_path] = None

    def put(self, base_path: str, due_ms: int) -> None:
        """Say when a table is to be looked at without a hint; the latest word counts, NEVER takes it out."""
        with self._lock:
            if due_ms >= NEVER:
                self._due.pop(base_path, None)
            elif self._due.get(base_path) != due_ms:
                self._due[base_path] = due_ms
                heapq.heappush(self._heap, (due_ms, base_path))
            if len(self._heap) > 2 * len(self._due) + 1000:  # outdated entries are dropped when they outnumber
                self._heap = [(due, path) for path, due in self._due.items()]
                heapq.heapify(self._heap)

    def put_earlier(self, base_path: str, due_ms: int) -> None:
        """Do as `put`, unless the table is due earlier anyway."""
        with self._lock:
            if self._due.get(base_path, NEVER) <= due_ms:
                return
        self.put(base_path, due_ms)

    def take(self, now_ms: int, most: int) -> list[tuple[str, bool]]:
        """Return up to `most` tables that are due, and whether each was hinted. Each must be given back."""
        taken: list[tuple[str, bool]] = []
        with self._lock:
            free = (path for path in self._hinted if path not in self._taken)
            for base_path in tuple(itertools.islice(free, most)):
                del self._hinted[base_path]
                taken.append((base_path, True))
                self._taken.add(base_path)
            while self._heap and self._heap[0][0] <= now_ms and len(taken) < most:
                due_ms, base_path = heapq.heappop(self._heap)
                if self._due.get(base_path) != due_ms:
                    continue
                # Whoever looks says when the next look is due; if he dies of a bug, the table comes again.
                self._due[base_path] = now_ms + 60_000
                heapq.heappush(self._heap, (now_ms + 60_000, base_path))
                if base_path not in self._taken:
                    taken.append((base_path, False))
                    self._taken.add(base_path)
        return taken

    def give_back(self, base_path: str) -> None:
        """Say that a taken table was looked at."""
        with self._lock:
            self._taken.discard(base_path)

    def wait_ms(self, now_ms: int, most_ms: int) -> int:
        """Return how long nothing is due, at most `most_ms`."""
        with self._lock:
            if any(path not in self._taken for path in self._hinted):
                return 0
            next_ms = self._heap[0][0] if self._heap else NEVER
        return max(0, min(next_ms - now_ms, most_ms))

    def due_ms(self, base_path: str) -> int | None:
        """Return when a table is due without a hint; None when it never is."""
        return self._due.get(base_path)

    @property
    def hints(self) -> int:
        """How many hinted tables wait."""
        return len(self._hinted)
