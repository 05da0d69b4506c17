"""What `airflow lake conflicts` says of a table: who is at work, on what, and who stands in whose way; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_lake_provider.conflict.active_instant import Role
from airflow_lake_provider.conflict.contention import Claim, describe_file_groups, find_active_clashes

if TYPE_CHECKING:
    from airflow_lake_provider.conflict.active_instant import ActiveInstant
    from airflow_lake_provider.conflict.conflict_table import TableActivity

_NEVER = "none"


def describe_activity(activity: TableActivity) -> list[dict[str, Any]]:
    """Return one row per instant at work, oldest first. `clashes` are those that it gives way to, in words."""
    return [_describe(active, activity) for active in activity.actives]


def _describe(active: ActiveInstant, activity: TableActivity) -> dict[str, Any]:
    groups = active.markers.file_groups() | active.planned
    claim = Claim(active.instant, groups, active.role)
    counts = active.is_live or active.role is not Role.WRITER
    passes = activity.compactions_pass
    verdict = find_active_clashes(claim, activity.actives, compactions_pass=passes) if counts else None
    age_s = None if active.beat_ms is None else (activity.now_ms - active.beat_ms) // 1000
    return {
        "instant": active.instant,
        "action": active.action or "not on the timeline",
        "role": active.role.value,
        "state": _state(active),
        "heartbeat_age_s": age_s,
        "markers": active.markers.count,
        "marker_kind": active.markers.kind.value,
        "file_groups": describe_file_groups(groups) if groups else _NEVER,
        "partitions": sorted(active.partitions) if active.partitions is not None else None,
        "unread": list(active.unread),
        "clashes": [str(clash) for clash in verdict.clashes] if verdict is not None else [],
    }


def _state(active: ActiveInstant) -> str:
    if active.is_live:
        return "live"
    if active.role is not Role.WRITER:
        return "pending"
    return "no heartbeat" if active.beat_ms is None else "dead"


def print_line(row: dict[str, Any]) -> str:
    """Print a row for people."""
    age = "" if row["heartbeat_age_s"] is None else f", heartbeat {row['heartbeat_age_s']} s ago"
    lines = [f"{row['instant']} {row['action']}: {row['role']}, {row['state']}{age}; {row['file_groups']}"]
    lines += [f"  gives way: {clash}" for clash in row["clashes"]]
    lines += [f"  cannot be read: {name}" for name in row["unread"]]
    return "\n".join(lines)
