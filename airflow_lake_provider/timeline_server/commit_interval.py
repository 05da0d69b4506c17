"""The usual pause between the commits of a table. Pure."""

from __future__ import annotations

from datetime import UTC
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from airflow_lake_provider.instant_clock import instant_time_ms

if TYPE_CHECKING:
    from airflow_lake_provider.hudi.timeline import Timeline

_GAPS = 10


def find_commit_interval_s(timeline: Timeline) -> float | None:
    """Return the usual gap between two completed writes in seconds (median of the last ten); None without two."""
    times = [time for i in timeline.completed_writes[-_GAPS - 1 :] if (time := i.completed_time)]
    # Only differences count, so the table's time zone does not matter here.
    times_ms = [time_ms for time in times if (time_ms := instant_time_ms(time, UTC)) is not None]
    gaps = [(later - earlier) / 1000 for earlier, later in pairwise(times_ms)]
    return median(gaps) if gaps else None
