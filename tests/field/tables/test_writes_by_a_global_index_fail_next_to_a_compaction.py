"""With a pending compaction, writes through a global index failed or wrote rows twice.

Report: https://github.com/apache/hudi/pull/12976
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import run
from kept_rows import CITIES, COMPARE_ALL, KeptTable, first_rows

from airflow_lake_provider.job_contract import Mode, Outcome, Service
from lake_jobs.hudi.table import leave_expired_heartbeat, open_client
from lake_jobs.verify import rewrite
from local_stack import lake_writer

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

INDEXES = {
    "global-simple": {
        "hoodie.index.type": "GLOBAL_SIMPLE",
        "hoodie.simple.index.update.partition.path": "true",
    },
    "record": {
        "hoodie.index.type": "GLOBAL_RECORD_LEVEL_INDEX",
        "hoodie.metadata.enable": "true",
        "hoodie.metadata.global.record.level.index.enable": "true",
        "hoodie.record.index.update.partition.path": "true",
    },
}


@pytest.mark.parametrize("version", [9, pytest.param(6, marks=pytest.mark.soak)])
@pytest.mark.parametrize("index", ["record", pytest.param("global-simple", marks=pytest.mark.soak)])
def test_keys_move_while_it_is_pending(spark: SparkSession, tmp_path: Path, index: str, version: int) -> None:
    kept = KeptTable(spark, tmp_path / "t", version=version, options=INDEXES[index])
    kept.write(first_rows())
    kept.write((i, CITIES[i % 2], 1.0, 1) for i in range(6))
    (plan,) = kept.serve(Service.COMPACTION, Mode.SCHEDULE).scheduled_instants
    settings = lake_writer.write_options(kept.table.written, 0, None, {}) | {"hoodie.table.services.enabled": "true"}
    with open_client(spark, str(kept.path), settings, {}) as client:
        # A try of the plan has begun, and dies: its files are there, and no commit.
        assert rewrite.write_files(spark, client, Service.COMPACTION, plan).written
    leave_expired_heartbeat(spark, str(kept.path), plan)
    kept.write((i, CITIES[(i + 1) % 2], 2.0, 2) for i in range(3))
    kept.require_rows()
    kept.write((i, CITIES[i % 2], 3.0, 3) for i in (1, 8, 40))
    kept.require_rows()
    done = run(spark, kept.table.request(Mode.EXECUTE, plan, service_options=COMPARE_ALL))
    assert done.outcome is Outcome.COMPLETED, done.message
    kept.require_rows()
    kept.write((i, CITIES[(i + 1) % 2], 4.0, 4) for i in range(4))
    kept.require_rows()
    assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    kept.require_rows()
