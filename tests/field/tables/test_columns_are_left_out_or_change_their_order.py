"""After writers left out or reordered columns, services failed or put values into wrong columns.

Report: https://github.com/apache/hudi/issues/11794
Report: https://github.com/apache/hudi/pull/7787
Report: https://github.com/apache/hudi/issues/4593
Report: https://github.com/apache/hudi/issues/2228
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import CITIES, KEEP_ONE_COMMIT, KeptTable

from airflow_lake_provider.job_contract import Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

WIDE = "id long, city string, a string, b string, inner struct<x:string,y:string>, ts long"
ORDER = ("id", "city", "b", "inner.y", "inner.x", "ts", "c")


@pytest.mark.soak
@pytest.mark.parametrize(("type", "version"), [("MOR", 9), ("MOR", 6), ("COW", 9)])
def test_values_stay_in_their_columns(spark: SparkSession, tmp_path: Path, type: str, version: int) -> None:
    kept = KeptTable(spark, tmp_path / "t", type=type, version=version, columns=ORDER)
    drops = {"hoodie.datasource.write.schema.allow.auto.evolution.column.drop": "true"}
    rows = [(i, CITIES[i % 2], f"a{i}", f"b{i}", (f"x{i}", f"y{i}"), 0) for i in range(12)]
    kept.append(spark.createDataFrame(rows, WIDE))
    # Other order, also within the struct; one column in the middle is new, and `a` is left out.
    later = [(1, f"B{i}", f"C{i}", (f"Y{i}", f"X{i}"), CITIES[i % 2], i) for i in range(5)]
    new = "ts long, b string, c string, inner struct<y:string,x:string>, city string, id long"
    kept.append(spark.createDataFrame(later, new), **drops)
    kept.rows = {i: (i, CITIES[i % 2], f"b{i}", f"y{i}", f"x{i}", 0, None) for i in range(5, 12)}
    kept.rows |= {i: (i, CITIES[i % 2], f"B{i}", f"Y{i}", f"X{i}", 1, f"C{i}") for i in range(5)}
    kept.require_rows()
    if type == "MOR":
        assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
        kept.require_rows()
    more = [(2, "n", "m", ("o", "p"), CITIES[i % 2], i) for i in range(20, 24)]
    kept.append(spark.createDataFrame(more, new), "insert", **drops)
    kept.rows |= {i: (i, CITIES[i % 2], "n", "o", "p", 2, "m") for i in range(20, 24)}
    assert kept.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
    kept.require_rows()
    kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT)
    kept.require_rows()
