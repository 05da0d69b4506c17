"""Files of a removed savepoint stayed for good, or a later clean failed.

Report: https://github.com/apache/hudi/pull/10651
Report: https://github.com/apache/hudi/pull/10946
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import LOCK
from kept_rows import CITIES, KEEP_ONE_COMMIT, KeptTable, first_rows

from airflow_lake_provider.job_contract import Mode, Outcome, Service
from lake_jobs.hudi.table import open_client

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.soak
def test_its_files_are_cleaned_although_their_partition_is_not_written(spark: SparkSession, tmp_path: Path) -> None:
    kept = KeptTable(spark, tmp_path / "t", type="COW")
    kept.write(first_rows())
    assert kept.serve(Service.SAVEPOINT, Mode.EXECUTE).outcome is Outcome.COMPLETED
    (savepoint,) = kept.table.completed("savepoint")
    for turn in range(1, 5):
        kept.write((i, CITIES[0], float(turn), turn) for i in range(0, 20, 2))
    assert kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT).outcome is Outcome.COMPLETED
    kept.require_rows()
    assert list(kept.path.glob(f"*/*_{savepoint}.parquet"))

    kept.write([(1, CITIES[1], 5.0, 9)])
    with open_client(spark, str(kept.path), LOCK, {}) as client:
        client.deleteSavepoint(savepoint)
    assert kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT).outcome is Outcome.COMPLETED
    kept.require_rows()
    kept.write([(1, CITIES[1], 6.0, 10)])
    kept.write([(1, CITIES[1], 7.0, 11)])
    assert kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT).outcome is Outcome.COMPLETED
    kept.require_rows()
    assert not list(kept.path.glob(f"*/*_{savepoint}.parquet"))
