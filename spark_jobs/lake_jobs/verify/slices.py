"""Which files of a file group a reader merged when a plan was made. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lake_jobs.replication.file_slices import FIRST_VERSION_OF_OWN_LOGS, find_slice, parse_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from lake_jobs.replication.file_slices import CompletedInstants, DataFile, FileSlice
    from lake_jobs.verify.sample import Group


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


def group_files(groups: Collection[Group], sizes: Mapping[str, int]) -> dict[Group, list[DataFile]]:
    """Return the files of file groups among those of a listing, whose paths are below the base path."""
    found: dict[Group, list[DataFile]] = {group: [] for group in groups}
    for path in sizes:
        partition, _, name = path.rpartition("/")
        file = parse_name(name)
        if file is not None and (partition, file.file_id) in found:
            found[partition, file.file_id].append(file)
    return found


def find_suspects(
    planned: Mapping[Group, frozenset[str]],
    files: Mapping[Group, Collection[DataFile]],
    known: CompletedInstants,
    plan: str,
    table_version: int,
) -> frozenset[Group]:
    """Return the file groups of which a plan reads other files than a reader merged when it was made.

    That alone is no fault: a writer that died may have left a log file that Hudi knows to be of no commit.
    """
    suspects = set()
    for group, paths in planned.items():
        seen = find_seen_slice(files[group], known, plan, table_version)
        if {path.rpartition("/")[2] for path in paths} != {file.name for file in (seen.files if seen else ())}:
            suspects.add(group)
    return frozenset(suspects)


def with_new(seen: FileSlice, new_files: Iterable[str], files: Iterable[DataFile]) -> FileSlice:
    """Return a slice with the log files among the new ones, which are named by their paths."""
    names = {path.rpartition("/")[2] for path in new_files}
    return replace(seen, logs=(*seen.logs, *(file for file in files if file.is_log and file.name in names)))


def before(instant: str) -> str:
    """Return the last instant time that sorts before another one."""
    return str(int(instant) - 1).zfill(len(instant))
