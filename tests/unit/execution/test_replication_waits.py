"""What a replication run reports that could not begin its snapshot: no failure, and yet a problem of the sink."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from airflow_lake_provider.execution.engines.job_files import write_text
from airflow_lake_provider.hooks.lake import LakeHook
from airflow_lake_provider.job_contract import to_json
from airflow_lake_provider.operators import replication
from airflow_lake_provider.operators.replication import HudiReplicationOperator
from airflow_lake_provider.replication.job import ReplicationResult

WAITS = "a snapshot cannot begin before write 20260101000000000 completes or is rolled back"


@pytest.mark.parametrize("waits_for", [WAITS, ""])
def test_pending_write_that_keeps_a_snapshot_from_beginning_is_the_sinks_problem(
    waits_for: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reported: list[dict[str, Any]] = []

    def serve(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/progress"):
            reported.append(json.loads(request.content))
            return httpx.Response(204)
        return httpx.Response(
            200,
            json={
                "completed_time": "5",
                "changed_time": "5",
                "needs_snapshot": False,
                "request": "",
                "generation": 0,
                "identified": False,
                "sinks": [],
            },
        )

    def submit(_: Any, request: Any, folder: Any) -> None:
        result = ReplicationResult(request.order.stream, ended=True, waits_for=waits_for)
        write_text(folder.result_path, to_json(result))

    client = httpx.Client(transport=httpx.MockTransport(serve), base_url="http://manager/v1/hoodie")
    monkeypatch.setattr(LakeHook, "get_conn", lambda _: client)
    monkeypatch.setattr(replication, "work_dir", lambda: str(tmp_path))
    monkeypatch.setattr(HudiReplicationOperator, "_submit", submit)
    operator = HudiReplicationOperator(task_id="replicate", base_path=str(tmp_path / "orders"), sink="noop")
    context: Any = {"run_id": "run-1", "ti": SimpleNamespace(try_number=1)}
    assert operator.execute(context)["waits_for"] == waits_for
    (progress,) = reported
    assert (progress["ended"], progress["problem"], progress["completed_time"]) == (True, waits_for, "5")
