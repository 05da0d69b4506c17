"""A clean removed log files of a pending compaction, which then failed in every try.

Report: https://github.com/apache/hudi/issues/19290
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import run
from held_writers import again_when_not_held, start_writer_of
from kept_rows import CITIES, COMPARE_ALL, KeptTable, first_rows

from airflow_lake_provider.job_contract import FailureKind, Mode, Outcome, Service
from lake_jobs.hudi.table import open_client
from local_stack import lake_writer

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from airflow_lake_provider.job_contract import ServiceResult

KEEP_ONE_VERSION = {
    "hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS",
    "hoodie.clean.fileversions.retained": "1",
}
NON_BLOCKING = {
    "hoodie.index.type": "BUCKET",
    "hoodie.bucket.index.num.buckets": "2",
    "hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL",
    "hoodie.table.type": "MERGE_ON_READ",
}


def clean(kept: KeptTable) -> ServiceResult:
    request = kept.table.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.CLEAN, service_options=KEEP_ONE_VERSION)
    return run(kept.spark, request)


def execute(kept: KeptTable, plan: str) -> ServiceResult:
    return run(kept.spark, kept.table.request(Mode.EXECUTE, plan, service_options=COMPARE_ALL))


def overwritten(spark: SparkSession, path: Path, version: int) -> tuple[KeptTable, str]:
    """Return a table that was overwritten after a compaction was planned, and the plan."""
    kept = KeptTable(spark, path, version=version)
    kept.write(first_rows())
    kept.write((i, CITIES[i % 2], 1.0, 1) for i in range(6))
    (plan,) = kept.serve(Service.COMPACTION, Mode.SCHEDULE).scheduled_instants
    kept.rows.clear()
    kept.write([(i, CITIES[i % 2], 9.0, 9) for i in range(30, 36)], "insert_overwrite_table")
    for turn in range(2):
        kept.write((i, CITIES[i % 2], 2.0, 10 + turn) for i in range(30, 33))
    return kept, plan


@pytest.mark.parametrize("version", [9, pytest.param(6, marks=pytest.mark.soak)])
def test_plan_over_file_groups_that_are_replaced_since(spark: SparkSession, tmp_path: Path, version: int) -> None:
    kept, plan = overwritten(spark, tmp_path / "t", version)
    early = clean(kept)
    assert execute(kept, plan).outcome is Outcome.COMPLETED
    kept.require_rows()
    assert (early.outcome, early.failure_kind) == (Outcome.FAILED, FailureKind.CONFLICT), early.message
    assert f"which the pending compaction {plan} reads; nothing was deleted" in early.message
    assert early.message.endswith("the plan is withdrawn")
    late = clean(kept)
    assert late.outcome is Outcome.COMPLETED, late.message
    kept.require_rows()


@pytest.mark.soak
def test_plan_over_file_groups_that_a_writers_clean_has_removed(spark: SparkSession, tmp_path: Path) -> None:
    kept, plan = overwritten(spark, tmp_path / "t", 9)
    settings = lake_writer.write_options(kept.table.written, 3, None, {}) | {"hoodie.table.services.enabled": "true"}
    with open_client(spark, str(kept.path), settings | KEEP_ONE_VERSION, {}) as client:
        assert client.clean() is not None
    ended = execute(kept, plan)
    assert (ended.outcome, ended.failure_kind) == (Outcome.FAILED, FailureKind.CONFLICT), ended.message
    assert "file groups of the plan have no file left, as a clean leaves those that were replaced" in ended.message
    assert ended.message.endswith("the plan is withdrawn")
    kept.require_rows()
    assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    kept.require_rows()


@pytest.mark.soak
@again_when_not_held
def test_log_file_that_is_older_than_its_base_file(spark: SparkSession, tmp_path: Path) -> None:
    kept = KeptTable(spark, tmp_path / "t", options=NON_BLOCKING)
    kept.write(first_rows())
    kept.write((i, CITIES[i % 2], 1.0, 1) for i in range(6))
    late = [(i, CITIES[i % 2], 5.0, 5) for i in range(6, 12)]
    held = start_writer_of(spark.createDataFrame(late, kept.schema), kept.table, tmp_path / "held", {})
    assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    assert held.release() == ""
    kept.rows |= {row[0]: row for row in late}
    for turn in range(3):
        kept.write((i, CITIES[i % 2], 2.0, 10 + turn) for i in range(3))
    (plan,) = kept.serve(Service.COMPACTION, Mode.SCHEDULE).scheduled_instants
    kept.write((i, CITIES[i % 2], 2.0, 20) for i in range(3))
    assert clean(kept).outcome is not Outcome.FAILED
    kept.require_rows()
    assert execute(kept, plan).outcome is Outcome.COMPLETED
    kept.require_rows()
