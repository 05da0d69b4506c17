"""A clustering that completed after a younger one was passed by incremental cleans, and rows came twice.

Report: https://github.com/apache/hudi/pull/7405
Report: https://github.com/apache/hudi/pull/7401
Report: https://github.com/apache/hudi/pull/8373
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import run
from kept_rows import CITIES, KEEP_ONE_COMMIT, KeptTable, first_rows

from airflow_lake_provider.job_contract import Mode, Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

ARCHIVE = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"} | KEEP_ONE_COMMIT
CLEANS = {"hoodie.table.services.enabled": "true", "hoodie.clean.automatic": "true"} | KEEP_ONE_COMMIT
COMPACTS_METADATA = {"hoodie.metadata.compact.max.delta.commits": "1"}


@pytest.mark.soak
@pytest.mark.parametrize(("type", "version"), [("COW", 9), ("COW", 6), ("MOR", 9)])
def test_rows_come_once(spark: SparkSession, tmp_path: Path, type: str, version: int) -> None:
    kept = KeptTable(spark, tmp_path / "t", type=type, version=version, options=COMPACTS_METADATA)
    kept.write(first_rows())
    replaced = {path.name for path in kept.path.glob("*/*.parquet")}
    plans = [_plan(kept, city) for city in CITIES]
    for plan in reversed(plans):
        result = run(spark, kept.table.request(Mode.EXECUTE, plan, service=Service.CLUSTERING))
        assert result.completed_instants == (plan,), result.message
        kept.require_rows()
        # Ours waits for the older clustering.
        _write_on(kept, 3, **CLEANS)
        kept.serve(Service.ARCHIVE, Mode.EXECUTE, **ARCHIVE)
        kept.require_rows()
    for _ in range(4):
        _write_on(kept, 2)
        kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT)
        kept.serve(Service.ARCHIVE, Mode.EXECUTE, **ARCHIVE)
        kept.require_rows()
    assert replaced.isdisjoint(path.name for path in kept.path.glob("*/*.parquet"))
    active = min(kept.table.completed("commit") | kept.table.completed("deltacommit"))
    assert active > max(plans), "nothing was archived, so nothing was tried"


def _plan(kept: KeptTable, city: str) -> str:
    options = {"hoodie.clustering.plan.strategy.partition.selected": city}
    result = kept.serve(Service.CLUSTERING, Mode.SCHEDULE, **options)
    assert result.outcome is Outcome.SCHEDULED, result.message
    return result.scheduled_instants[0]


def _write_on(kept: KeptTable, count: int, **options: str) -> None:
    """Write new rows into files that no plan has."""
    for _ in range(count):
        at = len(kept.rows) + 100
        kept.write([(at + i, CITIES[i], 1.0, at) for i in range(2)], "insert", **options)
