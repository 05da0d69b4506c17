"""Deleted rows were still in `.cdc` files, which keep what each row was before its deletion.

Report: https://github.com/apache/hudi/issues/9557
Report: https://github.com/apache/hudi/issues/10581
Verdict: refused
Way out: delete the rows by a writer, cluster their partition, and clean all versions but the latest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from erased_rows import erase, files_with
from kept_rows import CITIES, KeptTable

from airflow_lake_provider.job_contract import FailureKind, Outcome, Service
from airflow_lake_provider.shared.hudi_settings import CLEAN_POLICY, CLEAN_VERSIONS_RETAINED

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

CHANGE_DATA = {
    "hoodie.table.cdc.enabled": "true",
    "hoodie.table.cdc.supplemental.logging.mode": "data_before_after",
}
LATEST = {CLEAN_POLICY: "KEEP_LATEST_FILE_VERSIONS", CLEAN_VERSIONS_RETAINED: "1"}
SCHEMA = "id string, city string, amount double, ts long"
ERASED = (0, 3)


def key_of(number: int) -> str:
    return f"subject-{number:03}@example.org"


def data_files_with(kept: KeptTable, number: int) -> list[str]:
    return [name for name in files_with(kept.path, key_of(number)) if not name.startswith(".hoodie")]


@pytest.mark.parametrize("type", ["COW", pytest.param("MOR", marks=pytest.mark.soak)])
def test_erasure_is_refused_and_rewritten_rows_are_gone(spark: SparkSession, tmp_path: Path, type: str) -> None:
    kept = KeptTable(spark, tmp_path / "t", type, options=CHANGE_DATA, schema=SCHEMA)
    for ts in range(3):
        kept.write((key_of(i), CITIES[i % 2], float(i), ts) for i in range(10) if ts == 0 or i % 3 == 0)

    done, _ = erase(kept, tmp_path / "erasure", [{"key": key_of(number)} for number in ERASED])

    assert done.failure_kind is FailureKind.REFUSED
    assert "keys are not erased, because it records change data" in done.message
    kept.require_rows()

    kept.append(spark.createDataFrame([kept.rows[key_of(number)] for number in ERASED], SCHEMA), "delete")
    kept.forget(map(key_of, ERASED))
    kept.require_rows()
    assert all(data_files_with(kept, number) for number in ERASED), "a deletion alone leaves the rows on disk"
    if type == "MOR":
        assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    assert kept.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
    assert kept.serve(Service.CLEAN, **LATEST).outcome is Outcome.COMPLETED
    kept.require_rows()
    for number in ERASED:
        assert data_files_with(kept, number) == []
