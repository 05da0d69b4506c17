"""A table service failed at once because the writers' bucket index, or their concurrency mode, was among its settings.

Report: https://github.com/apache/hudi/issues/8166
Verdict: right
"""

from __future__ import annotations

import pytest
from conftest import LOCK, MakeTable, require_rows, run, write
from pyspark.sql import SparkSession

from airflow_lake_provider.job_contract import Mode, Outcome, Service

SIMPLE = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
NON_BLOCKING = {"hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL"}


@pytest.mark.parametrize(
    "named",
    [
        pytest.param({"hoodie.index.type": "BUCKET"}, marks=pytest.mark.soak, id="index"),
        pytest.param({"hoodie.index.type": "BUCKET", **NON_BLOCKING}, id="index-and-mode"),
    ],
)
def test_every_service_runs_with_what_the_writers_have(
    spark: SparkSession, make_table: MakeTable, named: dict[str, str]
) -> None:
    table = make_table(**SIMPLE)
    for service in (Service.COMPACTION, Service.CLEAN, Service.ARCHIVE, Service.ROLLBACK, Service.METACOMPACTION):
        mode = Mode.EXECUTE if service is Service.ROLLBACK else Mode.SCHEDULE_AND_EXECUTE
        result = run(spark, table.request(mode, service=service, options=LOCK | named))
        assert result.outcome is not Outcome.FAILED, result.message
    for commit in (3, 4):
        write(spark, table.written, commit)
        require_rows(spark, table, commit + 1)
