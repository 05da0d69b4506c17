"""Which files of a file group a reader merged when a plan was made. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lake_jobs.replication.file_slices import FIRST_VERSION_OF_OWN_LOGS, find_slice

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from lake_jobs.replication.file_slices import CompletedInstants, DataFile, FileSlice


def find_doubtful(files: Iterable[DataFile], known: CompletedInstants) -> str:
    """Return the oldest archived write of log files that may have completed after a later base file; empty for none.

    Its completion decides whether the base file has its rows.
    """
    found = list(files)
    newest = max((file.instant for file in found if not file.is_log), default="")
    archived = (file.instant for file in found if file.is_log and file.instant < min(known.begins, newest))
    return min(archived, default="")


def find_seen_slice(
    files: Collection[DataFile], known: CompletedInstants, plan: str, table_version: int
) -> FileSlice | None:
    """Return the slice that a reader merged when a plan was made; None when there was none."""
    has_own_logs = table_version >= FIRST_VERSION_OF_OWN_LOGS
    return find_slice(files, known, (plan, "") if has_own_logs else ("", before(plan)), table_version)


def with_new(seen: FileSlice, new_files: Iterable[str], files: Iterable[DataFile]) -> FileSlice:
    """Return a slice with the log files among the new ones, which are named by their paths."""
    names = {path.rpartition("/")[2] for path in new_files}
    return replace(seen, logs=(*seen.logs, *(file for file in files if file.is_log and file.name in names)))


def before(instant: str) -> str:
    """Return the last instant time that sorts before another one."""
    return str(int(instant) - 1).zfill(len(instant))
