"""After a clustering of a bootstrapped table all columns except meta fields were null.

Report: https://github.com/apache/hudi/pull/8342
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import CITIES, KEEP_ONE_COMMIT, KeptTable

from airflow_lake_provider.job_contract import Outcome, Service
from local_stack import lake_writer

if TYPE_CHECKING:
    from pathlib import Path

    from kept_rows import Row
    from pyspark.sql import SparkSession

SCHEMA = "id long, amount double, ts long, city string"
COLUMNS = ("id", "amount", "ts", "city")
HIVE_STYLE = {"hoodie.datasource.write.hive_style_partitioning": "true"}


def row(i: int, amount: float, ts: int) -> Row:
    return (i, amount, ts, CITIES[i % 2])


def bootstrap(kept: KeptTable, source: str) -> None:
    """Make the table of Parquet files, of which it copies nothing but keys."""
    kept.spark.createDataFrame(list(kept.rows.values()), SCHEMA).write.partitionBy("city").parquet(source)
    settings = lake_writer.write_options(kept.table.written, 0, None, {}) | {
        "hoodie.datasource.write.operation": "bootstrap",
        "hoodie.bootstrap.base.path": source,
        "hoodie.bootstrap.mode.selector": (
            "org.apache.hudi.client.bootstrap.selector.MetadataOnlyBootstrapModeSelector"
        ),
    }
    # Hudi cannot send a lock to its tasks, and refuses other writers.
    alone = {key: value for key, value in settings.items() if ".lock." not in key and "concurrency" not in key}
    empty = kept.spark.createDataFrame([], SCHEMA)
    empty.write.format("hudi").options(**alone).mode("overwrite").save(str(kept.path))


@pytest.mark.soak
@pytest.mark.parametrize("type", ["COW", "MOR"])
def test_rows_keep_their_values(spark: SparkSession, tmp_path: Path, type: str) -> None:
    kept = KeptTable(spark, tmp_path / "t", type=type, options=HIVE_STYLE, schema=SCHEMA, columns=COLUMNS)
    kept.rows = {i: row(i, float(i), 0) for i in range(20)}
    bootstrap(kept, str(tmp_path / "source"))
    kept.require_rows()
    kept.write(row(i, -1.0, 1) for i in range(6))
    kept.require_rows()
    if type == "MOR":
        assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
        kept.require_rows()
    kept.write((row(i, 7.0, 2) for i in range(30, 34)), "insert")
    assert kept.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
    kept.require_rows()
    kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT)
    kept.require_rows()
    kept.write(row(i, -3.0, 3) for i in range(10))
    kept.require_rows()
