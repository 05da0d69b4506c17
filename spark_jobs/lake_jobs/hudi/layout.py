"""Reads a table's layout from the table itself: buckets, keys, and the format of its writers' files.

The rules are in `table_layout` and `file_format`.
"""

from __future__ import annotations

import re
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from airflow_lake_provider.table_layout import (
    CLUSTER_OPERATION,
    HASHING_METADATA,
    Buckets,
    TableLayout,
    find_buckets,
    find_newest_file_ids,
    read_layout,
)
from lake_jobs.hudi.file_format import FileFormat, find_bloom_filter
from lake_jobs.hudi.files import open_path
from lake_jobs.hudi.metadata_writes import each_stat, read_commit_metadata

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from lake_jobs.hudi.table import LoadedTable


def load_layout(
    spark: SparkSession, state: LoadedTable, hudi_options: Mapping[str, str], *, with_buckets: bool
) -> TableLayout:
    """Return the layout of a table; without buckets, whose search reads commits, unless asked. Raises Py4JJavaError."""
    properties = dict(state.meta_client.getTableConfig().getProps())
    if not with_buckets:
        return read_layout(properties, Buckets.NONE)
    fs, folder = open_path(spark, f"{state.base_path}/{HASHING_METADATA}")
    has_hashing_metadata = bool(fs.exists(folder))
    buckets = find_buckets(
        _newest_file_ids(state), has_hashing_metadata=has_hashing_metadata, hudi_options=hudi_options
    )
    return read_layout(properties, buckets)


def key_generator_of(state: LoadedTable) -> str:
    """Return the class of the table's key generator, as Hudi derives it from the table's properties."""
    return str(state.meta_client.getTableConfig().getKeyGeneratorClassName() or "")


def _newest_file_ids(state: LoadedTable) -> frozenset[str]:
    completed = list(state.timeline.getCommitsTimeline().filterCompletedInstants().getInstants())
    found = (read_commit_metadata(state, instant) for instant in reversed(completed))
    return find_newest_file_ids(
        (str(metadata.getOperationType().name()), partial(_file_ids, metadata)) for metadata in found
    )


def _file_ids(metadata: Any) -> list[str]:
    return [str(stat.getFileId()) for stat in each_stat(metadata)]


# --- The format of the files that the writers write

MAX_WRITES = 50
"""Maximum number of writes whose metadata is searched for a base file, newest first."""
MAX_FILES = 5
"""Maximum number of base files that are opened: the cleaner may have deleted some."""
SERVICE_OPERATIONS = frozenset({"COMPACT", "LOG_COMPACT", CLUSTER_OPERATION})
"""Operations of services, which write as their own settings say."""
_BASE_FILES = re.compile(r"[{ ][^={ ]+=([^,]+\.parquet)(?=[,}])")
"""In a map of file ids to paths, as Java prints it; a path may have the name of a partition field and `=`."""


def read_as_writers(spark: SparkSession, state: LoadedTable, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options with the file format of the table's writers, unless they say another one.

    Raises Py4JJavaError when the timeline cannot be read. Without a base file of a writer on the active timeline, the
    newest one of a service counts, which was written like this, and then one to which a log file belongs.
    """
    files = chain(
        _base_files(state, of_services=False), _base_files(state, of_services=True), _base_files_of_logs(spark, state)
    )
    for path in islice(files, MAX_FILES):
        found = _find_format(spark, f"{state.base_path}/{path}")
        if found is not None:
            return {**found.settings(), **options}
    return dict(options)


def _base_files(state: LoadedTable, *, of_services: bool) -> Iterator[str]:
    completed = list(state.timeline.getCommitsTimeline().filterCompletedInstants().getInstants())
    for instant in completed[: -MAX_WRITES - 1 : -1]:
        metadata = read_commit_metadata(state, instant)
        if (str(metadata.getOperationType().name()) in SERVICE_OPERATIONS) is of_services:
            paths = _BASE_FILES.findall(str(metadata.getFileIdAndRelativePaths().toString()))
            yield from paths[:1]


def _base_files_of_logs(spark: SparkSession, state: LoadedTable) -> Iterator[str]:
    """Yield base files of file groups that have log files: the writes that wrote them may be archived."""
    completed = list(state.timeline.getCommitsTimeline().filterCompletedInstants().getInstants())
    for instant in completed[: -MAX_WRITES - 1 : -1]:
        for stat in islice(each_stat(read_commit_metadata(state, instant)), 1):
            partition = str(stat.getPartitionPath())
            file_id = str(stat.getFileId())
            fs, folder = open_path(spark, f"{state.base_path}/{partition}".rstrip("/"))
            try:
                names = [str(found.getPath().getName()) for found in fs.listStatus(folder)]
            except Py4JJavaError:
                continue  # the partition is deleted since
            of_group = [name for name in names if name.startswith(f"{file_id}_") and name.endswith(".parquet")]
            if of_group:
                yield f"{partition}/{max(of_group)}".lstrip("/")
                return


def _find_format(spark: SparkSession, path: str) -> FileFormat | None:
    """Return the format of a base file; None when it is gone, or empty."""
    parquet = spark._jvm.org.apache.parquet.hadoop
    _, hadoop_path = open_path(spark, path)
    try:
        source = parquet.util.HadoopInputFile.fromPath(hadoop_path, spark._jsc.hadoopConfiguration())
        reader = parquet.ParquetFileReader.open(source)
    except Py4JJavaError:
        return None
    try:
        footer = reader.getFooter()
        blocks = footer.getBlocks()
        if blocks.isEmpty():
            return None
        codec = str(blocks.get(0).getColumns().get(0).getCodec().name())
        return FileFormat(codec, find_bloom_filter(dict(footer.getFileMetaData().getKeyValueMetaData())))
    finally:
        reader.close()
