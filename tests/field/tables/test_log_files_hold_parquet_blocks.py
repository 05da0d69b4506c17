"""Log compaction of Parquet blocks failed with `Block type not yet supported`.

Report: https://github.com/apache/hudi/pull/9253
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import CITIES, KeptTable, first_rows

from airflow_lake_provider.job_contract import Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

PARQUET_BLOCKS = {"hoodie.logfile.data.block.format": "parquet"}


@pytest.mark.soak
def test_rows_stay_in_each_rewrite(spark: SparkSession, tmp_path: Path) -> None:
    kept = KeptTable(spark, tmp_path / "t", options=PARQUET_BLOCKS)
    kept.write(first_rows())
    for commit in range(1, 4):
        kept.write((i, CITIES[i % 2], float(commit), commit) for i in range(commit % 3, 20, 3))
    few = {"hoodie.log.compaction.blocks.threshold": "2"}
    assert kept.serve(Service.LOGCOMPACTION, **few).outcome is Outcome.COMPLETED
    kept.require_rows()
    kept.write((i, CITIES[i % 2], 4.0, 4) for i in range(0, 20, 3))
    assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    kept.require_rows()
    kept.write((i, CITIES[i % 2], 5.0, 5) for i in range(0, 20, 3))
    assert kept.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
    kept.require_rows()
