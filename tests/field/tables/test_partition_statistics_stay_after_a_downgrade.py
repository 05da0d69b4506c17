"""A downgrade from version 9 to 8 left partition statistics that version 8 cannot read, listed as complete.

Report: https://github.com/apache/hudi/issues/14139
Report: https://github.com/apache/hudi/pull/14138
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import CITIES, KeptTable, first_rows, run

from airflow_lake_provider.job_contract import UPGRADE_VERSION, Mode, Outcome, Service
from tests.support.hudi_tables import LOCK

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

STATISTICS = {
    "hoodie.metadata.index.column.stats.enable": "true",
    "hoodie.metadata.index.partition.stats.enable": "true",
}


@pytest.mark.parametrize("type", ["COW", pytest.param("MOR", marks=pytest.mark.soak)])
def test_statistics_of_another_version_are_neither_listed_nor_used(
    spark: SparkSession, tmp_path: Path, type: str
) -> None:
    kept = KeptTable(spark, tmp_path / "t", type, version=9, options=STATISTICS)
    kept.write(first_rows())
    kept.write((i, CITIES[i % 2], 50.0, 1) for i in range(6))
    assert "partition_stats" in kept.table.properties()["hoodie.table.metadata.partitions"]
    options = LOCK | {UPGRADE_VERSION: "8"}

    done = run(spark, kept.table.request(Mode.UPGRADE, service=Service.SAVEPOINT, options=options))

    assert done.outcome is Outcome.COMPLETED, done.message
    properties = kept.table.properties()
    assert properties["hoodie.table.version"] == "8"
    for name in properties.get("hoodie.table.metadata.partitions", "").split(","):
        assert not name or (kept.path / ".hoodie" / "metadata" / name).is_dir(), name
    kept.require_rows()
    kept.version = 8
    kept.write((i, CITIES[i % 2], 90.0, 2) for i in range(4))
    kept.require_rows()
    # The statistics of version 9 know no amount above 50.
    read = spark.read.format("hudi").option("hoodie.metadata.enable", "true")
    skipped = read.option("hoodie.enable.data.skipping", "true").load(str(kept.path)).where("amount > 60")
    assert sorted(row[0] for row in skipped.select("id").collect()) == list(range(4))
