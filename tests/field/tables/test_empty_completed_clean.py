"""A completed clean of zero bytes made cleans and archiving fail with "Not an Avro data file".

Report: https://github.com/apache/hudi/pull/4016
Verdict: right
"""

from __future__ import annotations

import time

import pytest
from conftest import MakeTable, rows, rows_written, run, write
from pyspark.sql import SparkSession

from airflow_lake_provider.config.policies import StuckKind, TablePolicy
from airflow_lake_provider.doctor.table_doctor import TableDoctor
from airflow_lake_provider.job_contract import Mode, Outcome, Service
from airflow_lake_provider.storage.table_storage import open_storage

ONE_VERSION = {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.clean.fileversions.retained": "1"}


@pytest.mark.soak
def test_services_go_on_and_the_doctor_names_the_file(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table()

    def clean() -> Outcome:
        request = table.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.CLEAN, service_options=ONE_VERSION)
        return run(spark, request).outcome

    assert run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE)).outcome is Outcome.COMPLETED
    assert clean() is Outcome.COMPLETED
    (file,) = table.timeline.glob("*.clean")
    file.write_bytes(b"")
    (file.parent / f".{file.name}.crc").unlink()
    doctor = TableDoctor(
        open_storage(str(table.path)), TablePolicy(), "test", lambda: int(time.time() * 1000), reads_all=True
    )
    assert [f.message.startswith(file.name) for f, _ in doctor.examine() if f.kind is StuckKind.UNREADABLE_FILE] == [
        True
    ]
    write(spark, table.written, 3)
    assert run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE)).outcome is Outcome.COMPLETED
    assert clean() is Outcome.COMPLETED
    assert run(spark, table.request(Mode.EXECUTE, service=Service.ARCHIVE)).outcome is not Outcome.FAILED
    assert rows(spark, table) == rows_written(spark, table.written, 4)
