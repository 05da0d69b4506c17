"""A change data query of a commit failed or was wrong after a compaction planned before that commit.

Report: https://github.com/apache/hudi/pull/17607
Verdict: fault of Hudi
Way out: use the provider's replication, which reads file slices; snapshot queries are right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import CITIES, KeptTable, first_rows
from py4j.protocol import Py4JJavaError
from test_change_data_files_are_no_orphans import WITH_CHANGES, changes

from airflow_lake_provider.job_contract import Mode, Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.soak
def test_snapshots_stay_right(spark: SparkSession, tmp_path: Path) -> None:
    kept = KeptTable(spark, tmp_path / "t", options=WITH_CHANGES)
    kept.write(first_rows())
    kept.write((i, CITIES[i % 2], 1.0, 1) for i in range(6))
    assert kept.serve(Service.COMPACTION, Mode.SCHEDULE).outcome is Outcome.SCHEDULED
    kept.write((i, CITIES[i % 2], 2.0, 2) for i in range(3))
    assert [each[0] for each in changes(kept)].count("u") == 9
    assert kept.serve(Service.COMPACTION, Mode.EXECUTE).outcome is Outcome.COMPLETED
    with pytest.raises(Py4JJavaError, match="NoSuchElementException"):
        changes(kept)
    kept.require_rows()
