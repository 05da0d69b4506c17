"""Without meta fields an insert overwrite by rows passed the check for a pending clustering.

Report: https://github.com/apache/hudi/issues/19770
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import CITIES, KEEP_ONE_COMMIT, KeptTable, first_rows
from py4j.protocol import Py4JJavaError

from airflow_lake_provider.job_contract import Mode, Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

WITHOUT_META_FIELDS = {"hoodie.populate.meta.fields": "false", "hoodie.index.type": "SIMPLE"}
OVERWRITE_BY_ROWS = {
    "hoodie.datasource.write.row.writer.enable": "true",
    "hoodie.bulkinsert.overwrite.operation.type": "insert_overwrite",
}


@pytest.mark.soak
def test_the_plan_never_brings_replaced_rows_back(spark: SparkSession, tmp_path: Path) -> None:
    kept = KeptTable(spark, tmp_path / "t", type="COW", options=WITHOUT_META_FIELDS)
    kept.write(first_rows(10))
    kept.write(((i, CITIES[i % 2], float(i), 0) for i in range(10, 20)), "insert")
    kept.require_rows()
    assert kept.serve(Service.CLUSTERING, Mode.SCHEDULE).outcome is Outcome.SCHEDULED
    rows = [(100 + i, CITIES[0], 1.0, 1) for i in range(3)]
    # Writers that share a lock are refused at the commit, whatever the check before it missed.
    with pytest.raises(Py4JJavaError, match="HoodieWriteConflictException"):
        kept.append(spark.createDataFrame(rows, kept.schema), "bulk_insert", **OVERWRITE_BY_ROWS)
    kept.require_rows()
    assert kept.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
    kept.require_rows()
    kept.forget([key for key, row in kept.rows.items() if row[1] == CITIES[0]])
    kept.write(rows, "bulk_insert", **OVERWRITE_BY_ROWS)
    kept.require_rows()
    kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT)
    kept.require_rows()
