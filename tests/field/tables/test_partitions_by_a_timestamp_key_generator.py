"""Tables with `TimestampBasedKeyGenerator` could not be read, or services put rows into wrong folders.

Report: https://github.com/apache/hudi/issues/10678
Report: https://github.com/apache/hudi/pull/11501
Report: https://github.com/apache/hudi/pull/4714
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import KEEP_ONE_COMMIT, SCHEMA, KeptTable

from airflow_lake_provider.job_contract import Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

BY_DAY = {
    "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.TimestampBasedKeyGenerator",
    "hoodie.keygen.timebased.timestamp.type": "EPOCHMILLISECONDS",
    "hoodie.keygen.timebased.output.dateformat": "yyyy/MM/dd",
    "hoodie.datasource.write.partitionpath.field": "at",
}
FIRST_MS = 1_700_000_000_000
DAY_MS = 86_400_000


@pytest.mark.soak
@pytest.mark.parametrize("type", ["MOR", "COW"])
def test_rows_stay_in_the_folder_of_their_day(spark: SparkSession, tmp_path: Path, type: str) -> None:
    # Hudi's reader gives the folder for the partition's column, so it is no column here.
    kept = KeptTable(spark, tmp_path / "t", type=type, options=BY_DAY, schema=f"{SCHEMA}, at long")

    def write(count: int, ts: int) -> None:
        kept.write((i, "Cork", float(10 * ts + i), ts, FIRST_MS + (i % 3) * DAY_MS + i) for i in range(count))

    write(12, 0)
    write(6, 1)
    kept.require_rows()
    for service in (Service.COMPACTION, Service.CLUSTERING)[type == "COW" :]:
        assert kept.serve(service).outcome is Outcome.COMPLETED
        kept.require_rows()
    write(9, 2)
    if type == "MOR":
        assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    assert kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT).outcome is Outcome.COMPLETED
    kept.require_rows()
    folders = {str(file.parent.relative_to(kept.path)) for file in kept.path.glob("2*/**/*.parquet")}
    assert folders == {"2023/11/14", "2023/11/15", "2023/11/16"}
