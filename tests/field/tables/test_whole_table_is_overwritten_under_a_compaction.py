"""`insert_overwrite_table` passed a pending compaction: its plan failed, or replaced rows came back.

Report: https://github.com/apache/hudi/issues/2707
Report: https://github.com/apache/hudi/issues/6938
Report: https://github.com/apache/hudi/issues/7663
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import CITIES, KEEP_ONE_COMMIT, KeptTable, first_rows

from airflow_lake_provider.job_contract import Mode, Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

KEEP_FEW = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3", **KEEP_ONE_COMMIT}


@pytest.mark.soak
@pytest.mark.parametrize("version", [9, 6])
def test_replaced_rows_stay_away(spark: SparkSession, tmp_path: Path, version: int) -> None:
    options = {"hoodie.metadata.compact.max.delta.commits": "2"}
    kept = KeptTable(spark, tmp_path / "t", version=version, options=options)
    kept.write(first_rows())
    kept.write((i, CITIES[i % 2], 1.0, 1) for i in range(6))
    assert kept.serve(Service.COMPACTION, Mode.SCHEDULE).outcome is Outcome.SCHEDULED
    kept.rows.clear()
    kept.write([(i, CITIES[i % 2], 9.0, 9) for i in range(30, 36)], "insert_overwrite_table")
    kept.require_rows()
    assert kept.serve(Service.COMPACTION, Mode.EXECUTE).outcome is Outcome.COMPLETED
    kept.require_rows()
    for turn in range(3):
        kept.write((i, CITIES[i % 2], 2.0, 10 + turn) for i in range(30, 33))
    for service in (Service.COMPACTION, Service.CLUSTERING):
        assert kept.serve(service).outcome is Outcome.COMPLETED
        kept.require_rows()
    assert kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT).outcome is Outcome.COMPLETED
    kept.require_rows()
    assert kept.serve(Service.ARCHIVE, **KEEP_FEW).outcome is Outcome.COMPLETED
    kept.require_rows()
