"""After clustering and an overwrite of a partition every commit failed on the metadata table.

Report: https://github.com/apache/hudi/issues/3770
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import CITIES, KEEP_ONE_COMMIT, SCHEMA, KeptTable, first_rows

from airflow_lake_provider.job_contract import Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.soak
@pytest.mark.parametrize("type", ["COW", "MOR"])
def test_writes_and_services_go_on(spark: SparkSession, tmp_path: Path, type: str) -> None:
    options = {"hoodie.metadata.enable": "true", "hoodie.parquet.small.file.limit": "0"}
    kept = KeptTable(spark, tmp_path / "t", type, options=options)
    kept.write(first_rows(), "bulk_insert")
    kept.write(((i, CITIES[i % 2], 1.0, 1) for i in range(20, 30)), "bulk_insert")
    assert kept.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
    kept.append(spark.createDataFrame([(100, CITIES[0], 5.0, 5)], SCHEMA), "insert_overwrite")
    kept.forget([key for key, row in kept.rows.items() if row[1] == CITIES[0]])
    kept.rows[100] = (100, CITIES[0], 5.0, 5)
    kept.require_rows()
    kept.write((i, CITIES[i % 2], 6.0, 6) for i in range(10))
    kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT)
    if type == "MOR":
        assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    assert kept.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
    kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT)
    kept.require_rows()
    kept.write((i, CITIES[i % 2], 7.0, 7) for i in range(6))
    kept.require_rows()
