"""A row written again after its delete was lost once its log files were merged.

Report: https://github.com/apache/hudi/pull/12971
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

MODE = "hoodie.write.record.merge.mode"


@pytest.mark.parametrize(
    ("mode", "version"),
    [
        ("EVENT_TIME_ORDERING", 9),
        pytest.param("COMMIT_TIME_ORDERING", 9, marks=pytest.mark.soak),
        pytest.param("", 6, marks=pytest.mark.soak),
    ],
)
def test_row_stays(spark: SparkSession, tmp_path: Path, mode: str, version: int) -> None:
    kept = KeptTable(spark, tmp_path / "t", version=version, options={MODE: mode} if mode else {})
    kept.write(first_rows())
    for turn in (1, 2):
        kept.write([(i, CITIES[i % 2], 0.0, 2 * turn) for i in range(6)], "delete")
        kept.forget(range(6))
        kept.write((i, CITIES[i % 2], 8.0 + turn, 2 * turn + 1) for i in range(4))
        kept.write(((i, CITIES[i % 2], 9.0, 2 * turn + 1) for i in (4, 5)), "insert")
        kept.require_rows()
    assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    kept.require_rows()
    kept.write([(0, CITIES[0], 0.0, 8)], "delete")
    kept.forget([0])
    kept.write([(0, CITIES[0], 7.0, 9)])
    assert kept.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
    kept.require_rows()
