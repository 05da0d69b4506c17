"""Log compactions of real tables, run inside the test's own Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conftest import MakeTable, Table, rows, run

from airflow_lake_provider.job_contract import FailureKind, JobRequest, Mode, Outcome, Service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TWO_LOG_FILES = {"hoodie.log.compaction.blocks.threshold": "2"}


def log_compaction(table: Table, mode: Mode, *instants: str) -> JobRequest:
    return table.request(mode, *instants, service=Service.LOGCOMPACTION, service_options=TWO_LOG_FILES)


def pending(table: Table) -> set[str]:
    plans = {name.split(".")[0] for name in table.files() if name.endswith(".logcompaction.requested")}
    return plans - table.completed("deltacommit")


def test_log_files_become_one_and_rows_stay(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table()
    before, files, base = rows(spark, table), table.files(), base_files(table)

    scheduled = run(spark, log_compaction(table, Mode.SCHEDULE))
    assert scheduled.outcome is Outcome.SCHEDULED, scheduled.message
    (instant,) = scheduled.scheduled_instants
    assert table.files() - files == {f"{instant}.logcompaction.requested"}
    executed = run(spark, log_compaction(table, Mode.EXECUTE))
    assert (executed.outcome, executed.completed_instants) == (Outcome.COMPLETED, (instant,)), executed.message

    assert rows(spark, table) == before
    assert base_files(table) == base
    assert instant in table.completed("deltacommit")
    assert {name.split(".")[0].split("_")[0] for name in table.files() - files} == {instant}

    # The compaction that comes later merges it.
    assert run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE)).outcome is Outcome.COMPLETED
    assert rows(spark, table) == before
    assert base_files(table) > base
    again = run(spark, log_compaction(table, Mode.SCHEDULE_AND_EXECUTE))
    assert again.outcome is Outcome.NOTHING_TO_DO, again.message


def test_nothing_is_planned_next_to_a_pending_compaction(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table()
    (compaction,) = run(spark, table.request(Mode.SCHEDULE)).scheduled_instants
    files = table.files()
    for mode in (Mode.SCHEDULE, Mode.SCHEDULE_AND_EXECUTE):
        result = run(spark, log_compaction(table, mode))
        assert result.outcome is Outcome.NOTHING_TO_DO
        assert compaction in result.message
    assert table.files() == files


def test_plan_behind_a_newer_compaction_fails_and_stays(spark: SparkSession, make_table: MakeTable) -> None:
    """What the planner keeps from happening: Hudi never executes such a plan any more."""
    table = make_table()
    (instant,) = run(spark, log_compaction(table, Mode.SCHEDULE)).scheduled_instants
    files = table.files()
    plan = (table.timeline / f"{instant}.logcompaction.requested").read_bytes()
    (table.timeline / f"{later(instant)}.compaction.requested").write_bytes(plan)
    result = run(spark, log_compaction(table, Mode.EXECUTE))
    assert result.outcome is Outcome.FAILED
    assert "compaction instant with greater timestamp" in result.message
    assert pending(table) == {instant}
    assert files < table.files()


def test_plan_that_a_dead_executor_began_is_forgotten_and_made_again(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table()
    before = rows(spark, table)
    (instant,) = run(spark, log_compaction(table, Mode.SCHEDULE)).scheduled_instants
    (table.timeline / f"{instant}.logcompaction.inflight").touch()
    result = run(spark, log_compaction(table, Mode.EXECUTE, instant))
    assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.PLAN_GONE), result.message
    assert pending(table) == set()
    assert run(spark, log_compaction(table, Mode.SCHEDULE_AND_EXECUTE)).outcome is Outcome.COMPLETED
    assert rows(spark, table) == before


def test_copy_on_write_is_refused(spark: SparkSession, make_table: MakeTable) -> None:
    result = run(spark, log_compaction(make_table(type="COW"), Mode.SCHEDULE))
    assert result.outcome is Outcome.FAILED
    assert "only MERGE_ON_READ" in result.message


def base_files(table: Table) -> set[str]:
    return {path.name for path in table.path.glob("*/*.parquet")}


def later(instant: str) -> str:
    return str(int(instant) + 1)
