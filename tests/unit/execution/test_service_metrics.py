from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow_lake_provider.execution.reporting import measure_service, measure_try
from airflow_lake_provider.hudi.pending import ServiceEffect
from airflow_lake_provider.job_contract import Outcome, Service
from airflow_lake_provider.metrics import EFFECT_NAMES
from airflow_lake_provider.planner.verdict import RunVerdict, TableReader
from airflow_lake_provider.storage.table_storage import open_storage
from tests.support.tables import HandMadeTable


class FakeMetrics:
    def __init__(self) -> None:
        self.said: dict[str, float] = {}

    def incr(self, name: str, count: int = 1) -> None:
        self.said[name] = self.said.get(name, 0) + count

    def gauge(self, name: str, value: float) -> None:
        self.said[name] = value

    def timing(self, name: str, duration_ms: float) -> None:
        self.said[name] = duration_ms


def test_completed_service_is_measured_by_its_own_commit_metadata(tmp_path: Path) -> None:
    table = HandMadeTable.create(tmp_path / "orders")
    instants = [table.commit(1, log_bytes=300), table.commit(2, log_bytes=50)]
    metrics, reader = FakeMetrics(), TableReader(str(table.path), open_storage)
    measure_service(metrics, reader, Service.CLUSTERING, RunVerdict(Outcome.COMPLETED, "", tuple(instants)), 2.5)
    assert metrics.said == {
        "lake.clustering.completed": 1,
        "lake.clustering.duration": 2500,
        "lake.clustering.totalFilesRead": 0,
        "lake.clustering.totalBytesRead": 0,
        "lake.clustering.totalFilesWritten": 2,
        "lake.clustering.totalBytesWritten": 350,
        "lake.clustering.totalRecordsWritten": 0,
    }


def test_every_part_of_an_effect_has_a_name() -> None:
    assert set(EFFECT_NAMES) == {entry.name for entry in fields(ServiceEffect)}


def test_service_without_instants_has_no_sizes(tmp_path: Path) -> None:
    metrics, reader = FakeMetrics(), TableReader(str(tmp_path), open_storage)
    measure_service(metrics, reader, Service.ARCHIVE, RunVerdict(Outcome.NOTHING_TO_DO, ""), 1)
    assert metrics.said == {"lake.archive.nothing_to_do": 1, "lake.archive.duration": 1000}


def test_first_try_is_measured_by_its_wait_and_later_ones_are_counted() -> None:
    def context(try_number: int) -> dict[str, Any]:
        queued = datetime.now(UTC) - timedelta(seconds=2)
        return {"ti": SimpleNamespace(try_number=try_number), "dag_run": SimpleNamespace(run_after=queued)}

    metrics = FakeMetrics()
    measure_try(metrics, Service.CLEAN, context(1))
    assert 2000 <= metrics.said.pop("lake.clean.queue_time") < 60_000
    measure_try(metrics, Service.CLEAN, context(3))
    assert metrics.said == {"lake.clean.retries": 1}
