"""The metadata table kept a file that a clean found missing, and each later clean planned it again.

Report: https://github.com/apache/hudi/pull/18034
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import run
from kept_rows import CITIES, KeptTable, first_rows

from airflow_lake_provider.job_contract import Mode, Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

KEEP_ONE_VERSION = {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.clean.fileversions.retained": "1"}


def listed(kept: KeptTable) -> set[str]:
    """Return the files that the metadata table has, by Hudi's own reader of it."""
    jvm = kept.spark._jvm
    assert jvm is not None
    engine = jvm.org.apache.hudi.client.common.HoodieSparkEngineContext(kept.spark.sparkContext._jsc)
    config = jvm.org.apache.hudi.common.config.HoodieMetadataConfig.newBuilder().enable(True).build()
    storage = jvm.org.apache.hudi.storage.hadoop.HoodieHadoopStorage(
        str(kept.path), kept.spark.sparkContext._jsc.hadoopConfiguration()
    )
    table = jvm.org.apache.hudi.metadata.HoodieBackedTableMetadata(engine, storage, config, str(kept.path))
    found = set()
    for city in CITIES:
        folder = jvm.org.apache.hudi.storage.StoragePath(f"{kept.path}/{city}")
        found |= {str(file.getPath().getName()) for file in table.getAllFilesInPartition(folder)}
    table.close()
    return found


@pytest.mark.parametrize("type", ["COW", pytest.param("MOR", marks=pytest.mark.soak)])
def test_metadata_table_forgets_it(spark: SparkSession, tmp_path: Path, type: str) -> None:
    kept = KeptTable(spark, tmp_path / "t", type=type, options={"hoodie.metadata.enable": "true"})
    kept.write(first_rows())
    for turn in range(1, 4):
        kept.write((i, CITIES[i % 2], float(turn), turn) for i in range(6))
    if type == "MOR":
        assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    (plan,) = kept.serve(Service.CLEAN, Mode.SCHEDULE, **KEEP_ONE_VERSION).scheduled_instants
    before = {file.name for file in kept.path.glob("*/*_*")}
    gone = min(kept.path.glob("Aachen/*.parquet"), key=lambda file: file.name.rpartition("_")[2])
    gone.unlink()
    done = run(spark, kept.table.request(Mode.EXECUTE, plan, service=Service.CLEAN, service_options=KEEP_ONE_VERSION))
    assert done.outcome is Outcome.COMPLETED, done.message
    kept.require_rows()
    present = {file.name for file in kept.path.glob("*/*_*") if not file.name.endswith(".crc")}
    assert gone.name in before
    assert listed(kept) <= present
    assert gone.name not in listed(kept)
    kept.write((i, CITIES[i % 2], 9.0, 9) for i in range(6))
    kept.require_rows()
    kept.serve(Service.CLEAN, **KEEP_ONE_VERSION)
    kept.require_rows()
