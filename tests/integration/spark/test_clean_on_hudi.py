"""Cleans of real tables, run inside the test's own Spark session."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from conftest import MakeTable, Table, content, run, write

from airflow_lake_provider.instant_clock import MARGIN_COMMITS_OF_HOURS, shift_instant_time
from airflow_lake_provider.job_contract import (
    RETAINED_HOURS,
    SAFEPOINT,
    FailureKind,
    JobRequest,
    Mode,
    Outcome,
    Service,
)
from lake_jobs.hudi.table import open_client
from local_stack import lake_writer

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

KEEP_ONE_VERSION = {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.clean.fileversions.retained": "1"}
KEEP_ONE_COMMIT = {"hoodie.clean.policy": "KEEP_LATEST_COMMITS", "hoodie.clean.commits.retained": "1"}


def clean(table: Table, mode: Mode, *instants: str, options: dict[str, str] | None = None) -> JobRequest:
    return table.request(mode, *instants, service=Service.CLEAN, service_options=options)


def data_files(table: Table) -> set[str]:
    return {
        path.name
        for path in table.path.rglob("*")
        if ".hoodie" not in path.parts and path.is_file() and not path.name.endswith(".crc")
    } - {".hoodie_partition_metadata"}


@pytest.mark.parametrize(
    ("type", "version", "options", "versions_left"),
    [
        pytest.param("COW", 9, KEEP_ONE_VERSION, 1, id="cow-versions"),
        pytest.param("COW", 9, KEEP_ONE_COMMIT, 2, id="cow-commits"),
        pytest.param("MOR", 9, KEEP_ONE_VERSION, 1, id="mor-versions"),
        pytest.param("MOR", 6, KEEP_ONE_VERSION, 1, id="mor-6-versions", marks=pytest.mark.soak),
    ],
)
def test_old_file_slices_go_and_rows_stay(
    spark: SparkSession, make_table: MakeTable, type: str, version: int, options: dict[str, str], versions_left: int
) -> None:
    table = make_table(type=type, version=version)
    if type == "MOR":
        assert run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE)).outcome is Outcome.COMPLETED
    before, files, timeline = content(spark, table), data_files(table), table.files()

    scheduled = run(spark, clean(table, Mode.SCHEDULE, options=options))
    (instant,) = scheduled.scheduled_instants
    assert table.files() - timeline == {f"{instant}.clean.requested"}
    assert data_files(table) == files
    executed = run(spark, clean(table, Mode.EXECUTE, options=options))
    assert (executed.outcome, executed.completed_instants) == (Outcome.COMPLETED, (instant,)), executed.message

    assert data_files(table) < files
    assert max(Counter(name.split("_")[0] for name in data_files(table)).values()) == versions_left
    assert content(spark, table) == before
    assert timeline <= table.files()
    assert {name.split(".")[0].split("_")[0] for name in table.files() - timeline} == {instant}
    assert table.properties()["hoodie.table.version"] == str(version)

    timeline = table.files()
    again = run(spark, clean(table, Mode.EXECUTE, instant, options=options))
    assert (again.outcome, again.completed_instants) == (Outcome.COMPLETED, (instant,))
    assert run(spark, clean(table, Mode.SCHEDULE_AND_EXECUTE, options=options)).outcome is Outcome.NOTHING_TO_DO
    assert table.files() == timeline


def make_older(table: Table, requested: str, by_s: int) -> None:
    """Move a commit of a table of version 6 into the past: names, what the timeline says of them, and file times."""
    older = shift_instant_time(requested, -by_s * 1000)
    for path in [path for path in table.path.rglob("*") if path.is_file()]:
        content = path.read_bytes()
        modified_s = path.stat().st_mtime
        if ".hoodie" in path.parts and requested.encode() in content:
            path.write_bytes(content.replace(requested.encode(), older.encode()))
            os.utime(path, (modified_s, modified_s))
        if path.name.endswith(".crc") and (requested in path.name or ".hoodie" in path.parts):
            path.unlink()
        elif requested in path.name:
            os.utime(path, (modified_s - by_s, modified_s - by_s))
            path.rename(path.with_name(path.name.replace(requested, older)))


def test_retention_by_hours_keeps_what_was_replaced_within_them(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(type="COW", version=6, **{"hoodie.metadata.enable": "false"})
    for commit in range(3, 7):
        write(spark, table.written, commit)
    commits = sorted(table.completed())
    for number, requested in enumerate(commits[:-1]):
        make_older(table, requested, (10 - number) * 3600)
    before, files = content(spark, table), data_files(table)
    versions = max(Counter(name.split("_")[0] for name in files).values())
    by_hours = {"hoodie.clean.policy": "KEEP_LATEST_COMMITS", "hoodie.clean.commits.retained": "1"}

    within = clean(table, Mode.SCHEDULE_AND_EXECUTE, options={**by_hours, RETAINED_HOURS: "24"})
    assert run(spark, within).outcome is Outcome.NOTHING_TO_DO
    assert data_files(table) == files
    ran = run(spark, clean(table, Mode.SCHEDULE_AND_EXECUTE, options={**by_hours, RETAINED_HOURS: "1"}))
    assert ran.outcome is Outcome.COMPLETED, ran.message
    left = max(Counter(name.split("_")[0] for name in data_files(table)).values())
    # The commit of this hour, what it replaced, and room for commits that complete meanwhile.
    assert 2 <= left == 2 + 1 + MARGIN_COMMITS_OF_HOURS < versions
    assert content(spark, table) == before
    # No less than Hudi's own retention by hours keeps.
    own = {"hoodie.clean.policy": "KEEP_LATEST_BY_HOURS", "hoodie.clean.hours.retained": "1"}
    assert run(spark, clean(table, Mode.SCHEDULE_AND_EXECUTE, options=own)).outcome is Outcome.COMPLETED
    assert max(Counter(name.split("_")[0] for name in data_files(table)).values()) == 2


def test_clean_by_hand_waits_for_a_pending_clustering(spark: SparkSession, make_table: MakeTable) -> None:
    """A caller that asks for it does not ask the manager, whose decisions keep this order."""
    table = make_table(type="COW")
    (plan,) = run(spark, table.request(Mode.SCHEDULE, service=Service.CLUSTERING)).scheduled_instants
    before, timeline = data_files(table), table.files()
    for mode in (Mode.SCHEDULE, Mode.SCHEDULE_AND_EXECUTE):
        refused = run(spark, clean(table, mode, options=KEEP_ONE_VERSION))
        assert (refused.outcome, refused.failure_kind) == (Outcome.FAILED, FailureKind.CONFLICT)
        assert plan in refused.message
    assert (data_files(table), table.files()) == (before, timeline)
    clustered = run(spark, table.request(Mode.EXECUTE, plan, service=Service.CLUSTERING))
    assert clustered.completed_instants == (plan,), clustered.message
    cleaned = run(spark, clean(table, Mode.SCHEDULE_AND_EXECUTE, options=KEEP_ONE_VERSION))
    assert cleaned.outcome is Outcome.COMPLETED, cleaned.message
    assert before - data_files(table)


@pytest.mark.parametrize("inflight", [False, True], ids=["requested", "inflight"])
def test_clean_that_a_dead_executor_left_is_executed_and_no_other_is_planned(
    spark: SparkSession, make_table: MakeTable, inflight: bool
) -> None:
    table = make_table(type="COW")
    (instant,) = run(spark, clean(table, Mode.SCHEDULE, options=KEEP_ONE_VERSION)).scheduled_instants
    if inflight:
        # What an executor leaves that died while it deleted files.
        (table.timeline / f"{instant}.clean.inflight").touch()
        next(path for path in table.path.rglob("*.parquet") if path.name in planned_files(table, instant)).unlink()
    before, timeline = content(spark, table), table.files()
    second = run(spark, clean(table, Mode.SCHEDULE, options=KEEP_ONE_VERSION))
    assert second.outcome is Outcome.NOTHING_TO_DO
    assert instant in second.message
    assert table.files() == timeline
    heartbeat = table.path / ".hoodie" / ".heartbeat" / instant
    if not inflight:
        heartbeat.unlink()
    # The plan of another executor, maybe at work: the heartbeat's rest says which one made the plan, not which began.
    for mode in (Mode.SCHEDULE_AND_EXECUTE, Mode.EXECUTE) if inflight else (Mode.SCHEDULE_AND_EXECUTE,):
        busy = run(spark, clean(table, mode, options=KEEP_ONE_VERSION))
        assert (busy.outcome, busy.failure_kind) == (Outcome.FAILED, FailureKind.BUSY), busy.message
        assert instant in busy.message
    assert table.files() == timeline
    heartbeat.touch()
    make_old(heartbeat)

    result = run(spark, clean(table, Mode.SCHEDULE_AND_EXECUTE, options=KEEP_ONE_VERSION))
    assert (result.outcome, result.completed_instants) == (Outcome.COMPLETED, (instant,)), result.message
    assert result.scheduled_instants == ()
    assert content(spark, table) == before
    assert {name.split(".")[0].split("_")[0] for name in table.files() - timeline} == {instant}
    assert planned_files(table, instant).isdisjoint(data_files(table))


@pytest.mark.soak
def test_a_clean_that_was_begun_is_executed_next_to_a_sink(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(type="COW")
    before = content(spark, table)
    (instant,) = run(spark, clean(table, Mode.SCHEDULE, options=KEEP_ONE_COMMIT)).scheduled_instants
    (table.timeline / f"{instant}.clean.inflight").touch()
    heartbeat = table.path / ".hoodie" / ".heartbeat" / instant
    heartbeat.touch()
    make_old(heartbeat)
    has_all = {SAFEPOINT: "99991231235959999"}
    result = run(spark, clean(table, Mode.EXECUTE, options=KEEP_ONE_COMMIT | has_all))
    assert (result.outcome, result.completed_instants) == (Outcome.COMPLETED, (instant,)), result.message
    assert content(spark, table) == before


def test_default_retention_leaves_a_young_table_alone(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(type="COW")
    files, timeline = data_files(table), table.files()
    result = run(spark, clean(table, Mode.SCHEDULE_AND_EXECUTE))
    assert (result.outcome, result.scheduled_instants) == (Outcome.NOTHING_TO_DO, ()), result.message
    assert (data_files(table), table.files()) == (files, timeline)


def test_shorter_retention_is_had_without_a_new_commit(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(type="COW")
    first = run(spark, clean(table, Mode.SCHEDULE_AND_EXECUTE, options=KEEP_ONE_COMMIT))
    second = run(spark, clean(table, Mode.SCHEDULE_AND_EXECUTE, options=KEEP_ONE_VERSION))
    assert [first.outcome, second.outcome] == [Outcome.COMPLETED, Outcome.COMPLETED], second.message
    assert set(Counter(name.split("_")[0] for name in data_files(table)).values()) == {1}


def test_clean_rolls_no_write_back_whatever_its_heartbeat_says(spark: SparkSession, make_table: MakeTable) -> None:
    """Hudi's own clean would; here it is the service rollback alone, which can be switched off."""
    table = make_table(type="COW")
    writes = {begin_write(spark, table) for _ in range(3)}
    dead, silent, _ = sorted(writes)
    heartbeats = table.path / ".hoodie" / ".heartbeat"
    make_old(heartbeats / dead)
    (heartbeats / silent).unlink()
    result = run(spark, clean(table, Mode.SCHEDULE_AND_EXECUTE, options=KEEP_ONE_COMMIT))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert writes < {name.split(".")[0].split("_")[0] for name in table.files()}
    assert not table.completed("rollback")


def planned_files(table: Table, instant: str) -> set[str]:
    """Return the names of base files that a clean's plan deletes."""
    plan = (table.timeline / f"{instant}.clean.requested").read_bytes().decode("latin-1")
    return set(re.findall(r"[0-9a-f-]{36}-\d+_[0-9-]+_\d{17}\.parquet", plan))


def begin_write(spark: SparkSession, table: Table) -> str:
    """Begin a commit with Hudi's own client and leave it at that; its heartbeat is young."""
    settings = lake_writer.write_options(table.written, 3, None, {})
    with open_client(spark, str(table.path), settings, {}) as client:
        return str(client.startCommit())


def make_old(heartbeat: Path) -> None:
    ten_minutes_ago = time.time() - 600
    os.utime(heartbeat, (ten_minutes_ago, ten_minutes_ago))
