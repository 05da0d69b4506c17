"""Who would stand in the way of a write that begins now; for users' own writers, before they begin. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.conflict.active_instant import Role
from airflow_lake_provider.conflict.contention import partitions_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow_lake_provider.conflict.active_instant import ActiveInstant
    from airflow_lake_provider.conflict.conflict_table import TableActivity

_WORDS = {
    Role.WRITER: "writer",
    Role.CLUSTERING: "pending clustering",
    Role.COMPACTION: "compaction",
    Role.LOG_COMPACTION: "running log compaction",
}
_WHILE_LIVE = frozenset({Role.WRITER, Role.LOG_COMPACTION})


def find_obstacles(activity: TableActivity, partitions: Collection[str]) -> tuple[str, ...]:
    """Return in words who touches, or may touch, one of the partitions; none named means the whole table.

    Live writers count, for the younger of two on one file group loses at its commit; so does each pending clustering,
    because Hudi refuses updates of its file groups, and a log compaction that was begun, because Hudi rejects at its
    commit who writes to them meanwhile. Compactions and dead writers do not.
    """
    return tuple(
        _describe(active, touched)
        for active in activity.actives
        if _counts(active) and ((touched := _touched(active)) is None or not partitions or touched & set(partitions))
    )


def _counts(active: ActiveInstant) -> bool:
    return active.role is Role.CLUSTERING or (active.role in _WHILE_LIVE and active.is_live)


def _touched(active: ActiveInstant) -> frozenset[str] | None:
    """Return all partitions that it touches; None when that is not known."""
    if active.partitions is None or active.unread:
        return None
    return active.partitions | partitions_of(active.markers.file_groups())


def _describe(active: ActiveInstant, touched: frozenset[str] | None) -> str:
    where = "somewhere: it has not said where" if touched is None else f"in {', '.join(sorted(touched)) or 'the table'}"
    return f"{_WORDS[active.role]} {active.instant} ({active.action or 'not on the timeline yet'}) {where}"
