"""Clustering of real tables, run inside the test's own Spark session."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from conftest import LOCK, MakeTable, Table, content, file_groups, rows, rows_written, run
from held_writers import wait_until
from py4j.protocol import Py4JJavaError
from pyspark.sql import functions

from airflow_lake_provider.config.policies import DoctorPolicy, TablePolicy
from airflow_lake_provider.job_contract import FailureKind, JobRequest, Mode, Outcome, Service
from airflow_lake_provider.planner.decide import decide_now, load_facts
from airflow_lake_provider.planner.rules import Decision, Verdict
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.shared.actions import Action
from lake_jobs.hudi.table import open_client
from local_stack import lake_writer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

NO_SUCH_PLAN = "20200101000000000"


ONLY_BILBAO = {
    "hoodie.clustering.plan.partition.filter.mode": "SELECTED_PARTITIONS",
    "hoodie.clustering.plan.strategy.partition.selected": "Bilbao",
}


def update(
    spark: SparkSession,
    table: Table,
    commit: int,
    city: str,
    options: Mapping[str, str] | None = None,
    gate: Path | None = None,
) -> None:
    """Write the orders of one city that a commit updates; with a gate, as slowly as that file takes to appear."""
    orders = lake_writer.orders_of_commit(spark, table.written, commit).where(f"city = '{city}' and id < 400")
    if gate is not None:
        path = str(gate)

        # Nested, so that it travels to the worker by value; the worker does not find this file.
        def pass_gate(value: int) -> int:
            while not os.path.exists(path):
                time.sleep(0.05)
            return value

        orders = orders.coalesce(1).withColumn("customer", functions.udf(pass_gate, "long")("customer"))
    settings = lake_writer.write_options(table.written, commit, None, options or {})
    orders.write.format("hudi").options(**settings).mode("append").save(str(table.path))


def clustering(table: Table, mode: Mode, *instants: str, **options: str) -> JobRequest:
    return table.request(mode, *instants, service=Service.CLUSTERING, service_options=options)


@pytest.mark.parametrize(("type", "version"), [pytest.param("MOR", 9, marks=pytest.mark.soak), ("COW", 9), ("MOR", 6)])
def test_small_files_become_few_and_rows_stay(
    spark: SparkSession, make_table: MakeTable, type: str, version: int
) -> None:
    table = make_table(type=type, version=version)
    before, groups, files = content(spark, table), file_groups(spark, table), table.files()

    scheduled = run(spark, clustering(table, Mode.SCHEDULE))
    assert scheduled.outcome is Outcome.SCHEDULED, scheduled.message
    (instant,) = scheduled.scheduled_instants
    action = "clustering" if version >= 8 else "replacecommit"
    assert table.files() - files == {f"{instant}.{action}.requested"}
    # The manager distinguishes the plan from an insert overwrite, whatever its action is called.
    seen = TableViewCache().refresh(str(table.path)).timeline.pending(Action.CLUSTERING)
    assert [plan.requested_time for plan in seen] == [instant]
    executed = run(spark, clustering(table, Mode.EXECUTE))
    assert (executed.outcome, executed.completed_instants) == (Outcome.COMPLETED, (instant,)), executed.message

    after = file_groups(spark, table)
    assert len(after) < len(groups)
    assert content(spark, table) == before
    # Nothing rode along: all that is new on the timeline is this instant.
    assert {name.split(".")[0].split("_")[0] for name in table.files() - files} == {instant}
    assert files <= table.files()
    assert table.properties()["hoodie.table.version"] == str(version)

    files = table.files()
    again = run(spark, clustering(table, Mode.EXECUTE, instant))
    assert (again.outcome, again.completed_instants) == (Outcome.COMPLETED, (instant,))
    assert run(spark, clustering(table, Mode.EXECUTE)).outcome is Outcome.NOTHING_TO_DO
    assert table.files() == files
    assert run(spark, clustering(table, Mode.SCHEDULE_AND_EXECUTE)).outcome is Outcome.NOTHING_TO_DO
    assert table.files() == files


def test_plan_strategy_of_the_caller_is_used_and_hudis_own_gate_is_open(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table(type="COW")
    before, groups = content(spark, table), file_groups(spark, table)
    options = {
        **ONLY_BILBAO,
        "hoodie.clustering.inline.max.commits": "1000",
        "hoodie.clustering.async.max.commits": "1000",
        # With it Hudi beats for the plan while no driver executes it.
        "hoodie.clustering.enable.expirations": "true",
    }
    result = run(spark, clustering(table, Mode.SCHEDULE_AND_EXECUTE, **options))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert result.scheduled_instants == result.completed_instants
    changed = groups ^ file_groups(spark, table)
    assert {partition for partition, _ in changed} == {"Bilbao"}
    assert content(spark, table) == before


def test_plan_that_is_gone_is_named_and_the_others_still_run(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(type="COW")
    pending = run(spark, clustering(table, Mode.SCHEDULE)).scheduled_instants
    result = run(spark, clustering(table, Mode.EXECUTE, NO_SUCH_PLAN, *pending))
    assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.PLAN_GONE)
    assert NO_SUCH_PLAN in result.message
    assert result.completed_instants == pending


def test_second_executor_of_one_plan_is_kept_away_until_the_heartbeat_is_old(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table(type="COW")
    (instant,) = run(spark, clustering(table, Mode.SCHEDULE)).scheduled_instants
    heartbeat = table.path / ".hoodie" / ".heartbeat" / instant
    heartbeat.parent.mkdir(exist_ok=True)
    heartbeat.touch()
    files = table.files()
    busy = run(spark, clustering(table, Mode.EXECUTE))
    assert (busy.outcome, busy.failure_kind) == (Outcome.FAILED, FailureKind.BUSY)
    assert "heartbeat" in busy.message
    assert table.files() == files

    ten_minutes_ago = time.time() - 600
    os.utime(heartbeat, (ten_minutes_ago, ten_minutes_ago))
    assert run(spark, clustering(table, Mode.EXECUTE)).completed_instants == (instant,)
    assert not heartbeat.exists()


def test_plan_that_another_executor_has_begun_is_left_to_it(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    """A writer's own clustering, with Hudi's client: it has no heartbeat, and is held before its commit."""
    table = make_table(type="COW")
    before = content(spark, table)
    settings = lake_writer.write_options(table.written, 3, None, {})
    lock = tmp_path / "lock-of-the-other" / "lock"
    lock.parent.mkdir()
    settings |= {"hoodie.clustering.inline.max.commits": "1", "hoodie.table.services.enabled": "true"}
    settings |= {"hoodie.write.lock.filesystem.path": str(lock.parent), "hoodie.write.lock.filesystem.expire": "0"}
    with open_client(spark, str(table.path), settings, {}) as client, ThreadPoolExecutor(1) as pool:
        none = spark._jvm.org.apache.hudi.common.util.Option.empty()
        plan = str(client.scheduleClustering(none).get())
        assert clustering_of(table, 60).verdict is Verdict.NOT_DUE, "the driver that planned it goes on to execute it"
        hasty = run(spark, clustering(table, Mode.SCHEDULE_AND_EXECUTE))
        assert (hasty.outcome, hasty.failure_kind) == (Outcome.FAILED, FailureKind.BUSY), hasty.message
        assert plan in hasty.message
        assert clustering_of(table, 700).plan_instants == (plan,), "it never began"

        ended = pool.submit(client.cluster, plan, True)
        inflight = table.timeline / f"{plan}.clustering.inflight"
        wait_until(lambda: (inflight.exists() and take(lock)) or ended.done())
        assert not ended.done(), ended.exception()
        assert clustering_of(table, 3000).verdict is Verdict.NOT_DUE
        files = table.files()
        for mode in (Mode.EXECUTE, Mode.SCHEDULE_AND_EXECUTE):
            busy = run(spark, clustering(table, mode))
            assert (busy.outcome, busy.failure_kind) == (Outcome.FAILED, FailureKind.BUSY), busy.message
            assert plan in busy.message
        assert table.files() == files
        assert clustering_of(table, 7500).plan_instants == (plan,), "it has shown no sign of life for two hours"
        lock.unlink()
        ended.result(timeout=120)
    assert plan in table.completed("replacecommit")
    assert content(spark, table) == before


def clustering_of(table: Table, after_s: int) -> Decision:
    """Decide as the manager would, that many seconds from now."""
    views = TableViewCache()
    policy = TablePolicy(doctor=DoctorPolicy(stuck_after_s=600, unguarded_after_s=7200), hudi_options=LOCK)
    now_ms = int((time.time() + after_s) * 1000)
    decided = decide_now(views, load_facts(views, views.refresh(str(table.path)), policy, now_ms), policy, now_ms)
    return next(found for found in decided if found.service is Service.CLUSTERING)


def take(lock: Path) -> bool:
    try:
        lock.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def test_pending_plan_makes_hudi_refuse_updates_of_its_file_groups_and_no_others(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table(type="COW")
    commit = table.written.commits
    (instant,) = run(spark, clustering(table, Mode.SCHEDULE, **ONLY_BILBAO)).scheduled_instants
    update(spark, table, commit, "Aachen")
    with pytest.raises(Py4JJavaError, match="HoodieClusteringUpdateException"):
        update(spark, table, commit, "Bilbao")
    before = content(spark, table)
    result = run(spark, clustering(table, Mode.EXECUTE))
    assert (result.outcome, result.completed_instants) == (Outcome.COMPLETED, (instant,)), result.message
    assert content(spark, table) == before
    update(spark, table, commit, "Bilbao")
    assert {row[1] for row in rows(spark, table) if row[3] == commit} == {"Aachen", "Bilbao"}


def test_writer_on_other_file_groups_commits_while_the_clustering_runs(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table(type="COW")
    (instant,) = run(spark, clustering(table, Mode.SCHEDULE, **ONLY_BILBAO)).scheduled_instants
    commit, inflight = table.written.commits, table.timeline / f"{instant}.clustering.inflight"
    with ThreadPoolExecutor(1) as pool:
        executed = pool.submit(run, spark, clustering(table, Mode.EXECUTE))
        while not inflight.exists() and not executed.done():
            time.sleep(0.001)
        update(spark, table, commit, "Aachen")
        result = executed.result()
    assert (result.outcome, result.completed_instants) == (Outcome.COMPLETED, (instant,)), result.message
    (clustered,) = table.spans("replacecommit")
    assert table.spans("commit")[-1][0] < clustered[1], "the writer began after the clustering"
    assert {row[1] for row in rows(spark, table) if row[3] == commit} == {"Aachen"}
    assert len(rows(spark, table)) == len(rows_written(spark, table.written, commit))


def test_writer_that_began_before_the_plan_loses_to_the_clustering(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    table = make_table(type="COW")
    gate, commit = tmp_path / "gate", table.written.commits
    instants = table.files()
    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(update, spark, table, commit, "Bilbao", gate=gate)
        while table.files() == instants and not writer.done():
            time.sleep(0.01)
        before = content(spark, table)
        result = run(spark, clustering(table, Mode.SCHEDULE_AND_EXECUTE))
        gate.touch()
        error = writer.exception()
    assert result.outcome is Outcome.COMPLETED, result.message
    assert "HoodieWriteConflictException" in str(error)
    assert content(spark, table) == before


def test_clustering_that_gives_way_to_a_writer_says_conflict(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(type="COW")
    gives_way = {
        "hoodie.write.lock.conflict.resolution.strategy": (
            "org.apache.hudi.client.transaction.PreferWriterConflictResolutionStrategy"
        ),
        "hoodie.clustering.updates.strategy": (
            "org.apache.hudi.client.clustering.update.strategy.SparkAllowUpdateStrategy"
        ),
    }
    (instant,) = run(spark, clustering(table, Mode.SCHEDULE)).scheduled_instants
    update(spark, table, table.written.commits, "Bilbao", gives_way)
    before = content(spark, table)
    result = run(spark, clustering(table, Mode.EXECUTE, **gives_way))
    assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.CONFLICT), result.message
    assert content(spark, table) == before
    # It does not get better by waiting: the writer's commit stands in the plan's way, and updates would be refused.
    assert result.message.endswith("the plan is withdrawn"), result.message
    assert not any(name.startswith(instant) and "clustering" in name for name in table.files())
    assert run(spark, clustering(table, Mode.SCHEDULE_AND_EXECUTE)).outcome is Outcome.COMPLETED
    assert content(spark, table) == before
