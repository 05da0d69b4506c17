"""Keys had two rows in one partition where compactions ran apart from the writers, and none with inline compactions.

A deletion is in the plan, its key is written again before the plan has run, and then once more: the last write searches
for the key in the new base file alone, which lacks it, and inserts a second row.

Report: https://github.com/apache/hudi/issues/8121
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import CITIES, KeptTable, first_rows

from airflow_lake_provider.job_contract import Mode, Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

INDEX = "hoodie.index.type"
RECORD_INDEX = {
    INDEX: "GLOBAL_RECORD_LEVEL_INDEX",
    "hoodie.metadata.global.record.level.index.enable": "true",
    "hoodie.metadata.record.index.enable": "true",
}
BUCKETS = {INDEX: "BUCKET", "hoodie.bucket.index.num.buckets": "1"}
SOAK = pytest.mark.soak


@pytest.mark.parametrize(
    ("version", "options", "finds_keys_in_logs"),
    [
        pytest.param(9, {INDEX: "SIMPLE"}, False, id="simple-9"),
        pytest.param(9, {INDEX: "BLOOM", "hoodie.metadata.enable": "false"}, False, id="bloom-9", marks=SOAK),
        pytest.param(8, {INDEX: "BLOOM"}, False, id="bloom-8", marks=SOAK),
        pytest.param(9, BUCKETS, True, id="buckets-9", marks=SOAK),
        pytest.param(9, RECORD_INDEX, True, id="record-index-9", marks=SOAK),
    ],
)
def test_key_has_one_row(
    spark: SparkSession,
    tmp_path: Path,
    version: int,
    options: dict[str, str],
    finds_keys_in_logs: bool,
) -> None:
    kept = KeptTable(spark, tmp_path / "t", version=version, options=options)
    kept.write(first_rows())
    kept.write([(0, CITIES[0], 0.0, 1), (1, CITIES[1], 0.0, 1)], "delete")
    kept.forget([0, 1])
    assert kept.serve(Service.COMPACTION, Mode.SCHEDULE).outcome is Outcome.SCHEDULED
    # Only the file group of the first city has a deleted key again; the other one is compacted.
    kept.write([(0, CITIES[0], 2.0, 2), (3, CITIES[1], 2.0, 2)])
    result = kept.serve(Service.COMPACTION, Mode.EXECUTE)
    assert result.outcome is Outcome.COMPLETED
    (plan,) = result.completed_instants
    new_files = {path.parent.name for path in kept.path.glob(f"*/*_{plan}.parquet")}
    assert new_files == (set(CITIES) if finds_keys_in_logs else {CITIES[1]})
    kept.require_rows()
    kept.write([(0, CITIES[0], 3.0, 3), (1, CITIES[1], 3.0, 3)])
    kept.require_rows()
    assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    kept.write([(0, CITIES[0], 4.0, 4), (2, CITIES[0], 4.0, 4)])
    kept.require_rows()
