"""Updates vanished, or came twice, after a clustering of a table with consistent hashing.

Report: https://github.com/apache/hudi/pull/8503
Report: https://github.com/apache/hudi/pull/8479
Report: https://github.com/apache/hudi/issues/6698
Verdict: refused
Way out: Let the table's writers run the clustering that resizes its buckets.
"""

from __future__ import annotations

from conftest import MakeTable, rows, rows_written, run, write
from pyspark.sql import SparkSession

from airflow_lake_provider.job_contract import FailureKind, Mode, Outcome, Service

CONSISTENT = {
    "hoodie.index.type": "BUCKET",
    "hoodie.index.bucket.engine": "CONSISTENT_HASHING",
    "hoodie.bucket.index.num.buckets": "2",
    "hoodie.bucket.index.min.num.buckets": "1",
    "hoodie.bucket.index.max.num.buckets": "8",
}


def test_clustering_and_expiry_of_consistent_buckets_are_refused(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(**CONSISTENT)
    files = table.files()
    for service in (Service.CLUSTERING, Service.TTL):
        options = {"hoodie.partition.ttl.strategy.days.retain": "1"} if service is Service.TTL else None
        result = run(spark, table.request(Mode.EXECUTE, service=service, service_options=options))
        assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.REFUSED), result.message
        assert "consistent hashing" in result.message
    assert table.files() == files
    for commit in (3, 4):
        write(spark, table.written, commit)
    assert rows(spark, table) == rows_written(spark, table.written, 5)
