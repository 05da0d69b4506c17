"""The nearest rank of measured values: what each benchmark that gives a percentile counts by."""

from __future__ import annotations

import math
from collections.abc import Sequence


def rank(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of all values does not exceed. Raises IndexError for none."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def rank_if_any(values: Sequence[float], share: float) -> float | None:
    """Return the nearest rank, to a thousandth; None without a value."""
    return round(rank(values, share), 3) if values else None
