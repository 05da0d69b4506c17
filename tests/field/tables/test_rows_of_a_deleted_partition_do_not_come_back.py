"""Rows rewritten into a deleted partition were invisible, where writers do not block each other.

Report: https://github.com/apache/hudi/issues/19793
Report: https://github.com/apache/hudi/pull/19791
Verdict: refused
Way out: leave `ttl.retained_days` unset, and delete rows by their keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import MakeTable, Table, rows, run
from pyspark.sql import functions as F

from airflow_lake_provider.job_contract import FailureKind, Mode, Outcome, Service
from airflow_lake_provider.shared.hudi_settings import TTL_DAYS
from lake_jobs.services import ttl as ttl_job
from local_stack import lake_writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CITY = "Bilbao"
NON_BLOCKING = {
    "hoodie.index.type": "BUCKET",
    "hoodie.bucket.index.num.buckets": "2",
    "hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL",
    "hoodie.table.type": "MERGE_ON_READ",
}


def write_again(spark: SparkSession, table: Table, **more: str) -> None:
    options = lake_writer.write_options(table.written, 5, None, {}) | more
    orders = lake_writer.orders_of_commit(spark, table.written, 0).where(F.col("city") == CITY)
    orders.write.format("hudi").options(**options).mode("append").save(str(table.path))


def rows_of_city(spark: SparkSession, table: Table) -> int:
    return sum(row[1] == CITY for row in rows(spark, table))


def test_expiry_is_refused_and_rows_stay(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(**NON_BLOCKING)
    before, files = rows(spark, table), table.files()
    monkeypatch.setattr(ttl_job, "find_expired", lambda _last, _now, _rules: (CITY,))
    options = {TTL_DAYS: "50"}
    result = run(spark, table.request(Mode.EXECUTE, service=Service.TTL, service_options=options))
    assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.REFUSED)
    assert "leave ttl.retained_days unset" in result.message
    assert (rows(spark, table), table.files()) == (before, files)
    write_again(spark, table)
    assert rows_of_city(spark, table) > 0


@pytest.mark.soak
def test_hudi_hides_them_after_its_own_deletion(spark: SparkSession, make_table: MakeTable) -> None:
    """As long as this holds, the refusal is needed."""
    table = make_table(**NON_BLOCKING)
    operation, partitions = "hoodie.datasource.write.operation", "hoodie.datasource.write.partitions.to.delete"
    write_again(spark, table, **{operation: "delete_partition", partitions: CITY})
    write_again(spark, table)
    assert rows_of_city(spark, table) == 0
