"""Savepoints that the service makes and removes on real tables; those of users stay."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import MakeTable, Table, content, run, write
from held_writers import start_writer
from pyspark.sql import SparkSession
from test_archive_on_hudi import NO_METADATA_TABLE
from test_conflicts_on_hudi import DIRECT

from airflow_lake_provider.job_contract import JobRequest, Mode, Outcome, Service
from lake_jobs.hudi.table import open_client
from local_stack import lake_writer

EAGER = {"hoodie.clean.commits.retained": "1", "hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"}


def savepoint(table: Table, keep: int) -> JobRequest:
    return table.request(Mode.EXECUTE, service=Service.SAVEPOINT, service_options={"lake.savepoint.keep": str(keep)})


@pytest.mark.parametrize(("type", "version"), [("MOR", 9), pytest.param("COW", 6, marks=pytest.mark.soak)])
def test_own_savepoints_expire_and_those_of_users_stay(
    spark: SparkSession, make_table: MakeTable, type: str, version: int
) -> None:
    table = make_table(type=type, version=version)
    of_user = max(table.completed() | table.completed("deltacommit"))
    settings = lake_writer.write_options(table.written, 3, None, {}) | {"hoodie.table.services.enabled": "true"}
    with open_client(spark, str(table.path), settings, {}) as client:
        client.savepoint(of_user, "ann", "before the migration")
    # The newest write has one already, whose ever it is.
    assert run(spark, savepoint(table, 2)).outcome is Outcome.NOTHING_TO_DO
    made = []
    for commit in range(3, 6):
        write(spark, table.written, commit)
        result = run(spark, savepoint(table, 2))
        assert result.outcome is Outcome.COMPLETED, result.message
        made += result.completed_instants
        assert run(spark, savepoint(table, 2)).outcome is Outcome.NOTHING_TO_DO
    assert table.completed("savepoint") == {of_user, *made[1:]}
    assert run(spark, savepoint(table, 0)).outcome is Outcome.COMPLETED
    assert table.completed("savepoint") == {of_user}
    assert run(spark, savepoint(table, 0)).outcome is Outcome.NOTHING_TO_DO


def test_a_savepoint_can_be_restored_after_clean_and_holds_archiving_only_as_long_as_it_stays(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    table = make_table(type="COW", **NO_METADATA_TABLE)
    (saved,) = run(spark, savepoint(table, 1)).completed_instants
    before = content(spark, table)
    for commit in range(3, 7):
        write(spark, table.written, commit)
    for service in (Service.CLEAN, Service.ARCHIVE):
        mode = Mode.SCHEDULE_AND_EXECUTE if service is Service.CLEAN else Mode.EXECUTE
        assert run(spark, table.request(mode, service=service, service_options=EAGER)).outcome is not Outcome.FAILED
    assert table.completed("clean")
    assert saved in table.completed()
    copy = Table(replace(table.written, base_path=str(tmp_path / "copy")))
    shutil.copytree(table.path, copy.path)
    settings = lake_writer.write_options(copy.written, 3, None, {}) | {"hoodie.table.services.enabled": "true"}
    with open_client(spark, str(copy.path), settings, {}) as client:
        client.restoreToSavepoint(saved)
    assert content(spark, copy) == before

    assert run(spark, savepoint(table, 1)).outcome is Outcome.COMPLETED
    assert saved not in table.completed("savepoint")
    archived = run(spark, table.request(Mode.EXECUTE, service=Service.ARCHIVE, service_options=EAGER))
    assert archived.outcome is Outcome.COMPLETED, archived.message
    assert saved not in table.completed()


@pytest.mark.soak
def test_a_restore_takes_no_write_back_that_had_completed_before_its_savepoint(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    """Hudi takes back what completed after the savepoint's write, which need not be the one that completed last."""
    table = make_table(type="MOR", **NO_METADATA_TABLE)
    seen = [content(spark, table)]
    held = start_writer(spark, table, "Bilbao", tmp_path / "lock", DIRECT)
    other = lake_writer.orders_of_commit(spark, table.written, 3).where("city = 'Cork'")
    other.write.format("hudi").options(**lake_writer.write_options(table.written, 3, None, {})).mode("append").save(
        str(table.path)
    )
    assert held.release() == ""
    seen.append(content(spark, table))
    assert run(spark, savepoint(table, 5)).outcome is Outcome.COMPLETED
    write(spark, table.written, 4)
    seen.append(content(spark, table))
    assert run(spark, savepoint(table, 5)).outcome is Outcome.COMPLETED
    write(spark, table.written, 5)

    settings = lake_writer.write_options(table.written, 3, None, {}) | {"hoodie.table.services.enabled": "true"}
    with open_client(spark, str(table.path), settings, {}) as client:
        for saved in sorted(table.completed("savepoint"), reverse=True):
            client.restoreToSavepoint(saved)
            client.deleteSavepoint(saved)
            assert content(spark, table) in seen


@pytest.mark.soak
def test_a_savepoint_that_no_restore_could_use_is_refused(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    table = make_table(type="COW", **NO_METADATA_TABLE)
    held = start_writer(spark, table, "Bilbao", tmp_path / "lock", DIRECT)
    for _ in range(2):
        other = lake_writer.orders_of_commit(spark, table.written, 3).where("city = 'Cork'")
        options = lake_writer.write_options(table.written, 3, None, {})
        other.write.format("hudi").options(**options).mode("append").save(str(table.path))
    assert held.release() == ""
    cleaned = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.CLEAN, service_options=EAGER))
    assert cleaned.outcome is Outcome.COMPLETED, cleaned.message

    refused = run(spark, savepoint(table, 5))

    assert refused.outcome is Outcome.FAILED
    assert "overlap in time" in refused.message, refused.message
    assert not [name for name in table.files() if ".savepoint" in name]
    write(spark, table.written, 4)
    assert run(spark, savepoint(table, 5)).outcome is Outcome.COMPLETED
