"""When a table that nobody speaks of is looked at once (RFC-43's heartbeat). Pure functions of a few numbers.

A table's own rhythm says how long a silence is normal. A table whose writers were heard to announce their commits is
left alone for longer; one that changed without a word is not trusted again until it announces the next change.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_lake_provider.timeline.timeline import Timeline

SUSPICIOUS_AFTER_GAPS = 3.0
"""A silence of this many usual gaps is worth a look."""
SILENCE_SHARE = 0.25
"""A table that has been silent for long is looked at after another quarter of its silence."""
_GAPS = 10
_SECONDS = 14


@dataclass(frozen=True, slots=True)
class HeartbeatLimits:
    """Bounds of the pause between two looks without a reason, in seconds."""

    least_s: float = 60.0
    most_s: float = 600.0
    """For a table of which nobody knows whether its writers announce commits."""
    most_announced_s: float = 21_600.0
    """For a table whose last change was announced."""


def find_rhythm_s(timeline: Timeline) -> float | None:
    """Return the usual gap between two completed writes in seconds (median of the last ten); None without two."""
    times = [time for i in timeline.completed_writes_by_completion()[-_GAPS - 1 :] if (time := i.completed_time)]
    moments = [moment for time in times if (moment := _parse(time)) is not None]
    gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(moments)]
    return median(gaps) if gaps else None


def next_pause_s(
    *,
    silent_s: float,
    rhythm_s: float | None,
    is_announced: bool,
    watched_s: float | None,
    limits: HeartbeatLimits,
) -> float:
    """Return how long to wait before the next look, counted from the last one.

    `silent_s` is how long nothing has changed, `watched_s` how often somebody who waits for the table would poll it
    himself (None: nobody waits); that holds while nothing proves that the table's writers announce their commits.
    """
    most_s = limits.most_announced_s if is_announced else limits.most_s
    if watched_s is not None and not is_announced:
        return min(watched_s, most_s)
    usual_s = SUSPICIOUS_AFTER_GAPS * rhythm_s if rhythm_s is not None else limits.least_s
    left_s = max(usual_s - silent_s, 0.0) if silent_s < usual_s else SILENCE_SHARE * silent_s
    return min(max(left_s, limits.least_s), most_s)


def _parse(instant_time: str) -> datetime | None:
    # Only differences are taken, so the table's time zone does not matter here.
    try:
        return datetime.strptime(instant_time[:_SECONDS], "%Y%m%d%H%M%S")  # noqa: DTZ007
    except ValueError:
        return None
