"""Rows deleted by `_hoodie_is_deleted` in log files came back after a rewrite.

Report: https://github.com/apache/hudi/issues/9977
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

SCHEMA = "id long, city string, amount double, ts long, _hoodie_is_deleted boolean"
SERVICES = [
    Service.LOGCOMPACTION,
    pytest.param(Service.COMPACTION, marks=pytest.mark.soak),
    pytest.param(Service.CLUSTERING, marks=pytest.mark.soak),
]


@pytest.mark.parametrize("service", SERVICES)
def test_deleted_rows_stay_deleted(spark: SparkSession, tmp_path: Path, service: Service) -> None:
    kept = KeptTable(spark, tmp_path / "t", schema=SCHEMA)
    kept.write((i, CITIES[i % 2], float(i), 0, False) for i in range(20))
    kept.write((i, CITIES[i % 2], 5.0, 1, False) for i in range(10))
    kept.write((i, CITIES[i % 2], 6.0, 2, True) for i in range(6))
    kept.forget(range(6))
    kept.write((i, CITIES[i % 2], 7.0, 3, False) for i in (0, 1, 30, 31))
    kept.require_rows()
    options = {"hoodie.log.compaction.blocks.threshold": "2", "lake.verify": "all"}
    done = kept.serve(service, **(options if service is Service.LOGCOMPACTION else {}))
    assert done.outcome is Outcome.COMPLETED, done.message
    assert done.message.endswith("equal"), done.message
    kept.require_rows()
    kept.write((i, CITIES[i % 2], 8.0, 4, False) for i in (2, 3))
    kept.require_rows()
