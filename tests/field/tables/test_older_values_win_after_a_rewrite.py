"""A rewrite merged rows by another order than queries: commit time, event time, two fields, a payload's rule.

Report: https://github.com/apache/hudi/issues/13573
Report: https://github.com/apache/hudi/pull/13526
Report: https://github.com/apache/hudi/issues/5934
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import CITIES, KeptTable

from airflow_lake_provider.job_contract import Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

BY_BLOCKS = {"hoodie.log.compaction.blocks.threshold": "1"}
PAYLOAD = "hoodie.datasource.write.payload.class"
MODE = "hoodie.write.record.merge.mode"


@pytest.mark.soak
@pytest.mark.parametrize(
    ("options", "latest_wins"),
    [
        pytest.param({MODE: "COMMIT_TIME_ORDERING"}, True, id="commit time"),
        pytest.param({MODE: "EVENT_TIME_ORDERING"}, False, id="event time"),
        pytest.param({"hoodie.datasource.write.precombine.field": "ts,amount"}, False, id="two fields"),
        pytest.param({"hoodie.datasource.write.precombine.field": ""}, True, id="no field"),
        pytest.param({PAYLOAD: "org.apache.hudi.common.model.EventTimeAvroPayload"}, False, id="event time payload"),
        pytest.param(
            {PAYLOAD: "org.apache.hudi.common.model.OverwriteNonDefaultsWithLatestAvroPayload"}, True, id="non-defaults"
        ),
    ],
)
def test_rewrites_merge_as_queries(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], latest_wins: bool
) -> None:
    kept = KeptTable(spark, tmp_path / "t", options=options)
    kept.write((i, CITIES[i % 2], float(i), 10) for i in range(12))
    late = [(i, CITIES[i % 2], 50.0 + i, 5) for i in range(6)]
    before = dict(kept.rows)
    kept.write(late)
    if not latest_wins:
        kept.rows = before
    kept.write((i, CITIES[i % 2], 90.0 + i, 20) for i in range(3, 9))
    kept.require_rows()
    assert kept.serve(Service.LOGCOMPACTION, **BY_BLOCKS).outcome is Outcome.COMPLETED
    kept.require_rows()
    for service in (Service.COMPACTION, Service.CLUSTERING):
        assert kept.serve(service).outcome is Outcome.COMPLETED
        kept.require_rows()
