"""How old an answer may be."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Freshness:
    """Bounds of an answer's age in seconds; None is no bound.

    `max_age_s` always holds. `unannounced_max_age_s` holds unless the table's writers are known to announce their
    commits: then the server would have been told.
    """

    max_age_s: float | None = None
    unannounced_max_age_s: float | None = None

    def most_s(self, *, is_announced: bool) -> float:
        """Return the bound for a table whose writers are known, or not known, to announce their commits."""
        bounds = [self.max_age_s, None if is_announced else self.unannounced_max_age_s]
        return min((bound for bound in bounds if bound is not None), default=math.inf)


ANY_AGE = Freshness()
"""Whatever the server deems current."""

NOW = Freshness(max_age_s=0.0)
"""Storage is asked after the question was."""
