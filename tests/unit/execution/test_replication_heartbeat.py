"""What a run reports to the manager while it lasts, and when it ends badly: a silent run's sink is given to another."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from airflow_lake_provider.execution import reporting
from airflow_lake_provider.execution.engines.job_files import write_text
from airflow_lake_provider.execution.job import JobRun
from airflow_lake_provider.hooks.lake import LakeHook
from airflow_lake_provider.job_contract import JobRequest, to_json
from airflow_lake_provider.operators import replication
from airflow_lake_provider.operators.replication import HudiReplicationOperator
from airflow_lake_provider.replication.job import ReplicationResult
from tests.support.task_context import task_instance

PATIENCE_S = 30.0


@dataclass
class Manager:
    """Answers each report with the next of `answers`, with 204 when there is none left, and keeps what was reported."""

    answers: list[int | Exception] = field(default_factory=list)
    progress: list[dict[str, Any]] = field(default_factory=list)
    renewed: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def serve(self, request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/progress"):
            return httpx.Response(
                200,
                json={
                    "completed_time": "5",
                    "needs_snapshot": False,
                    "request": "",
                    "generation": 0,
                    "identified": False,
                    "changed_time": "5",
                    "sinks": [],
                },
            )
        answer = self.answers.pop(0) if self.answers else 204
        if isinstance(answer, Exception):
            raise answer
        if answer == 204:
            self.progress.append(json.loads(request.content))
            self.renewed.release()
        return httpx.Response(answer, json={"detail": "sink noop is run other's"} if answer == 409 else None)


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Manager:
    manager = Manager()
    client = httpx.Client(transport=httpx.MockTransport(manager.serve), base_url="http://manager/v1/hoodie")
    monkeypatch.setattr(LakeHook, "get_conn", lambda _: client)
    monkeypatch.setattr(replication, "work_dir", lambda: str(tmp_path))
    monkeypatch.setattr(reporting, "PROGRESS_INTERVAL_S", 0.01)
    return manager


def run(folder: Path, **arguments: Any) -> dict[str, Any]:
    operator = HudiReplicationOperator(
        **{"task_id": "replicate", "base_path": str(folder / "orders"), "sink": "noop"} | arguments
    )
    context: Any = {"run_id": "run-1", "ti": task_instance()}
    return operator.execute(context)


def result(run: JobRun) -> str:
    assert run.job.replication is not None
    return to_json(ReplicationResult(run.job.replication.order.stream, ended=True))


@pytest.mark.parametrize("problem", ["folder", "half-written", "library", "manager-away"])
def test_run_keeps_its_claim_whatever_goes_wrong_with_one_renewal(
    problem: str, manager: Manager, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if problem == "library":
        manager.answers = [ZeroDivisionError("a library's surprise")]
    if problem == "manager-away":
        manager.answers = [503, httpx.ConnectError("away")]

    def submit(_: Any, run: JobRun, __: Any) -> JobRequest:
        path = Path(run.result_path)
        if problem == "folder":
            path.mkdir(parents=True)
        if problem == "half-written":
            write_text(str(path), '{"checkpoint')
        for _ in range(3):
            assert manager.renewed.acquire(timeout=PATIENCE_S), "the sink would count as free by now"
        if problem == "folder":
            path.rmdir()
        write_text(str(path), result(run))
        return run.job.request

    monkeypatch.setattr(HudiReplicationOperator, "_submit", submit)
    assert run(tmp_path)["commits"] == 0
    *renewals, last = manager.progress
    assert {(progress["run_id"], progress["checkpoint"], progress.get("ended")) for progress in renewals} == {
        ("run-1", "", None)
    }
    assert (last["ended"], last["problem"]) == (True, "")
    assert "sink noop of table" in caplog.text


@pytest.mark.parametrize("is_claimed", [False, True])
def test_run_whose_sink_another_one_has_ends_its_driver(
    is_claimed: bool, manager: Manager, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    manager.answers = [409] * 1000
    killed = threading.Event()

    def submit(operator: HudiReplicationOperator, run: JobRun, _: Any) -> JobRequest:
        operator._job_run = SimpleNamespace(stop=killed.set, result_path=run.result_path)  # type: ignore[assignment]
        assert killed.wait(PATIENCE_S), "it goes on next to the run that has the sink"
        return run.job.request

    monkeypatch.setattr(HudiReplicationOperator, "_submit", submit)
    with pytest.raises(AirflowException, match="is run other's") as ended:
        run(tmp_path, is_claimed=is_claimed)
    assert isinstance(ended.value, AirflowSkipException) is is_claimed
    assert manager.progress == []


def test_missing_spark_submit_is_the_sinks_problem(
    manager: Manager, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    with pytest.raises(AirflowException, match=r"cannot run spark-submit.*on the worker's PATH"):
        run(tmp_path)
    assert manager.progress[-1]["ended"]
    assert "cannot run spark-submit" in manager.progress[-1]["problem"]
    assert not list(tmp_path.rglob("request.json")), "it may have the sink's password"


def test_own_connection_of_replication_is_taken(
    manager: Manager, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = {"conn_type": "spark", "host": "local[1]", "extra": {"spark-binary": "spark3-submit"}}
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps(other))
    monkeypatch.setenv("AIRFLOW__LAKE__REPLICATION_SPARK_CONN_ID", "other")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    with pytest.raises(AirflowException, match="cannot run spark3-submit"):
        run(tmp_path)


def test_error_of_another_package_is_the_sinks_problem(
    manager: Manager, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def submit(*_: Any) -> None:
        raise ZeroDivisionError("a library's surprise")

    monkeypatch.setattr(HudiReplicationOperator, "_submit", submit)
    with pytest.raises(ZeroDivisionError):
        run(tmp_path)
    assert manager.progress[-1] == {
        "run_id": "run-1",
        "problem": "ZeroDivisionError: a library's surprise",
        "ended": True,
    }


@pytest.mark.parametrize(
    ("said", "is_final", "says"),
    [
        (
            "Checksum failed",
            True,
            "as lake@R with keytab /k (spark.kerberos.principal and spark.kerberos.keytab in spark_",
        ),
        ("Connection refused", False, "the KDC does not answer"),
    ],
)
def test_login_that_failed_is_the_sinks_problem_and_is_retried_when_it_may_end(
    manager: Manager, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, is_final: bool, says: str
) -> None:
    program = tmp_path / "spark-submit"
    thrown = f"KerberosAuthException: failure to login: for principal: lake@R from keytab /k LoginException: {said}"
    program.write_text(f"#!/bin/sh\necho '{thrown}'\nexit 1\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("SPARK_HOME", raising=False)
    login = {"spark.kerberos.principal": "lake@R", "spark.kerberos.keytab": "/k"}
    with pytest.raises(AirflowException, match="cannot log in to Kerberos") as ended:
        run(tmp_path, spark_conf=login, is_claimed=True)
    assert isinstance(ended.value, AirflowFailException) is is_final
    assert says in manager.progress[-1]["problem"]
