"""The Flink engine against a `flink` program and a REST API that are played. It has never met Flink itself."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_lake_provider.errors import ConfigError, EngineAwayError, EngineError
from airflow_lake_provider.execution.engines.engine import EngineJob, Handle, create_engine
from airflow_lake_provider.execution.engines.job_files import read_result
from airflow_lake_provider.job_contract import Outcome
from tests.integration.engines.fake_api import Answer, install_program, serve
from tests.support.engine_jobs import engine_job

pytestmark = pytest.mark.integration

JOB_ID_OPTION = "-D$internal.pipeline.job-id="


@dataclass
class FakeFlink:
    """States of jobs by id. `states` is what a submitted job goes through; none means that it had nothing to run."""

    states: list[str] = field(default_factory=lambda: ["RUNNING", "FINISHED"])
    jobs: dict[str, list[str]] = field(default_factory=dict)
    argv: list[str] = field(default_factory=list)
    code: int = 0

    def route(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Answer:
        if path == "/submitted":
            self.argv = body["argv"]
            job_id = next(arg.removeprefix(JOB_ID_OPTION) for arg in self.argv if arg.startswith(JOB_ID_OPTION))
            if self.states:
                self.jobs[job_id] = list(self.states)
            return 200, {"output": f"Job has been submitted with JobID {job_id}", "code": self.code}
        job_id = path.removeprefix("/jobs/")
        if job_id not in self.jobs:
            return 404, {"errors": ["not found"]}
        if method == "PATCH":
            assert query == {"mode": "cancel"}
            if self.jobs[job_id][0] == "RUNNING":
                self.jobs[job_id] = ["CANCELLING", "CANCELED"]
            return 202, {}
        states = self.jobs[job_id]
        return 200, {"jid": job_id, "state": states.pop(0) if len(states) > 1 else states[0]}


@pytest.fixture
def flink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeFlink]:
    fake = FakeFlink()
    monkeypatch.setattr("airflow_lake_provider.execution.engines.flink.PAUSE_S", 0.02)
    with serve(fake.route) as port:
        install_program(tmp_path / "bin", "flink", port)
        monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
        extra = json.dumps({"hudi-flink-bundle": "/jars/hudi-flink.jar"})
        connection = {"conn_type": "generic", "host": "127.0.0.1", "port": port, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_FLINK", json.dumps(connection))
        yield fake


@pytest.fixture
def job(tmp_path: Path) -> EngineJob:
    return engine_job(tmp_path, engine="flink", conn_id="flink")


@pytest.mark.parametrize(
    ("states", "outcome"),
    [
        pytest.param(["CREATED", "RUNNING", "FINISHED"], Outcome.COMPLETED, id="finished"),
        pytest.param(["RUNNING", "RESTARTING", "FAILED"], Outcome.FAILED, id="failed"),
        pytest.param([], Outcome.NOTHING_TO_DO, id="nothing-to-run"),
    ],
)
def test_job_is_followed_and_gets_a_result(
    flink: FakeFlink, job: EngineJob, states: list[str], outcome: Outcome
) -> None:
    flink.states = states
    handle = create_engine("flink").start(job)
    assert flink.argv[:2] == ["run", "--detached"]
    # As another process would, after the first one's death.
    create_engine("flink").wait(Handle(job, handle.external_id))
    result = read_result(job.request.result_path)
    assert result is not None
    assert result.services[0].outcome is outcome


def test_job_is_cancelled_though_its_id_was_not_recorded(flink: FakeFlink, job: EngineJob) -> None:
    flink.states = ["RUNNING"]
    job_id = create_engine("flink").start(job).external_id
    flink.jobs["stranger"] = ["RUNNING"]
    create_engine("flink").stop(Handle(job))
    assert flink.jobs == {job_id: ["CANCELED"], "stranger": ["RUNNING"]}
    create_engine("flink").stop(Handle(job))


def test_submission_that_fails_leaves_no_job(flink: FakeFlink, job: EngineJob) -> None:
    flink.states, flink.code = ["RUNNING"], 1
    with pytest.raises(EngineError, match="flink run ended with code 1"):
        create_engine("flink").start(job)
    assert list(flink.jobs.values()) == [["CANCELED"]]


def test_flink_that_does_not_answer_proves_nothing(job: EngineJob, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = json.dumps({"hudi-flink-bundle": "/jars/hudi-flink.jar"})
    connection = {"conn_type": "generic", "host": "127.0.0.1", "port": 9, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_FLINK", json.dumps(connection))
    with pytest.raises(EngineAwayError, match="does not answer"):
        create_engine("flink").stop(Handle(job))


def test_connection_without_bundle_is_refused(job: EngineJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_FLINK", json.dumps({"conn_type": "generic", "host": "jobmanager"}))
    with pytest.raises(ConfigError, match="hudi-flink-bundle in the extra"):
        create_engine("flink").start(job)
