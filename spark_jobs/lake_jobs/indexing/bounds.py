"""Column statistics against the data files: bounds that are not those of the rows, and columns that have none.

Hudi 1.2.0 copies a base file's bounds from its Parquet footer. A footer has none of a column with NaN, nor of one whose
smallest and largest texts have 4 KiB together (parquet-java's `ParquetMetadataConverter`); Hudi then keeps 0.0 to 0.0,
or what stands for nulls alone, and its readers skip the file for values that it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from airflow_lake_provider.job_contract import METADATA_TABLE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

COLUMN_STATS_PARTITION = "column_stats"
COMPARED_TYPES = ("int", "bigint", "double", "string")
FRACTIONS = ("float", "double")
# Types of records in the metadata table (`MetadataPartitionType`).
FILE_LISTS = 2
COLUMN_STATS = 3
MAX_FILES = 1_000
"""Base files of a column that are read for the search for missing bounds; those without bounds are usually few."""
MAX_SHOWN = 60
"""Characters of a bound that an error shows."""
_SIDES = ("low", "high", "its_low", "its_high")


def list_base_files(metadata: DataFrame) -> DataFrame:
    """Return `entry` (the file's name) and `folder` of each base file that the metadata table lists."""
    files = metadata.where(F.col("type") == FILE_LISTS)
    files = files.select(F.col("key").alias("folder"), F.explode("filesystemMetadata").alias("name", "state"))
    base_files = files.where(~F.col("state.isDeleted") & ~F.col("name").startswith("."))
    return base_files.select(F.col("name").alias("entry"), "folder")


def compare_bounds(spark: SparkSession, base_path: str, base_files: DataFrame, index: DataFrame) -> DataFrame | None:
    """Return `entry` and `balance` (1): a file without statistics, or one with a column whose bounds are others.

    `index` are the records of the index's folder. None when there is no base file.
    """
    stats = _read_statistics(index)
    newest = base_files.orderBy(F.substring_index("entry", "_", -1).desc()).first()
    if newest is None:
        return None
    data = _read_data_files(spark, base_path, f"{newest['folder']}/{newest['entry']}")
    compared = {name for name, kind in data.dtypes if kind in COMPARED_TYPES and not name.startswith("_hoodie")}
    columns = sorted(compared & {row["columnName"] for row in stats.select("columnName").distinct().collect()})
    listed = base_files.select(F.col("entry").alias("file"))
    if not columns:
        # No bounds to compare: each file needs some entry all the same.
        files = data.select(_file_name().alias("file")).distinct().join(listed, on="file", how="left_semi")
        without_statistics = files.join(stats.select(F.col("fileName").alias("file")), on="file", how="left_anti")
        return without_statistics.select(F.col("file").alias("entry"), F.lit(1).cast("bigint").alias("balance"))
    bounds = [
        function(column).cast("string").alias(f"{side}_{column}")
        for column in columns
        for side, function in (("min", F.min), ("max", F.max))
    ]
    actual = data.groupBy(_file_name().alias("file")).agg(*bounds)
    entries = F.array(
        *[
            F.struct(F.lit(name).alias("name"), F.col(f"min_{name}").alias("low"), F.col(f"max_{name}").alias("high"))
            for name in columns
        ]
    )
    expected = actual.select("file", F.explode(entries).alias("column")).select("file", "column.*")
    expected = expected.join(listed, on="file", how="left_semi")
    found = stats.select("fileName", "columnName", _text("minValue"), _text("maxValue"), F.lit(1))
    both = expected.join(found.toDF("file", "name", "its_low", "its_high", "listed"), on=["file", "name"], how="left")
    # Bounds of a column that has nulls alone hide no row, whatever they are.
    is_right = F.col("low").isNull() | (_same("low", "its_low") & _same("high", "its_high"))
    shown = [F.substring(F.coalesce(F.col(side), F.lit("null")), 1, MAX_SHOWN) for side in _SIDES]
    difference = F.format_string("column %s has %s to %s, the index %s to %s", F.col("name"), *shown)
    # Of the entries that a file may have of one column, one that is right is enough.
    columns_of_files = both.groupBy("file", "name").agg(
        F.max("listed").alias("listed"),
        F.max(is_right.cast("int")).alias("right"),
        F.max(difference).alias("difference"),
    )
    # Writers may index fewer columns than the builder did: what is not there for one column, readers do not skip by.
    is_wrong = (F.col("listed") == 1) & (F.col("right") == 0)
    files = columns_of_files.groupBy("file").agg(
        F.max("listed").alias("listed"), F.min(F.when(is_wrong, F.col("difference"))).alias("difference")
    )
    wrong = files.where("listed is null or difference is not null")
    described = F.format_string("%s (%s)", "file", "difference")
    entry = F.when(F.col("difference").isNull(), F.col("file")).otherwise(described)
    return wrong.select(entry.alias("entry"), F.lit(1).cast("bigint").alias("balance"))


def find_unbounded(spark: SparkSession, base_path: str) -> tuple[str, ...]:
    """Return the columns of which some base file has values, and column statistics have no bounds or those of none.

    Only these columns are read, of base files whose statistics show nulls alone or 0.0 alone, at most MAX_FILES of
    each column.
    """
    metadata = spark.read.format("hudi").load(f"{base_path}/{METADATA_TABLE}")
    index = spark.read.format("hudi").load(f"{base_path}/{METADATA_TABLE}/{COLUMN_STATS_PARTITION}")
    # Of each type, also of those that are not compared.
    has_none = F.col("minValue").isNull() & F.col("maxValue").isNull()
    has_zeros = (_plain(_text("minValue")) == "0.0") & (_plain(_text("maxValue")) == "0.0")
    suspects = _read_statistics(index).where(has_none | has_zeros)
    files = list_base_files(metadata).withColumnRenamed("entry", "fileName")
    suspects = suspects.where(~F.col("columnName").startswith("_hoodie")).join(files, on="fileName")
    found = []
    # One part at a time: all at once might be too much for the driver.
    for row in first_files(suspects).toLocalIterator():
        paths = [_path(base_path, file["folder"], file["fileName"]) for file in row["files"]]
        if _has_values(spark, row["columnName"], paths):
            found.append(row["columnName"])
    return tuple(sorted(found))


def first_files(suspects: DataFrame) -> DataFrame:
    """Return the first MAX_FILES files of each column: a sparse table has one suspect for each file and column."""
    place = F.row_number().over(Window.partitionBy("columnName").orderBy("folder", "fileName"))
    first = suspects.withColumn("place", place).where(F.col("place") <= MAX_FILES)
    return first.groupBy("columnName").agg(F.sort_array(F.collect_list(F.struct("folder", "fileName"))).alias("files"))


def _has_values(spark: SparkSession, column: str, paths: list[str]) -> bool:
    """Whether one of the files has a value of the column that its bounds leave out: any for nulls, NaN for 0.0."""
    data = spark.read.parquet(*paths)
    kinds = dict(data.select(F.col(column).alias("value")).dtypes)
    value = F.col(column)
    is_left_out = value != F.lit(0.0) if kinds["value"] in FRACTIONS else value.isNotNull()
    return bool(data.where(is_left_out).limit(1).collect())


def describe_unbounded(columns: tuple[str, ...]) -> str:
    """Return what is wrong with column statistics of these columns, and what to do."""
    return (
        f"column statistics of {', '.join(columns)} would make readers miss rows: Hudi keeps no right bounds of a base "
        "file's column with NaN, or with texts of 4 KiB; index the other columns (`column_stats:<column>,<column>` in "
        "`indexing.indexes`), and set hoodie.metadata.index.column.stats.column.list of the writers to the same"
    )


def _read_statistics(index: DataFrame) -> DataFrame:
    return index.where(F.col("type") == COLUMN_STATS).select("ColumnStatsMetadata.*").where(~F.col("isDeleted"))


def _read_data_files(spark: SparkSession, base_path: str, newest: str) -> DataFrame:
    """Return the rows of all base files, also of files that a writer has begun and not committed: they have no footer.

    So the columns are those of `newest`, a committed file, relative to the table.
    """
    columns = spark.read.parquet(f"{base_path}/{newest}").schema
    options = {"recursiveFileLookup": "true", "pathGlobFilter": "*.parquet"}
    skips = {"ignoreCorruptFiles": "true", "ignoreMissingFiles": "true"}
    return spark.read.schema(columns).options(**options, **skips).parquet(base_path)


def _path(base_path: str, folder: str, name: str) -> str:
    # The metadata table calls the folder of a table without partitions `.`.
    return f"{base_path}/{name}" if folder in {"", "."} else f"{base_path}/{folder}/{name}"


def _file_name() -> Column:
    return F.substring_index(F.input_file_name(), "/", -1)


def _text(bound: str) -> Column:
    # A union of Avro types; these members are numbers and strings.
    return F.coalesce(*[F.col(f"{bound}.member{number}.value").cast("string") for number in (1, 2, 3, 4, 6)])


def _same(one: str, other: str) -> Column:
    return _plain(F.col(one)).eqNullSafe(_plain(F.col(other)))


def _plain(bound: Column) -> Column:
    """Return a bound whose zero has no sign: a footer has -0.0 for the smallest 0.0, and 0.0 for the largest -0.0
    (Parquet's specification of statistics).
    """
    return F.when(bound == "-0.0", "0.0").otherwise(bound)
