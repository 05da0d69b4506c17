"""A service cut the table's path at its first comma; spaces and `=` also had effects.

Report: https://github.com/apache/hudi/issues/12333
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

BY_BLOCKS = {"hoodie.log.compaction.blocks.threshold": "1"}
QUARANTINE = {
    "lake.orphans.mode": "quarantine",
    "lake.orphans.min_age_days": "2",
    "lake.orphans.keep_days": "30",
    "lake.orphans.max_files": "1000",
}


@pytest.mark.soak
@pytest.mark.parametrize("type", ["MOR", "COW"])
def test_services_act_on_the_whole_path(spark: SparkSession, tmp_path: Path, type: str) -> None:
    kept = KeptTable(spark, tmp_path / "my lake, region=north" / "a, b", type=type)
    kept.write(first_rows())
    for turn in (1, 2):
        kept.write((i, CITIES[i % 2], float(turn), turn) for i in range(6))
    if type == "MOR":
        assert kept.serve(Service.LOGCOMPACTION, **BY_BLOCKS).outcome is Outcome.COMPLETED
        assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    assert kept.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
    kept.write((i, CITIES[i % 2], 9.0, 9) for i in range(6))
    assert kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT).outcome is Outcome.COMPLETED
    kept.require_rows()
    assert kept.serve(Service.ORPHANS, Mode.EXECUTE, **QUARANTINE).outcome is Outcome.NOTHING_TO_DO
    assert [path.name for path in tmp_path.glob("my lake*")] == ["my lake, region=north"]
