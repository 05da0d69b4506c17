"""When a stream stands still: no transition, so the sweep derives it from what the sink lacks; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.instant_clock import DAY_MS
from airflow_lake_provider.manager.health.sink_events import SinkEvent, SinkEventKind

if TYPE_CHECKING:
    from airflow_lake_provider.manager.db.typed_rows import SinkOfTable

STANDS_STILL_MS = 1_800_000
"""How long a sink may lack something without any progress, or a quarter of its time to live where that is less."""


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
