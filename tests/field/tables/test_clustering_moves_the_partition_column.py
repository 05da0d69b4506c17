"""After clustering by the row writer upserts failed: the partition column had moved in the new files.

Report: https://github.com/apache/hudi/issues/8259
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import CITIES, KeptTable, first_rows

from airflow_lake_provider.job_contract import Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

OPTIONS = {"hoodie.datasource.write.hive_style_partitioning": "true", "hoodie.parquet.small.file.limit": "0"}


@pytest.mark.soak
@pytest.mark.parametrize("type", ["COW", "MOR"])
def test_upserts_find_their_columns(spark: SparkSession, tmp_path: Path, type: str) -> None:
    kept = KeptTable(spark, tmp_path / "t", type, options=OPTIONS)
    kept.write(first_rows(), "bulk_insert")
    kept.write(((i, CITIES[i % 2], 1.0, 1) for i in range(20, 30)), "bulk_insert")
    assert kept.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
    kept.require_rows()
    kept.write((i, CITIES[i % 2], 2.0, 2) for i in range(0, 30, 2))
    kept.require_rows()
    if type == "MOR":
        assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    assert kept.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
    kept.write((i, CITIES[i % 2], 3.0, 3) for i in range(0, 30, 3))
    kept.require_rows()
