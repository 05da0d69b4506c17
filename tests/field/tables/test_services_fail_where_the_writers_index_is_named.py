"""A service failed because its settings named the writers' bucket index or concurrency mode.

Report: https://github.com/apache/hudi/issues/8166
Verdict: right
"""

from __future__ import annotations

import pytest
from conftest import LOCK, MakeTable, require_rows, run, write
from pyspark.sql import SparkSession

from airflow_lake_provider.job_contract import Mode, Outcome, Service

SIMPLE = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
CONSISTENT = {"hoodie.index.type": "BUCKET", "hoodie.index.bucket.engine": "CONSISTENT_HASHING"}
FEW = {f"hoodie.bucket.index.{name}": "2" for name in ("num.buckets", "min.num.buckets", "max.num.buckets")}
NON_BLOCKING = {"hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL"}


SERVICES = (
    Service.LOGCOMPACTION, Service.COMPACTION, Service.CLEAN, Service.ARCHIVE, Service.ROLLBACK, Service.METACOMPACTION,
)  # fmt: skip


@pytest.mark.parametrize(
    ("written_with", "named"),
    [
        pytest.param(SIMPLE, {"hoodie.index.type": "BUCKET"}, marks=pytest.mark.soak, id="index"),
        pytest.param(SIMPLE, {"hoodie.index.type": "BUCKET", **NON_BLOCKING}, id="index-and-mode"),
        # Hudi derives a rule of conflicts from the index' type that reads a number from file ids that have none.
        pytest.param(CONSISTENT | FEW, CONSISTENT, id="consistent-hashing"),
    ],
)
def test_every_service_runs_with_what_the_writers_have(
    spark: SparkSession, make_table: MakeTable, written_with: dict[str, str], named: dict[str, str]
) -> None:
    table = make_table(**written_with)
    for service in SERVICES:
        mode = Mode.EXECUTE if service is Service.ROLLBACK else Mode.SCHEDULE_AND_EXECUTE
        blocks = {"hoodie.log.compaction.blocks.threshold": "1"} if service is Service.LOGCOMPACTION else {}
        result = run(spark, table.request(mode, service=service, service_options=blocks, options=LOCK | named))
        assert result.outcome is not Outcome.FAILED, result.message
    for commit in (3, 4):
        write(spark, table.written, commit)
        require_rows(spark, table, commit + 1)
