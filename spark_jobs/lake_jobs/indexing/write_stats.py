"""The statistics of a completed commit: the files that it wrote and replaced, and which of them are there still."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from lake_jobs.hudi.files import open_path
from lake_jobs.hudi.table import class_of, list_items

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from lake_jobs.hudi.table import LoadedTable

AVRO_COMMIT_CLASS = "org.apache.hudi.avro.model.HoodieCommitMetadata"
LOG_STAT_CLASS = "org.apache.hudi.common.model.HoodieDeltaWriteStat"


def restore_log_files(spark: SparkSession, state: LoadedTable, metadata: Any, instant: Any) -> None:
    """Give a commit's statistics of log files the names of the slice's base file and log files.

    The timeline has them, and Hudi reads it into a class that lacks them (`HoodieWriteStat`); the entries of the
    record index depend on what the earlier log files deleted (`getRevivedAndDeletedKeysFromMergedLogs`).
    """
    in_logs = [
        (stats, at)
        for stats in metadata.getPartitionToWriteStats().values()
        for at, stat in enumerate(list_items(stats))
        if is_log(str(stat.getPath()))
    ]
    if not in_logs:
        return
    written = spark._jvm.org.apache.hudi.common.table.timeline.TimelineMetadataUtils.deserializeAvroMetadata(
        state.timeline.getInstantContentStream(instant), class_of(spark, AVRO_COMMIT_CLASS, metadata)
    )
    slices = {
        stat["path"]: (stat["baseFile"] or "", stat["logFiles"] or ())
        for stats in json.loads(str(written.toString()))["partitionToWriteStats"].values()
        for stat in stats
    }
    mapper = spark._jvm.org.apache.hudi.common.util.JsonUtils.getObjectMapper()
    for stats, at in in_logs:
        delta = mapper.convertValue(stats.get(at), class_of(spark, LOG_STAT_CLASS, metadata))
        base, logs = slices[str(delta.getPath())]
        delta.setBaseFile(base)
        for name in logs:
            delta.addLogFiles(name)
        stats.set(at, delta)


def find_gone(spark: SparkSession, state: LoadedTable, metadata: Any) -> str:
    """Return a file that a commit wrote, or one of the slice on which it built, that is gone; empty when none is.

    `metadata` has gone through `restore_log_files`.
    """
    for stats in metadata.getPartitionToWriteStats().values():
        for stat in list_items(stats):
            for path in _files_of(stat):
                if not is_there(spark, state, path):
                    return path
    return ""


def keep_what_is_there(spark: SparkSession, state: LoadedTable, metadata: Any) -> bool:
    """Remove from a commit's statistics the files that are gone; return whether all are there."""
    is_whole = True
    for stats in metadata.getPartitionToWriteStats().values():
        for stat in list_items(stats):
            if not is_there(spark, state, str(stat.getPath())):
                stats.remove(stat)
                is_whole = False
    return is_whole


def is_there(spark: SparkSession, state: LoadedTable, path: str) -> bool:
    """Whether a file of the table exists; `path` is relative to the table."""
    fs, found = open_path(spark, f"{state.base_path}/{path}")
    return bool(fs.exists(found))


def is_log(path: str) -> bool:
    """Whether a data file's path is that of a log file."""
    return ".log." in path.rsplit("/", 1)[-1]


def sibling(path: str, name: str) -> str:
    """Return the path of a file in the same folder."""
    folder = path.rpartition("/")[0]
    return f"{folder}/{name}" if folder else name


def _files_of(stat: Any) -> Iterator[str]:
    """Yield the file of a statistic, and what shows whether the slice before it is there: a clean deletes it whole."""
    path = str(stat.getPath())
    yield path
    if is_log(path):
        names = [str(stat.getBaseFile() or ""), *map(str, list_items(stat.getLogFiles()))]
    else:
        names = [str(stat.getPrevBaseFile() or "")]
    found = next(filter(None, names), "")
    if found:
        yield sibling(path, found)
