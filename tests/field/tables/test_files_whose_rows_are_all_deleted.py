"""A clustering failed or brought rows back where log files delete every row of a base file.

Report: https://github.com/apache/hudi/pull/12860
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

ARCHIVE = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"} | KEEP_ONE_COMMIT


@pytest.mark.soak
@pytest.mark.parametrize("first", [Service.CLUSTERING, Service.COMPACTION])
@pytest.mark.parametrize(("type", "version"), [("MOR", 9), ("MOR", 6), ("COW", 9)])
def test_the_rows_stay_deleted(spark: SparkSession, tmp_path: Path, type: str, version: int, first: Service) -> None:
    kept = KeptTable(spark, tmp_path / "t", type=type, version=version)
    kept.write(first_rows())
    of_one_city = [row for row in first_rows() if row[1] == CITIES[0]]
    kept.write([(*row[:2], 5.0, 1) for row in of_one_city[:4]])
    kept.append(spark.createDataFrame(of_one_city, kept.schema), "delete")
    kept.forget(row[0] for row in of_one_city)
    kept.require_rows()
    services = [first, Service.CLUSTERING, Service.COMPACTION]
    for service in (each for each in services if type == "MOR" or each is Service.CLUSTERING):
        kept.serve(service)
        kept.require_rows()
    kept.write([(*row[:2], 7.0, 5) for row in of_one_city[2:6]])
    kept.require_rows()
    kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT)
    kept.serve(Service.ARCHIVE, Mode.EXECUTE, **ARCHIVE)
    assert kept.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
    kept.write([(*row[:2], 8.0, 6) for row in of_one_city[1:4]])
    kept.require_rows()
