"""A job asks under the table's lock, when it plans, whether a writer lives whom the plan would fail."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from conftest import MakeTable, Table, content, run
from paused_writers import start_paused_writer, wait_until
from test_conflicts_on_hudi import ask

from airflow_lake_provider.conflict.admission import AdmissionVerdict
from airflow_lake_provider.job_contract import WRITERS_FIRST, FailureKind, JobRequest, Mode, Outcome, Service
from lake_jobs.services import planned

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def plan_and_execute(table: Table, service: Service) -> JobRequest:
    options = {WRITERS_FIRST: "true", "hoodie.log.compaction.blocks.threshold": "2"}
    return table.request(Mode.SCHEDULE_AND_EXECUTE, service=service, service_options=options)


@pytest.mark.parametrize(
    ("service", "type", "version"),
    [(Service.COMPACTION, "MOR", 6), (Service.LOGCOMPACTION, "MOR", 9), (Service.CLUSTERING, "COW", 9)],
)
def test_writer_that_begins_between_admission_and_plan_commits_and_the_service_follows(
    spark: SparkSession,
    make_table: MakeTable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    service: Service,
    type: str,
    version: int,
) -> None:
    table = make_table(type=type, version=version)
    assert ask(table, service=service).verdict is AdmissionVerdict.GO
    writer = start_paused_writer(spark, table, tmp_path, first_id=10_000)
    # Up to version 6 the writer's lock lies among the instants.
    files = table.files() - {"lock"}
    result = run(spark, plan_and_execute(table, service))
    assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.CONFLICT), result.message
    assert writer.instant in result.message
    assert {name.split(".")[0] for name in table.files() - files} <= {writer.instant, "lock"}, "it left a plan"
    writer.finish()

    # No write begins while it plans: Hudi takes the same lock for both.
    plan, locked = planned._plan, []

    def plan_and_see(*arguments: object) -> tuple[str, ...]:
        locked.append((table.path / ".hoodie" / "lock").exists())
        return plan(*arguments)

    monkeypatch.setattr(planned, "_plan", plan_and_see)
    result = run(spark, plan_and_execute(table, service))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert locked == [True]
    assert not (table.path / ".hoodie" / "lock").exists()


def test_fresh_plan_goes_again_for_a_writer_that_appears_while_it_is_made(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As writers of Hudi before 1.2 may: their instants are on the timeline after they released the lock."""
    table = make_table(type="COW")
    before, plan, made = table.files(), planned._plan, []

    def plan_meanwhile(*arguments: object) -> tuple[str, ...]:
        (instant,) = plan(*arguments)
        made.append(instant)
        writer = str(int(instant) - 1)
        heartbeats = table.path / ".hoodie" / ".heartbeat"
        heartbeats.mkdir(exist_ok=True)
        (heartbeats / writer).touch()
        (table.timeline / f"{writer}.commit.requested").touch()
        return (instant,)

    monkeypatch.setattr(planned, "_plan", plan_meanwhile)
    # Not executed: an execution would give way to the writer, and remove the plan, too.
    wanted = table.request(Mode.SCHEDULE, service=Service.CLUSTERING, service_options={WRITERS_FIRST: "true"})
    result = run(spark, wanted)
    assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.CONFLICT), result.message
    (instant,) = made
    writer = str(int(instant) - 1)
    assert writer in result.message
    assert table.files() == before | {f"{writer}.commit.requested"}
    assert not (table.path / ".hoodie" / ".heartbeat" / instant).exists()


def test_clustering_ends_for_an_upsert_that_begins_while_it_runs_and_the_upsert_commits(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    """The upsert reads its source for a while, as most do; without a way out Hudi would refuse it after that."""
    table = make_table(type="COW")
    before = content(spark, table)
    (plan,) = run(spark, table.request(Mode.SCHEDULE, service=Service.CLUSTERING)).scheduled_instants
    tracker = spark.sparkContext.statusTracker()
    with ThreadPoolExecutor(2) as pool:
        # All of Spark's slots are taken, so that the clustering cannot be over before the writer comes.
        slots, gate = pool.submit(occupy_slots, spark, tmp_path / "slots"), tmp_path / "slots"
        wait_until(lambda: len(tracker.getActiveJobsIds()) == 1, "the taken slots", 30)
        executing = pool.submit(run, spark, execute(table))
        wait_until(lambda: len(tracker.getActiveJobsIds()) == 2 or executing.done(), "the clustering's Spark job", 30)
        assert not executing.done(), executing.result()
        jobs = set(tracker.getActiveJobsIds())
        writer = start_paused_writer(spark, table, tmp_path, first_id=0, rows=200)
        assert writer.instant > plan
        wait_until(lambda: not jobs <= set(tracker.getActiveJobsIds()), "the end of the Spark job", 30)
        gate.touch()
        slots.result(timeout=60)
        result = executing.result(timeout=60)
    assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.CONFLICT), result.message
    assert writer.instant in result.message
    assert "withdrawn" in result.message
    assert not any(name.startswith(plan) and "clustering" in name for name in table.files())
    assert content(spark, table) == before
    writer.finish()
    assert writer.instant in table.completed()
    assert run(spark, execute(table)).outcome is Outcome.NOTHING_TO_DO
    result = run(spark, plan_and_execute(table, Service.CLUSTERING))
    assert result.outcome is Outcome.COMPLETED, result.message


def execute(table: Table) -> JobRequest:
    return table.request(Mode.EXECUTE, service=Service.CLUSTERING, service_options={WRITERS_FIRST: "true"})


def occupy_slots(spark: SparkSession, gate: Path) -> None:
    path = str(gate)

    def wait(_: int) -> int:
        deadline = time.monotonic() + 60
        while not os.path.exists(path) and time.monotonic() < deadline:
            time.sleep(0.05)
        return 0

    spark.sparkContext.parallelize(range(2), 2).map(wait).collect()
