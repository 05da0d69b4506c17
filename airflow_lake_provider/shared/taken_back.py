"""Which writes and plans a restore to a savepoint takes back. Pure.

Source: Hudi 1.2 `RestorePlanActionExecutor`, `RestoreInstantComparatorFactory`. Check and Spark job ask alike.
"""

from __future__ import annotations

from typing import NamedTuple

from airflow_lake_provider.shared.actions import WRITE_ACTIONS, Action


class TimedInstant(NamedTuple):
    """An instant. `completed_time` is the requested one where no other is known, and empty while it is pending."""

    action: str
    requested_time: str
    completed_time: str


def is_taken_back(instant: TimedInstant, saved: TimedInstant, *, merges_logs: bool) -> bool:
    """Whether a restore to the savepoint of the write `saved` takes an instant back.

    All that is pending is, also what began before the savepoint. `merges_logs`: the table is merge-on-read.
    """
    if instant.action not in WRITE_ACTIONS:
        return False
    if merges_logs and instant.action in {Action.COMMIT, Action.COMPACTION}:
        # A compaction begins a file slice at its requested time.
        return instant.requested_time > saved.requested_time
    if not instant.completed_time:
        return True
    return (instant.completed_time, instant.requested_time) > (saved.completed_time, saved.requested_time)
