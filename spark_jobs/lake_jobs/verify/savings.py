"""What a table's runs may spend on comparing samples: a share of their own work, saved until a part can be paid.

Comparing one part of a short run, or of a plan with few parts, takes more than the share of one run. So what the runs
of a service may spend is kept with the table, in `.hoodie/.aux`, which no reader of Hudi lists. The first run pays in
advance, so that a fault in every part is found at once. Pure.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

SAMPLE_SHARE = 0.05
"""Share of the work of writing that the comparison of samples may take, over a table's runs."""
IN_ADVANCE_S = 5.0
"""Work that the first run may take in advance, in core seconds."""
FILE = ".hoodie/.aux/lake_verify.json"
"""JSON object: for each service what its runs have left, in core seconds."""


@dataclass(frozen=True, slots=True)
class Savings:
    """What the runs of one service of a table have left to compare samples, in core seconds; None before the first."""

    left_s: float | None

    def offer(self, work_s: float) -> float:
        """Return what a run may spend that took this work to write."""
        earned_s = SAMPLE_SHARE * work_s
        return max(IN_ADVANCE_S, earned_s) if self.left_s is None else self.left_s + earned_s

    def spend(self, work_s: float, spent_s: float) -> Savings:
        """Return what is left after a run."""
        return Savings((self.left_s or 0.0) + SAMPLE_SHARE * work_s - spent_s)


def parse_savings(content: bytes) -> dict[str, float]:
    """Return what a file says; nothing when it is damaged: then the next run is taken for the first."""
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    items = found.items() if isinstance(found, dict) else ()
    return {str(service): float(left) for service, left in items if isinstance(left, (int, float))}
