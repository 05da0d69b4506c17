"""After a clustering and a clean a record index was dropped, or pointed at missing files.

Report: https://github.com/apache/hudi/issues/13996
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import CITIES, KeptTable

from airflow_lake_provider.job_contract import Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

AS_REPORTED = {
    "hoodie.metadata.record.index.enable": "true",
    "hoodie.datasource.write.drop.partition.columns": "true",
    "hoodie.datasource.write.hive_style_partitioning": "true",
}
KEEP_ONE_VERSION = {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.clean.fileversions.retained": "1"}


@pytest.mark.soak
def test_index_stays_and_finds_each_key(spark: SparkSession, tmp_path: Path) -> None:
    kept = KeptTable(spark, tmp_path / "t", options=AS_REPORTED)
    for turn in range(4):
        kept.write(((100 * turn + i, CITIES[i % 2], float(i), turn) for i in range(10)), "insert")
    assert kept.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
    kept.require_rows()
    assert kept.serve(Service.CLEAN, **KEEP_ONE_VERSION).outcome is Outcome.COMPLETED
    kept.require_rows()
    assert "record_index" in kept.table.properties()["hoodie.table.metadata.partitions"]
    kept.write((100 * turn + i, CITIES[i % 2], 7.0, 9) for turn in range(2) for i in range(3))
    kept.require_rows()
    assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    kept.require_rows()
    for key in (0, 101, 302):
        assert spark.read.format("hudi").load(str(kept.path)).where(f"_hoodie_record_key = '{key}'").count() == 1
