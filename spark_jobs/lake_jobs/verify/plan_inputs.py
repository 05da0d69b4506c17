"""Compares the files that a plan reads with those that the store and the commits have, before it is executed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.shared.cut_logs import find_log_writers, name_cut_logs, path_of_stat
from airflow_lake_provider.shared.hudi_settings import MERGE_ON_READ
from lake_jobs.hudi.files import path_below
from lake_jobs.hudi.metadata_writes import load_commit_body
from lake_jobs.hudi.plans import read_plan
from lake_jobs.hudi.table import list_times
from lake_jobs.replication.file_slices import FIRST_VERSION_OF_OWN_LOGS, parse_entries
from lake_jobs.verify.sample import files_of_plan, find_gone_groups
from lake_jobs.verify.seen_before import find_completed, with_archived
from lake_jobs.verify.slices import find_doubtful, find_suspects, group_files

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pyspark.sql import SparkSession

    from lake_jobs.hudi.table import LoadedTable
    from lake_jobs.verify.sample import Group

_MAX_NAMED = 3


class LogsCutError(Exception):
    """Log files of a plan have lost rows; nothing was executed."""


class GroupsGoneError(Exception):
    """File groups of a compaction's plan have no file left; nothing was executed."""


def check_inputs(
    spark: SparkSession, state: LoadedTable, client: Any, service: Service, instant: str
) -> frozenset[Group]:
    """Return the file groups of which a plan reads other files than a reader merges, by one listing of its partitions.

    A log compaction leaves the files that it merges where they are, and has none. Raises LogsCutError when a log file
    is shorter than a write of the active timeline left it; GroupsGoneError; Py4JJavaError.
    """
    if state.table_type != MERGE_ON_READ:
        return frozenset()
    planned = files_of_plan(read_plan(spark, state, service, instant))
    sizes = _list_sizes(spark, state, client, {partition for partition, _ in planned})
    if service is Service.COMPACTION and state.table_version >= FIRST_VERSION_OF_OWN_LOGS:
        _require_groups(planned, sizes)
    _require_whole_logs(state, {path for files in planned.values() for path in files if ".log." in path}, sizes)
    if service is Service.LOGCOMPACTION:
        return frozenset()
    files = group_files(planned, sizes)
    known = find_completed(state)
    doubtful = [found for group in files.values() if (found := find_doubtful(group, known))]
    if doubtful and state.table_version >= FIRST_VERSION_OF_OWN_LOGS:
        known = with_archived(state, known, min(doubtful))
    return find_suspects(planned, files, known, instant, state.table_version)


def _require_groups(planned: Mapping[Group, frozenset[str]], present: Collection[str]) -> None:
    """Raise GroupsGoneError when all files are there but those of file groups that have none left.

    A clean leaves file groups so that were replaced after the plan was made: they have no row to merge, and Hudi's
    compaction fails on them. Log files of the others belong to no plan, and the next one has them.
    """
    gone = find_gone_groups(planned, present)
    if gone and all(group in gone or files <= set(present) for group, files in planned.items()):
        named = ", ".join(f"{partition}/{file_id}".lstrip("/") for partition, file_id in gone[:_MAX_NAMED])
        more = f" and {len(gone) - _MAX_NAMED} more" if len(gone) > _MAX_NAMED else ""
        raise GroupsGoneError(
            f"file groups of the plan have no file left, as a clean leaves those that were replaced: {named}{more}"
        )


def _require_whole_logs(state: LoadedTable, logs: set[str], sizes: dict[str, int]) -> None:
    if not logs:
        return
    writes = state.timeline.getCommitsTimeline().filterCompletedInstants()
    times = [time for time, _ in list_times(writes)]
    has_own_logs = state.table_version >= FIRST_VERSION_OF_OWN_LOGS
    writers = set(find_log_writers(logs, times, has_own_logs=has_own_logs))
    found = writes.getInstants()
    committed = (entry for at, time in enumerate(times) if time in writers for entry in _files_of(state, found.get(at)))
    cut = name_cut_logs(logs, committed, sizes)
    if cut:
        more = f" and {len(cut) - _MAX_NAMED} more" if len(cut) > _MAX_NAMED else ""
        raise LogsCutError(
            f"log files are shorter than their commits say: {', '.join(cut[:_MAX_NAMED])}{more}. Readers do not see "
            "the lost rows, and this would make that final: put the files back from a copy, or write the rows again "
            "and set `verify: off` for one run"
        )


def _files_of(state: LoadedTable, instant: Any) -> list[tuple[str, int]]:
    """Return path below the base path and size of each file of a completed write.

    Not by Hudi's `getFullPathToInfo`, which fails on some commits of version 6 (`shared.cut_logs.path_of_stat`).
    """
    _, stats = load_commit_body(state, instant)
    return [(path_of_stat(stat["path"]), int(stat["fileSizeInBytes"])) for stat in stats if stat.get("path")]


def _list_sizes(spark: SparkSession, state: LoadedTable, client: Any, partitions: Iterable[str]) -> dict[str, int]:
    """Return the sizes of all files of partitions, as the store has them."""
    listing = spark._jvm.org.apache.hudi.metadata.FileSystemBackedTableMetadata(
        client.getEngineContext(), state.meta_client.getStorage(), state.base_path
    )
    folders = spark._jvm.java.util.ArrayList()
    for partition in sorted(partitions):
        folders.add(f"{state.base_path}/{partition}".rstrip("/"))
    listed = listing.getAllFilesInPartitions(folders).values()
    return {path_below(state.base_path, path): size for files in listed for path, size in _entries(files)}


def _entries(found: Any) -> list[tuple[str, int]]:
    return parse_entries(str(found.toString()), int(found.size()))
