"""How the writers of a table update its metadata table: streaming, while they write, or as part of the commit."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from airflow_lake_provider.instant_clock import was_streamed
from airflow_lake_provider.job_contract import LAST_VERSION_OF_1_0, LAST_WRITES, METADATA_TABLE, are_of_1_0
from airflow_lake_provider.shared.actions import Action
from lake_jobs.hudi.files import find_modified_ms, open_path
from lake_jobs.hudi.settings import MetadataWriteMode, decide_metadata_write_mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from lake_jobs.hudi.table import LoadedTable

HEADER_BYTES = 65_536


def find_metadata_write_mode(
    spark: SparkSession, state: LoadedTable, *, without_services: bool = False
) -> MetadataWriteMode:
    """Return how the table's writers update the metadata table, by the last completed writes."""
    completed = list(state.timeline.getCommitsTimeline().filterCompletedInstants().getInstants())

    def read() -> Iterator[tuple[str, Callable[[], bool | None]]]:
        for instant in reversed(completed):
            try:
                metadata = read_commit_metadata(state, instant)
            except Py4JJavaError:
                continue  # archived since, or damaged
            operation = str(metadata.getOperationType().name())
            yield operation, partial(_was_streamed, spark, state, instant, metadata)

    return decide_metadata_write_mode(read(), without_services=without_services)


def read_commit_metadata(state: LoadedTable, instant: Any) -> Any:
    """Return Hudi's metadata of a completed write. Raises Py4JJavaError."""
    timeline = state.timeline
    read = (
        timeline.readReplaceCommitMetadata
        if instant.getAction() == Action.REPLACECOMMIT
        else timeline.readCommitMetadata
    )
    return read(instant)


def load_commit_body(state: LoadedTable, instant: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the metadata of a completed write as JSON, and its write statistics. Raises Py4JJavaError.

    In one call: a commit may have ten thousand statistics, and py4j takes a fraction of a millisecond for each field.
    """
    body: dict[str, Any] = json.loads(str(read_commit_metadata(state, instant).toJsonString()))
    return body, [stat for stats in body["partitionToWriteStats"].values() for stat in stats]


def each_stat(metadata: Any) -> Iterator[Any]:
    """Return the write statistics of a commit's metadata."""
    for stats in metadata.getPartitionToWriteStats().values():
        # Not `yield from`: a generator that is left would close the Java list, which has no such method.
        for stat in stats:  # noqa: UP028
            yield stat


def _was_streamed(spark: SparkSession, state: LoadedTable, instant: Any, metadata: Any) -> bool | None:
    folder = f"{state.base_path}/{METADATA_TABLE}/.hoodie/timeline"
    requested_ms = find_modified_ms(spark, f"{folder}/{instant.requestedTime()}.deltacommit.requested")
    if requested_ms is None:
        return None
    for stat in each_stat(metadata):
        written_ms = find_modified_ms(spark, f"{state.base_path}/{stat.getPath()}")
        is_streamed = None if written_ms is None else was_streamed(requested_ms, written_ms)
        if is_streamed is not None:
            return is_streamed
    return None


# --- Whether Hudi 1.0 writes the table


def is_written_by_1_0(spark: SparkSession, state: LoadedTable) -> bool:
    """Return whether Hudi 1.0 made one of a table's last writes. One listing, for tables of version 8 alone."""
    return state.table_version == LAST_VERSION_OF_1_0 and are_of_1_0(recent_headers(spark, state))


def recent_headers(spark: SparkSession, state: LoadedTable) -> list[bytes]:
    """Return how the newest log files of the metadata table's file listing begin: each write adds one."""
    fs, folder = open_path(spark, f"{state.base_path}/{METADATA_TABLE}/files")
    try:
        statuses = fs.listStatus(folder)
    except Py4JJavaError:
        return []  # there is no metadata table
    logs = [
        (int(status.getModificationTime()), status.getPath())
        for status in statuses
        if ".log." in str(status.getPath().getName()) and not str(status.getPath().getName()).endswith(".crc")
    ]
    newest = sorted(logs, key=lambda found: found[0], reverse=True)[:LAST_WRITES]
    return [_read_header(fs, path) for _, path in newest]


def _read_header(fs: Any, path: Any) -> bytes:
    try:
        stream = fs.open(path)
    except Py4JJavaError:
        return b""  # it was cleaned just now
    try:
        return bytes(stream.readNBytes(HEADER_BYTES))
    finally:
        stream.close()
