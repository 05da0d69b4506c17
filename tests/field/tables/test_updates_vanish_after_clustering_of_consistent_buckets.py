"""Updates vanished, or came twice, after clustering with consistent hashing.

Report: https://github.com/apache/hudi/pull/8503
Report: https://github.com/apache/hudi/pull/8479
Report: https://github.com/apache/hudi/issues/6698
Verdict: right
"""

from __future__ import annotations

import pytest
from conftest import LOCK, MakeTable, file_groups, require_rows, rows, rows_written, run, write
from pyspark.sql import SparkSession

from airflow_lake_provider.job_contract import FailureKind, Mode, Outcome, Service
from local_stack import lake_writer

CONSISTENT = {
    "hoodie.index.type": "BUCKET",
    "hoodie.index.bucket.engine": "CONSISTENT_HASHING",
    "hoodie.bucket.index.num.buckets": "2",
    "hoodie.bucket.index.min.num.buckets": "1",
    "hoodie.bucket.index.max.num.buckets": "8",
}
SPLIT_SOON = {
    "hoodie.bucket.index.split.threshold": "0.0001",
    "hoodie.bucket.index.merge.threshold": "0.0",
    "hoodie.parquet.max.file.size": "1000000",
}
LIMITS = {
    key: CONSISTENT[key] for key in ("hoodie.bucket.index.min.num.buckets", "hoodie.bucket.index.max.num.buckets")
}


@pytest.mark.parametrize("version", [9, pytest.param(6, marks=pytest.mark.soak)])
def test_writes_after_a_resize_are_visible(spark: SparkSession, make_table: MakeTable, version: int) -> None:
    table = make_table(version=version, **CONSISTENT)
    groups = file_groups(spark, table)
    assert run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE)).outcome is Outcome.COMPLETED

    unlimited = run(spark, table.request(Mode.SCHEDULE, service=Service.CLUSTERING))
    assert (unlimited.outcome, unlimited.failure_kind) == (Outcome.FAILED, FailureKind.REFUSED)
    assert "hoodie.bucket.index.max.num.buckets" in unlimited.message

    planning = LOCK | LIMITS | SPLIT_SOON
    plan = run(spark, table.request(Mode.SCHEDULE, service=Service.CLUSTERING, options=planning))
    assert plan.outcome is Outcome.SCHEDULED, plan.message
    # As a plan that a writer made: the lock is all that the service knows.
    done = run(spark, table.request(Mode.EXECUTE, service=Service.CLUSTERING))
    assert (done.outcome, done.completed_instants) == (Outcome.COMPLETED, plan.scheduled_instants), done.message
    require_rows(spark, table, 3)
    assert len(file_groups(spark, table)) > len(groups)
    for commit in (3, 4):
        write(spark, table.written, commit)
        require_rows(spark, table, commit + 1)


@pytest.mark.soak
def test_expiry_of_partitions_is_refused(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(**CONSISTENT)
    days = {"hoodie.partition.ttl.strategy.days.retain": "1"}
    expired = run(spark, table.request(Mode.EXECUTE, service=Service.TTL, service_options=days))
    assert (expired.outcome, expired.failure_kind) == (Outcome.FAILED, FailureKind.REFUSED)
    assert "consistent hashing" in expired.message


@pytest.mark.soak
def test_rows_that_come_back_to_an_expired_partition_of_simple_buckets_are_seen(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(**{"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"})
    monkeypatch.setattr("lake_jobs.services.ttl.find_expired", lambda *_: ("Bilbao",))
    days = {"hoodie.partition.ttl.strategy.days.retain": "1"}
    expired = run(spark, table.request(Mode.EXECUTE, service=Service.TTL, service_options=days))
    assert expired.outcome is Outcome.COMPLETED, expired.message
    assert not [row for row in rows(spark, table) if row[1] == "Bilbao"]
    written = [row for row in rows_written(spark, table.written, 1) if row[1] == "Bilbao"]
    orders = lake_writer.orders_of_commit(spark, table.written, 0).where("city = 'Bilbao'")
    options = lake_writer.write_options(table.written, 3, None, {})
    orders.write.format("hudi").options(**options).mode("append").save(str(table.path))
    assert [row for row in rows(spark, table) if row[1] == "Bilbao"] == written
