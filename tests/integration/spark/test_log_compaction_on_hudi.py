"""Log compactions of real tables, run inside the test's own Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from conftest import MakeTable, Table, rows, run

from airflow_lake_provider.job_contract import (
    REWRITE_BLOCK,
    VERIFY,
    FailureKind,
    JobRequest,
    Mode,
    Outcome,
    Service,
)
from lake_jobs.verify import rewrite
from local_stack import lake_writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TWO_LOG_FILES = {"hoodie.log.compaction.blocks.threshold": "2"}


def log_compaction(table: Table, mode: Mode, *instants: str, compare: str = "sample") -> JobRequest:
    options = TWO_LOG_FILES | {VERIFY: compare}
    return table.request(mode, *instants, service=Service.LOGCOMPACTION, service_options=options)


def pending(table: Table) -> set[str]:
    plans = {name.split(".")[0] for name in table.files() if name.endswith(".logcompaction.requested")}
    return plans - table.completed("deltacommit")


@pytest.mark.parametrize("options", [{}, {"hoodie.metadata.enable": "false"}], ids=["metadata-table", "listed"])
def test_log_files_become_one_and_rows_stay(
    spark: SparkSession, make_table: MakeTable, options: dict[str, str]
) -> None:
    table = make_table(**options)
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


def test_plan_behind_a_newer_compaction_fails_and_is_withdrawn(spark: SparkSession, make_table: MakeTable) -> None:
    """What the planner keeps from happening: Hudi never executes such a plan any more."""
    table = make_table()
    (instant,) = run(spark, log_compaction(table, Mode.SCHEDULE)).scheduled_instants
    plan = (table.timeline / f"{instant}.logcompaction.requested").read_bytes()
    (table.timeline / f"{later(instant)}.compaction.requested").write_bytes(plan)
    result = run(spark, log_compaction(table, Mode.EXECUTE))
    assert result.outcome is Outcome.FAILED
    assert "compaction instant with greater timestamp" in result.message
    assert result.message.endswith("; the plan is withdrawn")
    assert pending(table) == set()


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


def test_deletes_and_late_rows_are_compared_before_the_commit(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table()
    options = lake_writer.write_options(table.written, 3, None, {})
    some = spark.read.format("hudi").load(str(table.path)).where("id < 20").select("id", "city", "amount", "ts")
    some.write.format("hudi").options(**options | {"hoodie.datasource.write.operation": "delete"}).mode("append").save(
        str(table.path)
    )
    before = rows(spark, table)
    assert all(row[0] >= 20 for row in before)

    result = run(spark, log_compaction(table, Mode.SCHEDULE_AND_EXECUTE, compare="all"))

    assert result.outcome is Outcome.COMPLETED, result.message
    assert result.message.endswith("with what readers saw: equal"), result.message
    assert rows(spark, table) == before


def test_a_log_compaction_that_changes_rows_is_not_committed(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table()
    before, write_files = rows(spark, table), rewrite.write_files

    def swap(spark: SparkSession, client: Any, service: Service, instant: str) -> rewrite.UncommittedRewrite:
        """Give the rows of one file group to another one."""
        found = write_files(spark, client, service, instant)
        first, second = (table.path / each.path for each in found.written[:2])
        first.write_bytes(second.read_bytes())
        (first.parent / f".{first.name}.crc").unlink()
        return found

    with monkeypatch.context() as planted:
        planted.setattr(rewrite, "write_files", swap)
        result = run(spark, log_compaction(table, Mode.SCHEDULE_AND_EXECUTE, compare="all"))

    assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.REFUSED), result.message
    assert "only in the new files" in result.message or "other values" in result.message, result.message
    assert result.message.endswith("; the plan is withdrawn")
    assert pending(table) == set()
    assert rows(spark, table) == before
    block = table.path / REWRITE_BLOCK
    block.unlink()
    assert run(spark, log_compaction(table, Mode.SCHEDULE_AND_EXECUTE, compare="all")).outcome is Outcome.COMPLETED
    assert rows(spark, table) == before


@pytest.mark.parametrize("check", ["checkState", "checkArgument"])
def test_a_plan_that_failed_is_withdrawn_and_made_again(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch, check: str
) -> None:
    """PySpark would turn Java's IllegalArgumentException, of the second, into a class of its own."""
    table = make_table()
    before = rows(spark, table)

    def fail(spark: SparkSession, client: Any, service: Service, instant: str) -> rewrite.UncommittedRewrite:
        client.logCompact(instant, False)
        return getattr(spark._jvm.org.apache.hudi.common.util.ValidationUtils, check)(False, "planted")  # type: ignore[no-any-return]

    with monkeypatch.context() as planted:
        planted.setattr(rewrite, "write_files", fail)
        result = run(spark, log_compaction(table, Mode.SCHEDULE_AND_EXECUTE))
    assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.OTHER), result.message
    assert result.message.endswith("; the plan is withdrawn")
    assert pending(table) == set()
    assert run(spark, log_compaction(table, Mode.SCHEDULE_AND_EXECUTE)).outcome is Outcome.COMPLETED
    assert rows(spark, table) == before


def test_a_pending_plan_is_withdrawn_on_request(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table()
    (instant,) = run(spark, log_compaction(table, Mode.SCHEDULE)).scheduled_instants
    result = run(spark, log_compaction(table, Mode.WITHDRAW, instant))
    assert (result.outcome, result.message) == (Outcome.COMPLETED, f"withdrawn: {instant}")
    assert pending(table) == set()


def test_copy_on_write_is_refused(spark: SparkSession, make_table: MakeTable) -> None:
    result = run(spark, log_compaction(make_table(type="COW"), Mode.SCHEDULE))
    assert result.outcome is Outcome.FAILED
    assert "only MERGE_ON_READ" in result.message


def base_files(table: Table) -> set[str]:
    return {path.name for path in table.path.glob("*/*.parquet")}


def later(instant: str) -> str:
    return str(int(instant) + 1)
