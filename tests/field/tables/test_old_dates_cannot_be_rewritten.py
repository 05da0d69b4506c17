"""Dates before 1582 or times before 1900, as placeholders are, made compactions and clusterings fail.

Report: https://github.com/apache/hudi/issues/6278
Report: https://github.com/apache/hudi/issues/6305
Report: https://github.com/apache/hudi/issues/6403
Verdict: right
"""

from __future__ import annotations

import importlib
from contextlib import nullcontext
from datetime import date, datetime
from typing import TYPE_CHECKING

import pytest
from conftest import run
from kept_rows import CITIES, SCHEMA, KeptTable

from airflow_lake_provider.job_contract import FailureKind, Mode, Outcome, Service
from lake_jobs.hudi.ancient_dates import REBASE_MODES, copy_ancient_dates

if TYPE_CHECKING:
    from pathlib import Path

    from kept_rows import Row
    from pyspark.sql import DataFrame, SparkSession

DAYS = (date(1, 1, 1), date(1582, 10, 4), None, date(2026, 1, 1))
TIMES = tuple(
    at and datetime.fromisoformat(at)
    for at in ("1899-12-31T23:59:59.123456", None, "0900-01-01T12:00:00", "2026-01-01T00:00:00")
)
WITH_OLD = SCHEMA + ", day date, at timestamp, inner struct<days: array<date>>"


class OldTable(KeptTable):
    """A table whose writers and readers take dates as they are."""

    def append(self, frame: DataFrame, operation: str = "upsert", **options: str) -> None:
        with copy_ancient_dates(self.spark):
            super().append(frame, operation, **options)

    def require_rows(self) -> None:
        with copy_ancient_dates(self.spark):
            super().require_rows()


def row(i: int, ts: int) -> Row:
    return (i, CITIES[i % 2], float(ts), ts, DAYS[(i + ts) % 4], TIMES[i % 4], ([DAYS[i % 2]],))


def table(spark: SparkSession, folder: Path, type: str = "MOR", version: int = 9) -> OldTable:
    columns = ("id", "city", "amount", "ts", "day", "at", "inner")
    return OldTable(spark, folder / "t", type=type, version=version, schema=WITH_OLD, columns=columns)


@pytest.mark.parametrize(
    ("type", "version", "operation"),
    [
        pytest.param("MOR", 9, "upsert", id="MOR-9"),
        pytest.param("COW", 9, "upsert", id="COW-9", marks=pytest.mark.soak),
        pytest.param("MOR", 8, "upsert", id="MOR-8", marks=pytest.mark.soak),
        pytest.param("MOR", 6, "upsert", id="MOR-6", marks=pytest.mark.soak),
        pytest.param("COW", 6, "upsert", id="COW-6", marks=pytest.mark.soak),
        # Spark's own writer names the calendar in the file.
        pytest.param("MOR", 9, "bulk_insert", id="MOR-9-by-rows", marks=pytest.mark.soak),
        pytest.param("COW", 9, "bulk_insert", id="COW-9-by-rows", marks=pytest.mark.soak),
    ],
)
def test_services_copy_them(spark: SparkSession, tmp_path: Path, type: str, version: int, operation: str) -> None:
    kept = table(spark, tmp_path, type, version)
    kept.write((row(i, 0) for i in range(12)), operation)
    kept.write(row(i, 1) for i in range(6))
    kept.require_rows()
    if type == "MOR":
        done = kept.serve(Service.COMPACTION)
        assert done.outcome is Outcome.COMPLETED
        assert done.message.endswith("equal"), done.message
    assert kept.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
    kept.require_rows()
    kept.write(row(i, 2) for i in range(3, 9))
    kept.require_rows()
    assert {str(spark.conf.get(key)) for key in REBASE_MODES} == {"EXCEPTION"}


@pytest.mark.soak
@pytest.mark.parametrize("verify", ["all", "off"])
def test_rows_that_hudi_cannot_write_are_no_difference(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify: str
) -> None:
    """Without the settings of `copy_ancient_dates` Hudi writes the other rows, and counts those it did not write."""
    kept = table(spark, tmp_path)
    kept.write(row(i, 0) for i in range(12))
    kept.write(row(i, 1) for i in range(6))
    options = {"lake.verify": verify}
    asked = kept.table.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.COMPACTION, service_options=options)
    with monkeypatch.context() as patch:
        patch.setattr(importlib.import_module("run_services"), "copy_ancient_dates", nullcontext)
        # Reading is allowed, or the job fails before it writes.
        for key in (key for key in REBASE_MODES if key.endswith("Read")):
            spark.conf.set(key, "CORRECTED")
        failed = run(spark, asked)
        for key in (key for key in REBASE_MODES if key.endswith("Read")):
            spark.conf.unset(key)
    assert failed.failure_kind is FailureKind.OTHER
    assert "Hudi failed to write" in failed.message
    kept.require_rows()
    assert run(spark, asked).outcome is Outcome.COMPLETED
    kept.require_rows()
