"""Compaction of real tables, run inside the test's own Spark session."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from conftest import LOCK, MakeTable, Table, rows, rows_written, run, write

from airflow_lake_provider.job_contract import FailureKind, Mode, Outcome

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_SUCH_PLAN = "20200101000000000"


@pytest.fixture
def table(make_table: MakeTable) -> Table:
    return make_table()


@pytest.mark.parametrize("version", [9, pytest.param(8, marks=pytest.mark.soak), 6])
def test_schedule_then_execute_on_each_table_version(spark: SparkSession, make_table: MakeTable, version: int) -> None:
    table = make_table(version=version)
    before = rows(spark, table)
    assert before == rows_written(spark, table.written, table.written.commits)

    scheduled = run(spark, table.request(Mode.SCHEDULE))
    assert scheduled.outcome is Outcome.SCHEDULED
    assert set(scheduled.scheduled_instants) == table.pending()
    assert not scheduled.completed_instants

    executed = run(spark, table.request(Mode.EXECUTE))
    assert executed.outcome is Outcome.COMPLETED, executed.message
    assert executed.completed_instants == scheduled.scheduled_instants
    assert table.pending() == set()
    assert rows(spark, table) == before
    assert table.properties()["hoodie.table.version"] == str(version)


def test_schedule_and_execute_compacts_then_finds_nothing_to_do(spark: SparkSession, table: Table) -> None:
    both = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE))
    assert both.outcome is Outcome.COMPLETED, both.message
    assert both.scheduled_instants == both.completed_instants
    assert len(both.completed_instants) == 1

    files = table.files()
    assert run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE)).outcome is Outcome.NOTHING_TO_DO
    assert run(spark, table.request(Mode.EXECUTE)).outcome is Outcome.NOTHING_TO_DO
    assert run(spark, table.request(Mode.SCHEDULE)).outcome is Outcome.NOTHING_TO_DO
    assert table.files() == files

    # The executor of a plan that is completed asks again, as a retry after a lost answer does.
    again = run(spark, table.request(Mode.EXECUTE, *both.completed_instants))
    assert again.outcome is Outcome.COMPLETED
    assert again.completed_instants == both.completed_instants
    assert table.files() == files


def test_schedule_and_execute_takes_the_pending_plan_and_no_new_one(spark: SparkSession, table: Table) -> None:
    pending = run(spark, table.request(Mode.SCHEDULE)).scheduled_instants
    write(spark, table.written, table.written.commits)
    result = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE))
    assert result.outcome is Outcome.COMPLETED
    assert (result.scheduled_instants, result.completed_instants) == ((), pending)
    assert rows(spark, table) == rows_written(spark, table.written, table.written.commits + 1)


def test_execute_of_a_plan_that_is_gone_says_so_and_still_runs_the_others(spark: SparkSession, table: Table) -> None:
    pending = run(spark, table.request(Mode.SCHEDULE)).scheduled_instants
    result = run(spark, table.request(Mode.EXECUTE, NO_SUCH_PLAN, *pending))
    assert result.outcome is Outcome.FAILED
    assert result.failure_kind is FailureKind.PLAN_GONE
    assert NO_SUCH_PLAN in result.message
    assert result.completed_instants == pending


@pytest.mark.parametrize(
    ("options", "named"),
    [
        pytest.param({}, "hoodie.write.lock.provider", id="no-provider"),
        pytest.param(
            {"hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.InProcessLockProvider"},
            "InProcessLockProvider",
            id="one-jvm-only",
        ),
        pytest.param({**LOCK, "hoodie.write.concurrency.mode": "single_writer"}, "single_writer", id="no-lock-taken"),
    ],
)
def test_job_without_a_shared_lock_is_refused_and_touches_nothing(
    spark: SparkSession, table: Table, options: dict[str, str], named: str
) -> None:
    files = table.files()
    result = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE, options=options))
    assert result.outcome is Outcome.FAILED
    assert named in result.message
    assert str(table.path) in result.message
    assert table.files() == files


def test_copy_on_write_table_is_refused(spark: SparkSession, make_table: MakeTable) -> None:
    result = run(spark, make_table(type="COW").request(Mode.SCHEDULE_AND_EXECUTE))
    assert result.outcome is Outcome.FAILED
    assert "COPY_ON_WRITE" in result.message


def test_missing_table_is_named(spark: SparkSession, table: Table) -> None:
    table.path.rename(table.path.with_name("elsewhere"))
    result = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE))
    assert result.outcome is Outcome.FAILED
    assert result.message == f"there is no Hudi table at {table.path}"


@pytest.mark.parametrize("version", [9, 6])
def test_names_that_a_shell_would_misread_are_only_names(
    spark: SparkSession, make_table: MakeTable, version: int
) -> None:
    table = make_table("Bestellungen für 'x'; $(touch hacked) & 100% — ß", version=version)
    before = rows(spark, table)
    result = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert rows(spark, table) == before


@pytest.mark.soak
def test_indexes_that_the_job_does_not_name_survive(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(
        **{
            "hoodie.metadata.index.bloom.filter.enable": "true",
            "hoodie.metadata.global.record.level.index.enable": "true",
        }
    )
    indexes = table.properties()["hoodie.table.metadata.partitions"]
    assert {"bloom_filters", "record_index"} <= set(indexes.split(","))
    # Not even a caller that asks for it gets them dropped.
    options = {**LOCK, "hoodie.metadata.auto.delete.partitions": "true"}
    result = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE, options=options))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert table.properties()["hoodie.table.metadata.partitions"] == indexes
    for partition in ("bloom_filters", "record_index"):
        assert (table.path / ".hoodie" / "metadata" / partition).is_dir()


@pytest.mark.parametrize(
    ("options", "partitions"),
    [
        pytest.param({"hoodie.metadata.enable": "false"}, "", id="no-metadata-table"),
        pytest.param({}, "files", id="files-only"),
    ],
)
def test_indexes_that_the_owner_turned_off_are_not_built(
    spark: SparkSession, make_table: MakeTable, options: dict[str, str], partitions: str
) -> None:
    table = make_table(**options)
    result = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert table.properties().get("hoodie.table.metadata.partitions", "") == partitions
    assert (table.path / ".hoodie" / "metadata").exists() == bool(partitions)


def test_plan_with_a_live_heartbeat_is_busy_and_runs_once_the_heartbeat_is_old(
    spark: SparkSession, table: Table
) -> None:
    (instant,) = run(spark, table.request(Mode.SCHEDULE)).scheduled_instants
    heartbeat = table.path / ".hoodie" / ".heartbeat" / instant
    heartbeat.parent.mkdir(exist_ok=True)
    heartbeat.touch()
    busy = run(spark, table.request(Mode.EXECUTE))
    assert (busy.outcome, busy.failure_kind) == (Outcome.FAILED, FailureKind.BUSY)
    assert "heartbeat" in busy.message
    assert table.pending() == {instant}

    ten_minutes_ago = time.time() - 600
    os.utime(heartbeat, (ten_minutes_ago, ten_minutes_ago))
    assert run(spark, table.request(Mode.EXECUTE)).completed_instants == (instant,)


@pytest.mark.parametrize("mode", [Mode.SCHEDULE, Mode.EXECUTE])
def test_lock_that_another_holds_fails_the_job_and_stays_with_its_holder(
    spark: SparkSession, table: Table, mode: Mode
) -> None:
    if mode is Mode.EXECUTE:
        run(spark, table.request(Mode.SCHEDULE))
    lock = table.path / ".hoodie" / "lock"
    lock.touch()
    hasty = {
        "hoodie.write.lock.client.num_retries": "1",
        "hoodie.write.lock.client.wait_time_ms_between_retry": "100",
    }
    files = table.files()
    result = run(spark, table.request(mode, options={**LOCK, **hasty}))
    assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.LOCK)
    assert lock.exists()
    assert table.files() == files


def test_failing_service_does_not_stop_the_next_one(spark: SparkSession, table: Table) -> None:
    import run_services

    request = table.request(Mode.EXECUTE, NO_SUCH_PLAN)
    both = (*request.services, *table.request(Mode.SCHEDULE_AND_EXECUTE).services)
    object.__setattr__(request, "services", both)
    result = run_services.run_job(spark, request)
    assert [service.outcome for service in result.services] == [Outcome.FAILED, Outcome.COMPLETED]
    # What a try after this one would have doubled, had it run out of memory.
    assert result.memory["spark.driver.memory"] == spark.conf.get("spark.driver.memory")
