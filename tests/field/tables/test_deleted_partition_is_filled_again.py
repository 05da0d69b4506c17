"""Rows of a deleted and refilled partition disappeared, or the deleted ones came back.

Report: https://github.com/apache/hudi/pull/8506
Report: https://github.com/apache/hudi/issues/859
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import CITIES, KEEP_ONE_COMMIT, KeptTable, first_rows

from airflow_lake_provider.job_contract import Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

ARCHIVE = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"} | KEEP_ONE_COMMIT
DELETED = {"hoodie.datasource.write.partitions.to.delete": CITIES[0]}


@pytest.mark.soak
@pytest.mark.parametrize(("type", "version"), [("MOR", 9), ("MOR", 6), ("COW", 9)])
def test_only_rows_written_after_are_there(spark: SparkSession, tmp_path: Path, type: str, version: int) -> None:
    kept = KeptTable(spark, tmp_path / "t", type=type, version=version)
    kept.write(first_rows())
    for turn in (1, 2, 3):
        kept.write((i, CITIES[i % 2], float(turn), turn) for i in range(6))
        kept.append(spark.createDataFrame([], kept.schema), "delete_partition", **DELETED)
        kept.forget([key for key, row in kept.rows.items() if row[1] == CITIES[0]])
        kept.require_rows()
        kept.write((i, CITIES[0], 10.0 + turn, turn) for i in range(0, 8, 2))
        kept.write((i, CITIES[0], 20.0 + turn, turn + 1) for i in range(0, 4, 2))
        kept.require_rows()
        if type == "MOR":
            assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
        kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT)
        kept.require_rows()
        kept.serve(Service.ARCHIVE, **ARCHIVE)
        kept.require_rows()
    kept.serve(Service.CLUSTERING)
    kept.require_rows()
