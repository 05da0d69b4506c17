"""Which tables are to be looked at next: hinted ones at once, in order, the others when their time has come.

A table that was taken is not handed out again before it is given back; a hint that comes meanwhile is kept.
"""

from __future__ import annotations

import heapq
import itertools
import threading

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
