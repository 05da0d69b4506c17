"""A speculative attempt of a task left a second log file, and a compaction then took the wrong one.

Report: https://github.com/apache/hudi/issues/10803
Report: https://github.com/apache/hudi/issues/8132
Verdict: right
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from kept_rows import CITIES, KEEP_ONE_COMMIT, KeptTable, first_rows

from airflow_lake_provider.job_contract import Mode, Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.soak
@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("version", [9, 6])
@pytest.mark.parametrize("metadata", ["true", "false"])
def test_each_row_is_that_of_the_commit(
    spark: SparkSession, tmp_path: Path, version: int, metadata: str, *, is_cut: bool
) -> None:
    kept = KeptTable(spark, tmp_path / "t", version=version, options={"hoodie.metadata.enable": metadata})
    kept.write(first_rows())
    kept.write((i, CITIES[i % 2], 1.0, 1) for i in range(12))
    for log in list(kept.path.glob("*/.*.log.*_*")):
        if log.name.endswith(".crc"):
            continue
        copy = log.with_name(log.name.rpartition("_")[0] + "_9-99-99")
        shutil.copy(log, copy)
        if is_cut:
            copy.write_bytes(copy.read_bytes()[: copy.stat().st_size // 2])
    kept.write((i, CITIES[i % 2], 2.0, 2) for i in range(4, 8))
    kept.require_rows()
    done = kept.serve(Service.COMPACTION)
    assert done.outcome is Outcome.COMPLETED, done.message
    kept.require_rows()
    kept.write((i, CITIES[i % 2], 3.0, 3) for i in range(6, 15))
    kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT)
    kept.serve(Service.CLUSTERING)
    kept.require_rows()
    kept.serve(Service.INTEGRITY, Mode.EXECUTE)
