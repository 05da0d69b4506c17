"""A whole overwrite deleted and recreated the table, with pending plans of services.

Report: https://github.com/apache/hudi/issues/19771
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import run
from kept_rows import CITIES, KeptTable, first_rows

from airflow_lake_provider.job_contract import FailureKind, Mode, Outcome, Service
from local_stack import lake_writer

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.soak
def test_the_lost_plan_is_gone_and_services_go_on(spark: SparkSession, tmp_path: Path) -> None:
    kept = KeptTable(spark, tmp_path / "t")
    kept.write(first_rows())
    kept.write([(1, CITIES[1], 1.5, 1)])
    plan = kept.serve(Service.COMPACTION, Mode.SCHEDULE).scheduled_instants
    settings = lake_writer.write_options(kept.table.written, 0, None, {})
    settings["hoodie.datasource.write.operation"] = "bulk_insert"
    again = [(i, CITIES[i % 2], 9.0, 9) for i in range(7)]
    frame = spark.createDataFrame(again, kept.schema)
    frame.write.format("hudi").options(**settings).mode("overwrite").save(str(kept.path))
    kept.rows = {row[0]: row for row in again}
    kept.require_rows()
    late = run(spark, kept.table.request(Mode.EXECUTE, *plan))
    assert (late.outcome, late.failure_kind) == (Outcome.FAILED, FailureKind.PLAN_GONE), late.message
    kept.write([(1, CITIES[1], 1.5, 10)])
    for service in (Service.COMPACTION, Service.CLUSTERING):
        assert kept.serve(service).outcome is not Outcome.FAILED
        kept.require_rows()
