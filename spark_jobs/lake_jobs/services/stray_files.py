"""Finds files of writes that were rolled back, which readers would take for committed once older writes are archived.

A rollback deletes what it finds: without the dead writer's markers nothing, and a task or a slow store may put a file
there afterwards. It stays unseen as long as an older write is on the active timeline; without the metadata table,
readers take every file from before the timeline for committed (https://github.com/apache/hudi/issues/18783).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from lake_jobs.hudi.table import list_items, requested_times
from lake_jobs.services.stray_file_rules import (
    StrayFile,
    find_write_before,
    order_partitions,
    pattern_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from lake_jobs.hudi.table import LoadedTable

MAX_PARTITIONS = 500
"""Partitions that one run searches for files of writes that were rolled back."""

_THREADS = 8


def find_stray_limit(spark: SparkSession, state: LoadedTable) -> tuple[str, StrayFile] | None:
    """Return the completed write that must stay active, and the stray file that is why; None when none was found.

    Raises Py4JJavaError.
    """
    commits = requested_times(state.timeline.getCommitsTimeline().filterCompletedInstants())
    # A plan that was rolled back may be executed again, under its time.
    known = frozenset(requested_times(state.timeline))
    rolled_back = [
        found for found in _find_rolled_back(state) if found[0] not in known and find_write_before(found[0], commits)
    ]
    if not rolled_back:
        return None
    instants = sorted({instant for instant, _ in rolled_back})
    partitions = order_partitions(rolled_back, _list_partitions(spark, state))[:MAX_PARTITIONS]
    with ThreadPoolExecutor(_THREADS) as pool:
        found = [
            stray for strays in pool.map(partial(_find_files, spark, state, instants), partitions) for stray in strays
        ]
    oldest = min(found, key=lambda stray: (stray.instant, stray.path), default=None)
    return None if oldest is None else (find_write_before(oldest.instant, commits), oldest)


def _find_rolled_back(state: LoadedTable) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each write that a rollback on the active timeline took back, with the partitions of that rollback."""
    timeline = state.timeline.getRollbackTimeline().filterCompletedInstants()
    for instant in list_items(timeline.getInstants()):
        metadata = timeline.readRollbackMetadata(instant)
        partitions = tuple(sorted(map(str, metadata.getPartitionMetadata())))
        for write in list_items(metadata.getCommitsRollback()):
            yield str(write), partitions


def _list_partitions(spark: SparkSession, state: LoadedTable) -> list[str]:
    hudi: Any = spark._jvm.org.apache.hudi
    engine = hudi.client.common.HoodieSparkEngineContext(spark.sparkContext._jsc)
    by_metadata = bool(state.metadata_partitions)
    listed = hudi.common.fs.FSUtils.getAllPartitionPaths(engine, state.meta_client, by_metadata)
    # A write that died was of late; partitions by dates have that at the end.
    return sorted(map(str, list_items(listed)), reverse=True)


def _find_files(spark: SparkSession, state: LoadedTable, instants: list[str], partition: str) -> list[StrayFile]:
    """Return the files of some writes in a partition."""
    path: Any = spark._jvm.org.apache.hudi.storage.StoragePath(pattern_of(state.base_path, partition, instants))
    names = (str(found.getPath().getName()) for found in state.meta_client.getStorage().globEntries(path))
    return [
        StrayFile(
            f"{partition}/{name}" if partition else name, next(instant for instant in instants if instant in name)
        )
        for name in names
        if not name.endswith(".crc")
    ]
