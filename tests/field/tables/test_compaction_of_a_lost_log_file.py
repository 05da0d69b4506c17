"""A compaction failed in every try with a FileNotFoundException of a log file.

Report: https://github.com/apache/hudi/issues/2020
Report: https://github.com/apache/hudi/issues/6390
Report: https://github.com/apache/hudi/issues/13826
Verdict: refused
Way out: put the file back from a copy, as the doctor says; the manager then executes the plan.
"""

from __future__ import annotations

import time

from conftest import LOCK, MakeTable, Table, rows, rows_written, run
from pyspark.sql import SparkSession

from airflow_lake_provider.config.policies import StuckKind, TablePolicy
from airflow_lake_provider.doctor.table_doctor import TableDoctor
from airflow_lake_provider.job_contract import Mode, Outcome, Service
from airflow_lake_provider.planner.decide import decide_now, load_facts
from airflow_lake_provider.planner.last_runs import NO_LAST_RUNS, LastRuns, RunEnd
from airflow_lake_provider.planner.rules import Decision, Verdict
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.storage.table_storage import open_storage
from airflow_lake_provider.timeline_server.cache import SharedTimelines

POLICY = TablePolicy.model_validate({"doctor": {"stuck_after_s": 0.1, "unguarded_after_s": 0.1}, "hudi_options": LOCK})


def now_ms() -> int:
    return int(time.time() * 1000)


def decide_compaction(table: Table, last_runs: LastRuns) -> Decision:
    views = TableViewCache(SharedTimelines())
    later_ms = now_ms() + 1000
    facts = load_facts(views, views.refresh(str(table.path)), POLICY, later_ms)
    decisions = decide_now(views, facts, POLICY, later_ms, last_runs)
    return next(decision for decision in decisions if decision.service is Service.COMPACTION)


def test_doctor_and_planner_name_the_file_and_the_plan_is_executed_when_it_is_back(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table()
    (plan,) = run(spark, table.request(Mode.SCHEDULE)).scheduled_instants
    first = decide_compaction(table, NO_LAST_RUNS)
    log = sorted(file for file in table.path.glob("*/.*.log.*") if not file.name.endswith(".crc"))[0]
    copy = log.read_bytes()
    log.unlink()
    failed = run(spark, table.request(Mode.EXECUTE, plan))
    assert (failed.outcome, log.name in failed.message) == (Outcome.FAILED, True), failed.message
    time.sleep(0.2)
    found = TableDoctor(open_storage(str(table.path)), POLICY, "test", now_ms).examine()
    ((finding, repair),) = [pair for pair in found if pair[0].instant == plan]
    assert (finding.kind, f"{log.name} (gone)" in finding.message) == (StuckKind.LOST_FILES, True)
    assert repair.refusal
    last_runs = NO_LAST_RUNS.started(first, "r1").ended("r1", RunEnd.FAILED, now_ms())
    blocked = decide_compaction(table, last_runs)
    assert (blocked.verdict, log.name in blocked.reason) == (Verdict.BLOCKED, True)

    log.write_bytes(copy)
    assert decide_compaction(table, last_runs).verdict is Verdict.DUE
    assert run(spark, table.request(Mode.EXECUTE, plan)).outcome is Outcome.COMPLETED
    assert rows(spark, table) == rows_written(spark, table.written, 3)
