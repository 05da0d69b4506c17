"""After `.hoodie/metadata` was removed, or a file of it emptied, every write failed.

Report: https://github.com/apache/hudi/issues/7533
Report: https://github.com/apache/hudi/issues/4747
Report: https://github.com/apache/hudi/issues/19332
Verdict: right
"""

from __future__ import annotations

import shutil
import time

import pytest
from conftest import MakeTable, Table, rows_written, run, write
from pyspark.sql import SparkSession

from airflow_lake_provider.config.policies import StuckKind, TablePolicy
from airflow_lake_provider.doctor.table_doctor import TableDoctor
from airflow_lake_provider.job_contract import Mode, Outcome, Service
from airflow_lake_provider.storage.table_storage import open_storage


def remove(table: Table) -> None:
    shutil.rmtree(table.path / ".hoodie" / "metadata")


def empty(table: Table) -> None:
    for file in (table.path / ".hoodie" / "metadata" / "files").glob("files-*.hfile"):
        file.write_bytes(b"")
        (file.parent / f".{file.name}.crc").unlink(missing_ok=True)


def read(spark: SparkSession, table: Table, *, metadata: bool) -> list[tuple[object, ...]]:
    reader = spark.read.format("hudi").option("hoodie.metadata.enable", str(metadata).lower())
    return sorted(tuple(row) for row in reader.load(str(table.path)).select("id", "city", "amount", "ts").collect())


@pytest.mark.parametrize("damage", [remove, pytest.param(empty, marks=pytest.mark.soak)])
@pytest.mark.parametrize("version", [9, pytest.param(6, marks=pytest.mark.soak)])
def test_metadata_table_is_taken_out_and_the_next_writer_builds_it(
    spark: SparkSession, make_table: MakeTable, damage: object, version: int
) -> None:
    table = make_table(version=version)
    assert table.properties()["hoodie.table.metadata.partitions"]
    assert callable(damage)
    damage(table)
    with pytest.raises(Exception, match="etadata"):
        write(spark, table.written, 3)
    if damage is remove:
        refused = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE))
        assert "there is no table in .hoodie/metadata" in refused.message
        assert not table.pending()
    found = TableDoctor(open_storage(str(table.path)), TablePolicy(), "test", lambda: int(time.time() * 1000)).examine()
    ((_, repair),) = [pair for pair in found if pair[0].kind is StuckKind.LOST_METADATA_TABLE]
    assert repair.call is not None
    done = run(spark, table.request(repair.call.mode, service=repair.call.service))
    assert done.outcome is Outcome.COMPLETED, done.message
    assert not table.properties()["hoodie.table.metadata.partitions"]
    write(spark, table.written, 3)
    assert run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE)).outcome is Outcome.COMPLETED
    expected = rows_written(spark, table.written, 4)
    assert (read(spark, table, metadata=True), read(spark, table, metadata=False)) == (expected, expected)
    again = run(spark, table.request(Mode.WITHDRAW, service=Service.METACOMPACTION))
    assert again.outcome is Outcome.NOTHING_TO_DO
