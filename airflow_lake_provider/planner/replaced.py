"""Whether there can be files to clean: did a write replace any, and is it old enough for Hudi to let go of them? Pure.

With KEEP_LATEST_COMMITS Hudi deletes a file slice or a replaced file group when the write that replaced it is older
than the commits to retain (`CleanPlanner.getFilesToCleanKeepingLatestCommits`). A table that is only appended to never
has one, and Hudi then plans no clean and leaves nothing on the timeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.planner.backlog import COMPACT_OPERATION
from airflow_lake_provider.timeline.instant import WRITE_ACTIONS, Action

if TYPE_CHECKING:
    from airflow_lake_provider.timeline.commit_metadata import CommitMetadata
    from airflow_lake_provider.timeline.instant import Instant
    from airflow_lake_provider.view.table_view import TableView


def may_have_replaced(metadata: CommitMetadata | None) -> bool:
    """Whether a write may have replaced a file; of one without metadata that is not known."""
    if metadata is None or metadata.replaced_file_groups or metadata.operation == COMPACT_OPERATION:
        return True
    # Log files are added to a file slice.
    return any(not stat.is_new_group and not stat.is_log for stat in metadata.stats)


def find_kept_from(view: TableView, kept: int) -> str:
    """Return from which moment on (completed times) what writes replaced stays, when a clean keeps so many of them.

    A clean passes neither the oldest pending write nor a savepoint. Empty when there are no more writes than kept.
    """
    writes = view.timeline.completed_writes_by_completion()
    if len(writes) <= kept:
        return ""
    pending = [instant.requested_time for instant in view.timeline.pending(*WRITE_ACTIONS)]
    saved = [i.requested_time for i in view.timeline.completed() if i.action is Action.SAVEPOINT]
    return min([_time(writes[len(writes) - kept]), *pending, *saved])


def find_replacing(view: TableView, cleaned_before: str, kept_from: str) -> Instant | None:
    """Return the first write between two moments that may have replaced a file; None when the timeline shows none."""
    for write in view.timeline.completed_writes_by_completion():
        is_between = cleaned_before <= _time(write) < kept_from
        if is_between and may_have_replaced(view.commits.get(write.requested_time)):
            return write
    return None


def is_nothing_replaced(view: TableView, cleaned_before: str, kept_from: str) -> bool:
    """Whether it is known that between two moments no write replaced a file: the first is where all was cleaned."""
    writes = view.timeline.completed_writes_by_completion()
    if not cleaned_before or not kept_from:
        return False
    if kept_from <= cleaned_before:
        return True
    # What lies before the active timeline cannot be asked.
    return _time(writes[0]) <= cleaned_before and find_replacing(view, cleaned_before, kept_from) is None


def _time(write: Instant) -> str:
    return write.completed_time or write.requested_time
