"""What waits behind a stuck shape on this very table: pure, from the evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.stuck_shape import Shape
from airflow_lake_provider.timeline.instant import Action

if TYPE_CHECKING:
    from airflow_lake_provider.doctor.evidence import Evidence

_MOST_NAMED = 5
# Hudi archives nothing at or behind these, and takes them for holes.
_HOLES = frozenset(
    {
        Shape.FAILED_WRITE,
        Shape.DANGLING_REPLACECOMMIT,
        Shape.PLAN_WITHOUT_EXECUTOR,
        Shape.BLOCKING_CLUSTERING,
        Shape.UNGUARDED_SERVICE,
        Shape.OVERTAKEN_LOG_COMPACTION,
    }
)


def blocked_behind(evidence: Evidence, shape: Shape, instant: str) -> tuple[str, ...]:
    """Return one line for each thing that is blocked; empty when nothing waits yet."""
    lines: list[str] = []
    if shape is Shape.ORPHANED_LOCK:
        waiting = [f"{i.action} {i.requested_time} ({i.state.value})" for i in evidence.timeline.pending()]
        lines += [f"pending: {_listed(waiting)}"] if waiting else []
    if shape in _HOLES:
        lines += _behind_the_hole(evidence, instant)
    groups = evidence.clustered_file_groups.get(instant, ())
    if groups and shape in {Shape.BLOCKING_CLUSTERING, Shape.UNGUARDED_SERVICE}:
        named = [f"{count} in {partition or 'the table'}" for partition, count in groups]
        lines.append(f"updates of {sum(count for _, count in groups)} file groups: {_listed(named)}")
    if shape is Shape.STALE_INDEX_BUILD:
        own = evidence.index_partitions.get(instant, frozenset())
        same = [time for time, parts in sorted(evidence.index_partitions.items()) if time > instant and parts & own]
        lines += [f"index plans for the same partitions: {_listed(same)}"] if same else []
    return tuple(lines)


def _behind_the_hole(evidence: Evidence, instant: str) -> list[str]:
    later = [
        write.requested_time
        for write in evidence.timeline.completed_writes_by_completion()
        if write.requested_time > instant
    ]
    lines = []
    if later:
        lines.append(f"{len(later)} completed writes are not archived and count as behind a hole: {_listed(later)}")
    builds = [index.requested_time for index in evidence.timeline.pending(Action.INDEXING)]
    if builds:
        lines.append(f"index builds: {_listed(builds)}")
    return lines


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMED])
    return shown if len(names) <= _MOST_NAMED else f"{shown} and {len(names) - _MOST_NAMED} more"
