"""A writer ran services inside its commits besides a service job: plans piled up, or files were missing.

Report: https://github.com/apache/hudi/issues/8362
Report: https://github.com/apache/hudi/issues/10333
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import CITIES, KEEP_ONE_COMMIT, KeptTable, first_rows

from airflow_lake_provider.job_contract import Mode, Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

INLINE = {
    "hoodie.table.services.enabled": "true",
    "hoodie.compact.inline": "true",
    "hoodie.compact.inline.max.delta.commits": "2",
    "hoodie.clustering.inline": "true",
    "hoodie.clustering.inline.max.commits": "3",
    "hoodie.clean.automatic": "true",
    "hoodie.clean.commits.retained": "1",
    "hoodie.archive.automatic": "true",
    "hoodie.keep.min.commits": "4",
    "hoodie.keep.max.commits": "5",
    "hoodie.metadata.compact.max.delta.commits": "3",
}
KEEP_FEW = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3", **KEEP_ONE_COMMIT}


@pytest.mark.soak
@pytest.mark.parametrize("version", [9, 6])
def test_both_keep_every_row(spark: SparkSession, tmp_path: Path, version: int) -> None:
    kept = KeptTable(spark, tmp_path / "t", version=version, options=INLINE)
    kept.write(first_rows())
    for turn in range(1, 9):
        kept.write((i, CITIES[i % 2], float(turn), turn) for i in range(turn, 20, 2))
        if turn % 3 == 1:
            kept.serve(Service.COMPACTION, Mode.SCHEDULE)
            # The writer's next commit meets the plan, and may execute it.
            kept.write((i, CITIES[i % 2], float(turn), turn + 1) for i in range(3))
        service = (Service.COMPACTION, Service.CLUSTERING, Service.CLEAN, Service.ARCHIVE)[turn % 4]
        more = {Service.CLEAN: KEEP_ONE_COMMIT, Service.ARCHIVE: KEEP_FEW}.get(service, {})
        mode = Mode.EXECUTE if service is Service.ARCHIVE else Mode.SCHEDULE_AND_EXECUTE
        assert kept.serve(service, mode, **more).outcome in {Outcome.COMPLETED, Outcome.NOTHING_TO_DO}
        kept.require_rows()
    pending = [name for name in kept.table.files() if name.endswith(".requested")]
    done = {
        name.split(".")[0].split("_")[0] for name in kept.table.files() if not name.endswith((".requested", "flight"))
    }
    assert [name for name in pending if name.split(".")[0] not in done] == []
