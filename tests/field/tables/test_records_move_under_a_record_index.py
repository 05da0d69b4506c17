"""With a record index, moved keys came twice, or were not found, after services.

Report: https://github.com/apache/hudi/issues/12128
Report: https://github.com/apache/hudi/issues/4501
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import KEEP_ONE_COMMIT, KeptTable

from airflow_lake_provider.job_contract import Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

CITIES = ("Aachen", "Bilbao", "Cork")
RECORD_INDEX = {
    "hoodie.metadata.record.index.enable": "true",
    "hoodie.index.type": "GLOBAL_RECORD_LEVEL_INDEX",
    "hoodie.record.index.update.partition.path": "true",
    "hoodie.metadata.compact.max.delta.commits": "2",
}
KEEP_FEW = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3", **KEEP_ONE_COMMIT}


@pytest.mark.soak
def test_each_key_is_found_once_where_it_is(spark: SparkSession, tmp_path: Path) -> None:
    kept = KeptTable(spark, tmp_path / "t", type="COW", options=RECORD_INDEX)
    kept.write((i, CITIES[i % 2], float(i), 0) for i in range(20))
    for turn in range(1, 7):
        kept.write((i, CITIES[(i + turn) % 3], float(turn), turn) for i in range(turn, 20, turn + 1))
        if turn % 2 == 0:
            assert kept.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
            kept.require_rows()
    assert kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT).outcome is Outcome.COMPLETED
    kept.require_rows()
    assert kept.serve(Service.ARCHIVE, **KEEP_FEW).outcome is Outcome.COMPLETED
    kept.write((i, CITIES[(i + 1) % 3], 9.0, 9) for i in range(0, 20, 2))
    kept.require_rows()
    table = spark.read.format("hudi").load(str(kept.path))
    for key in range(0, 20, 3):
        found = table.where(f"_hoodie_record_key = '{key}'").select(*kept.columns).collect()
        assert [tuple(row) for row in found] == [kept.rows[key]]
