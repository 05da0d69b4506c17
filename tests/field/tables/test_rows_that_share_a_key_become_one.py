"""Rows that share a record key, as `bulk_insert` and `insert` leave them, were changed when a service rewrote them.

Report: https://github.com/apache/hudi/issues/4754
Report: https://github.com/apache/hudi/issues/6531
Verdict: refused
Way out: write each key once; or set `compaction.verify: off`, with which readers saw the same rows after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import CITIES, COMPARE_ALL, KeptTable

from airflow_lake_provider.job_contract import REWRITE_BLOCK, VERIFY, Mode, Outcome, Service
from tests.support.hudi_tables import run

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

OFF = {VERIFY: "off"}


@pytest.mark.soak
def test_no_rewrite_changes_them(spark: SparkSession, tmp_path: Path) -> None:
    kept = KeptTable(spark, tmp_path / "t")
    copies = [(i % 4, CITIES[i % 2], float(i), i) for i in range(12)]
    kept.append(spark.createDataFrame(copies, kept.schema), "bulk_insert")
    assert kept.seen() == sorted(copies, key=repr)
    kept.append(spark.createDataFrame([(0, CITIES[0], 7.0, 99)], kept.schema))
    seen = kept.seen()
    for settings, outcome in ((COMPARE_ALL, Outcome.FAILED), (OFF, Outcome.COMPLETED)):
        request = kept.table.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.COMPACTION, service_options=settings)
        result = run(spark, request)
        assert result.outcome is outcome, result.message
        assert kept.seen() == kept.seen(metadata=False) == seen
        if outcome is Outcome.FAILED:
            assert "keys: 0 (other values)" in result.message
            (kept.path / REWRITE_BLOCK).unlink()
