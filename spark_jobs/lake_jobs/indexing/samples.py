"""Sampled searches: whether a reader that uses an index finds the rows that a reader without indexes finds.

All readers are Hudi's own, so nothing here knows how an index is stored. The sample differs from run to run. A search
for many keys at once hides a key that the record index lacks when another one is in the same file. So of that index
Hudi also reads the place of each key.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from airflow_lake_provider.job_contract import SECONDARY_INDEX_PREFIX
from airflow_lake_provider.shared.hudi_settings import METADATA_ENABLE
from lake_jobs.hudi.table import list_items
from lake_jobs.indexing.rules import find_missed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from lake_jobs.hudi.table import LoadedTable

SAMPLE = 64
"""How many values are searched for: of the keys for a record index, of the column for a secondary one."""
MAX_ROWS = 20_000
"""More rows than this are not compared: a column of few values brings all of the table."""
LIST_LIMIT = "spark.sql.optimizer.inSetConversionThreshold"
RECORD_KEY = "_hoodie_record_key"


@dataclass(frozen=True, slots=True)
class Samples:
    """What sampled searches showed. `missed` and `doubled` are record keys.

    Keys that are `doubled` stand in several file groups, which an insert or a bulk insert of an existing key does: an
    index has one place for each, and rebuilding it would not help.
    """

    rows: int = 0
    missed: tuple[str, ...] = ()
    doubled: tuple[str, ...] = ()
    is_listing_damaged: bool = False
    """Whether the metadata table's file listing lacks these rows already, whatever the index says."""


def find_searched_column(partition: str) -> str | None:
    """Return the column on which readers use an index to find rows; None for an index that is not sampled."""
    if partition == "record_index":
        return RECORD_KEY
    if partition.startswith(SECONDARY_INDEX_PREFIX):
        return partition.removeprefix(SECONDARY_INDEX_PREFIX)
    return None


def sample_searches(spark: SparkSession, state: LoadedTable, column: str, seed: str) -> Samples:
    """Compare sampled searches by a column; writers may go on: what counts is missed twice."""
    salt = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:7], "big")
    by_hash = F.xxhash64(F.col(column), F.lit(salt))
    plain = _rows(spark, state)
    drawn = plain.where(F.col(column).isNotNull()).select(column).orderBy(by_hash).limit(SAMPLE).distinct().collect()
    values = [row[0] for row in drawn]
    samples = _compare(spark, state, column, values)
    if not samples.missed:
        return samples
    again = _compare(spark, state, column, values)
    missed = tuple(sorted({*samples.missed} & {*again.missed}))
    listed = _search(_rows(spark, state, lists=True), column, values) if missed else []
    return Samples(again.rows, missed, again.doubled, is_listing_damaged=not {*missed} <= {*listed})


def _compare(spark: SparkSession, state: LoadedTable, column: str, values: list[Any]) -> Samples:
    # First by the index: a row that a writer adds in between is missing in neither.
    with _long_lists(spark, len(values)):
        found = _search(_rows(spark, state, lists=True, skips=True), column, values)
    placed = _find_places(spark, state, values) if column == RECORD_KEY else None
    there = _search(_rows(spark, state), column, values)
    if len(there) >= MAX_ROWS:
        return Samples()
    if placed is not None:
        found = [key for key in found if key in placed]
    missed, doubled = find_missed(Counter(there), Counter(found))
    return Samples(len(there), missed, doubled)


@contextmanager
def _long_lists(spark: SparkSession, most: int) -> Iterator[None]:
    """Keep Spark from making a set of a long list of values: Hudi's readers use an index for a list only."""
    before = spark.conf.get(LIST_LIMIT, "10")
    spark.conf.set(LIST_LIMIT, str(most + 1))
    try:
        yield
    finally:
        spark.conf.set(LIST_LIMIT, str(before))


def _find_places(spark: SparkSession, state: LoadedTable, keys: list[str]) -> frozenset[str]:
    """Return which of the keys the record index has a place for."""
    assert spark._jvm is not None
    hudi = spark._jvm.org.apache.hudi
    context = hudi.common.engine.HoodieLocalEngineContext(state.meta_client.getStorageConf())
    config = hudi.common.config.HoodieMetadataConfig.newBuilder().enable(True).build()  # noqa: FBT003 - Java's
    metadata = hudi.metadata.HoodieBackedTableMetadata(context, state.meta_client.getStorage(), config, state.base_path)
    try:
        asked = spark._jvm.java.util.ArrayList()
        for key in keys:
            asked.add(key)
        places = metadata.readRecordIndexLocationsWithKeys(hudi.common.data.HoodieListData.eager(asked))
        return frozenset(str(pair.getLeft()) for pair in list_items(places.collectAsList()))
    finally:
        metadata.close()


def _search(rows: DataFrame, column: str, values: list[Any]) -> list[str]:
    keys = rows.where(F.col(column).isin(values)).select(RECORD_KEY).limit(MAX_ROWS).collect()
    return [str(row[0]) for row in keys]


def _rows(spark: SparkSession, state: LoadedTable, *, lists: bool = False, skips: bool = False) -> DataFrame:
    """Return the table, its files listed by the metadata table or not, and skipped by its indexes or not."""
    options = {
        METADATA_ENABLE: str(lists).lower(),
        "hoodie.enable.data.skipping": str(skips).lower(),
        "hoodie.metadata.global.record.level.index.enable": str(skips).lower(),
        "hoodie.metadata.record.index.enable": str(skips).lower(),
    }
    return spark.read.format("hudi").options(**options).load(state.base_path)
