"""A partition was deleted while a writer updated it: the update was lost, or the writer's whole job failed.

Report: https://github.com/apache/hudi/pull/9472
Report: https://github.com/apache/hudi/issues/9674
Verdict: right
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from conftest import MakeTable, Table, rows, run
from paused_writers import insert, start_paused_writer

from airflow_lake_provider.job_contract import FailureKind, JobRequest, Mode, Outcome, Service
from lake_jobs.services import ttl as ttl_job
from lake_jobs.services import ttl_rules

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lake_jobs.services.context import ServiceContext

CITY = "Bilbao"


def expire(table: Table) -> JobRequest:
    return table.request(Mode.EXECUTE, service=Service.TTL, service_options={ttl_rules.DAYS: "50"})


def rows_of_cities(spark: SparkSession, table: Table) -> Counter[object]:
    return Counter(row[1] for row in rows(spark, table))


@pytest.mark.parametrize("type", ["COW", pytest.param("MOR", marks=pytest.mark.soak)])
def test_writer_at_work_is_waited_for_and_commits(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type: str
) -> None:
    table = make_table(type=type)
    before = rows_of_cities(spark, table)
    monkeypatch.setattr(ttl_job, "find_expired", lambda _last, _now, _rules: (CITY,))
    monkeypatch.setattr(ttl_job, "MOST_WAIT_S", 1.0)
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
    require_untouched, failures = ttl_job._require_untouched, []

    def write() -> None:
        try:
            insert(spark, table, 70_000)
        except Exception as error:  # noqa: BLE001 - asserted below
            failures.append(error)

    thread = threading.Thread(target=write, daemon=True)

    def then_write(context: ServiceContext, before: frozenset[str], partitions: frozenset[str]) -> None:
        require_untouched(context, before, partitions)
        thread.start()
        # Time enough to commit, were nothing held.
        time.sleep(8)

    monkeypatch.setattr(ttl_job, "_require_untouched", then_write)
    result = run(spark, expire(table))
    thread.join(120)
    assert result.outcome is Outcome.COMPLETED, result.message
    assert not failures
    late = [row for row in rows(spark, table) if isinstance(row[0], int) and row[0] >= 70_000]
    assert len(late) == 20
