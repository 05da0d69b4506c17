"""What `airflow lake conflicts` shows of a table: active instants, their file groups, and which conflict. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.conflict.contention import Clash, WriteIntent, describe_file_groups, find_active_clashes
from airflow_lake_provider.conflict.marker_reader import ActiveInstant, Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from airflow_lake_provider.conflict.activity import TableActivity

_NEVER = "none"
_DEAD = "dead"
_NO_HEARTBEAT = "no heartbeat"
_LEFT_BEHIND = frozenset({_DEAD, _NO_HEARTBEAT})


@dataclass(frozen=True, slots=True)
class ActivityRow:
    """An instant at work on a table."""

    instant: str
    action: str
    role: str
    state: str
    heartbeat_age_s: int | None
    markers: int
    marker_kind: str
    file_groups: str
    partitions: tuple[str, ...] | None
    unread: tuple[str, ...]
    """Files that cannot be read, so that clashes are not known."""
    clashes: tuple[str, ...]
    """What it gives way to, in words."""


def describe_activity(
    activity: TableActivity, find_commits: Callable[[WriteIntent], tuple[tuple[Clash, ...], tuple[str, ...]]]
) -> list[ActivityRow]:
    """Return one row per instant at work, oldest first.

    `find_commits` returns the clashes of an intent with what completed since it began, and unreadable files.
    """
    return [_describe(active, activity, find_commits) for active in activity.actives]


def is_clear(rows: Iterable[ActivityRow]) -> bool:
    """Whether certainly no active instant gives way to another. What dead writers left does not count."""
    return not any(row.clashes or (row.unread and row.state not in _LEFT_BEHIND) for row in rows)


def _describe(
    active: ActiveInstant,
    activity: TableActivity,
    find_commits: Callable[[WriteIntent], tuple[tuple[Clash, ...], tuple[str, ...]]],
) -> ActivityRow:
    groups = active.markers.file_groups() | active.planned
    rule = activity.rule
    intent = WriteIntent(active.instant, groups, active.role, since=active.instant)
    clashes: tuple[Clash, ...] = ()
    unread = active.unread
    if active.is_live or active.role is not Role.WRITER:
        passes = activity.compactions_pass
        clashes = find_active_clashes(intent, activity.actives, compactions_pass=passes, rule=rule).clashes
    if (active.is_live and active.role is Role.WRITER) or active.role is Role.CLUSTERING:
        # Others' markers and heartbeats vanish at their commit; then it is too late for this one.
        commits, damaged = find_commits(intent)
        clashes, unread = (*clashes, *commits), (*unread, *damaged)
    age_s = None if active.beat_ms is None else (activity.now_ms - active.beat_ms) // 1000
    return ActivityRow(
        instant=active.instant,
        action=active.action or "not on the timeline",
        role=active.role.value,
        state=_state(active),
        heartbeat_age_s=age_s,
        markers=active.markers.count,
        marker_kind=active.markers.kind.value,
        file_groups=describe_file_groups(groups) if groups else _NEVER,
        partitions=tuple(sorted(active.partitions)) if active.partitions is not None else None,
        unread=tuple(unread),
        clashes=tuple(str(clash) for clash in clashes),
    )


def _state(active: ActiveInstant) -> str:
    if active.is_live:
        return "live"
    if active.role is not Role.WRITER:
        return "pending" if active.beat_ms is None else "pending, heartbeat dead"
    return _NO_HEARTBEAT if active.beat_ms is None else _DEAD


def print_line(row: ActivityRow) -> str:
    """Print a row as text."""
    age = "" if row.heartbeat_age_s is None else f", heartbeat {row.heartbeat_age_s} s ago"
    lines = [f"{row.instant} {row.action}: {row.role}, {row.state}{age}; {row.file_groups}"]
    lines += [f"  gives way: {clash}" for clash in row.clashes]
    lines += [f"  not known: {name}" for name in row.unread]
    return "\n".join(lines)
