"""Rollbacks of what dead writers left in real tables, run inside the test's own Spark session."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from conftest import LOCK, MakeTable, Table, content, run
from paused_writers import start_paused_writer

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import CleanPolicy, RollbackPolicy
from airflow_lake_provider.errors import WriterUnguardedError
from airflow_lake_provider.job_contract import FailureKind, JobRequest, Mode, Outcome, Service, ServiceRequest
from airflow_lake_provider.planner.decide import decide_now, load_facts
from airflow_lake_provider.planner.rules import Decision, Verdict
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.planner.verdict import TableReader
from airflow_lake_provider.storage.table_storage import open_storage
from lake_jobs.hudi.table import open_client
from local_stack import lake_writer

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SINGLE_WRITER = {
    "hoodie.write.concurrency.mode": "single_writer",
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.InProcessLockProvider",
    "hoodie.clean.failed.writes.policy": "EAGER",
}


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
    """Hudi deletes the write's instants first: what is left is a rollback of nothing, without an owner."""
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


def test_living_writer_without_heartbeat_is_left_alone_and_commits(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    """Single-writer mode, Hudi's default, sends no heartbeat; here its commit has been going on for an hour."""
    table = make_table(type="COW")
    before = content(spark, table)
    writer = start_paused_writer(spark, table, tmp_path, 5000, **SINGLE_WRITER)
    for file in table.timeline.glob(f"*{writer.instant}*"):
        make_old(file, age_s=3600)
    for policy in (RollbackPolicy(after_s=1), RollbackPolicy(enabled=False), RollbackPolicy(after_s=14_400)):
        views, now_ms = TableViewCache(), int(time.time() * 1000) + 3_600_000
        of = TablePolicy(rollback=policy, hudi_options=LOCK, clean=CleanPolicy(commits=1, retained_commits=1))
        facts = load_facts(views, views.refresh(str(table.path)), of, now_ms)
        decided = decide_now(views, facts, of, now_ms)
        verdicts = {decision.service: decision.verdict for decision in decided}
        assert verdicts[Service.CLEAN] is Verdict.BLOCKED
        assert Verdict.DUE not in verdicts.values()
    with pytest.raises(WriterUnguardedError, match=f"the write {writer.instant} is in flight without a heartbeat"):
        TableReader(str(table.path), open_storage).require_guarded_writers(ServiceRequest(Service.CLEAN, Mode.EXECUTE))

    # Had they begun just before the writer: no service's own Hudi takes it for dead either.
    options = {"hoodie.clean.commits.retained": "1", "hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"}
    for service in (Service.ROLLBACK, Service.CLEAN, Service.ARCHIVE, Service.CLUSTERING):
        mode = Mode.EXECUTE if service is Service.ROLLBACK else Mode.SCHEDULE_AND_EXECUTE
        result = run(spark, table.request(mode, service=service, service_options=options))
        assert result.outcome is not Outcome.FAILED, (service, result.message)
        assert f"{writer.instant}.commit.requested" in table.files(), service
    assert not table.completed("rollback")
    assert table.completed("clean")

    writer.finish()
    assert writer.instant in table.completed()
    assert len(content(spark, table)) == len(before) + 20


def test_write_without_heartbeat_is_rolled_back_for_a_caller_that_names_it(
    spark: SparkSession, make_table: MakeTable
) -> None:
    """The way out of a table whose single writer died and will not come back."""
    table = make_table(type="COW")
    before = content(spark, table)
    left, other = begin_write(spark, table), begin_write(spark, table)
    for write in (left, other):
        (table.path / ".hoodie" / ".heartbeat" / write).unlink()
    assert run(spark, rollback(table)).outcome is Outcome.NOTHING_TO_DO
    result = run(spark, rollback(table, left))
    assert (result.outcome, result.completed_instants) == (Outcome.COMPLETED, (left,)), result.message
    assert f"{other}.commit.requested" in table.files()
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
    decisions = decide_now(views, load_facts(views, views.refresh(str(table.path)), policy, now_ms), policy, now_ms)
    return next(decision for decision in decisions if decision.service is Service.ROLLBACK)


def begin_write(spark: SparkSession, table: Table) -> str:
    """Begin a commit with Hudi's own client and leave it at that; its heartbeat is young."""
    settings = lake_writer.write_options(table.written, 3, None, {})
    with open_client(spark, str(table.path), settings, {}) as client:
        return str(client.startCommit())


def make_old(file: Path, age_s: float = 600) -> None:
    then_s = time.time() - age_s
    os.utime(file, (then_s, then_s))
