"""What a replication run reports as it ends: a snapshot that could not begin, and up to when it saw its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from airflow_lake_provider.execution.engines.job_files import write_text
from airflow_lake_provider.execution.job import JobRun
from airflow_lake_provider.hooks.lake import LakeHook
from airflow_lake_provider.job_contract import JobRequest, to_json
from airflow_lake_provider.operators import replication
from airflow_lake_provider.operators.replication import HudiReplicationOperator
from airflow_lake_provider.replication.job import ReplicationResult
from tests.support.task_context import task_instance

WAITS = "a snapshot cannot begin before write 20260101000000000 completes or is rolled back"
OLDER = {"completed_time": "5", "needs_snapshot": False, "request": "", "sinks": []}
"""What a manager answered before it reported the generation, when the table changed, and whose its name is."""
ANSWER = {**OLDER, "changed_time": "4", "generation": 0, "identified": False}


@pytest.mark.parametrize(
    ("answer", "waits_for", "seen"),
    [(ANSWER, WAITS, "4"), (ANSWER, "", "4"), (OLDER, "", "5")],
    ids=["waits", "up-to-date", "older-manager"],
)
def test_run_reports_what_keeps_its_snapshot_from_beginning_and_up_to_when_it_saw_the_table(
    answer: dict[str, Any], waits_for: str, seen: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reported: list[dict[str, Any]] = []

    def serve(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/progress"):
            reported.append(json.loads(request.content))
            return httpx.Response(204)
        return httpx.Response(200, json=answer)

    def submit(_: Any, run: JobRun, __: Any) -> JobRequest:
        write_text(run.result_path, to_json(ReplicationResult("", ended=True, waits_for=waits_for)))
        return run.job.request

    client = httpx.Client(transport=httpx.MockTransport(serve), base_url="http://manager/v1/hoodie")
    monkeypatch.setattr(LakeHook, "get_conn", lambda _: client)
    monkeypatch.setattr(replication, "work_dir", lambda: str(tmp_path))
    monkeypatch.setattr(HudiReplicationOperator, "_submit", submit)
    operator = HudiReplicationOperator(task_id="replicate", base_path=str(tmp_path / "orders"), sink="noop")
    context: Any = {"run_id": "run-1", "ti": task_instance()}
    assert operator.execute(context)["waits_for"] == waits_for
    (progress,) = reported
    assert (progress["ended"], progress["problem"], progress["completed_time"]) == (True, waits_for, seen)
