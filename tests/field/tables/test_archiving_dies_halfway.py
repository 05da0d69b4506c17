"""Archiving died halfway, and its remains made each later archiving fail.

Report: https://github.com/apache/hudi/issues/17471
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import CITIES, KEEP_ONE_COMMIT, KeptTable, first_rows

from airflow_lake_provider.job_contract import Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


ARCHIVE = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"} | KEEP_ONE_COMMIT


def write_and_compact(kept: KeptTable, turns: range) -> None:
    for turn in turns:
        kept.write((i, CITIES[i % 2], float(turn), turn) for i in range(6))
    assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT)


@pytest.mark.soak
@pytest.mark.parametrize("left", ["data", "manifest", "version"])
def test_the_next_one_goes_on(spark: SparkSession, tmp_path: Path, left: str) -> None:
    kept = KeptTable(spark, tmp_path / "t", options={"hoodie.metadata.enable": "false"})
    kept.write(first_rows())
    write_and_compact(kept, range(1, 6))
    assert kept.serve(Service.ARCHIVE, **ARCHIVE).outcome is Outcome.COMPLETED
    write_and_compact(kept, range(6, 11))
    history = kept.path / ".hoodie" / "timeline" / "history"
    if left == "data":
        actions = ("commit", "deltacommit", "clean")
        times = sorted(time for action in actions for time in kept.table.completed(action))
        for first in times:
            for last in times:
                (history / f"{first}_{last}_0.parquet").write_bytes(b"PAR1")
    newest = max(int(file.name.partition("_")[2]) for file in history.glob("manifest_*"))
    if left == "manifest":
        (history / f"manifest_{newest + 1}").write_bytes(b"{")
    if left == "version":
        (history / "_version_").unlink()
    kept.require_rows()
    done = kept.serve(Service.ARCHIVE, **ARCHIVE)
    assert done.outcome is Outcome.COMPLETED, done.message
    kept.require_rows()
    write_and_compact(kept, range(11, 16))
    assert kept.serve(Service.ARCHIVE, **ARCHIVE).outcome is Outcome.COMPLETED
    kept.require_rows()
