"""Services took partition values with brackets, stars or `<>` for patterns, and missed them.

Report: https://github.com/apache/hudi/issues/5752
Report: https://github.com/apache/hudi/issues/10754
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

CITIES = ("{x,y}", "a[1]", "b<c>", "d*e?", "plain")


@pytest.mark.soak
@pytest.mark.parametrize("type", ["MOR", "COW"])
def test_services_find_them_as_they_are(spark: SparkSession, tmp_path: Path, type: str) -> None:
    kept = KeptTable(spark, tmp_path / "t", type=type)
    for turn in range(3):
        kept.write((i, CITIES[i % 5], float(turn), turn) for i in range(20 - 5 * turn))
    kept.require_rows()
    for service in (Service.COMPACTION, Service.CLUSTERING)[type == "COW" :]:
        assert kept.serve(service).outcome is Outcome.COMPLETED
        kept.require_rows()
    kept.write((i, CITIES[i % 5], 9.0, 9) for i in range(10))
    assert kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT).outcome is Outcome.COMPLETED
    kept.require_rows()
