"""After a clustering of a table that was bulk-inserted and updated many times, rows were there that had not been.

Report: https://github.com/apache/hudi/issues/10172
Report: https://github.com/apache/hudi/issues/4311
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import CITIES, COMPARE_ALL, KeptTable

from airflow_lake_provider.job_contract import Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

FOUR_FILES = {"hoodie.bulkinsert.shuffle.parallelism": "4"}


@pytest.mark.soak
@pytest.mark.parametrize("version", [9, 6])
@pytest.mark.parametrize("sort", ["NONE", "PARTITION_SORT", "GLOBAL_SORT"])
def test_rows_are_the_same(spark: SparkSession, tmp_path: Path, version: int, sort: str) -> None:
    kept = KeptTable(spark, tmp_path / "t", version=version, options=FOUR_FILES)
    rows = [(i, CITIES[i % 2], float(i), 0) for i in range(200)]
    kept.append(
        spark.createDataFrame(rows, kept.schema).repartition(4), "bulk_insert", **{"hoodie.bulkinsert.sort.mode": sort}
    )
    kept.rows |= {row[0]: row for row in rows}
    for ts in range(1, 7):
        kept.write((i, CITIES[i % 2], ts + i / 1000, ts) for i in range(ts * 7, ts * 7 + 60, ts))
        gone = range(ts * 20, ts * 20 + 3)
        kept.append(spark.createDataFrame([(i, CITIES[i % 2], 0.0, ts) for i in gone], kept.schema), "delete")
        kept.forget(i for i in gone if i in kept.rows)
    kept.require_rows()
    assert kept.serve(Service.CLUSTERING, **COMPARE_ALL).outcome is Outcome.COMPLETED
    kept.require_rows()
    kept.write((i, CITIES[i % 2], 9.0, 9) for i in range(0, 220, 5))
    kept.serve(Service.COMPACTION)
    kept.require_rows()
