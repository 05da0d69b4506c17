"""A clustering executed after its neighbours were archived hid rows from queries.

Report: https://github.com/apache/hudi/issues/4163
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

SHORT = {"hoodie.keep.min.commits": "3", "hoodie.keep.max.commits": "4"}


@pytest.mark.soak
@pytest.mark.parametrize("version", [9, 6])
def test_all_rows_stay(spark: SparkSession, tmp_path: Path, version: int) -> None:
    kept = KeptTable(spark, tmp_path / "t", type="COW", version=version)
    kept.write(first_rows())
    kept.write(((i, CITIES[i % 2], 1.5, 1) for i in range(30, 40)), "insert")
    (plan,) = kept.serve(Service.CLUSTERING, Mode.SCHEDULE).scheduled_instants
    for at in range(6):
        kept.write([(100 + at, "Cork", 1.0, at)], "insert")
    kept.serve(Service.METACOMPACTION, Mode.EXECUTE)
    kept.serve(Service.ARCHIVE, **SHORT)
    assert any(name.startswith(plan) for name in kept.table.files())
    kept.require_rows()
    assert kept.serve(Service.CLUSTERING, Mode.EXECUTE).outcome is Outcome.COMPLETED
    kept.require_rows()
    kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT)
    kept.serve(Service.METACOMPACTION, Mode.EXECUTE)
    kept.serve(Service.ARCHIVE, **SHORT)
    kept.require_rows()
    kept.write((i, CITIES[i % 2], 9.0, 9) for i in range(3))
    kept.require_rows()
