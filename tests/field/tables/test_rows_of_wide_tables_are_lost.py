"""With more than 100 columns a clustering lost half of the rows.

Report: https://github.com/apache/hudi/issues/8416
Report: https://github.com/apache/hudi/issues/9977
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import CITIES, SCHEMA, KeptTable, Row

from airflow_lake_provider.job_contract import Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

NAMES = tuple(f"c{number}" for number in range(120))


def row(id: int, ts: int) -> Row:
    return (id, CITIES[id % 2], float(ts), ts, *(f"{name} of {id} at {ts}" for name in NAMES))


@pytest.mark.soak
@pytest.mark.parametrize("type", ["COW", "MOR"])
def test_all_rows_stay(spark: SparkSession, tmp_path: Path, type: str) -> None:
    schema = ", ".join((SCHEMA, *(f"{name} string" for name in NAMES)))
    columns = ("id", "city", "amount", "ts", *NAMES)
    options = {"hoodie.parquet.small.file.limit": "0"}
    kept = KeptTable(spark, tmp_path / "t", type, options=options, schema=schema, columns=columns)
    kept.write((row(id, 0) for id in range(40)), "insert")
    kept.write((row(id, 0) for id in range(40, 80)), "insert")
    kept.write(row(id, 1) for id in range(0, 80, 3))
    assert kept.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
    kept.require_rows()
    kept.write(row(id, 2) for id in range(0, 80, 5))
    if type == "MOR":
        assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    kept.require_rows()
