"""How much a merge-on-read table has in log files, from commit metadata alone (no listing of data files)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_lake_provider.hudi.commit_metadata import CommitMetadata
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.planner.table_view import TableView

FileGroup = tuple[str, str]
"""Partition path and file id."""

COMPACT_OPERATION = "COMPACT"
LOG_COMPACT_OPERATION = "LOG_COMPACT"


@dataclass(frozen=True, slots=True)
class CompactionBacklog:
    """What waits for compaction. Sizes count file groups whose base file's size is on the active timeline."""

    delta_commits: int
    first_delta_commit: Instant | None
    """The one of them that completed first."""
    log_files: int
    most_log_files: int
    """In one file slice."""
    log_bytes: int
    base_bytes: int
    unsized_file_groups: int
    """File groups with log files whose base file was written before the active timeline begins."""
    last_compaction: str | None
    """Requested time of the last completed compaction."""
    newest_write: str | None
    """Requested time of the completed write, compactions aside, that completed last."""

    @property
    def log_to_base_ratio(self) -> float | None:
        """Log bytes over base bytes; None while no base file's size is known."""
        return self.log_bytes / self.base_bytes if self.base_bytes else None


@dataclass(slots=True)
class _FileGroupSizes:
    base_bytes: int | None = None
    logs: list[tuple[str, int]] = field(default_factory=list)
    """Completed time and bytes of each log file of the newest file slice."""


def measure_compaction_backlog(view: TableView) -> CompactionBacklog:
    """Replay the completed writes in completion order and count what no compaction has merged yet."""
    groups: dict[FileGroup, _FileGroupSizes] = {}
    delta_commits: list[Instant] = []
    last_compaction: Instant | None = None
    newest_write: str | None = None
    for instant, metadata in _completed_writes(view):
        for file_group in metadata.replaced_file_groups:
            groups.pop(file_group, None)
        if metadata.operation == COMPACT_OPERATION:
            last_compaction = instant
            _apply_compaction(groups, metadata, instant.requested_time)
            delta_commits = [i for i in delta_commits if _completed_time(i) > instant.requested_time]
            continue
        if metadata.operation == LOG_COMPACT_OPERATION:
            _apply_log_compaction(groups, metadata, instant)
            continue
        # Not the compaction itself: its time is the key of the run that executed its plan.
        newest_write = instant.requested_time
        if instant.action == "deltacommit":
            delta_commits.append(instant)
        _apply_write(groups, metadata, _completed_time(instant))
    return _summarise(groups, delta_commits, last_compaction, newest_write)


def _completed_time(instant: Instant) -> str:
    return instant.completed_time or instant.requested_time


def _completed_writes(view: TableView) -> Iterator[tuple[Instant, CommitMetadata]]:
    for instant in view.timeline.completed_writes_by_completion():
        metadata = view.commits.get(instant.requested_time)
        if metadata is not None:
            yield instant, metadata


def _apply_compaction(groups: dict[FileGroup, _FileGroupSizes], metadata: CommitMetadata, requested_time: str) -> None:
    # A log file that completed after the plan was made belongs to the slice that the compaction begins, not to
    # the one that it merges (file slicing by completion time, table version 8).
    for stat in metadata.stats:
        group = groups.setdefault((stat.partition, stat.file_id), _FileGroupSizes())
        group.base_bytes = stat.file_size_bytes
        group.logs = [log for log in group.logs if log[0] > requested_time]


def _apply_log_compaction(groups: dict[FileGroup, _FileGroupSizes], metadata: CommitMetadata, instant: Instant) -> None:
    for stat in metadata.stats:
        group = groups.setdefault((stat.partition, stat.file_id), _FileGroupSizes())
        group.logs = [log for log in group.logs if log[0] > instant.requested_time]
        group.logs.append((_completed_time(instant), stat.written_bytes))


def _apply_write(groups: dict[FileGroup, _FileGroupSizes], metadata: CommitMetadata, completed_time: str) -> None:
    for stat in metadata.stats:
        group = groups.setdefault((stat.partition, stat.file_id), _FileGroupSizes())
        if stat.is_log:
            group.logs.append((completed_time, stat.written_bytes))
        else:
            group.base_bytes = stat.file_size_bytes


def _summarise(
    groups: dict[FileGroup, _FileGroupSizes],
    delta_commits: list[Instant],
    last_compaction: Instant | None,
    newest_write: str | None,
) -> CompactionBacklog:
    sized = [group for group in groups.values() if group.base_bytes is not None]
    return CompactionBacklog(
        delta_commits=len(delta_commits),
        first_delta_commit=delta_commits[0] if delta_commits else None,
        log_files=sum(len(group.logs) for group in groups.values()),
        most_log_files=max((len(group.logs) for group in groups.values()), default=0),
        log_bytes=sum(size for group in sized for _, size in group.logs),
        base_bytes=sum(group.base_bytes or 0 for group in sized),
        unsized_file_groups=len(groups) - len(sized),
        last_compaction=last_compaction.requested_time if last_compaction else None,
        newest_write=newest_write,
    )
