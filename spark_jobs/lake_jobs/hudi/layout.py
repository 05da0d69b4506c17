"""Reads a table's layout from the table itself: which buckets its writers keep. The rules are in `table_layout`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.table_layout import CLUSTER_OPERATION, HASHING_METADATA, Buckets, find_buckets
from lake_jobs.hudi.files import open_path
from lake_jobs.hudi.metadata_writes import each_stat, read_commit_metadata

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from lake_jobs.hudi.table import LoadedTable


def read_buckets(spark: SparkSession, state: LoadedTable, hudi_options: Mapping[str, str]) -> Buckets:
    """Return which buckets a table has. Raises Py4JJavaError."""
    fs, folder = open_path(spark, f"{state.base_path}/{HASHING_METADATA}")
    return find_buckets(
        _newest_file_ids(state), has_hashing_metadata=bool(fs.exists(folder)), hudi_options=hudi_options
    )


def _newest_file_ids(state: LoadedTable) -> frozenset[str]:
    """Return the file ids of the newest completed write that wrote files, clusterings aside."""
    completed = list(state.timeline.getCommitsTimeline().filterCompletedInstants().getInstants())
    for instant in reversed(completed):
        metadata = read_commit_metadata(state, instant)
        if str(metadata.getOperationType().name()) == CLUSTER_OPERATION:
            continue
        file_ids = frozenset(str(stat.getFileId()) for stat in each_stat(metadata))
        if file_ids:
            return file_ids
    return frozenset()
