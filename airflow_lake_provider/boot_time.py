"""Seconds that go on while the machine sleeps, for everything that is measured against a lease."""

from __future__ import annotations

import time


def boot_s() -> float:
    """Return the seconds since the machine was started, its sleep included.

    Linux's monotonic clock stands still while the machine sleeps; a lease in the database does not.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
