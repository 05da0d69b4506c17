"""What people must know of a replication's sinks: the kinds of events.

The transitions are recorded with the change that makes them (`db/sinks.py`), and the sweep notifies people of each
once. That a stream stands still is no transition: `db/standing_sinks.py` derives it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_lake_provider.instant_clock import DAY_MS

FAILING_AFTER = 3
"""Runs without success in between, with pauses of 30 s and a minute: a broker that restarts is none."""
EVENT_LIFE_MS = DAY_MS
"""An older event is not sent: it would come again when its notification is forgotten."""


class SinkEventKind(StrEnum):
    """What has happened to a sink. The texts are those of the notifications' kinds."""

    FAILING = "sink_failing"
    """Several runs in a row have failed."""
    STANDS_STILL = "sink_stands_still"
    """It has lacked something for long, without progress."""
    RELEASED = "sink_released"
    """Its hold has ended, and cleans may take what it lacks."""
    SNAPSHOT = "sink_snapshot"
    """It gets all rows once more, in a new generation."""


@dataclass(frozen=True, slots=True)
class SinkEvent:
    """One event."""

    kind: SinkEventKind
    base_path: str
    sink: str
    reason: str
    at_ms: int
    """It distinguishes events of a kind: people are notified of each once."""
    owner: str = ""
    """The table's owner."""
