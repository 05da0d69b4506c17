"""No reader could open a table with virtual keys after a clustering: its files lay in the table's root folder.

Report: https://github.com/apache/hudi/pull/3315
Report: https://github.com/apache/hudi/pull/10272
Verdict: refused
Way out: Leave clustering of such a table off, or let a writer with the table's key settings run it.
"""

from __future__ import annotations

from conftest import MakeTable, rows, rows_written, run, write
from pyspark.sql import SparkSession

from airflow_lake_provider.job_contract import FailureKind, Mode, Outcome, Service

VIRTUAL = {"hoodie.populate.meta.fields": "false"}


def test_clustering_with_virtual_keys_is_refused(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(type="COW", **VIRTUAL)
    result = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.CLUSTERING))
    assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.REFUSED), result.message
    assert "hoodie.populate.meta.fields=false" in result.message
    write(spark, table.written, 3)
    assert rows(spark, table) == rows_written(spark, table.written, 4)
