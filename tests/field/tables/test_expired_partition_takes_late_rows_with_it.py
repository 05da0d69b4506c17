"""A partition was deleted during an update: the update was lost, or the writer's job failed.

Report: https://github.com/apache/hudi/pull/9472
Report: https://github.com/apache/hudi/issues/9674
Verdict: right
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from conftest import MakeTable, Table, rows, run
from paused_writers import start_paused_writer
from pyspark.sql import functions as F

from airflow_lake_provider.job_contract import FailureKind, JobRequest, Mode, Outcome, Service
from airflow_lake_provider.shared.hudi_settings import TTL_DAYS
from lake_jobs.services import ttl as ttl_job
from local_stack import lake_writer

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lake_jobs.services.context import ServiceContext

CITY, LATE_AMOUNT = "Bilbao", -777.0


def expire(table: Table) -> JobRequest:
    return table.request(Mode.EXECUTE, service=Service.TTL, service_options={TTL_DAYS: "50"})


def rows_of_cities(spark: SparkSession, table: Table) -> Counter[object]:
    return Counter(row[1] for row in rows(spark, table))


@pytest.mark.parametrize("type", ["COW", pytest.param("MOR", marks=pytest.mark.soak)])
def test_writer_at_work_is_waited_for_and_commits(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type: str
) -> None:
    table = make_table(type=type)
    before = rows_of_cities(spark, table)
    monkeypatch.setattr(ttl_job, "find_expired", lambda _last, _now, _rules: (CITY,))
    monkeypatch.setattr(ttl_job, "MAX_WAIT_S", 1.0)
    writer = start_paused_writer(spark, table, tmp_path, 60_000)
    result = run(spark, expire(table))
    assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.CONFLICT), result.message
    assert f"writer {writer.instant} has not announced yet" in result.message
    writer.finish()
    assert sum(rows_of_cities(spark, table).values()) == sum(before.values()) + 20
    done = run(spark, expire(table))
    assert done.outcome is Outcome.COMPLETED, done.message
    assert CITY not in rows_of_cities(spark, table)


def test_write_that_comes_during_the_deletion_keeps_its_rows(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(type="COW")
    monkeypatch.setattr(ttl_job, "find_expired", lambda _last, _now, _rules: (CITY,))
    require_untouched, failures = ttl_job.require_untouched, []
    orders = lake_writer.orders_of_commit(spark, table.written, 0).where(f"city = '{CITY}'").limit(20)
    late = orders.withColumn("amount", F.lit(LATE_AMOUNT)).withColumn("ts", F.lit(99).cast("long"))
    settings = lake_writer.write_options(table.written, 1, None, {})

    def write() -> None:
        try:
            late.write.format("hudi").options(**settings).mode("append").save(str(table.path))
        except Exception as error:  # noqa: BLE001 - asserted below
            failures.append(error)

    thread = threading.Thread(target=write, daemon=True)

    def then_write(context: ServiceContext, before: frozenset[str], partitions: frozenset[str]) -> None:
        require_untouched(context, before, partitions)
        thread.start()
        # Time enough to commit, were nothing held.
        thread.join(15)

    monkeypatch.setattr(ttl_job, "require_untouched", then_write)
    result = run(spark, expire(table))
    thread.join(120)
    assert result.outcome is Outcome.COMPLETED, result.message
    assert not failures
    assert [row[2] for row in rows(spark, table) if row[1] == CITY] == [LATE_AMOUNT] * 20
