"""Keeps evaluations from slowing what the same server answers: a share of the processor while requests wait.

Python runs one thread of a process at a time. While several tables are evaluated, each step of a request waits for its
turn among them, Airflow's requests too. Evaluations can wait: what arrives for a table meanwhile is evaluated together.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BUSY_LAG_S = 0.01
"""Mean delay of the event loop from which on the server counts as busy (seconds)."""
BUSY_SHARE = 0.2
"""Share of one core that evaluations use of a busy server."""
MAX_PAUSE_S = 2.0
"""Maximum pause before the next evaluation (seconds)."""
MEASURE_EVERY_S = 0.1
_WEIGHT = 0.2
"""Of the newest delay in the mean: about the last second counts."""


class Courtesy:
    """How long evaluations pause, by the delay of the server's event loop; safe from any thread."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._lag_s = 0.0
        self._paid_until_s = 0.0

    async def measure(self) -> None:
        """Measure the delay of the running event loop until cancelled."""
        while True:
            asked_s = self._monotonic_s()
            await asyncio.sleep(MEASURE_EVERY_S)
            self.record_lag(self._monotonic_s() - asked_s - MEASURE_EVERY_S)

    def record_lag(self, lag_s: float) -> None:
        """Count one measured delay."""
        self._lag_s += _WEIGHT * (max(0.0, lag_s) - self._lag_s)

    def record_use(self, used_s: float) -> None:
        """Count what an evaluation used of the processor; next ones wait in proportion while the server is busy."""
        if self._lag_s < BUSY_LAG_S:
            return
        now_s = self._monotonic_s()
        with self._lock:
            paid_until_s = max(now_s, self._paid_until_s) + used_s * (1 / BUSY_SHARE - 1)
            self._paid_until_s = min(paid_until_s, now_s + MAX_PAUSE_S)

    @contextmanager
    def counting_use(self) -> Iterator[None]:
        """Count what this thread uses of the processor inside."""
        began_s = time.thread_time()
        try:
            yield
        finally:
            self.record_use(time.thread_time() - began_s)

    def pause(self) -> None:
        """Wait before the next evaluation while the server is busy."""
        time.sleep(self.pause_s())

    def pause_s(self) -> float:
        """Return how long a thread waits before its next evaluation (seconds)."""
        with self._lock:
            return max(0.0, self._paid_until_s - self._monotonic_s())
