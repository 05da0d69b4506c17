"""A compaction or clean left out some of a commit's log files or blocks in a file group.

Report: https://github.com/apache/hudi/issues/2448
Report: https://github.com/apache/hudi/issues/7969
Report: https://github.com/apache/hudi/pull/9553
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import CITIES, KEEP_ONE_COMMIT, KeptTable

from airflow_lake_provider.job_contract import Mode, Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

ARCHIVE = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"} | KEEP_ONE_COMMIT
SMALL = {
    "hoodie.logfile.max.size": "2048",
    "hoodie.logfile.data.block.max.size": "1024",
    "hoodie.memory.merge.max.size": "1024",
}


@pytest.mark.soak
@pytest.mark.parametrize("version", [9, 6])
def test_all_of_them_count(spark: SparkSession, tmp_path: Path, version: int) -> None:
    kept = KeptTable(spark, tmp_path / "t", version=version, options=SMALL)
    kept.write((i, CITIES[0], float(i), 0) for i in range(300))
    for turn in range(1, 4):
        kept.write((i, CITIES[0], float(turn), turn) for i in range(turn, 300, 2))
    logs = list((kept.path / CITIES[0]).glob(".*.log.*"))
    assert len(logs) > 3
    kept.require_rows()
    assert kept.serve(Service.COMPACTION, Mode.SCHEDULE).outcome is Outcome.SCHEDULED
    kept.write((i, CITIES[0], 9.0, 9) for i in range(100))
    assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    kept.require_rows()
    kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT)
    kept.require_rows()
    assert kept.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
    kept.serve(Service.ARCHIVE, **ARCHIVE)
    kept.require_rows()
    kept.serve(Service.ORPHANS)
    kept.require_rows()
