"""Clustering of an unreadable file failed in every try, and its plan blocked updates of all other files.

Report: https://github.com/apache/hudi/issues/9257
Report: https://github.com/apache/hudi/issues/10964
Verdict: right
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from conftest import LOCK, MakeTable, Table, run
from pyspark.sql import DataFrame, SparkSession

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.doctor.table_doctor import TableDoctor
from airflow_lake_provider.job_contract import Mode, Outcome, Service
from airflow_lake_provider.planner.decide import decide_now, load_facts
from airflow_lake_provider.planner.last_runs import NO_LAST_RUNS, LastRuns, RunEnd
from airflow_lake_provider.planner.rules import Decision
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.storage.table_storage import open_storage
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from local_stack import lake_writer

POLICY = TablePolicy.model_validate(
    {"clustering": {"enabled": True, "small_files": 2}, "doctor": {"stuck_after_s": 0.1}, "hudi_options": LOCK}
)


def now_ms() -> int:
    return int(time.time() * 1000)


def decide_clustering(table: Table, last_runs: LastRuns) -> Decision:
    views = TableViewCache(SharedTimelines())
    facts = load_facts(views, views.refresh(str(table.path)), POLICY, now_ms())
    decisions = decide_now(views, facts, POLICY, now_ms(), last_runs)
    return next(decision for decision in decisions if decision.service is Service.CLUSTERING)


def read(spark: SparkSession, table: Table, city: str) -> DataFrame:
    return spark.read.format("hudi").load(str(table.path)).where(f"city = '{city}'")


def update(spark: SparkSession, table: Table, rows: DataFrame) -> None:
    options = lake_writer.write_options(table.written, 3, None, {})
    rows.write.format("hudi").options(**options).mode("append").save(str(table.path))


def newest_base_file(spark: SparkSession, table: Table, city: str) -> Path:
    ((name, partition), *_) = (
        read(spark, table, city).select("_hoodie_file_name", "_hoodie_partition_path").distinct().collect()
    )
    return table.path / partition / name


@pytest.mark.soak
def test_plan_is_withdrawn_after_the_last_try_and_updates_of_healthy_files_work_again(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table(type="COW")
    columns = [name for name in read(spark, table, "").columns if not name.startswith("_hoodie_")]
    cities = [row[0] for row in spark.read.format("hudi").load(str(table.path)).select("city").distinct().collect()]
    broken, healthy = sorted(cities)[:2]
    rows = read(spark, table, healthy).select(*columns)
    changed = spark.createDataFrame(
        rows.selectExpr(*(f"{n} + 1000 as {n}" if n == "ts" else n for n in columns)).collect()
    )
    expected = sorted(row["ts"] for row in changed.collect())
    file = newest_base_file(spark, table, broken)
    file.write_bytes(b"")
    (file.parent / f".{file.name}.crc").unlink(missing_ok=True)

    failed = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.CLUSTERING))
    assert (failed.outcome, file.name in failed.message) == (Outcome.FAILED, True), failed.message
    with pytest.raises(Exception, match="Not allowed to update the clustering file group"):
        update(spark, table, changed)
    first = decide_clustering(table, NO_LAST_RUNS)
    last_runs = NO_LAST_RUNS.started(first, "r1").ended("r1", RunEnd.FAILED, now_ms())
    decision = decide_clustering(table, last_runs)
    assert decision.mode is Mode.WITHDRAW
    found = TableDoctor(open_storage(str(table.path)), POLICY, "test", now_ms).examine()
    (repair,) = [repair for finding, repair in found if finding.instant == decision.plan_instants[0]]
    assert repair.call is not None
    assert (repair.call.mode, repair.call.instants) == (Mode.WITHDRAW, decision.plan_instants)

    done = run(spark, table.request(decision.mode, *decision.plan_instants, service=Service.CLUSTERING))
    assert done.outcome is Outcome.COMPLETED
    update(spark, table, changed)
    assert sorted(row["ts"] for row in read(spark, table, healthy).collect()) == expected
