"""Records moved to another partition by a global index came twice, or with old values, after services.

Report: https://github.com/apache/hudi/pull/8490
Report: https://github.com/apache/hudi/issues/2255
Report: https://github.com/apache/hudi/issues/5869
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import KEEP_ONE_COMMIT, KeptTable

from airflow_lake_provider.job_contract import Mode, Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

CITIES = ("Aachen", "Bilbao", "Cork")
MOVES = {f"hoodie.{index}.index.update.partition.path": "true" for index in ("simple", "bloom", "record")}
RECORD_INDEX = {"hoodie.metadata.record.index.enable": "true"}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("index", "version", "options"),
    [("GLOBAL_BLOOM", 9, {}), ("GLOBAL_SIMPLE", 6, {}), ("GLOBAL_RECORD_LEVEL_INDEX", 9, RECORD_INDEX)],
)
def test_each_record_is_where_it_moved_to(
    spark: SparkSession, tmp_path: Path, index: str, version: int, options: dict[str, str]
) -> None:
    kept = KeptTable(spark, tmp_path / "t", version=version, options=MOVES | {"hoodie.index.type": index} | options)
    kept.write((i, CITIES[i % 2], float(i), 0) for i in range(20))
    kept.write((i, CITIES[(i + 1) % 3], 1.0, 1) for i in range(8))
    plan = kept.serve(Service.COMPACTION, Mode.SCHEDULE)
    assert plan.outcome is Outcome.SCHEDULED
    kept.write((i, CITIES[(i + 2) % 3], 2.0, 2) for i in range(4))
    kept.require_rows()
    assert kept.serve(Service.COMPACTION, Mode.EXECUTE).outcome is Outcome.COMPLETED
    kept.require_rows()
    kept.write((i, CITIES[i % 3], 3.0, 3) for i in range(6))
    assert kept.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
    kept.require_rows()
    kept.write((i, CITIES[(i + 1) % 3], 4.0, 4) for i in range(0, 20, 2))
    assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    assert kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT).outcome is Outcome.COMPLETED
    kept.require_rows()
    kept.write((i, CITIES[(i + 2) % 3], 5.0, 5) for i in range(0, 20, 3))
    kept.require_rows()
