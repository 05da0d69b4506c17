"""Which tables changed, in the order in which this process saw it; readers wait for what comes after their cursor.

A cursor is `<epoch>.<number>`. The epoch is this log's own: whoever comes with another one (a restarted server, or
another of two) is told that it is not known, and compares versions instead. So nothing depends on this log's memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections import deque

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
