"""A copied or moved table kept plans that name files of its old place.

Report: https://github.com/apache/hudi/issues/2573
Report: https://github.com/apache/hudi/issues/8922
Report: https://github.com/apache/hudi/pull/1062
Verdict: right
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from conftest import LOCK, run
from kept_rows import CITIES, KEEP_ONE_COMMIT, KeptTable, first_rows

from airflow_lake_provider.job_contract import FailureKind, Mode, Outcome, Service
from lake_jobs.hudi.table import find_instant, open_client, read_table_state

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def data_files(kept: KeptTable) -> set[str]:
    return {path.name for path in kept.path.rglob("*.parquet") if ".hoodie" not in path.parts}


def written(spark: SparkSession, path: Path, version: int = 9) -> KeptTable:
    kept = KeptTable(spark, path, type="COW", version=version)
    kept.write(first_rows())
    for value in (1, 2, 3):
        kept.write((i, CITIES[i % 2], float(value), value) for i in range(6))
    return kept


def copied(kept: KeptTable, path: Path) -> KeptTable:
    shutil.copytree(kept.path, path)
    return replace(kept, path=path, rows=dict(kept.rows))


@pytest.mark.parametrize("version", [9, pytest.param(6, marks=pytest.mark.soak)])
def test_a_clean_of_the_copy_leaves_the_original_alone(spark: SparkSession, tmp_path: Path, version: int) -> None:
    original = written(spark, tmp_path / "orders", version)
    assert original.serve(Service.CLEAN, Mode.SCHEDULE, **KEEP_ONE_COMMIT).outcome is Outcome.SCHEDULED
    copy = copied(original, tmp_path / "orders_copy")
    before = data_files(original)
    done = run(spark, copy.table.request(Mode.EXECUTE, service=Service.CLEAN))
    assert (done.outcome, done.failure_kind) == (Outcome.FAILED, FailureKind.CONFLICT), done.message
    assert f"{original.path}/" in done.message
    assert "which is not in this table" in done.message
    assert done.message.endswith("the plan is withdrawn")
    assert data_files(original) == data_files(copy) == before
    assert copy.serve(Service.CLEAN, **KEEP_ONE_COMMIT).outcome is Outcome.COMPLETED
    assert data_files(copy) < before == data_files(original)
    for kept in (original, copy):
        kept.require_rows()
    assert original.serve(Service.CLEAN, Mode.EXECUTE).outcome is Outcome.COMPLETED
    original.require_rows()


@pytest.mark.soak
@pytest.mark.parametrize("is_moved", [False, True], ids=["copied", "moved"])
def test_a_clustering_reads_its_own_files(spark: SparkSession, tmp_path: Path, is_moved: bool) -> None:
    original = written(spark, tmp_path / "orders")
    assert original.serve(Service.CLUSTERING, Mode.SCHEDULE).outcome is Outcome.SCHEDULED
    copy = copied(original, tmp_path / "orders_copy")
    if is_moved:
        shutil.rmtree(original.path)
    done = run(spark, copy.table.request(Mode.EXECUTE, service=Service.CLUSTERING))
    assert (done.outcome, done.failure_kind) == (Outcome.FAILED, FailureKind.CONFLICT), done.message
    assert done.message.endswith("the plan is withdrawn")
    copy.require_rows()
    assert copy.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
    copy.write((i, CITIES[i % 2], 9.0, 9) for i in range(3))
    copy.require_rows()


@pytest.mark.soak
def test_the_same_table_by_a_link_is_no_copy(spark: SparkSession, tmp_path: Path) -> None:
    kept = written(spark, tmp_path / "orders")
    assert kept.serve(Service.CLEAN, Mode.SCHEDULE, **KEEP_ONE_COMMIT).outcome is Outcome.SCHEDULED
    (tmp_path / "link").symlink_to(kept.path)
    linked = replace(kept, path=tmp_path / "link")
    before = data_files(kept)
    assert linked.serve(Service.CLEAN, Mode.EXECUTE).outcome is Outcome.COMPLETED
    assert data_files(kept) < before
    kept.require_rows()


@pytest.mark.soak
def test_a_rollback_of_the_copy_leaves_the_original_alone(spark: SparkSession, tmp_path: Path) -> None:
    original = KeptTable(spark, tmp_path / "orders", type="COW", options={"hoodie.metadata.enable": "false"})
    original.write(first_rows())
    kept = dict(original.rows)
    original.write([(1, CITIES[1], 9.0, 9)])
    completed = max(original.table.timeline.glob("*.commit"))
    failed = completed.name.split("_")[0]
    completed.unlink()
    original.rows = kept
    beat = original.path / ".hoodie" / ".heartbeat" / failed
    beat.parent.mkdir(exist_ok=True)
    beat.touch()
    os.utime(beat, (1, 1))
    plan_rollback(spark, original, failed)
    copy = copied(original, tmp_path / "orders_copy")
    os.utime(copy.path / ".hoodie" / ".heartbeat" / failed, (1, 1))
    before = data_files(original)
    # The write completed once, and left no markers.
    by_listing = {"hoodie.rollback.using.markers": "false"}
    assert copy.serve(Service.ROLLBACK, Mode.EXECUTE, **by_listing).outcome is Outcome.COMPLETED
    assert data_files(copy) < before == data_files(original)
    copy.require_rows()
    assert original.serve(Service.ROLLBACK, Mode.EXECUTE, **by_listing).outcome is Outcome.COMPLETED
    assert data_files(original) == data_files(copy)
    original.require_rows()


def plan_rollback(spark: SparkSession, kept: KeptTable, write: str) -> None:
    """Plan the rollback of a pending write, and do not execute it."""
    state = read_table_state(spark, str(kept.path))
    with open_client(spark, str(kept.path), LOCK | {"hoodie.metadata.enable": "false"}, {}) as client:
        table = spark._jvm.org.apache.hudi.table.HoodieSparkTable.create(client.getConfig(), client.getEngineContext())
        no = False
        context, instant = client.getEngineContext(), client.createNewInstantTime(no)
        table.scheduleRollback(context, instant, find_instant(state.timeline, write), no, no, no)
