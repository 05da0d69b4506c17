"""After an upgrade from version 6 over a pending plan the newest rows were not seen.

Report: https://github.com/apache/hudi/pull/12250
Verdict: fault of Hudi
Way out: execute pending compactions before an upgrade; else the provider does after it, and the rows are back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import CITIES, KEEP_ONE_COMMIT, KeptTable, first_rows

from airflow_lake_provider.job_contract import Mode, Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

UPGRADES = {"hoodie.write.auto.upgrade": "true"}


@pytest.mark.soak
@pytest.mark.parametrize("service", [Service.COMPACTION, Service.CLUSTERING])
@pytest.mark.parametrize("version", [8, 9])
def test_the_old_plan_brings_all_rows(spark: SparkSession, tmp_path: Path, service: Service, version: int) -> None:
    kept = KeptTable(spark, tmp_path / "t", version=6)
    kept.write(first_rows())
    kept.write((i, CITIES[i % 2], 1.0, 1) for i in range(8))
    assert kept.serve(service, Mode.SCHEDULE).outcome is Outcome.SCHEDULED
    if service is Service.COMPACTION:
        kept.write((i, CITIES[i % 2], 2.0, 2) for i in range(4))
    kept.require_rows()
    kept.version, kept.options = version, UPGRADES
    kept.write([(30, "Aachen", 3.0, 3)])
    assert kept.table.properties()["hoodie.table.version"] == str(version)
    if service is Service.COMPACTION:
        assert kept.seen() != sorted(kept.rows.values(), key=repr)
    assert kept.serve(service, Mode.EXECUTE).outcome is Outcome.COMPLETED
    kept.require_rows()
    kept.write((i, CITIES[i % 2], 4.0, 4) for i in range(4))
    assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    assert kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT).outcome is Outcome.COMPLETED
    kept.require_rows()
