"""Change data files (`.cdc`) were never cleaned, or removed although a query needs them.

Report: https://github.com/apache/hudi/issues/9557
Verdict: right
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from kept_rows import CITIES, KEEP_ONE_COMMIT, KeptTable, first_rows

from airflow_lake_provider.instant_clock import DAY_MS
from airflow_lake_provider.job_contract import Mode, Outcome, Service
from lake_jobs.services import orphans as orphans_job

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

WITH_CHANGES = {"hoodie.table.cdc.enabled": "true", "hoodie.table.cdc.supplemental.logging.mode": "data_before_after"}
SEARCH = {"lake.orphans.mode": "quarantine", "lake.orphans.min_age_days": "2"}


def changes(kept: KeptTable) -> list[tuple[object, ...]]:
    read = kept.spark.read.format("hudi").option("hoodie.datasource.query.type", "incremental")
    read = read.option("hoodie.datasource.query.incremental.format", "cdc")
    found = read.option("hoodie.datasource.read.begin.instanttime", "000").load(str(kept.path))
    return sorted(map(tuple, found.select("op", "ts_ms", "before", "after").collect()), key=repr)


def change_files(kept: KeptTable) -> set[str]:
    return {path.name for path in kept.path.rglob("*.cdc") if ".hoodie" not in path.parts}


@pytest.mark.soak
def test_a_search_leaves_them_and_a_clean_takes_the_old_ones(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans_job, "_now_ms", lambda _context: int(time.time() * 1000) + 10 * DAY_MS)
    kept = KeptTable(spark, tmp_path / "t", type="COW", options=WITH_CHANGES)
    kept.write(first_rows())
    kept.write((i, CITIES[i % 2], 1.0, 1) for i in range(6))
    before, first_files = changes(kept), change_files(kept)
    assert [each[0] for each in before].count("u") == 6
    assert len(first_files) == 2
    for mode in (Mode.SCHEDULE, Mode.EXECUTE):
        assert kept.serve(Service.ORPHANS, mode, **SEARCH).outcome is Outcome.NOTHING_TO_DO
    assert kept.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
    assert changes(kept) == before
    kept.require_rows()
    for value in (2.0, 3.0):
        kept.write((i, CITIES[i % 2], value, int(value)) for i in range(3))
    assert kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT).outcome is Outcome.COMPLETED
    assert first_files.isdisjoint(change_files(kept))
    assert change_files(kept)
    kept.require_rows()
