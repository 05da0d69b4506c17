"""A crash left `manifest_<n>.<uuid>` in the archived timeline, and later archiving failed on its name.

Report: https://github.com/apache/hudi/issues/19649
Verdict: right
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from conftest import run
from kept_rows import CITIES, KEEP_ONE_COMMIT, KeptTable, first_rows

from airflow_lake_provider.job_contract import Mode, Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

ARCHIVE = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"} | KEEP_ONE_COMMIT


def test_archiving_takes_it_away(spark: SparkSession, tmp_path: Path) -> None:
    kept = KeptTable(spark, tmp_path / "t", options={"hoodie.metadata.enable": "false"})
    kept.write(first_rows())
    for turn in range(1, 6):
        kept.write((i, CITIES[i % 2], float(turn), turn) for i in range(6))
    assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT)
    first = kept.serve(Service.ARCHIVE, **ARCHIVE)
    assert first.outcome is Outcome.COMPLETED, first.message
    history = kept.path / ".hoodie" / "timeline" / "history"
    newest = max(int(file.name.partition("_")[2]) for file in history.glob("manifest_*"))
    left = history / f"manifest_{newest + 1}.a5e022a6-e5c9-4450-b9e5-9296262329b5"
    left.write_bytes(b"")
    for turn in range(6, 12):
        kept.write((i, CITIES[i % 2], float(turn), turn) for i in range(6))
    assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    kept.require_rows()
    kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT)
    # It may be a living writer's: Hudi fails then, where it removes old manifests, after it has archived.
    request = kept.table.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.ARCHIVE, service_options=ARCHIVE)
    failed = run(spark, request)
    assert (failed.outcome, left.name.partition("_")[2] in failed.message) == (Outcome.FAILED, True), failed.message
    kept.require_rows()

    two_hours_ago_s = time.time() - 7200
    os.utime(left, (two_hours_ago_s, two_hours_ago_s))
    for turn in range(12, 18):
        kept.write((i, CITIES[i % 2], float(turn), turn) for i in range(6))
    assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT)
    assert kept.serve(Service.ARCHIVE, **ARCHIVE).outcome is Outcome.COMPLETED
    assert not left.exists()
    assert (kept.path / ".hoodie" / ".aux" / "lake_archive" / left.name).exists()
    kept.require_rows()
    kept.write((i, CITIES[i % 2], 50.0, 50) for i in range(6))
    kept.require_rows()
