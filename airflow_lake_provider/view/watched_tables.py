"""Which tables the watchers of one process wait for, how often each would be polled, and what was seen of it last.

Used within one event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class WatchedTables:
    """Counts watchers per table. A table is new until it was named to the server, and again for each new watcher."""

    def __init__(self) -> None:
        self._intervals: dict[str, Counter[float]] = {}
        self._versions: dict[str, str] = {}
        self._due_s: dict[str, float] = {}
        self._new: dict[str, None] = {}
        self._came = asyncio.Event()

    def add(self, base_paths: Iterable[str], interval_s: float) -> None:
        """Add a watcher. It is told the tables' present state, even if others know that already."""
        for base_path in base_paths:
            self._intervals.setdefault(base_path, Counter())[interval_s] += 1
            self._versions.pop(base_path, None)
            self._due_s.pop(base_path, None)
            self._new[base_path] = None
        self._came.set()

    def remove(self, base_paths: Sequence[str], interval_s: float) -> list[str]:
        """Remove a watcher; return the tables that nobody watches any more."""
        gone = []
        for base_path in base_paths:
            intervals = self._intervals.get(base_path)
            if intervals is None:
                continue
            intervals[interval_s] -= 1
            if not +intervals:
                gone.append(base_path)
                for memory in (self._intervals, self._versions, self._due_s, self._new):
                    memory.pop(base_path, None)
        return gone

    def has(self, base_path: str) -> bool:
        """Whether somebody watches the table."""
        return base_path in self._intervals

    def interval_s(self, base_path: str) -> float:
        """Return the shortest interval at which one of the table's watchers would poll it."""
        return min(+self._intervals[base_path])

    def version_of(self, base_path: str) -> str:
        """Return the version that all watchers of the table were told; empty: none."""
        return self._versions.get(base_path, "")

    def was_seen(self, base_path: str, version: str) -> None:
        """Say that all watchers were told of this version; empty: that the table cannot be read."""
        self._versions[base_path] = version

    # --- for the server ------------------------------------------------------------------------------------

    def all_are_new(self) -> None:
        """Name every table to the server again."""
        self._new = dict.fromkeys(self._intervals)

    def add_new(self, base_paths: Iterable[str]) -> None:
        """Give tables back that could not be named."""
        self._new |= {base_path: None for base_path in base_paths if base_path in self._intervals}

    def take_new(self, most: int) -> list[str]:
        """Take tables that are to be named to the server."""
        taken = list(self._new)[:most]
        for base_path in taken:
            del self._new[base_path]
        return taken

    async def wait_for_new(self) -> None:
        """Return when there are tables to name."""
        while not self._new:
            self._came.clear()
            await self._came.wait()

    # --- for the file system -------------------------------------------------------------------------------

    def take_due(self, now_s: float, most: int) -> list[str]:
        """Take tables that were not looked at for their interval, longest waiting first."""
        due = sorted(
            (self._due_s.get(path, 0.0), path) for path in self._intervals if self._due_s.get(path, 0.0) <= now_s
        )
        taken = [path for _, path in due[:most]]
        for path in taken:
            self._due_s[path] = now_s + self.interval_s(path)
        return taken
