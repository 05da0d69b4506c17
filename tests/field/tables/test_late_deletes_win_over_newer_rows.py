"""A late delete or update with an older event time won once files were merged.

Report: https://github.com/apache/hudi/issues/17642
Report: https://github.com/apache/hudi/issues/10012
Report: https://github.com/apache/hudi/pull/4880
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import CITIES, KEEP_ONE_COMMIT, KeptTable

from airflow_lake_provider.job_contract import Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

MODEL = "org.apache.hudi.common.model"
SCHEMA = "id long, city string, amount double, ts long, _hoodie_is_deleted boolean"
LOG_FILES = {"hoodie.log.compaction.blocks.threshold": "1"}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("payload", "version"),
    [("DefaultHoodieRecordPayload", 9), ("DefaultHoodieRecordPayload", 6), ("EventTimeAvroPayload", 9)],
)
@pytest.mark.parametrize("service", [Service.COMPACTION, Service.CLUSTERING, Service.LOGCOMPACTION])
def test_the_newest_event_wins(
    spark: SparkSession, tmp_path: Path, service: Service, payload: str, version: int
) -> None:
    options = {
        "hoodie.datasource.write.payload.class": f"{MODEL}.{payload}",
        "hoodie.compaction.payload.class": f"{MODEL}.{payload}",
    }
    kept = KeptTable(spark, tmp_path / "t", version=version, schema=SCHEMA, options=options)

    def write(rows: list[tuple[int, float, int, bool]]) -> None:
        """Write and keep the rows as event time orders them."""
        written = [(i, CITIES[0], amount, ts, is_deleted) for i, amount, ts, is_deleted in rows]
        kept.append(spark.createDataFrame(written, SCHEMA))
        for i, city, amount, ts, is_deleted in written:
            if ts < newest.get(i, 0):
                continue
            newest[i] = ts
            kept.rows.pop(i, None)
            if not is_deleted:
                kept.rows[i] = (i, city, amount, ts)

    newest: dict[int, int] = {}
    write([(i, float(i), 10, False) for i in range(10)])
    write([(0, 1.5, 20, False), (1, 0.0, 20, True), (2, 0.0, 5, True), (3, 2.5, 5, False)])
    write([(0, 0.0, 15, True), (1, 3.5, 15, False), (2, 4.5, 12, False), (4, 0.0, 10, True)])
    kept.require_rows()
    more = LOG_FILES if service is Service.LOGCOMPACTION else {}
    assert kept.serve(service, **more).outcome is Outcome.COMPLETED
    kept.require_rows()
    write([(0, 0.0, 16, True), (5, 0.0, 9, True), (6, 0.0, 11, True), (3, 9.5, 10, False)])
    kept.require_rows()
    assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    kept.require_rows()
    kept.serve(Service.CLEAN, **KEEP_ONE_COMMIT)
    kept.require_rows()
