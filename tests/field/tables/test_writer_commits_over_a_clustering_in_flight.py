"""A writer and a running clustering changed the same files without a conflict, and rows were lost.

Report: https://github.com/apache/hudi/pull/13255
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import run
from held_writers import again_when_not_held, start_writer_of
from kept_rows import CITIES, COMPARE_ALL, KeptTable, first_rows

from airflow_lake_provider.job_contract import Mode, Outcome, Service
from lake_jobs.hudi.table import leave_expired_heartbeat, open_client
from lake_jobs.verify import rewrite
from local_stack import lake_writer

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.parametrize("version", [9, pytest.param(6, marks=pytest.mark.soak)])
@pytest.mark.parametrize("operation", ["upsert", pytest.param("insert_overwrite", marks=pytest.mark.soak)])
@again_when_not_held
def test_writer_gives_way(spark: SparkSession, tmp_path: Path, operation: str, version: int) -> None:
    kept = KeptTable(spark, tmp_path / "t", version=version)
    kept.write(first_rows())
    kept.write(((i, CITIES[i % 2], 1.0, 1) for i in range(20, 30)), "insert")
    # The writer begins before the plan is made, so that Hudi lets it write into the plan's file groups.
    late = spark.createDataFrame([(i, CITIES[0], 5.0, 5) for i in range(0, 12, 2)], kept.schema)
    held = start_writer_of(late, kept.table, tmp_path / "held", {"hoodie.datasource.write.operation": operation})
    (plan,) = kept.serve(Service.CLUSTERING, Mode.SCHEDULE).scheduled_instants
    settings = lake_writer.write_options(kept.table.written, 0, None, {}) | {"hoodie.table.services.enabled": "true"}
    with open_client(spark, str(kept.path), settings, {}) as client:
        # A try of the plan has begun, and dies: its files are there, and no commit.
        assert rewrite.write_files(spark, client, Service.CLUSTERING, plan).written
    leave_expired_heartbeat(spark, str(kept.path), plan)
    assert held.release() == "HoodieWriteConflictException"
    kept.require_rows()
    done = run(spark, kept.table.request(Mode.EXECUTE, plan, service=Service.CLUSTERING, service_options=COMPARE_ALL))
    assert done.outcome is Outcome.COMPLETED, done.message
    kept.require_rows()
    kept.write([(i, CITIES[0], 6.0, 6) for i in range(0, 12, 2)])
    kept.require_rows()
