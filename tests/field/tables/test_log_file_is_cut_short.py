"""A log file was cut short or emptied: readers skipped its rows, and a compaction lost them for good.

Report: https://github.com/apache/hudi/issues/1202
Report: https://github.com/apache/hudi/issues/8887
Report: https://github.com/apache/hudi/issues/2692
Verdict: refused
Way out: put the file back from a copy, as the doctor says; the manager then executes the plan.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import run
from kept_rows import CITIES, KeptTable, first_rows
from pyspark.sql import SparkSession
from test_compaction_of_a_lost_log_file import POLICY, decide_compaction, now_ms

from airflow_lake_provider.config.policies import StuckKind
from airflow_lake_provider.doctor.table_doctor import TableDoctor
from airflow_lake_provider.job_contract import FailureKind, Mode, Outcome, Service
from airflow_lake_provider.planner.last_runs import NO_LAST_RUNS, RunEnd
from airflow_lake_provider.planner.rules import Verdict
from airflow_lake_provider.storage.table_storage import open_storage

BY_BLOCKS = {"hoodie.log.compaction.blocks.threshold": "1"}


def cut(kept: KeptTable, length: int) -> tuple[Path, bytes]:
    """Cut the first log file of a table; return it, and what it held."""
    log = sorted(file for file in kept.path.glob("*/.*.log.*") if not file.name.endswith(".crc"))[0]
    whole = log.read_bytes()
    log.write_bytes(whole[:length])
    (log.parent / f".{log.name}.crc").unlink(missing_ok=True)
    return log, whole


def updated_twice(spark: SparkSession, path: Path, version: int = 9) -> KeptTable:
    kept = KeptTable(spark, path, version=version)
    kept.write(first_rows())
    kept.write((i, CITIES[i % 2], 1.0, 1) for i in range(8))
    kept.write((i, CITIES[i % 2], 2.0, 2) for i in range(4))
    return kept


@pytest.mark.parametrize(
    ("version", "length"),
    [
        pytest.param(9, 700, id="9-cut"),
        pytest.param(9, 0, id="9-empty", marks=pytest.mark.soak),
        pytest.param(6, 700, id="6-cut", marks=pytest.mark.soak),
    ],
)
def test_compaction_waits_until_the_file_is_whole(
    spark: SparkSession, tmp_path: Path, version: int, length: int
) -> None:
    kept = updated_twice(spark, tmp_path / "t", version)
    log, whole = cut(kept, length)
    assert kept.seen(metadata=False) != sorted(kept.rows.values(), key=repr)

    table = kept.table
    refused = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE))
    assert (refused.outcome, refused.failure_kind) == (Outcome.FAILED, FailureKind.REFUSED), refused.message
    what = f"{log.name} ({length:,} of {len(whole):,} bytes)"
    assert what in refused.message
    first = decide_compaction(table, NO_LAST_RUNS)
    last_runs = NO_LAST_RUNS.started(first, "r1").ended("r1", RunEnd.FAILED, now_ms())
    blocked = decide_compaction(table, last_runs)
    assert (blocked.verdict, what in blocked.reason) == (Verdict.BLOCKED, True)
    found = TableDoctor(open_storage(str(table.path)), POLICY, "test", lambda: now_ms() + 1000).examine()
    (finding,) = [finding for finding, _ in found if finding.instant in first.plan_instants]
    assert (finding.kind, what in finding.message) == (StuckKind.LOST_FILES, True), finding

    log.write_bytes(whole)
    assert decide_compaction(table, last_runs).verdict is Verdict.DUE
    assert kept.serve(Service.COMPACTION, Mode.EXECUTE).outcome is Outcome.COMPLETED
    kept.require_rows()


@pytest.mark.soak
def test_clustering_and_log_compaction_leave_no_plan(spark: SparkSession, tmp_path: Path) -> None:
    kept = updated_twice(spark, tmp_path / "t")
    log, whole = cut(kept, 700)
    refused = run(
        spark, kept.table.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.LOGCOMPACTION, service_options=BY_BLOCKS)
    )
    assert (refused.failure_kind, log.name in refused.message) == (FailureKind.REFUSED, True), refused.message
    assert not [name for name in kept.table.files() if "logcompaction" in name]
    log.write_bytes(whole)
    assert kept.serve(Service.LOGCOMPACTION, **BY_BLOCKS).outcome is Outcome.COMPLETED
    kept.require_rows()
