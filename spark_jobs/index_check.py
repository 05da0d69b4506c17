"""Independent checks of an index: cheap by timeline and metadata table log, full by the data files' contents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from index_fence import write_stats
from index_place import list_partition
from index_rules import WriteChange, find_shadowing, must_mention
from index_settings import reads_up_to_its_plan
from index_table import METADATA_FOLDER, find_modified_ms, metadata_timeline_names, timeline_file
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from hudi_table import TableLook
    from index_rules import IndexPlan
    from planned_service import Visit
    from pyspark.sql import Column, DataFrame, SparkSession

MOST_EXAMPLES = 5
MOST_ENTRIES = 10_000
COMPARED_TYPES = ("int", "bigint", "double", "string")
SPELLED_ALIKE = ("string", "tinyint", "smallint", "int", "bigint", "boolean")
"""Types whose values a secondary index spells as Spark does. Fractions are left out: Java spells some otherwise."""
NULL_KEY = "\0"
SECONDARY, EXPRESSION = "secondary_index_", "expr_index_"
# Types of records in the metadata table (`MetadataPartitionType`).
FILE_LISTS, COLUMN_STATS, BLOOM_FILTERS, RECORD_INDEX, SECONDARY_INDEX = 2, 3, 4, 5, 7


def find_unmentioned(
    spark: SparkSession, look: TableLook, partition: str, since_ms: int, since_instant: str
) -> list[str]:
    """Cheap check: return the writes that completed from `since_ms` on and are not in the index.

    Of an index that is built up to its plan only, `since_instant`, also those that were requested after it.

    A write is in when its delta commit on the metadata table wrote to the index's folder. Both times are of files on
    one store. What the metadata table has archived already is not looked at.
    """
    metadata = _metadata_look(spark, look)
    mentions = {
        str(instant.requestedTime()): instant
        for instant in metadata.getCommitsTimeline().filterCompletedInstants().getInstants()
    }
    oldest = min((time for time in mentions if len(time) == 17 and not time.startswith("0000")), default="")
    missing = []
    for instant in look.timeline.getCommitsTimeline().filterCompletedInstants().getInstants():
        requested_time = str(instant.requestedTime())
        name = f"{requested_time}_{instant.getCompletionTime()}.{instant.getAction()}"
        completed_ms = find_modified_ms(spark, timeline_file(look, name))
        is_late = reads_up_to_its_plan(partition) and requested_time > since_instant
        if completed_ms is None or requested_time < oldest or not (is_late or completed_ms >= since_ms):
            continue
        if not must_mention(partition, _change_of(look, instant)):
            continue
        mention = mentions.get(requested_time)
        if mention is None or partition not in metadata.readCommitMetadata(mention).getPartitionToWriteStats().keySet():
            missing.append(f"{instant.getAction()} {requested_time}")
    return sorted(missing)


def find_hiding(visit: Visit, plan: IndexPlan) -> str:
    """Say which compactions of the metadata table hide the entries of a completed build; empty when none does."""
    _, files = list_partition(visit, plan)
    names = {str(status.getPath().getName()) for status in files}
    hiding = find_shadowing(plan.instant, names, metadata_timeline_names(visit.spark, visit.job.base_path))
    if not hiding:
        return ""
    return f"compactions of the metadata table ({', '.join(hiding)}) hide the entries of {plan.partition}"


def find_differences(spark: SparkSession, look: TableLook, partition: str) -> list[str]:
    """Full check: compare an index with the data files; return what differs, in words, with some examples.

    Table and index cannot be read at one moment while writers go on, so what counts is what differs twice.
    """
    once = _odd_entries(spark, look, partition)
    first = [] if once is None else once.limit(MOST_ENTRIES).collect()
    if not first:
        return []
    again = _odd_entries(spark, look, partition)
    known = spark.createDataFrame(
        [(row["entry"], int(row["balance"])) for row in first], "entry string, balance bigint"
    )
    lasting = known.join(again, on=["entry", "balance"], how="left_semi").collect()
    said = []
    for sign, words in ((1, "missing in the index, or other there"), (-1, "in the index but not in the table")):
        entries = sorted(row["entry"].replace(NULL_KEY, "null") for row in lasting if row["balance"] * sign > 0)
        if entries:
            said.append(f"{len(entries)} entries {words}: {', '.join(entries[:MOST_EXAMPLES])}")
    return said


def find_uncompared(spark: SparkSession, look: TableLook, partition: str) -> str:
    """Say why the full check does not compare an index with the data files; empty when it does."""
    if partition in {"record_index", "column_stats", "bloom_filters"}:
        return ""
    if not partition.startswith(SECONDARY):
        kind = EXPRESSION.rstrip("_") if partition.startswith(EXPRESSION) else partition
        return f"contents of {kind} cannot be compared with the data files"
    column = partition.removeprefix(SECONDARY)
    value = _secondary_value(_rows(spark, look), column)
    return "" if value is not None else f"values of the type of {column} cannot be compared with the data files"


def _odd_entries(spark: SparkSession, look: TableLook, partition: str) -> DataFrame | None:
    """Return entry and balance: positive for what is only in the table, negative for what is only in the index."""
    index = spark.read.format("hudi").load(f"{look.base_path}/{METADATA_FOLDER}")
    # Indexes of one kind have records of one type: those of this index are told by its folder.
    own = spark.read.format("hudi").load(f"{look.base_path}/{METADATA_FOLDER}/{partition}")
    if partition == "record_index":
        return _unbalanced(_record_places(_rows(spark, look)), _indexed_places(index))
    if partition.startswith(SECONDARY):
        rows = _rows(spark, look)
        value = _secondary_value(rows, partition.removeprefix(SECONDARY))
        return None if value is None else _unbalanced(_secondary_pairs(rows, value), _indexed_pairs(own))
    if partition == "column_stats":
        return _files_without_statistics(spark, look, _listed_files(index), own)
    if partition == "bloom_filters":
        return _surplus_of_filters(index)
    # Of the others, the timeline and the metadata table's log are all there is to compare with.
    return None


def _metadata_look(spark: SparkSession, look: TableLook) -> Any:
    builder = spark._jvm.org.apache.hudi.common.table.HoodieTableMetaClient.builder()
    conf = look.meta_client.getStorageConf().newInstance()
    return builder.setConf(conf).setBasePath(f"{look.base_path}/{METADATA_FOLDER}").build().getActiveTimeline()


def _change_of(look: TableLook, instant: Any) -> WriteChange:
    read = (
        look.timeline.readReplaceCommitMetadata
        if instant.getAction() == "replacecommit"
        else look.timeline.readCommitMetadata
    )
    stats = write_stats(look, instant)
    return WriteChange(
        operation=str(read(instant).getOperationType()),
        inserts=sum(int(stat.getNumInserts()) for stat in stats),
        updates=sum(int(stat.getNumUpdateWrites()) for stat in stats),
        deletes=sum(int(stat.getNumDeletes()) for stat in stats),
        base_files=sum(not str(stat.getPath()).rsplit("/", 1)[-1].startswith(".") for stat in stats),
    )


def _rows(spark: SparkSession, look: TableLook) -> DataFrame:
    # Neither listing nor skipping may ask the metadata table: it is what is being checked.
    options = {"hoodie.metadata.enable": "false", "hoodie.enable.data.skipping": "false"}
    return spark.read.format("hudi").options(**options).load(look.base_path)


def _record_places(rows: DataFrame) -> DataFrame:
    file_id = F.substring_index(F.col("_hoodie_file_name"), "_", 1)
    return rows.select(
        F.concat_ws(" in ", "_hoodie_record_key", F.concat_ws("/", "_hoodie_partition_path", file_id)).alias("entry")
    )


def _indexed_places(index: DataFrame) -> DataFrame:
    entry = F.col("recordIndexMetadata")
    bits = F.lower(
        F.concat(
            F.lpad(F.hex(entry["fileIdHighBits"]), 16, "0"),
            F.lpad(F.hex(entry["fileIdLowBits"]), 16, "0"),
        )
    )
    dashed = F.concat_ws(
        "-", *[F.substring(bits, begin, length) for begin, length in ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))]
    )
    # Encoding 0 is a UUID and a number, 1 the file id as it is (`HoodieMetadataPayload`).
    file_id = F.when(
        entry["fileIdEncoding"] == 0, F.concat_ws("-", dashed, entry["fileIndex"].cast("string"))
    ).otherwise(entry["fileId"])
    places = index.where(F.col("type") == RECORD_INDEX)
    return places.select(F.concat_ws(" in ", "key", F.concat_ws("/", entry["partitionName"], file_id)).alias("entry"))


def _secondary_value(rows: DataFrame, column: str) -> Column | None:
    """Return a column's values as a secondary index spells them; None for a type of which that is not known."""
    kind = rows.select(F.col(column).alias("value")).dtypes[0][1]
    if kind in SPELLED_ALIKE:
        return F.col(column).cast("string")
    if kind == "date":
        return F.unix_date(column).cast("string")
    return F.unix_micros(column).cast("string") if kind == "timestamp" else None


def _secondary_pairs(rows: DataFrame, value: Column) -> DataFrame:
    pair = (F.coalesce(_escaped(value), F.lit(NULL_KEY)), _escaped(F.col("_hoodie_record_key")))
    return rows.select(F.concat_ws("$", *pair).alias("entry"))


def _escaped(text: Column) -> Column:
    # As `SecondaryIndexKeyUtils.escapeSpecialChars` does: the escape itself, the separator, what stands for null.
    return F.regexp_replace(text, r"([\\$\x00])", r"\\$1")


def _indexed_pairs(index: DataFrame) -> DataFrame:
    pairs = index.where(F.col("type") == SECONDARY_INDEX).where(~F.col("SecondaryIndexMetadata.isDeleted"))
    return pairs.select(F.col("key").alias("entry"))


def _listed_files(index: DataFrame) -> DataFrame:
    files = index.where(F.col("type") == FILE_LISTS).select(F.explode("filesystemMetadata").alias("name", "state"))
    return files.where(~F.col("state.isDeleted") & ~F.col("name").startswith(".")).select(F.col("name").alias("entry"))


def _surplus_of_filters(index: DataFrame) -> DataFrame:
    # The key of a bloom filter is a hash of partition and file name, which Spark cannot compute: numbers must do.
    files = _listed_files(index).select(F.lit(1).alias("balance"))
    filters = index.where(F.col("type") == BLOOM_FILTERS).where(~F.col("BloomFilterMetadata.isDeleted"))
    total = files.unionByName(filters.select(F.lit(-1).alias("balance"))).agg(F.sum("balance").alias("balance"))
    return total.where("balance <> 0").select(F.lit("base files less bloom filters").alias("entry"), "balance")


def _files_without_statistics(
    spark: SparkSession, look: TableLook, listed_files: DataFrame, index: DataFrame
) -> DataFrame:
    stats = index.where(F.col("type") == COLUMN_STATS).select("ColumnStatsMetadata.*").where(~F.col("isDeleted"))
    data = (
        spark.read.option("recursiveFileLookup", "true").option("pathGlobFilter", "*.parquet").parquet(look.base_path)
    )
    compared = {name for name, kind in data.dtypes if kind in COMPARED_TYPES and not name.startswith("_hoodie")}
    columns = sorted(compared & {row["columnName"] for row in stats.select("columnName").distinct().collect()})
    file_name = F.substring_index(F.input_file_name(), "/", -1)
    listed = listed_files.withColumnRenamed("entry", "file")
    if not columns:
        # No bounds to compare: each file needs some entry all the same.
        files = data.select(file_name.alias("file")).distinct().join(listed, on="file", how="left_semi")
        bare = files.join(stats.select(F.col("fileName").alias("file")), on="file", how="left_anti")
        return bare.select(F.col("file").alias("entry"), F.lit(1).cast("bigint").alias("balance"))
    bounds = [
        function(column).cast("string").alias(f"{side}_{column}")
        for column in columns
        for side, function in (("min", F.min), ("max", F.max))
    ]
    actual = data.groupBy(file_name.alias("file")).agg(*bounds)
    entries = F.array(
        *[
            F.struct(F.lit(name).alias("name"), F.col(f"min_{name}").alias("low"), F.col(f"max_{name}").alias("high"))
            for name in columns
        ]
    )
    expected = actual.select("file", F.explode(entries).alias("column")).select("file", "column.*")
    expected = expected.join(listed, on="file", how="left_semi")
    found = stats.select("fileName", "columnName", _value("minValue"), _value("maxValue"))
    both = expected.join(found.toDF("file", "name", "its_low", "its_high"), on=["file", "name"], how="left")
    is_same = F.col("low").eqNullSafe(F.col("its_low")) & F.col("high").eqNullSafe(F.col("its_high"))
    columns_of_files = both.groupBy("file", "name").agg(
        F.count("its_low").alias("entries"), F.max(is_same.cast("int")).alias("same")
    )
    files = columns_of_files.groupBy("file").agg(
        F.sum("entries").alias("entries"),
        F.sum(((F.col("entries") > 0) & (F.col("same") == 0)).cast("int")).alias("wrong"),
    )
    # Writers may index fewer columns than the builder did: what is not there for one column, readers do not skip by.
    wrong = files.where("entries = 0 or wrong > 0")
    return wrong.select(F.col("file").alias("entry"), F.lit(1).cast("bigint").alias("balance"))


def _value(column: str) -> Column:
    # A union of Avro types; these members are numbers and strings.
    return F.coalesce(*[F.col(f"{column}.member{number}.value").cast("string") for number in (1, 2, 3, 4, 6)])


def _unbalanced(expected: DataFrame, found: DataFrame) -> DataFrame:
    both = expected.withColumn("side", F.lit(1)).unionByName(found.withColumn("side", F.lit(-1)))
    return both.groupBy("entry").agg(F.sum("side").alias("balance")).where("balance <> 0")
