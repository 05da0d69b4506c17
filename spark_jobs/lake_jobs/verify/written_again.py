"""Finds the file groups of a compaction in which a writer has written a key again whose deletion the compaction merges.

Hudi's bloom and simple indexes search for a key in the newest base file alone. Under the plan that is the one that has
the key still, so the write goes into a log file of the group; after the compaction it is one without the key, and the
next write inserts a second row. Such a group waits for the next compaction, which has both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from airflow_lake_provider.table_layout import HASHING_METADATA, has_bucket_number
from lake_jobs.hudi.files import open_path
from lake_jobs.replication.file_slices import FIRST_VERSION_OF_OWN_LOGS
from lake_jobs.replication.slice_reader import LAST_INSTANT, SliceReader
from lake_jobs.verify.rows import UNIT
from lake_jobs.verify.sample import units_of_groups
from lake_jobs.verify.seen_before import AS_WRITTEN, SeenBefore

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from lake_jobs.hudi.table import LoadedTable
    from lake_jobs.verify.sample import Group, NewFile, Unit

_RECORD_KEY = "_hoodie_record_key"
_RECORD_INDEX = "record_index"


def find_written_again(
    spark: SparkSession,
    state: LoadedTable,
    planned: Mapping[Group, frozenset[str]],
    written: Sequence[NewFile],
) -> frozenset[Group]:
    """Return the file groups whose rows of now have a key that the plan's base file has, and the new one lacks.

    Before table version 8 a group cannot wait: its log files of now belong to the new base file. With a record index
    or buckets none has to: writers do not search for keys in base files. Raises Py4JJavaError.
    """
    if state.table_version < FIRST_VERSION_OF_OWN_LOGS or _RECORD_INDEX in state.metadata_partitions:
        return frozenset()
    deleting = [file for file in written if file.deletes and not has_bucket_number(file.file_id)]
    groups = {(file.partition, file.file_id) for file in deleting}
    written_under = groups & _written_since(spark, state, groups, planned)
    units = units_of_groups(written_under, [f for f in deleting if (f.partition, f.file_id) in written_under])
    if not units or _has_consistent_hashing(spark, state):
        return frozenset()
    seen = SeenBefore(spark, state, LAST_INSTANT)
    if _RECORD_KEY not in seen.layout.schema.names:
        return frozenset()
    now = seen.rows(units).select(UNIT, _RECORD_KEY)
    before = _keys(spark, state, [[path for path in planned[_of(unit)] if ".log." not in path] for unit in units])
    after = _keys(spark, state, [unit.new_files for unit in units])
    key = [UNIT, _RECORD_KEY]
    found = now.join(before, key, "left_semi").join(after, key, "left_anti").select(UNIT).distinct().collect()
    return frozenset(_of(units[row[UNIT]]) for row in found)


def _has_consistent_hashing(spark: SparkSession, state: LoadedTable) -> bool:
    fs, folder = open_path(spark, f"{state.base_path}/{HASHING_METADATA}")
    return bool(fs.exists(folder))


def _of(unit: Unit) -> Group:
    return unit.partition, unit.file_ids[0]


def _written_since(
    spark: SparkSession,
    state: LoadedTable,
    groups: Collection[Group],
    planned: Mapping[Group, frozenset[str]],
) -> set[Group]:
    """Return the groups with a base file in the plan and with log files that it does not read."""
    reader = SliceReader(spark, state.base_path, AS_WRITTEN)
    storage = state.meta_client.getStorage()
    found = set()
    for partition in {partition for partition, _ in groups}:
        ids = [file_id for each, file_id in groups if each == partition]
        for file_id, files in reader.list_files(storage, partition, ids).items():
            read = {path.rpartition("/")[2] for path in planned.get((partition, file_id), ())}
            has_base = any(".log." not in name for name in read)
            if has_base and any(file.is_log and file.name not in read for file in files):
                found.add((partition, file_id))
    return found


def _keys(spark: SparkSession, state: LoadedTable, files: Sequence[Collection[str]]) -> DataFrame:
    """Return the keys of each unit's base files, by Spark's own reader."""
    keys = spark.createDataFrame([], f"{UNIT} int, {_RECORD_KEY} string")
    for at, paths in enumerate(files):
        if paths:
            rows = spark.read.parquet(*(f"{state.base_path}/{path}" for path in sorted(paths)))
            keys = keys.union(rows.select(F.lit(at).alias(UNIT), _RECORD_KEY))
    return keys
