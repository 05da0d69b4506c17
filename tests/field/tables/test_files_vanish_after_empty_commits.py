"""After empty batches a clean removed all files, and services failed on an empty table.

Report: https://github.com/apache/hudi/issues/2664
Report: https://github.com/apache/hudi/pull/9811
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


@pytest.mark.soak
@pytest.mark.parametrize("type", ["COW", "MOR"])
def test_rows_stay_between_empty_batches(spark: SparkSession, tmp_path: Path, type: str) -> None:
    kept = KeptTable(spark, tmp_path / "t", type=type)
    rewriting = [Service.CLUSTERING] if type == "COW" else [Service.COMPACTION, Service.CLUSTERING]
    kept.write([])
    for service in (*rewriting, Service.CLEAN):
        assert kept.serve(service).outcome is Outcome.NOTHING_TO_DO
    kept.write(first_rows())
    for _ in range(3):
        kept.write([])
    for value in (1, 2):
        kept.write((i, CITIES[i % 2], float(value), value) for i in range(3))
    for _ in range(3):
        kept.write([])
    kept.require_rows()
    for service in rewriting:
        assert kept.serve(service).outcome is Outcome.COMPLETED
        kept.require_rows()
    kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT)
    kept.serve(Service.METACOMPACTION, Mode.EXECUTE)
    kept.serve(Service.ARCHIVE, **{"hoodie.keep.min.commits": "3", "hoodie.keep.max.commits": "4"})
    kept.require_rows()
    kept.write([], "insert_overwrite_table")
    kept.rows = {}
    kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT)
    kept.require_rows()
    kept.write(first_rows(4))
    kept.require_rows()
