"""A column became wider, and log files in the old type were not merged, or lost values.

Report: https://github.com/apache/hudi/issues/10138
Report: https://github.com/apache/hudi/issues/8040
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

NARROW = "id long, city string, amount float, ts long, pieces int"
WIDE = "id long, city string, amount double, ts long, pieces long"


@pytest.mark.soak
def test_values_of_both_types_stay(spark: SparkSession, tmp_path: Path) -> None:
    columns = ("id", "city", "amount", "ts", "pieces")
    kept = KeptTable(spark, tmp_path / "t", schema=NARROW, columns=columns)
    kept.write((i, CITIES[i % 2], i / 4, 0, i) for i in range(12))
    kept.write((i, CITIES[i % 2], -i / 4, 1, -i) for i in range(6))
    kept.write(((i, CITIES[i % 2], i / 3, 2, 1 << 40) for i in range(3)), schema=WIDE)
    kept.require_rows()
    assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    kept.require_rows()
    kept.write(((i, CITIES[i % 2], i / 3, 3, 1 << 41) for i in range(2)), schema=WIDE)
    assert kept.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
    kept.require_rows()
