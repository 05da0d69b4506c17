"""The search for orphan files took the files of a table below the base path.

Report: https://github.com/apache/iceberg/issues/4265
Report: https://github.com/apache/iceberg/issues/7111
Verdict: right
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from conftest import MakeTable, Table, rows, run

from airflow_lake_provider.instant_clock import DAY_MS
from airflow_lake_provider.job_contract import JobRequest, Mode, Outcome, Service
from lake_jobs.services import orphans as orphans_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BELOW = "archive/old/orders"


def search(table: Table, mode: Mode) -> JobRequest:
    options = {"lake.orphans.mode": "quarantine", "lake.orphans.min_age_days": "2"}
    return table.request(mode, service=Service.ORPHANS, service_options=options)


def files_of(table: Table) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(table.path.rglob("*")) if path.is_file()}


def test_a_table_below_another_keeps_its_files_and_rows(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = make_table("orders", type="COW")
    made = make_table(f"orders/{BELOW}", type="MOR")
    inner = Table(replace(made.written, name="old_orders"))
    before, files = rows(spark, inner), files_of(inner)
    monkeypatch.setattr(orphans_job, "_now_ms", lambda _context: int(time.time() * 1000) + 10 * DAY_MS)

    for mode in (Mode.SCHEDULE, Mode.EXECUTE):
        result = run(spark, search(outer, mode))
        assert result.outcome is Outcome.NOTHING_TO_DO, result.message
        assert f"not searched, as they are tables of their own: {BELOW}" in result.message
    assert files_of(inner) == files
    assert rows(spark, inner) == before
