"""Times of the registry as people read them."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(time_ms: int | None) -> str:
    """Return a time as people read it, UTC; `-` for none."""
    return "-" if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
