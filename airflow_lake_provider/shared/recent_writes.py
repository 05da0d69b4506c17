"""Which partitions a writer that has announced nothing may touch: those of the table's last writes."""

from __future__ import annotations

RECENT_WRITES = 10
"""Number of completed writes whose partitions the next write may touch."""
TOUCH_NOTHING_OLD = frozenset({"COMPACT", "LOG_COMPACT", "CLUSTER", "BULK_INSERT"})
"""Operations that say nothing of what the next write touches.

Services are no writes; a bulk insert begins new file groups and touches no other.
"""
