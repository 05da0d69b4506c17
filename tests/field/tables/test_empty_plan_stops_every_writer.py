"""A plan of zero bytes made every write and service fail with an EOFException.

Report: https://github.com/apache/hudi/issues/10285
Verdict: right
"""

from __future__ import annotations

import time

import pytest
from conftest import MakeTable, Table, rows, rows_written, run, write
from pyspark.sql import SparkSession

from airflow_lake_provider.config.policies import DoctorPolicy, StuckKind, TablePolicy
from airflow_lake_provider.doctor.table_doctor import TableDoctor
from airflow_lake_provider.job_contract import Mode, Outcome, Service
from airflow_lake_provider.storage.table_storage import open_storage

ALLOWS = TablePolicy(doctor=DoctorPolicy(repairs=(StuckKind.EMPTY_PLAN,), stuck_after_s=0.1))


def doctor(table: Table) -> TableDoctor:
    return TableDoctor(open_storage(str(table.path)), ALLOWS, "test", lambda: int(time.time() * 1000), reads_all=True)


@pytest.mark.parametrize("service", [Service.COMPACTION, pytest.param(Service.LOGCOMPACTION, marks=pytest.mark.soak)])
def test_doctor_moves_the_plan_away_and_the_writer_goes_on(
    spark: SparkSession, make_table: MakeTable, service: Service
) -> None:
    table = make_table()
    options = {"hoodie.log.compaction.blocks.threshold": "1"} if service is Service.LOGCOMPACTION else {}
    (plan,) = run(spark, table.request(Mode.SCHEDULE, service=service, service_options=options)).scheduled_instants
    file = table.timeline / f"{plan}.{service}.requested"
    file.write_bytes(b"")
    (file.parent / f".{file.name}.crc").unlink()
    with pytest.raises(Exception, match="unable to read commit metadata for instant"):
        write(spark, table.written, 3)
    refused = run(spark, table.request(Mode.EXECUTE, plan, service=service))
    assert refused.outcome is Outcome.FAILED
    assert f"{file.name} is empty (0 bytes)" in refused.message
    ((finding, _),) = [found for found in doctor(table).examine() if found[0].instant == plan]
    assert finding.kind is StuckKind.EMPTY_PLAN
    (record,) = doctor(table).repair_all()
    assert record.result == "repaired"
    assert (table.path / record.removed[0].kept_as).exists()
    write(spark, table.written, 3)
    assert run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE)).outcome is Outcome.COMPLETED
    assert rows(spark, table) == rows_written(spark, table.written, 4)


@pytest.mark.soak
def test_empty_plan_of_the_metadata_table_is_moved_away(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table()
    folder = table.path / ".hoodie" / "metadata" / ".hoodie" / "timeline"
    newest = max(name.name.split("_")[0].split(".")[0] for name in folder.glob("2*"))
    plan = folder / f"{int(newest) + 1}.compaction.requested"
    plan.touch()
    with pytest.raises(Exception, match="Failed to instantiate Metadata table"):
        write(spark, table.written, 3)
    time.sleep(0.2)
    (record,) = doctor(table).repair_all()
    assert (record.result, plan.exists()) == ("repaired", False)
    write(spark, table.written, 3)
    assert run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE)).outcome is Outcome.COMPLETED
    assert rows(spark, table) == rows_written(spark, table.written, 4)
