"""What people must know of a replication's sinks: the kinds of events, and when a stream stands still; pure.

The transitions are recorded with the change that makes them (`db/sinks.py`), and the sweep notifies people of each
once. That a stream stands still is no transition: the sweep derives it from what the sink lacks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_lake_provider.instant_clock import DAY_MS

if TYPE_CHECKING:
    from airflow_lake_provider.manager.db.typed_rows import SinkOfTable

FAILING_AFTER = 3
"""Runs without success in between, with pauses of 30 s and a minute: a broker that restarts is none."""
STANDS_STILL_MS = 1_800_000
"""How long a sink may lack something without any progress, or a quarter of its time to live where that is less."""
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


def find_standing(of_table: SinkOfTable, now_ms: int) -> SinkEvent | None:
    """Return that a sink, which lacks something since `due_ms`, stands still; None while it does not.

    People are reminded of it each day. A paused sink stands still on purpose.
    """
    row = of_table.sink
    since_ms = max(row.due_ms, row.renewed_ms)
    stood_ms = now_ms - since_ms
    if not row.due_ms or row.paused or stood_ms < min(STANDS_STILL_MS, row.ttl_s * 250):
        return None
    if row.problem:
        why = f"its last run: {row.problem}"
    elif row.running_until_ms > now_ms:
        why = f"run {row.run_id} has it and makes no progress"
    else:
        why = "no run has taken it: are lake_replication and, with [lake] streams_at_once, lake_streams unpaused?"
    reason = f"it lacks changes, and has made no progress for {stood_ms // 60_000} minutes; {why}"
    at_ms = since_ms + stood_ms // DAY_MS * DAY_MS
    return SinkEvent(SinkEventKind.STANDS_STILL, of_table.base_path, row.sink, reason, at_ms, of_table.owner)
