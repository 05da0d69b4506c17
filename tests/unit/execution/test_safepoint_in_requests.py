"""Cleaning and archiving take the manager's safepoint along, and begin nothing without an answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_lake_provider.hooks.lake import LakeHook
from airflow_lake_provider.hudi.base_path import normalise_base_path, table_id_of
from airflow_lake_provider.job_contract import SAFEPOINT, Service
from airflow_lake_provider.operators import table_service
from airflow_lake_provider.operators.table_service import HudiTableServiceOperator
from tests.support.fixture_tables import unpack
from tests.support.task_context import task_instance

HELD = "20260101000000000"
LOCK = {"hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"}


POLICY = {"hudi_options": {}, "spark_conf": {}, "conflict": {}, "engine": "", "spark_conn_id": "", "timeout_s": 60}


class FakeManager:
    """Answers the safepoint's route, with an instant, with none, or not at all."""

    def __init__(self, instant: str | None, status: int = 200) -> None:
        self.instant = instant
        self.status = status
        self.asked: list[str] = []
        self.reports: list[dict[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/runs"):
            self.reports.append(json.loads(request.content))
            return httpx.Response(204)
        self.asked.append(request.url.path)
        if not self.status:
            raise httpx.ConnectError("no server listens", request=request)
        if request.url.path.endswith("/policy"):
            self.asked.pop()
            return httpx.Response(self.status, json=POLICY | {"detail": "the database is away"})
        return httpx.Response(self.status, json={"instant": self.instant, "detail": "the database is away"})

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        client = httpx.Client(transport=httpx.MockTransport(self), base_url="http://manager/v1/hoodie")
        monkeypatch.setattr(LakeHook, "get_conn", lambda _: client)


def operator(path: Path, service: Service, *, is_dry_run: bool = True) -> HudiTableServiceOperator:
    return HudiTableServiceOperator(
        task_id="service", base_path=str(path), service=service.value, hudi_options=LOCK, is_dry_run=is_dry_run
    )


def context() -> Any:
    return {"run_id": "orders.clean.20261121120000000.1a", "ti": task_instance()}


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, str]]:
    """Return the Hudi options of the jobs that are handed on."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))
    monkeypatch.setenv("AIRFLOW__LAKE__MANAGER_PATIENCE_S", "0")
    found: list[dict[str, str]] = []
    describe = table_service.describe

    def note(job: Any, pending: tuple[str, ...]) -> str:
        found.append(dict(job.request.hudi_options))
        return describe(job, pending)

    monkeypatch.setattr(table_service, "describe", note)
    return found


@pytest.mark.parametrize(
    ("service", "instant", "expected"),
    [
        pytest.param(Service.CLEAN, HELD, {SAFEPOINT: HELD}, id="clean"),
        pytest.param(Service.ARCHIVE, HELD, {SAFEPOINT: HELD}, id="archive"),
        pytest.param(Service.CLEAN, None, {}, id="nothing-is-held"),
        pytest.param(Service.COMPACTION, HELD, {}, id="compaction-removes-nothing"),
    ],
)
def test_request_carries_the_safepoint(
    service: Service,
    instant: str | None,
    expected: dict[str, str],
    submitted: list[dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    manager = FakeManager(instant)
    manager.install(monkeypatch)
    path = unpack("mor_v9", tmp_path).path
    operator(path, service).execute(context())
    assert submitted == [LOCK | expected]
    removes = service is not Service.COMPACTION
    table_id = table_id_of(normalise_base_path(str(path)))
    (report,) = manager.reports
    assert (report["service"], report["outcome"], report["try_number"]) == (service.value, "dry_run", 1)
    assert manager.asked == ([f"/v1/hoodie/tables/{table_id}/safepoint"] if removes else [])


@pytest.mark.parametrize("status", [pytest.param(0, id="unreachable"), pytest.param(503, id="error")])
@pytest.mark.parametrize("service", [Service.CLEAN, Service.ARCHIVE])
def test_no_answer_starts_no_job(
    service: Service, status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, submitted: list[dict[str, str]]
) -> None:
    FakeManager(HELD, status).install(monkeypatch)
    begun: list[str] = []
    monkeypatch.setattr(table_service, "create_engine", lambda name: begun.append(name))
    path = unpack("mor_v9", tmp_path).path
    with pytest.raises(AirflowException) as raised:
        operator(path, service, is_dry_run=False).execute(context())
    assert "manager" in str(raised.value.__cause__)
    assert begun == submitted == []
