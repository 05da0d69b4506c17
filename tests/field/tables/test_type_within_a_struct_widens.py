"""The type within a struct became wider, and no query could read the column in batches any more.

Report: https://github.com/apache/hudi/pull/19165
Report: https://github.com/apache/hudi/pull/10043
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import CITIES, KeptTable

from airflow_lake_provider.job_contract import Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

IN_BATCHES = "spark.sql.parquet.enableVectorizedReader"
BEGIN = "id long, city string, amount double, ts long, "
COLUMNS = ("id", "city", "amount", "ts", "note", "steps")


@pytest.mark.parametrize("type", ["COW", pytest.param("MOR", marks=pytest.mark.soak)])
def test_clustering_copies_rows_of_both_types(spark: SparkSession, tmp_path: Path, type: str) -> None:
    kept = KeptTable(spark, tmp_path / "t", type=type, columns=COLUMNS)
    kept.schema = f"{BEGIN} note struct<a:int>, steps array<struct<b:int>>"
    kept.write((i, CITIES[i % 2], i / 4, 0, (i,), [(i,)]) for i in range(12))
    kept.schema = f"{BEGIN} note struct<a:double>, steps array<struct<b:long>>"
    kept.write(((i, CITIES[i % 2], i / 3, 2, (1.5,), [(1 << 40,)]) for i in range(100, 103)), "insert")
    assert kept.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
    kept.write((i, CITIES[i % 2], i / 3, 3, (2.5,), [(1 << 41,)]) for i in (0, 100))
    if type == "MOR":
        assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    spark.conf.set(IN_BATCHES, "false")
    try:
        assert [_plain(row) for row in kept.seen()] == sorted(kept.rows.values(), key=repr)
    finally:
        spark.conf.unset(IN_BATCHES)


def _plain(row: tuple[object, ...]) -> tuple[object, ...]:
    """Return a row with tuples in the place of Spark's rows."""
    return (*row[:4], tuple(row[4]), [tuple(step) for step in row[5]])  # type: ignore[arg-type,attr-defined]
