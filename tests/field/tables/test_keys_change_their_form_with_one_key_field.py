"""Keys of a complex key generator with one field changed from `1` to `id:1`, and updates became second rows.

Report: https://github.com/apache/hudi/pull/13650
Report: https://github.com/apache/hudi/pull/19304
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

COMPLEX = {
    "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.ComplexKeyGenerator",
    "hoodie.write.complex.keygen.validation.enable": "false",
}


@pytest.mark.soak
@pytest.mark.parametrize("version", [6, 8, 9])
def test_services_keep_the_form_of_the_keys(spark: SparkSession, tmp_path: Path, version: int) -> None:
    kept = KeptTable(spark, tmp_path / "t", version=version, options=COMPLEX)
    kept.write(first_rows())

    def keys() -> list[object]:
        read = spark.read.format("hudi").load(str(kept.path)).select("_hoodie_record_key")
        return sorted(row[0] for row in read.collect())

    before = keys()
    kept.write((i, CITIES[i % 2], 10.0, 1) for i in range(8))
    assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    assert kept.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
    assert kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT).outcome is not Outcome.FAILED
    kept.require_rows()
    assert keys() == before
    kept.write((i, CITIES[i % 2], 11.0, 2) for i in range(8))
    kept.require_rows()
