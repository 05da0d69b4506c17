"""Heartbeats: a quiet table's sink gets its position once more, so that readers know a quiet table from a dead stream.

A heartbeat is a transaction without changes. Its checkpoint has the time at which the timeline was read that showed
nothing else; it moves no watermark, for the clocks of writers and of this process differ. Pure.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from airflow_lake_provider.replication.checkpoint import unread

if TYPE_CHECKING:
    from airflow_lake_provider.replication.checkpoint import Checkpoint
    from airflow_lake_provider.replication.feed import SourceTimeline


def print_time(moment: datetime) -> str:
    """Return a moment as checkpoints and records have it: `2026-06-01T10:00:00.000Z`."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def is_heartbeat_due(checkpoint: Checkpoint, timeline: SourceTimeline, heartbeat_s: float, now: datetime) -> bool:
    """Whether the position of a sink that has all of the table is older than `heartbeat_s`; never with 0."""
    is_in_part = checkpoint.snapshot is not None or checkpoint.is_within_commit
    if not heartbeat_s or is_in_part or unread(checkpoint, timeline.completed):
        return False
    if not checkpoint.at:
        return True
    # After `now` where another worker's clock was ahead: then the sink gets the present time at once.
    return not timedelta() <= now - datetime.fromisoformat(checkpoint.at) < timedelta(seconds=heartbeat_s)
