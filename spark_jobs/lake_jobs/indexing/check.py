"""Checks an index independently: cheap by timeline and metadata table log, full by the data files' contents."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from airflow_lake_provider.job_contract import EXPRESSION_INDEX_PREFIX, METADATA_TABLE, SECONDARY_INDEX_PREFIX
from airflow_lake_provider.shared.hudi_settings import METADATA_ENABLE
from lake_jobs.hudi.files import find_modified_ms, list_modified_ms
from lake_jobs.hudi.metadata_writes import load_commit_body
from lake_jobs.indexing.bounds import compare_bounds, list_base_files
from lake_jobs.indexing.rules import WriteChange, find_shadowing, must_mention
from lake_jobs.indexing.settings import reads_up_to_its_plan
from lake_jobs.indexing.state import list_partition, metadata_timeline_names, timeline_file
from lake_jobs.services.context import seconds_since

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from lake_jobs.hudi.table import LoadedTable
    from lake_jobs.indexing.rules import IndexPlan
    from lake_jobs.indexing.settings import IndexOptions
    from lake_jobs.services.context import ServiceContext

MAX_EXAMPLES = 5
MAX_ENTRIES = 10_000
SPELLED_ALIKE = ("string", "tinyint", "smallint", "int", "bigint", "boolean")
"""Types whose values a secondary index spells as Spark does. Fractions are left out: Java spells some otherwise."""
NULL_KEY = "\0"
# Types of records in the metadata table (`MetadataPartitionType`).
BLOOM_FILTERS = 4
RECORD_INDEX = 5
SECONDARY_INDEX = 7


def check(context: ServiceContext, plan: IndexPlan, options: IndexOptions, passed: set[str] | None = None) -> str:
    """Return what is wrong with a built index, empty when nothing is. `passed` is that of `find_missing_writes`."""
    started = time.monotonic()
    damage = find_damage(context, plan, passed)
    kind = f"{options.check} check"
    reason = ""
    if not damage and options.check == "full":
        state = context.read_table_state()
        reason = find_uncompared(context.spark, state, plan.partition)
        kind = f"check by timeline only ({reason})" if reason else kind
        damage = "" if reason else "; ".join(find_differences(context.spark, state, plan.partition))
    context.log_progress(
        f"index {plan.partition}: {kind} {'FAILED' if damage else 'passed'} in {seconds_since(started)}"
    )
    return damage


def find_damage(context: ServiceContext, plan: IndexPlan, passed: set[str] | None = None) -> str:
    """Cheap check: return what a built index lacks by timeline and metadata table, empty when nothing.

    `passed` is that of `find_missing_writes`.
    """
    state = context.read_table_state()
    begun_ms = find_modified_ms(context.spark, timeline_file(state, f"{plan.instant}.indexing.inflight"))
    missing = find_missing_writes(context.spark, state, plan.partition, begun_ms or 0, plan.instant, passed)
    return f"not in the index: {', '.join(missing)}" if missing else find_hiding(context, plan)


def find_missing_writes(
    spark: SparkSession,
    state: LoadedTable,
    partition: str,
    since_ms: int,
    since_instant: str,
    passed: set[str] | None = None,
) -> list[str]:
    """Cheap check: return the writes that completed from `since_ms` on and are not in the index.

    An index may be built up to its plan only; `since_instant` is then the plan, and writes that were requested after it
    are checked as well. A write is in the index when its delta commit on the metadata table wrote to the index's
    folder. Both times are of files on one store. The check leaves out what the metadata table has archived.

    `passed` are instants that an earlier call found in the index, or before it; this one adds to them. What is
    completed does not change, so a caller checks before it takes the table's lock, and under it only what came since.
    """
    passed = set() if passed is None else passed
    metadata = load_metadata_timeline(spark, state)
    mentions = {
        str(instant.requestedTime()): instant
        for instant in metadata.getCommitsTimeline().filterCompletedInstants().getInstants()
    }
    oldest = min((time for time in mentions if len(time) == 17 and not time.startswith("0000")), default="")
    missing = []
    completed = list(state.timeline.getCommitsTimeline().filterCompletedInstants().getInstants())
    completed_ms = list_modified_ms(spark, state.meta_client.getTimelinePath().toString())
    for instant in completed:
        requested_time = str(instant.requestedTime())
        if requested_time in passed:
            continue
        at_ms = completed_ms.get(f"{requested_time}_{instant.getCompletionTime()}.{instant.getAction()}")
        is_late = reads_up_to_its_plan(partition) and requested_time > since_instant
        is_asked = at_ms is not None and requested_time >= oldest and (is_late or at_ms >= since_ms)
        if is_asked and must_mention(partition, change_of(state, instant)):
            mention = mentions.get(requested_time)
            if mention is None or not mentions_index(metadata, mention, partition):
                missing.append(f"{instant.getAction()} {requested_time}")
                continue
        if at_ms is not None:
            passed.add(requested_time)
    return sorted(missing)


def mentions_index(metadata: Any, mention: Any, partition: str) -> bool:
    """Whether a delta commit on the metadata table wrote to an index's folder."""
    return bool(metadata.readCommitMetadata(mention).getPartitionToWriteStats().containsKey(partition))


def find_hiding(context: ServiceContext, plan: IndexPlan) -> str:
    """Return which compactions of the metadata table hide the entries of a completed build; empty when none does."""
    _, files = list_partition(context, plan)
    names = {str(status.getPath().getName()) for status in files}
    hiding = find_shadowing(plan.instant, names, metadata_timeline_names(context.spark, context.job.base_path))
    if not hiding:
        return ""
    return f"compactions of the metadata table ({', '.join(hiding)}) hide the entries of {plan.partition}"


def find_differences(spark: SparkSession, state: LoadedTable, partition: str) -> list[str]:
    """Full check: compare an index with the data files; return what differs, in words, with some examples.

    Table and index cannot be read at one moment while writers go on, so what counts is what differs twice.
    """
    once = _compare_entries(spark, state, partition)
    first = [] if once is None else once.limit(MAX_ENTRIES).collect()
    again = _compare_entries(spark, state, partition) if first else None
    if again is None:
        return []
    known = spark.createDataFrame(
        [(row["entry"], int(row["balance"])) for row in first], "entry string, balance bigint"
    )
    lasting = known.join(again, on=["entry", "balance"], how="left_semi").collect()
    damage = []
    for sign, words in ((1, "missing in the index, or other there"), (-1, "in the index but not in the table")):
        entries = sorted(row["entry"].replace(NULL_KEY, "null") for row in lasting if row["balance"] * sign > 0)
        if entries:
            damage.append(f"{len(entries)} entries {words}: {', '.join(entries[:MAX_EXAMPLES])}")
    return damage


def find_uncompared(spark: SparkSession, state: LoadedTable, partition: str) -> str:
    """Return why the full check does not compare an index with the data files; empty when it does."""
    if partition in {"record_index", "column_stats", "bloom_filters"}:
        return ""
    if not partition.startswith(SECONDARY_INDEX_PREFIX):
        kind = EXPRESSION_INDEX_PREFIX.rstrip("_") if partition.startswith(EXPRESSION_INDEX_PREFIX) else partition
        return f"contents of {kind} cannot be compared with the data files"
    column = partition.removeprefix(SECONDARY_INDEX_PREFIX)
    value = _secondary_value(_rows(spark, state), column)
    return "" if value is not None else f"values of the type of {column} cannot be compared with the data files"


def _compare_entries(spark: SparkSession, state: LoadedTable, partition: str) -> DataFrame | None:
    """Return entry and balance: positive for what is only in the table, negative for what is only in the index."""
    index = spark.read.format("hudi").load(f"{state.base_path}/{METADATA_TABLE}")
    # Indexes of one kind have records of one type: the folder distinguishes those of this index.
    own = spark.read.format("hudi").load(f"{state.base_path}/{METADATA_TABLE}/{partition}")
    if partition == "record_index":
        return _unbalanced(_record_places(_rows(spark, state)), _indexed_places(index))
    if partition.startswith(SECONDARY_INDEX_PREFIX):
        rows = _rows(spark, state)
        value = _secondary_value(rows, partition.removeprefix(SECONDARY_INDEX_PREFIX))
        return None if value is None else _unbalanced(_secondary_pairs(rows, value), _indexed_pairs(own))
    if partition == "column_stats":
        return compare_bounds(spark, state.base_path, list_base_files(index), own)
    if partition == "bloom_filters":
        return _surplus_of_filters(index)
    # Of the others, the timeline and the metadata table's log are all there is to compare with.
    return None


def load_metadata_timeline(spark: SparkSession, state: LoadedTable) -> Any:
    """Return the active timeline of a table's metadata table. Raises Py4JJavaError."""
    builder = spark._jvm.org.apache.hudi.common.table.HoodieTableMetaClient.builder()
    conf = state.meta_client.getStorageConf().newInstance()
    return builder.setConf(conf).setBasePath(f"{state.base_path}/{METADATA_TABLE}").build().getActiveTimeline()


def change_of(state: LoadedTable, instant: Any) -> WriteChange:
    """Return what a completed write changed. Raises Py4JJavaError."""
    metadata, stats = load_commit_body(state, instant)
    return WriteChange(
        operation=str(metadata["operationType"]),
        inserts=sum(int(stat["numInserts"]) for stat in stats),
        updates=sum(int(stat["numUpdateWrites"]) for stat in stats),
        deletes=sum(int(stat["numDeletes"]) for stat in stats),
        base_files=sum(not str(stat["path"]).rsplit("/", 1)[-1].startswith(".") for stat in stats),
    )


def _rows(spark: SparkSession, state: LoadedTable) -> DataFrame:
    # Neither listing nor skipping may ask the metadata table: it is what is being checked.
    options = {METADATA_ENABLE: "false", "hoodie.enable.data.skipping": "false"}
    return spark.read.format("hudi").options(**options).load(state.base_path)


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


def _surplus_of_filters(index: DataFrame) -> DataFrame:
    # The key of a bloom filter is a hash of partition and file name, which Spark cannot compute: numbers must do.
    files = list_base_files(index).select(F.lit(1).alias("balance"))
    filters = index.where(F.col("type") == BLOOM_FILTERS).where(~F.col("BloomFilterMetadata.isDeleted"))
    total = files.unionByName(filters.select(F.lit(-1).alias("balance"))).agg(F.sum("balance").alias("balance"))
    return total.where("balance <> 0").select(F.lit("base files less bloom filters").alias("entry"), "balance")


def _unbalanced(expected: DataFrame, found: DataFrame) -> DataFrame:
    both = expected.withColumn("side", F.lit(1)).unionByName(found.withColumn("side", F.lit(-1)))
    return both.groupBy("entry").agg(F.sum("side").alias("balance")).where("balance <> 0")
