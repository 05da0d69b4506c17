"""Counts the rows of base files by their footers: a sample of rows alone would find lost rows after many runs."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from pyspark.sql import functions as F

from lake_jobs.hudi.files import path_below
from lake_jobs.verify.sample import find_miscounted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from lake_jobs.hudi.table import LoadedTable
    from lake_jobs.verify.sample import Group, NewFile, Unit

MAX_READ_HERE = 32
"""Maximum number of files whose footers the driver reads itself."""
_ANY_COLUMN = "_hoodie_record_key string"


def count_suspects(
    spark: SparkSession,
    state: LoadedTable,
    units: Sequence[Unit],
    planned: Mapping[Group, frozenset[str]],
    written: Sequence[NewFile],
) -> frozenset[Group]:
    """Return the file groups of units whose new files have another number of rows than they must have."""
    old = {path for unit in units for group in unit.groups for path in planned.get(group, ()) if ".log." not in path}
    new = {path for unit in units for path in unit.new_files}
    if not new:
        return frozenset()
    count = _count_here if len(old | new) <= MAX_READ_HERE else _count_by_spark
    return find_miscounted(units, planned, written, count(spark, state, old | new))


def _count_here(spark: SparkSession, state: LoadedTable, paths: Iterable[str]) -> dict[str, int]:
    """Return the rows of base files, by their footers: a job of Spark takes longer than some dozens of them."""
    org = spark._jvm.org.apache.hudi
    storage = state.meta_client.getStorage()
    footers = org.common.util.ParquetUtils()
    path_of = org.storage.StoragePath
    return {path: int(footers.getRowCount(storage, path_of(f"{state.base_path}/{path}"))) for path in paths}


def _count_by_spark(spark: SparkSession, state: LoadedTable, paths: Iterable[str]) -> dict[str, int]:
    """Return the rows of base files. Spark reads their footers alone, where no column is asked for."""
    files = spark.read.schema(_ANY_COLUMN).parquet(*(f"{state.base_path}/{path}" for path in sorted(paths)))
    found = files.groupBy(F.input_file_name()).count().collect()
    return {path_below(state.base_path, unquote(str(name))): int(count) for name, count in found}
