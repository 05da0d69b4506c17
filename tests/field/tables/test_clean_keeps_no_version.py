"""A writer's clean with 0 retained file versions deleted the newest files.

Report: https://github.com/apache/hudi/issues/7693
Verdict: right
"""

from __future__ import annotations

import pytest
from conftest import MakeTable, rows, run, write
from pyspark.sql import SparkSession

from airflow_lake_provider.job_contract import Mode, Outcome, Service
from lake_jobs.hudi.table import open_client
from local_stack import lake_writer

NO_VERSION = {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.clean.fileversions.retained": "0"}


@pytest.mark.parametrize("type", ["COW", pytest.param("MOR", marks=pytest.mark.soak)])
def test_plan_that_takes_the_newest_files_is_withdrawn(spark: SparkSession, make_table: MakeTable, type: str) -> None:
    table = make_table(type=type)
    write(spark, table.written, 3)
    before = rows(spark, table)
    settings = lake_writer.write_options(table.written, 3, None, {}) | {"hoodie.table.services.enabled": "true"}
    hudi = spark._jvm.org.apache.hudi.common  # type: ignore[union-attr]
    with open_client(spark, str(table.path), settings | NO_VERSION, {}) as client:
        plan = client.scheduleTableService(hudi.util.Option.empty(), hudi.model.TableServiceType.CLEAN)
    assert plan.isPresent()

    result = run(spark, table.request(Mode.EXECUTE, service=Service.CLEAN))
    assert result.outcome is Outcome.FAILED
    assert "of the newest file slices, which every reader needs" in result.message
    assert "withdrawn" in result.message
    assert rows(spark, table) == before
    again = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.CLEAN))
    assert again.outcome is not Outcome.FAILED, again.message
    assert rows(spark, table) == before
