"""Rollbacks of what dead writers left in real tables, run inside the test's own Spark session."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from conftest import LOCK, MakeTable, Table, content, run
from hudi_table import open_client
from job_contract import FailureKind, JobRequest, Mode, Outcome, Service

from airflow_lake_provider.planner.decide import decide_now
from airflow_lake_provider.planner.decision import Decision, Verdict
from airflow_lake_provider.policies import RollbackPolicy, TablePolicy
from airflow_lake_provider.view.view_cache import TableViewCache
from local_stack import lake_writer

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def rollback(table: Table, *instants: str, mode: Mode = Mode.EXECUTE) -> JobRequest:
    return table.request(mode, *instants, service=Service.ROLLBACK)


def test_dead_writer_goes_and_a_living_one_stays(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(type="COW")
    before = content(spark, table)
    dead, living = begin_write(spark, table), begin_write(spark, table)
    make_old(table.path / ".hoodie" / ".heartbeat" / dead)

    decision = decide_on_storage(table)
    assert (decision.verdict, decision.plan_instants) == (Verdict.DUE, (dead,)), decision.reason

    result = run(spark, rollback(table, *decision.plan_instants))
    assert (result.outcome, result.completed_instants) == (Outcome.COMPLETED, (dead,)), result.message
    instants = {name.split(".")[0].split("_")[0] for name in table.files()}
    assert living in instants
    assert dead not in instants
    assert table.completed("rollback")
    assert content(spark, table) == before

    files = table.files()
    assert decide_on_storage(table).verdict is Verdict.NOT_DUE
    assert run(spark, rollback(table)).outcome is Outcome.NOTHING_TO_DO
    # Asked for one that lives, it does not say that all is well.
    refused = run(spark, rollback(table, living))
    assert (refused.outcome, refused.failure_kind) == (Outcome.FAILED, FailureKind.BUSY)
    assert living in refused.message
    assert table.files() == files


def test_rollback_that_died_before_it_was_completed_is_ended(spark: SparkSession, make_table: MakeTable) -> None:
    """Hudi deletes the write's instants first: what is left is a rollback of nothing, and nobody's."""
    table = make_table(type="COW")
    before = content(spark, table)
    dead = begin_write(spark, table)
    make_old(table.path / ".hoodie" / ".heartbeat" / dead)
    assert run(spark, rollback(table, dead)).outcome is Outcome.COMPLETED
    (done,) = table.completed("rollback")
    timeline = table.path / ".hoodie" / "timeline"
    (completed,) = timeline.glob(f"{done}_*.rollback")
    completed.unlink()

    decision = decide_on_storage(table)
    assert (decision.verdict, decision.plan_instants) == (Verdict.DUE, (done,)), decision.reason
    result = run(spark, rollback(table, *decision.plan_instants))
    assert (result.outcome, result.completed_instants) == (Outcome.COMPLETED, (done,)), result.message
    assert table.completed("rollback") == {done}
    assert decide_on_storage(table).verdict is Verdict.NOT_DUE
    assert content(spark, table) == before


def test_scheduling_is_refused_with_a_sentence(spark: SparkSession, make_table: MakeTable) -> None:
    result = run(spark, rollback(make_table(type="COW"), mode=Mode.SCHEDULE))
    assert result.outcome is Outcome.FAILED
    assert "no plan to schedule" in result.message


def decide_on_storage(table: Table) -> Decision:
    """Decide as the manager does, ten seconds from now, by a policy that waits for one second."""
    views = TableViewCache()
    policy = TablePolicy(rollback=RollbackPolicy(after_s=1), hudi_options=LOCK)
    now_ms = int(time.time() * 1000) + 10_000
    decisions = decide_now(views, views.refresh(str(table.path)), policy, now_ms)
    return next(decision for decision in decisions if decision.service is Service.ROLLBACK)


def begin_write(spark: SparkSession, table: Table) -> str:
    """Begin a commit with Hudi's own client and leave it at that; its heartbeat is young."""
    settings = lake_writer.write_options(table.written, 3, None, {})
    with open_client(spark, str(table.path), settings, {}) as client:
        return str(client.startCommit())


def make_old(heartbeat: Path) -> None:
    ten_minutes_ago = time.time() - 600
    os.utime(heartbeat, (ten_minutes_ago, ten_minutes_ago))
