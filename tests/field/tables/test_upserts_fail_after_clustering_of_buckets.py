"""Every upsert failed after a clustering of a table with a bucket index (`NumberFormatException: For input string`).

Report: https://github.com/apache/hudi/issues/8906
Report: https://github.com/apache/hudi/issues/5116
Report: https://github.com/apache/hudi/issues/11875
Report: https://github.com/apache/hudi/issues/7216
Report: https://github.com/apache/hudi/issues/4899
Verdict: refused
Way out: Leave clustering of such a table off (the default); its bucket index bounds the number of files by itself.
"""

from __future__ import annotations

import pytest
from conftest import LOCK, MakeTable, rows, rows_written, run, write
from pyspark.sql import SparkSession

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import ClusteringPolicy
from airflow_lake_provider.job_contract import FailureKind, Mode, Outcome, Service
from airflow_lake_provider.planner.decide import decide_now, load_facts
from airflow_lake_provider.planner.rules import Verdict
from airflow_lake_provider.planner.table_view import TableViewCache

SIMPLE = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}


@pytest.mark.parametrize("type", ["MOR", pytest.param("COW", marks=pytest.mark.soak)])
def test_neither_planner_nor_job_clusters_buckets_and_the_writer_goes_on(
    spark: SparkSession, make_table: MakeTable, type: str
) -> None:
    table = make_table(type=type, **SIMPLE)
    files = table.files()

    policy = TablePolicy(clustering=ClusteringPolicy(enabled=True, commits=1), hudi_options=LOCK)
    views, now_ms = TableViewCache(), 2_000_000_000_000
    decided = decide_now(views, load_facts(views, views.refresh(str(table.path)), policy, now_ms), policy, now_ms)
    (clustering,) = (found for found in decided if found.service is Service.CLUSTERING)
    assert clustering.verdict is Verdict.BLOCKED
    assert "simple bucket index" in clustering.reason

    for mode in (Mode.SCHEDULE, Mode.SCHEDULE_AND_EXECUTE, Mode.EXECUTE):
        result = run(spark, table.request(mode, service=Service.CLUSTERING))
        assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.REFUSED), result.message
        assert "simple bucket index" in result.message
    assert table.files() == files

    for commit in (3, 4):
        write(spark, table.written, commit)
    assert rows(spark, table) == rows_written(spark, table.written, 5)
