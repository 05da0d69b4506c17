"""What replication's slowest sink still needs of a table, as the planner hears of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import commits_to_keep

if TYPE_CHECKING:
    from airflow_lake_provider.planner.decision import Evidence
    from airflow_lake_provider.timeline.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Hold:
    """The oldest hold that counts. Cleaning and archiving are clamped to it once more as their job begins."""

    instant: str
    """Requested time from which on files and instants are needed; `0` is everything."""
    sink: str
    ends_ms: int
    """When it is released unless the sink makes progress, ms since the epoch."""

    def commits(self, timeline: Timeline) -> int:
        """Return how many of the newest writes a job keeps for it."""
        requested = [write.requested_time for write in timeline.completed_writes_by_completion()]
        return commits_to_keep(requested, self.instant)

    def describe(self) -> str:
        """Return who holds what, and until when."""
        what = "everything" if self.instant == "0" else f"everything since {self.instant}"
        return f"sink {self.sink} holds {what}, until {self._ends} UTC unless it makes progress"

    def evidence(self) -> Evidence:
        """Return the same as facts."""
        return {"held_by": self.sink, "held_from": self.instant, "held_until": self._ends}

    @property
    def _ends(self) -> str:
        return datetime.fromtimestamp(self.ends_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
