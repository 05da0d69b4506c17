"""A compaction left out log files of archived writes, and rows kept old values.

Report: https://github.com/apache/hudi/issues/14365
Report: https://github.com/apache/hudi/pull/14362
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import CITIES, KeptTable, first_rows

from airflow_lake_provider.job_contract import Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

ARCHIVES = {
    "hoodie.table.services.enabled": "true",
    "hoodie.clean.automatic": "true",
    "hoodie.clean.commits.retained": "1",
    "hoodie.archive.automatic": "true",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    # Hudi's archiver keeps what its own compaction would count.
    "hoodie.compact.inline.max.delta.commits": "1",
}


@pytest.mark.soak
@pytest.mark.parametrize("version", [9, 8, 6])
def test_compaction_merges_them(spark: SparkSession, tmp_path: Path, version: int) -> None:
    kept = KeptTable(spark, tmp_path / "t", version=version, options={"hoodie.metadata.enable": "false"})
    kept.write(first_rows())
    for turn in range(1, 9):
        kept.write(((i, CITIES[i % 2], float(turn), turn) for i in range(2 * turn, 2 * turn + 2)), **ARCHIVES)
    done = kept.table.completed("deltacommit")
    assert len(done) <= 4, done
    kept.require_rows()
    compacted = kept.serve(Service.COMPACTION)
    assert compacted.outcome is Outcome.COMPLETED, compacted.message
    kept.require_rows()
    assert kept.serve(Service.CLEAN).outcome is not Outcome.FAILED
    kept.require_rows()
