"""What a process's shared timelines did, counted."""

from __future__ import annotations

import threading
from collections import Counter


class TimelineStats:
    """Counters by name; safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._counts[name] += by

    def read(self) -> dict[str, int]:
        """Return all counters."""
        with self._lock:
            return dict(self._counts)
