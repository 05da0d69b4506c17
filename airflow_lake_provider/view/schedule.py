"""When a table that is kept in memory is looked at next, and the bounds of that memory."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_lake_provider.view.rhythm import HeartbeatLimits, next_pause_s

if TYPE_CHECKING:
    from airflow_lake_provider.view.slot import Slot


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
