"""Deleted rows were still in Parquet blocks of log files, and searches of such files failed.

Report: https://github.com/apache/hudi/pull/9253
Report: https://github.com/apache/hudi/issues/10581
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from erased_rows import erase, files_with
from kept_rows import CITIES, KeptTable

from airflow_lake_provider.job_contract import Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

PARQUET_LOGS = {"hoodie.logfile.data.block.format": "parquet"}
SCHEMA = "id string, city string, amount double, ts long"


def key_of(number: int) -> str:
    return f"subject-{number:03}@example.org"


@pytest.mark.parametrize(
    "erased",
    [pytest.param((0, 6), id="of-one-partition"), pytest.param((0, 3), id="of-both", marks=pytest.mark.soak)],
)
def test_no_file_has_an_erased_row(spark: SparkSession, tmp_path: Path, erased: tuple[int, ...]) -> None:
    kept = KeptTable(spark, tmp_path / "t", "MOR", options=PARQUET_LOGS, schema=SCHEMA)
    for ts in range(3):
        kept.write((key_of(i), CITIES[i % 2], float(i), ts) for i in range(10) if ts == 0 or i % 3 == 0)
    for number in erased:
        named = files_with(kept.path, key_of(number))
        assert any(".log." in name for name in named), named

    done, receipt = erase(kept, tmp_path / "erasure", [{"key": key_of(number)} for number in erased])

    assert done.outcome is Outcome.COMPLETED, done.message
    assert all(key["deleted_at"] and key["gone_at"] for key in receipt), receipt
    kept.forget(map(key_of, erased))
    kept.require_rows()
    for number in erased:
        assert files_with(kept.path, key_of(number)) == []
