"""Clustering took few partitions, and files that were large enough; most stayed small.

Report: https://github.com/apache/hudi/issues/9024
Report: https://github.com/apache/hudi/issues/13475
Report: https://github.com/apache/hudi/issues/10165
Verdict: right
"""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path

from conftest import LOCK
from pyspark.sql import SparkSession

import run_services
from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import ClusteringPolicy
from airflow_lake_provider.job_contract import JobRequest, Mode, Outcome, Service, ServiceRequest
from airflow_lake_provider.planner.decide import decide_now, load_facts, remember_shown
from airflow_lake_provider.planner.last_runs import NO_LAST_RUNS
from airflow_lake_provider.planner.rules import Verdict
from airflow_lake_provider.planner.table_view import TableViewCache
from local_stack import lake_writer
from tests.support.spark_session import ONE_TASK

SMALL = ("a", "b", "c", "d", "e", "f")
"""Three small files each."""
FEW, LARGE = "A-few", "A-large"
"""Hudi would take them first: two small files, fewer than the rule, and three that are not small."""
WRITE = {
    "hoodie.table.name": "orders",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "p",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.operation": "bulk_insert",
    "hoodie.bulkinsert.shuffle.parallelism": "1",
    "hoodie.metadata.enable": "false",
    "hoodie.embed.timeline.server": "false",
    **lake_writer.MANAGED_LAKE,
    **ONE_TASK,
    **LOCK,
}
# A plan takes two groups, as it takes thirty of a table with more partitions.
OPTIONS = {**LOCK, "hoodie.clustering.plan.strategy.max.num.groups": "2"}


def test_each_partition_gets_its_turn_and_nothing_else_is_rewritten(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "orders")
    for commit in range(3):
        rows = [(f"{commit}-{p}-{n}", p, commit, "x") for p in SMALL for n in range(5)]
        rows += [(f"{commit}-{FEW}-{n}", FEW, commit, "x") for n in range(5) if commit < 2]
        rows += [(f"{commit}-{LARGE}-{n}", LARGE, commit, f"{n * 7919:x}" * 200) for n in range(3000)]
        frame = spark.createDataFrame(rows, "id string, p string, ts int, text string").coalesce(1)
        frame.write.format("hudi").options(**WRITE).mode("append").save(path)
    before, had = files_of(spark, path), rows_of(spark, path)
    assert {p: len(files) for p, files in before.items()} == {**dict.fromkeys(SMALL, 3), FEW: 2, LARGE: 3}
    limit = min(file.stat().st_size for file in (tmp_path / "orders" / LARGE).glob("*.parquet"))
    assert limit > max(f.stat().st_size for p in (*SMALL, FEW) for f in (tmp_path / "orders" / p).glob("*.parquet"))

    policy = TablePolicy(
        hudi_options=OPTIONS, clustering=ClusteringPolicy(enabled=True, small_files=3, small_file_bytes=limit)
    )
    views, last_runs, clustered = TableViewCache(), NO_LAST_RUNS, []
    for _ in range(len(SMALL)):
        now_ms = int(time.time() * 1000)
        facts = load_facts(views, views.refresh(path), policy, now_ms)
        last_runs = remember_shown(facts, policy, last_runs, now_ms)
        decided = decide_now(views, facts, policy, now_ms, last_runs)
        found = next(decision for decision in decided if decision.service is Service.CLUSTERING)
        if found.verdict is not Verdict.DUE:
            break
        wanted = ServiceRequest(Service.CLUSTERING, Mode.SCHEDULE_AND_EXECUTE, (), dict(found.options))
        result = run_services.run_job(spark, JobRequest("job", path, "orders", (wanted,), str(tmp_path / "r"), OPTIONS))
        assert result.services[0].outcome is Outcome.COMPLETED, result.services[0].message
        after = files_of(spark, path)
        clustered.append({p for p in after if after[p] != before[p]})
        before_, before = before, after
        assert before_[FEW] == after[FEW]
        assert before_[LARGE] == after[LARGE]
    # Without a further write, until no partition has as many small files as the rule.
    assert clustered == [{"a", "b"}, {"c", "d"}, {"e", "f"}], found.reason
    assert found.verdict is Verdict.NOT_DUE
    assert {p: len(files) for p, files in before.items()} == {**dict.fromkeys(SMALL, 1), FEW: 2, LARGE: 3}
    assert rows_of(spark, path) == had


def files_of(spark: SparkSession, path: str) -> dict[str, frozenset[str]]:
    """Return by partition the files whose rows a plain reader gets."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    read = spark.read.format("hudi").option("hoodie.metadata.enable", "false").load(path)
    for p, file in read.select("p", "_hoodie_file_name").distinct().collect():
        found[p].add(file)
    return {p: frozenset(files) for p, files in found.items()}


def rows_of(spark: SparkSession, path: str) -> list[tuple[object, ...]]:
    read = spark.read.format("hudi").load(path).select("id", "p", "ts", "text")
    return sorted(tuple(row) for row in read.collect())
