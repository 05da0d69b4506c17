"""What holds for every service: the writers' lock, the table's indexes. Compaction's own tests say the same of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import LOCK, MakeTable, Table, rows, rows_written, run, write
from paused_writers import start_paused_writer, wait_until

from airflow_lake_provider.indexing.index_spec import parse_indexes, requested_options
from airflow_lake_provider.job_contract import FailureKind, Mode, Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

KEEP_ONE_VERSION = {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.clean.fileversions.retained": "1"}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        pytest.param({}, "hoodie.write.lock.provider", id="no-provider"),
        pytest.param({**LOCK, "hoodie.write.concurrency.mode": "single_writer"}, "single_writer", id="no-lock-taken"),
    ],
)
@pytest.mark.parametrize(
    "service",
    [
        Service.CLUSTERING,
        Service.CLEAN,
        Service.ARCHIVE,
        Service.ROLLBACK,
        Service.TTL,
        Service.METACOMPACTION,
        Service.SAVEPOINT,
        Service.ORPHANS,
    ],
)
def test_job_without_a_shared_lock_is_refused_and_touches_nothing(
    spark: SparkSession, make_table: MakeTable, service: Service, options: dict[str, str], named: str
) -> None:
    table = make_table(type="COW")
    files = table.files()
    result = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE, options=options, service=service))
    assert result.outcome is Outcome.FAILED
    assert named in result.message
    assert str(table.path) in result.message
    assert table.files() == files


@pytest.mark.parametrize(
    "service", [Service.CLUSTERING, Service.CLEAN, Service.ARCHIVE, Service.METACOMPACTION, Service.INDEXING]
)
def test_lock_file_that_cannot_be_made_is_no_lock_that_another_holds(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path, service: Service
) -> None:
    """Hudi takes each failure to make its lock's file for a lock that is held."""
    table = make_table(type="COW")
    file = tmp_path / "file"
    file.touch()
    impossible = {
        **LOCK,
        "hoodie.write.lock.filesystem.path": f"{file}/locks",
        "hoodie.write.lock.client.num_retries": "1",
        "hoodie.write.lock.client.wait_time_ms_between_retry": "100",
        **KEEP_ONE_VERSION,
    }
    index = requested_options(parse_indexes(["record_index"])) if service is Service.INDEXING else {}
    files = table.files()
    mode = Mode.SCHEDULE_AND_EXECUTE
    result = run(spark, table.request(mode, options=impossible, service=service, service_options=index))
    assert result.outcome is Outcome.FAILED
    assert result.failure_kind is FailureKind.REFUSED, result.message
    assert f"no file can be made in {file}/locks" in result.message
    assert table.files() == files


@pytest.mark.parametrize(
    ("service", "mode"),
    [
        (Service.CLUSTERING, Mode.SCHEDULE),
        (Service.CLUSTERING, Mode.EXECUTE),
        (Service.CLEAN, Mode.SCHEDULE),
        (Service.CLEAN, Mode.EXECUTE),
        (Service.ARCHIVE, Mode.EXECUTE),
        (Service.TTL, Mode.EXECUTE),
        (Service.METACOMPACTION, Mode.EXECUTE),
        (Service.SAVEPOINT, Mode.EXECUTE),
        (Service.ORPHANS, Mode.EXECUTE),
    ],
)
def test_lock_that_another_holds_fails_the_job_and_stays_with_its_holder(
    spark: SparkSession, make_table: MakeTable, service: Service, mode: Mode
) -> None:
    table = make_table(type="COW")
    hasty = {
        "hoodie.write.lock.client.num_retries": "1",
        "hoodie.write.lock.client.wait_time_ms_between_retry": "100",
        "hoodie.partition.ttl.strategy.days.retain": "1",
        **KEEP_ONE_VERSION,
    }
    if service in {Service.CLUSTERING, Service.CLEAN} and mode is Mode.EXECUTE:
        assert run(spark, table.request(Mode.SCHEDULE, service=service, service_options=hasty)).scheduled_instants
    lock = table.path / ".hoodie" / "lock"
    lock.touch()
    files = table.files()
    result = run(spark, table.request(mode, service=service, service_options=hasty))
    assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.LOCK), result.message
    assert lock.exists()
    assert not list(lock.parent.glob("*probe*"))
    assert table.files() == files


def test_indexes_survive_and_stay_right(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(
        **{
            "hoodie.metadata.index.bloom.filter.enable": "true",
            "hoodie.metadata.global.record.level.index.enable": "true",
        }
    )
    indexes = table.properties()["hoodie.table.metadata.partitions"]
    assert {"bloom_filters", "record_index"} <= set(indexes.split(","))
    # Not even a caller that asks for it gets them dropped.
    options = {"hoodie.metadata.auto.delete.partitions": "true", **KEEP_ONE_VERSION}
    expected = {
        Service.CLUSTERING: Outcome.COMPLETED,
        Service.CLEAN: Outcome.COMPLETED,
        # The metadata table has no compaction yet.
        Service.ARCHIVE: Outcome.NOTHING_TO_DO,
    }
    for service, outcome in expected.items():
        result = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE, service=service, service_options=options))
        assert result.outcome is outcome, result.message
        assert table.properties()["hoodie.table.metadata.partitions"] == indexes
        for partition in ("bloom_filters", "record_index"):
            assert (table.path / ".hoodie" / "metadata" / partition).is_dir()
    # The record index knows where the rows lie now.
    write(spark, table.written, table.written.commits)
    assert rows(spark, table) == rows_written(spark, table.written, table.written.commits + 1)


@pytest.mark.parametrize("service", [Service.CLEAN, Service.TTL, Service.ROLLBACK])
def test_only_what_is_withdrawn_without_harm_is_withdrawn(
    spark: SparkSession, make_table: MakeTable, service: Service
) -> None:
    result = run(spark, make_table().request(Mode.WITHDRAW, service=service))
    assert result.outcome is Outcome.FAILED
    plans = "only plans of clustering, compaction and logcompaction, and a metadata table that is lost"
    assert plans in result.message


def test_metadata_table_that_is_whole_is_not_withdrawn(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table()
    before, listed = rows(spark, table), table.properties()["hoodie.table.metadata.partitions"]
    result = run(spark, table.request(Mode.WITHDRAW, service=Service.METACOMPACTION))
    assert result.outcome is Outcome.NOTHING_TO_DO, result.message
    assert table.properties()["hoodie.table.metadata.partitions"] == listed
    assert rows(spark, table) == before


@pytest.mark.parametrize("service", [Service.COMPACTION, Service.SAVEPOINT])
def test_only_orphan_files_are_put_back(spark: SparkSession, make_table: MakeTable, service: Service) -> None:
    result = run(spark, make_table().request(Mode.UNDO, service=service))
    assert (result.outcome, "only quarantined files of orphans" in result.message) == (Outcome.FAILED, True)


@pytest.mark.parametrize("service", [Service.COMPACTION, Service.METACOMPACTION])
def test_commit_of_a_writer_in_flight_outlives_a_service(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path, service: Service
) -> None:
    """A writer by Hudi's defaults has a pending commit on the metadata table while it writes."""
    table = make_table()
    options = {"hoodie.datasource.write.operation": "bulk_insert"}
    writer = start_paused_writer(spark, table, tmp_path, 70_000, **options)
    wait_until(lambda: writer.instant in metadata_instants(table), "the write's instant on the metadata table")
    result = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE, service=service))
    assert result.outcome in (Outcome.COMPLETED, Outcome.NOTHING_TO_DO), result.message
    assert writer.instant in metadata_instants(table)
    writer.finish()
    assert {row[0] for row in rows(spark, table)} >= set(range(70_000, 70_020))


def metadata_instants(table: Table) -> set[str]:
    folder = table.path / ".hoodie" / "metadata" / ".hoodie" / "timeline"
    return {path.name.split(".")[0].split("_")[0] for path in folder.iterdir() if path.is_file()}
