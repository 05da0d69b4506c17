"""After a compaction the columns that a partial update left out were null.

Report: https://github.com/apache/hudi/issues/11348
Report: https://github.com/apache/hudi/issues/2936
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import CITIES, SCHEMA, KeptTable, first_rows

from airflow_lake_provider.job_contract import Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.soak
@pytest.mark.parametrize("version", [9, 6])
def test_columns_that_updates_leave_out_keep_their_values(spark: SparkSession, tmp_path: Path, version: int) -> None:
    payload = "org.apache.hudi.common.model.PartialUpdateAvroPayload"
    kept = KeptTable(
        spark,
        tmp_path / "t",
        version=version,
        options={"hoodie.datasource.write.payload.class": payload},
        schema=SCHEMA + ", note string",
        columns=("id", "city", "amount", "ts", "note"),
    )
    kept.write((*row, f"n{row[0]}") for row in first_rows())
    kept.write((i, CITIES[i % 2], None, 1, "new") for i in range(6))
    kept.write((i, CITIES[i % 2], 5.5, 2, None) for i in range(3, 9))
    kept.rows |= {i: (i, CITIES[i % 2], float(i), 1, "new") for i in range(3)}
    kept.rows |= {i: (i, CITIES[i % 2], 5.5, 2, "new" if i < 6 else f"n{i}") for i in range(3, 9)}
    kept.require_rows()
    assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    kept.require_rows()
    kept.write((i, CITIES[i % 2], None, 3, "x") for i in range(10, 13))
    kept.rows |= {i: (i, CITIES[i % 2], float(i), 3, "x") for i in range(10, 13)}
    assert kept.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
    kept.require_rows()
