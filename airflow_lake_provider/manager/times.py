"""Times of the registry as people read them."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(time_ms: int | None) -> str:
    """Return a time as people read it, UTC; `-` for none."""
    return "-" if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def distance(time_ms: int | None, now_ms: int) -> str:
    """Return how far a time is from now, in one unit: `12 s ago`, `in 3 h`; `-` for none."""
    if time_ms is None:
        return "-"
    seconds = abs(now_ms - time_ms) // 1000
    units = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
    unit, length_s = next((unit for unit in units if seconds >= 2 * unit[1]), units[-1])
    amount = f"{seconds // length_s} {unit}"
    return f"in {amount}" if time_ms > now_ms else f"{amount} ago"
