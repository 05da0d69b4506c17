"""What another run completes while a try waits for the lease is the other run's, not this try's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from airflow_lake_provider.execution.engines.engine import EngineJob, Handle
from airflow_lake_provider.execution.engines.job_files import write_text
from airflow_lake_provider.hooks.lake import LakeHook
from airflow_lake_provider.job_contract import JobResult, Outcome, Service, ServiceResult, to_json
from airflow_lake_provider.operators import table_service
from tests.support.tables import HandMadeTable
from tests.support.task_context import as_its_file_says, task_instance

LOCK = {"hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"}
PLAN = "20261121120100000"


class FindsNothing:
    """An engine whose job finds no plan."""

    def start(self, job: EngineJob) -> Handle:
        result = ServiceResult(Service.COMPACTION, Outcome.NOTHING_TO_DO)
        write_text(job.request.result_path, to_json(JobResult(job.request.job_id, (result,))))
        return Handle(job, "1")

    def wait(self, _: Handle) -> None:
        """It has ended."""

    def stop(self, _: Handle) -> None:
        """It has ended."""


def test_plan_that_another_run_completed_meanwhile_is_not_this_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = HandMadeTable.create(tmp_path / "orders")
    for second in (1, 2, 3):
        table.commit(second)
    timeline = table.path / ".hoodie" / "timeline"
    (timeline / f"{PLAN}.compaction.requested").write_bytes(b"{}")

    def acquire(*_: Any, **__: Any) -> tuple[str, float]:
        (timeline / f"{PLAN}.compaction.inflight").touch()
        body = {"operationType": "COMPACT", "partitionToWriteStats": {}}
        (timeline / f"{PLAN}_20261121120200000.commit").write_text(json.dumps(body), encoding="utf-8")
        return "token", 60.0

    def serve(_: httpx.Request) -> httpx.Response:
        answer = {"completed_time": "5", "changed_time": "4", "identified": False, "generation": 0, "sinks": []}
        return httpx.Response(200, json={**answer, "needs_snapshot": False, "request": ""})

    client = httpx.Client(transport=httpx.MockTransport(serve), base_url="http://manager/v1/hoodie")
    monkeypatch.setattr(LakeHook, "get_conn", lambda _: client)
    monkeypatch.setattr(LakeHook, "acquire_executor", acquire)
    monkeypatch.setattr(table_service, "create_engine", lambda _: FindsNothing())
    monkeypatch.setenv("AIRFLOW__LAKE__WORK_DIR", str(tmp_path / "work"))
    monkeypatch.setenv("AIRFLOW__LAKE__ALLOWED_ROOTS", str(tmp_path))
    operator = table_service.HudiTableServiceOperator(
        task_id="run_service", base_path=str(table.path), service="compaction", hudi_options=LOCK, adds_event=False
    )
    context: Any = {"run_id": "orders.compaction.20261121120000000.1a", "ti": task_instance()}
    verdict = as_its_file_says(operator).execute(context)
    assert (verdict["outcome"], verdict["completed_instants"]) == ("nothing_to_do", [])
