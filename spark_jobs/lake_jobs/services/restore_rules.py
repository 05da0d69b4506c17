"""Which step of a restore is next: begin it, go on with it, or only compare what one did. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.obstacles import explain_pending_restore
from lake_jobs.replication.file_slices import FIRST_VERSION_OF_OWN_LOGS, FileSlice, parse_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from lake_jobs.replication.file_slices import DataFile

MAX_NAMED = 10


class RestoreStep(StrEnum):
    """What a run of a restore does."""

    BEGIN = "begin"
    RESUME = "resume"
    """A restore to this savepoint is pending, of a run that died."""
    VERIFY = "verify"
    """An earlier try has completed it."""


def decide_step(
    savepoint: str,
    allowed: Collection[str],
    on_timeline: Collection[str],
    taken_back: Collection[str],
    pending: Mapping[str, str],
    completed: Collection[str],
) -> RestoreStep:
    """Return the next step of a restore. Raises ServiceRefusedError for one that would take back what was not seen.

    `allowed` is what a check has named, `taken_back` what the restore would take back now; `pending` are the savepoints
    of pending restores by their requested times, `completed` the requested times of those that have completed.
    """
    foreign = [restore for restore, to in pending.items() if to != savepoint]
    if foreign:
        raise ServiceRefusedError(explain_pending_restore(foreign))
    if pending:
        return RestoreStep.RESUME
    new = sorted(set(taken_back) - set(allowed))
    if not set(allowed) & set(on_timeline) and max(completed, default="") > max(allowed, default=""):
        return RestoreStep.VERIFY
    if new:
        raise ServiceRefusedError(
            f"{', '.join(new[:MAX_NAMED])} began after the check, and would be taken back as well: check again"
        )
    return RestoreStep.BEGIN


def find_gone(saved: Iterable[str], present: Collection[str], savepoint: str) -> tuple[str, ...]:
    """Return the files of a savepoint that are gone and must not be.

    The list of a savepoint that was made later also has log files of later writes, which a restore removes.
    """
    gone = (name for name in saved if name not in present)
    return tuple(sorted(name for name in gone if (file := parse_name(name)) is None or file.instant <= savepoint))


def slices_of(files: Iterable[DataFile], savepoint: str, version: int) -> dict[str, FileSlice]:
    """Return the file slices that the files of a savepoint make, by file group."""
    groups: dict[str, list[DataFile]] = {}
    for file in files:
        if file.instant <= savepoint or (file.is_log and version < FIRST_VERSION_OF_OWN_LOGS):
            groups.setdefault(file.file_id, []).append(file)
    slices = {}
    for file_id, found in groups.items():
        base = max((file for file in found if not file.is_log), key=lambda file: file.instant, default=None)
        slices[file_id] = FileSlice(base, tuple(file for file in found if file.is_log))
    return slices
