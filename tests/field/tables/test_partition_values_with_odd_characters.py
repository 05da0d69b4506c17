"""Partitions whose values have slashes, spaces, percent signs or non-ASCII letters went to wrong folders.

Report: https://github.com/apache/hudi/issues/2397
Report: https://github.com/apache/hudi/pull/5954
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import KeptTable

from airflow_lake_provider.job_contract import Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

CITIES = ("a/b=%", "São Paulo", "東京", "50%25", "{x}*?", None)


@pytest.mark.soak
@pytest.mark.parametrize("type", ["MOR", "COW"])
def test_rows_stay_in_their_partitions(spark: SparkSession, tmp_path: Path, type: str) -> None:
    encoded = {
        "hoodie.datasource.write.partitionpath.urlencode": "true",
        "hoodie.datasource.write.hive_style_partitioning": "true",
    }
    kept = KeptTable(spark, tmp_path / "t", type=type, options=encoded)
    kept.write((i, CITIES[i % 6], float(i), 0) for i in range(18))
    kept.write((i, CITIES[i % 6], -1.0, 1) for i in range(6))
    if type == "MOR":
        assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
        kept.require_rows()
    kept.write(
        ((i, CITIES[i % 6], 7.0, 2) for i in range(20, 26)), "insert", **{"hoodie.parquet.small.file.limit": "0"}
    )
    assert kept.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
    kept.require_rows()
    kept.write((i, CITIES[i % 6], 9.0, 3) for i in range(3))
    kept.require_rows()
