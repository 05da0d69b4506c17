"""A rollback plan of zero bytes failed each rollback, and the failed write stayed for good.

Report: https://github.com/apache/hudi/issues/4249
Report: https://github.com/apache/hudi/pull/5245
Verdict: right
"""

from __future__ import annotations

import os
import shutil
import time

import pytest
from conftest import MakeTable, rows, rows_written, run, write
from pyspark.sql import SparkSession

from airflow_lake_provider.config.policies import DoctorPolicy, StuckKind, TablePolicy
from airflow_lake_provider.doctor.table_doctor import TableDoctor
from airflow_lake_provider.job_contract import Mode, Outcome, Service
from airflow_lake_provider.storage.table_storage import open_storage

ALLOWS = TablePolicy(doctor=DoctorPolicy(repairs=(StuckKind.EMPTY_PLAN,), stuck_after_s=0.1))


@pytest.mark.soak
def test_doctor_moves_the_plan_away_and_the_failed_write_is_rolled_back(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table()
    inflight = sorted(table.timeline.glob("*.deltacommit.inflight"))[-1]
    newest = int(inflight.name.split(".")[0])
    failed, plan = str(newest + 1), str(newest + 2)
    (table.timeline / f"{failed}.deltacommit.requested").touch()
    shutil.copy(inflight, table.timeline / f"{failed}.deltacommit.inflight")
    beat = table.path / ".hoodie" / ".heartbeat" / failed
    beat.parent.mkdir(exist_ok=True)
    beat.touch()
    os.utime(beat, (1, 1))
    (table.timeline / f"{plan}.rollback.requested").touch()

    refused = run(spark, table.request(Mode.EXECUTE, failed, service=Service.ROLLBACK))
    assert f"{plan}.rollback.requested is empty (0 bytes)" in refused.message
    time.sleep(0.2)
    doctor = TableDoctor(open_storage(str(table.path)), ALLOWS, "test", lambda: int(time.time() * 1000))
    (record,) = doctor.repair_all()
    assert (record.instant, record.result) == (plan, "repaired")
    done = run(spark, table.request(Mode.EXECUTE, failed, service=Service.ROLLBACK))
    assert done.outcome is Outcome.COMPLETED, done.message
    assert not any(name.startswith(failed) for name in table.files())
    write(spark, table.written, 3)
    assert rows(spark, table) == rows_written(spark, table.written, 4)
