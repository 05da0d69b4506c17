"""A rollback removed acknowledged rows of a commit that its writer was about to complete.

Report: https://github.com/apache/hudi/pull/10593
Report: https://github.com/apache/hudi/pull/18089
Verdict: right
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import pytest
from conftest import MakeTable, rows, run
from paused_writers import start_paused_writer

from airflow_lake_provider.job_contract import JobRequest, Mode, Outcome, Service
from lake_jobs.hudi import store_clock
from lake_jobs.services import rollback as rollback_job

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Table
    from pyspark.sql import SparkSession

    from lake_jobs.hudi.table import LoadedTable
    from lake_jobs.services.context import ServiceContext


def rollback(table: Table) -> JobRequest:
    return table.request(Mode.EXECUTE, service=Service.ROLLBACK)


@pytest.mark.parametrize("reading", [pytest.param(2, marks=pytest.mark.soak), 3])
def test_rows_are_there_exactly_if_their_commit_was_acknowledged(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reading: int
) -> None:
    """The writer stood still for minutes, and goes on just after the service has found its beat too old."""
    table = make_table(type="COW")
    before = rows(spark, table)
    writer = start_paused_writer(spark, table, tmp_path, 60_000)
    beat = table.path / ".hoodie" / ".heartbeat" / writer.instant
    find_dead, reads = rollback_job._find_dead_writes, []

    def find(context: ServiceContext, state: LoadedTable) -> tuple[str, ...]:
        reads.append(beat.exists())
        if len(reads) <= reading and beat.exists():
            os.utime(beat, (time.time() - 300,) * 2)
        found = find_dead(context, state)
        if len(reads) == reading:
            assert found == (writer.instant,)
            writer.gate.touch()
            deadline = time.monotonic() + 20
            while not writer.outcome.done() and time.monotonic() < deadline:
                time.sleep(0.1)
        return found

    monkeypatch.setattr(rollback_job, "_find_dead_writes", find)
    result = run(spark, rollback(table))
    try:
        writer.finish()
        is_acknowledged = True
    except Exception:  # noqa: BLE001 - Hudi's writer says in many ways that it was rolled back
        is_acknowledged = False
    assert len(rows(spark, table)) == len(before) + (20 if is_acknowledged else 0), result.message
    assert (result.outcome is Outcome.COMPLETED) is not is_acknowledged, result.message


def test_living_writer_stays_though_the_drivers_clock_is_minutes_ahead(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is three minutes behind: so it stamps heartbeats, and every file that is written."""
    table = make_table(type="COW")
    before = rows(spark, table)
    writer = start_paused_writer(spark, table, tmp_path, 50_000)
    beat, is_over = table.path / ".hoodie" / ".heartbeat" / writer.instant, threading.Event()

    def stamp() -> None:
        while not is_over.wait(0.02):
            if beat.exists():
                os.utime(beat, (time.time() - 180,) * 2)

    find_modified_ms = store_clock.find_modified_ms
    monkeypatch.setattr(store_clock, "find_modified_ms", lambda *of: find_modified_ms(*of) - 180_000)
    thread = threading.Thread(target=stamp, daemon=True)
    thread.start()
    time.sleep(0.2)
    try:
        result = run(spark, rollback(table))
    finally:
        is_over.set()
        thread.join()
    assert result.outcome is Outcome.NOTHING_TO_DO, result.message
    writer.finish()
    assert len(rows(spark, table)) == len(before) + 20
