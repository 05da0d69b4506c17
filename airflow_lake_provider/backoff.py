"""How long to wait after failures in a row: the one formula of the manager, the planner, the timeline server and tasks.

A module of its own at the root, because layers from the timeline server to `execution/` need it. Standard library only.
"""

from __future__ import annotations

import math

_MOST_DOUBLINGS = 60
"""Beyond any limit in use; a table may fail for weeks, and a float ends at 2 to the power of 1024."""


def backoff(first: float, failures: int, most: float = math.inf) -> float:
    """Return the pause after `failures` failures in a row, in the unit of `first`.

    It is `first` after the first failure, doubles with each further one, and never exceeds `most`.
    """
    return min(first * 2.0 ** min(max(failures - 1, 0), _MOST_DOUBLINGS), most)
