"""In a table without partitions deleted rows came back after a clustering.

Report: https://github.com/apache/hudi/issues/7839
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

UNPARTITIONED = {
    "hoodie.datasource.write.partitionpath.field": "",
    "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator",
    "hoodie.datasource.write.payload.class": "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload",
}


@pytest.mark.soak
@pytest.mark.parametrize("version", [9, 6])
def test_deleted_rows_stay_deleted(spark: SparkSession, tmp_path: Path, version: int) -> None:
    kept = KeptTable(spark, tmp_path / "t", version=version, options=UNPARTITIONED)
    kept.write(first_rows())
    kept.write((i, CITIES[i % 2], 1.0, 1) for i in range(6))
    kept.write(((i, CITIES[i % 2], 1.0, 1) for i in range(3)), "delete")
    kept.forget(range(3))
    kept.write((i, CITIES[i % 2], 2.0, 2) for i in range(4, 9))
    kept.require_rows()
    assert kept.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
    kept.require_rows()
    kept.write(((i, CITIES[i % 2], 3.0, 3) for i in range(6, 8)), "delete")
    kept.forget(range(6, 8))
    assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    kept.require_rows()
