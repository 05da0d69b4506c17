"""How often one table is evaluated: some times at once, then at a steady pace, however often its writers commit.

What arrives for a table while it rests is evaluated together. A table that is committed to each second, with nothing
due, would otherwise cost the manager and its database as much as hundreds of others.
"""

from __future__ import annotations

from dataclasses import dataclass, field

AT_ONCE = 5
"""How many evaluations of a table may follow each other without a rest."""
EVERY_S = 5.0
"""The rest for each one after these (seconds): late enough to matter, and early enough for whatever becomes due."""
_KEPT = 1024
"""With more tables than these, those that have rested are forgotten."""


@dataclass(slots=True)
class EvaluationPace:
    """Which tables rest at a time of a monotonic clock (seconds). Not safe from several threads: its owner locks."""

    at_once: int = AT_ONCE
    every_s: float = EVERY_S
    _rested_s: dict[str, float] = field(default_factory=dict)
    """By table: when nothing of its evaluations counts any longer."""

    def count(self, table_id: str, now_s: float) -> None:
        """Count an evaluation that begins."""
        self._rested_s[table_id] = max(now_s, self._rested_s.get(table_id, now_s)) + self.every_s
        if len(self._rested_s) > _KEPT:
            self._rested_s = {table: rested_s for table, rested_s in self._rested_s.items() if rested_s > now_s}

    def forget(self, table_id: str) -> None:
        """Let a table be evaluated at once again: something was due, and soon something else may be."""
        self._rested_s.pop(table_id, None)

    def find_resting(self, now_s: float) -> dict[str, float]:
        """Return the tables that rest, and until when each does (seconds)."""
        free_s = self.at_once * self.every_s - self.every_s
        ready_s = {table: rested_s - free_s for table, rested_s in self._rested_s.items()}
        return {table: until_s for table, until_s in ready_s.items() if until_s > now_s}
