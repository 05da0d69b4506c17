"""The Flink engine, with `flink run` and the REST API played by what a real Flink said (tests/recordings/flink).

The real one is in tests/clusters/test_flink.py; played are also what it does not do when it is asked to: a leader
election, a job that does not end, an answer that is refused.
"""

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
from airflow_lake_provider.execution.engines.flink import ids_of
from airflow_lake_provider.execution.engines.job_files import read_result
from airflow_lake_provider.job_contract import FailureKind, Outcome
from tests.integration.engines.fake_api import Answer, install_program, serve
from tests.support.engine_jobs import engine_job

pytestmark = pytest.mark.integration

RECORDINGS = Path(__file__).resolve().parents[2] / "recordings" / "flink"
"""What the real one said, as `python -m tests.recordings.record_flink` wrote it down."""
RECORDED_ID = "0123456789abcdef0123456789abcdef"
MODULE = "airflow_lake_provider.execution.engines.flink"
JOB_ID_OPTION = "-D$internal.pipeline.job-id="
PRINTED_WITH_CODE_0 = ("submitted", "nothing")


def answered(name: str, job_id: str = RECORDED_ID) -> Answer:
    found = json.loads((RECORDINGS / f"rest_{name}.json").read_text(encoding="utf-8").replace(RECORDED_ID, job_id))
    return found["status"], found["body"]


@dataclass
class FakeFlink:
    """A JobManager. `states` are the recordings that a submitted job goes through; the last one stays."""

    states: list[str] = field(default_factory=lambda: ["running", "finished"])
    jobs: dict[str, list[str]] = field(default_factory=dict)
    argv: list[str] = field(default_factory=list)
    prints: str = "submitted"
    """What `flink run` prints; only `submitted` makes a job."""
    loses_answer: bool = False
    """Whether `flink run` fails after the JobManager has the job."""
    exceptions: str = "failed"
    worker: str = "at_rest"
    refuses: int = 200
    """What the API answers everything with, unless 200."""
    says: Any = None
    """What it answers everything with, unless None."""
    obeys: bool = True
    heartbeat_timeout: str = "200 ms"

    def route(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Answer:
        if path == "/submitted":
            return self.submit(body["argv"])
        if self.refuses != 200:
            return self.refuses, {"errors": ["Service temporarily unavailable due to an ongoing leader election."]}
        if self.says is not None:
            return 200, self.says
        if path == "/jobmanager/config":
            status, settings = answered("config")
            known = [entry for entry in settings if entry["key"] != "heartbeat.timeout"]  # type: ignore[index]
            return status, [*known, {"key": "heartbeat.timeout", "value": self.heartbeat_timeout}]  # type: ignore[return-value]
        if path.startswith("/taskmanagers"):
            name = "workers" if path == "/taskmanagers" else f"worker_{self.worker}"
            return answered(name, next(iter(self.jobs), RECORDED_ID))
        if path == "/jobs/overview":
            (shape, *_) = answered("jobs")[1]["jobs"]
            now = {job_id: self.next_state(job_id) for job_id in self.jobs}
            jobs = [{**shape, "jid": job_id, "state": state} for job_id, state in now.items() if state is not None]
            return 200, {"jobs": jobs}
        job_id, _, rest = path.removeprefix("/jobs/").partition("/")
        if rest == "exceptions":
            return answered(f"exceptions_{self.exceptions}", job_id)
        if method == "PATCH":
            assert query == {"mode": "cancel"}
            return self.cancel(job_id)
        return self.next(job_id)

    def submit(self, argv: list[str]) -> Answer:
        self.argv = argv
        job_id = next(arg.removeprefix(JOB_ID_OPTION) for arg in argv if arg.startswith(JOB_ID_OPTION))
        if job_id in self.jobs:
            self.prints = "duplicate"
        if self.prints == "submitted" or self.loses_answer:
            self.jobs[job_id] = list(self.states)
        printed = (RECORDINGS / f"run_{self.prints}.txt").read_text(encoding="utf-8").replace(RECORDED_ID, job_id)
        return 200, {"output": printed, "code": int(self.prints not in PRINTED_WITH_CODE_0)}

    def cancel(self, job_id: str) -> Answer:
        if job_id not in self.jobs:
            return answered("cancel_unknown", job_id)
        if self.jobs[job_id][0] != "running":
            return answered("cancel_ended", job_id)
        if self.obeys:
            self.jobs[job_id] = ["cancelling", "canceled"]
        return answered("cancel_accepted", job_id)

    def next(self, job_id: str) -> Answer:
        states = self.jobs.get(job_id, ["unknown"])
        return answered(f"job_{states.pop(0) if len(states) > 1 else states[0]}", job_id)

    def next_state(self, job_id: str) -> str | None:
        return self.next(job_id)[1].get("state")


@pytest.fixture
def flink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeFlink]:
    fake = FakeFlink()
    monkeypatch.setattr(f"{MODULE}.PAUSE_S", 0.02)
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


def outcome_of(job: EngineJob) -> Outcome | None:
    result = read_result(job.request.result_path)
    return result.services[0].outcome if result is not None else None


def test_job_is_followed_and_gets_a_result(flink: FakeFlink, job: EngineJob) -> None:
    handle = create_engine("flink").start(job)
    assert flink.argv[:2] == ["run", "--detached"]
    # As another process would, after the first one's death.
    assert create_engine("flink").wait(Handle(job, handle.external_id)) is None
    assert outcome_of(job) is Outcome.COMPLETED


def test_program_that_submits_nothing_has_nothing_to_do(flink: FakeFlink, job: EngineJob) -> None:
    flink.prints = "nothing"
    engine = create_engine("flink")
    handle = engine.start(job)
    assert (engine.wait(handle), handle.external_id, flink.jobs) == (None, "", {})
    assert outcome_of(job) is Outcome.NOTHING_TO_DO


@pytest.mark.parametrize(
    ("exceptions", "reason", "kind"),
    [
        ("failed", "FAILED: IOException: the disk is full", FailureKind.OTHER),
        ("lost_worker", "is no longer reachable", FailureKind.OTHER),
        ("no_slot", "Could not acquire the minimum required resources", FailureKind.INFRASTRUCTURE),
        ("unknown", "FAILED: Flink gives no reason", FailureKind.OTHER),
    ],
)
def test_failure_has_flinks_reason_and_no_result(
    flink: FakeFlink, job: EngineJob, exceptions: str, reason: str, kind: FailureKind
) -> None:
    flink.states, flink.exceptions = ["running", "failed"], exceptions
    death = create_engine("flink").wait(create_engine("flink").start(job))
    assert death is not None
    assert reason in death.reason
    assert death.failure_kind is kind
    assert outcome_of(job) is None, "the timeline judges"


def test_same_try_begins_again_under_another_id(flink: FakeFlink, job: EngineJob) -> None:
    flink.states = ["failed"]
    assert [create_engine("flink").start(job).external_id for _ in range(2)] == ids_of(job)[:2]


def test_job_that_flink_forgot_while_it_ran_is_not_nothing_to_do(flink: FakeFlink, job: EngineJob) -> None:
    flink.states = ["running", "unknown"]
    death = create_engine("flink").wait(create_engine("flink").start(job))
    assert death is not None
    assert "does not know job" in death.reason
    assert outcome_of(job) is None


def test_job_is_back_after_a_moment_with_high_availability(flink: FakeFlink, job: EngineJob) -> None:
    flink.states, flink.heartbeat_timeout = ["running", "unknown", "unknown", "running", "finished"], "50 s"
    assert create_engine("flink").wait(create_engine("flink").start(job)) is None
    assert outcome_of(job) is Outcome.COMPLETED


def test_forgotten_job_has_not_ended_while_a_task_manager_has_its_slot(
    flink: FakeFlink, job: EngineJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{MODULE}.END_PATIENCE_S", 0.2)
    flink.jobs, flink.worker = {ids_of(job)[0]: ["unknown"]}, "at_work"
    with pytest.raises(EngineError, match="that its JobManager has forgotten"):
        create_engine("flink").stop(Handle(job))
    flink.worker = "at_rest"
    create_engine("flink").stop(Handle(job))


def test_job_is_cancelled_though_its_id_was_not_recorded(flink: FakeFlink, job: EngineJob) -> None:
    flink.states = ["running"]
    job_id = create_engine("flink").start(job).external_id
    flink.jobs["stranger"] = ["running"]
    create_engine("flink").stop(Handle(job))
    assert {known: states[-1] for known, states in flink.jobs.items()} == {job_id: "canceled", "stranger": "running"}
    create_engine("flink").stop(Handle(job))


def test_job_that_does_not_end_is_an_error(flink: FakeFlink, job: EngineJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{MODULE}.END_PATIENCE_S", 0.1)
    flink.states, flink.obeys = ["running"], False
    handle = create_engine("flink").start(job)
    with pytest.raises(EngineError, match=f"does not end.*{handle.external_id}"):
        create_engine("flink").stop(handle)


def test_submission_whose_answer_was_lost_leaves_no_job(flink: FakeFlink, job: EngineJob) -> None:
    flink.states, flink.prints, flink.loses_answer = ["running"], "timeout", True
    with pytest.raises(EngineAwayError, match="could not be submitted: ConnectionIdleException"):
        create_engine("flink").start(job)
    assert [states[-1] for states in flink.jobs.values()] == ["canceled"]


@pytest.mark.parametrize(
    ("prints", "error"),
    [
        ("refused_connection", EngineAwayError),
        ("unavailable", EngineAwayError),
        ("program_fails", EngineError),
        ("no_jar", EngineError),
    ],
)
def test_failed_submission_waits_only_where_flink_is_away(
    flink: FakeFlink, job: EngineJob, prints: str, error: type[EngineError]
) -> None:
    flink.prints = prints
    with pytest.raises(EngineError, match="could not be submitted: ") as raised:
        create_engine("flink").start(job)
    assert type(raised.value) is error


@pytest.mark.parametrize(("status", "error"), [(503, EngineAwayError), (500, EngineAwayError), (403, EngineError)])
def test_api_that_refuses_is_no_answer_about_the_job(
    flink: FakeFlink, job: EngineJob, monkeypatch: pytest.MonkeyPatch, status: int, error: type[EngineError]
) -> None:
    monkeypatch.setattr(f"{MODULE}.FOLLOW_PATIENCE_S", 0.1)
    flink.refuses = status
    for ask in (create_engine("flink").stop, create_engine("flink").wait):
        with pytest.raises(EngineError, match=f"answers: .*{status}") as raised:
            ask(Handle(job, ids_of(job)[0]))
        assert type(raised.value) is error
    with pytest.raises(error):
        create_engine("flink").start(job)
    assert flink.argv == [], "nothing is submitted"


@pytest.mark.parametrize(
    "says",
    [
        pytest.param([], id="list"),
        pytest.param("<html>", id="text"),
        pytest.param({"jobs": None, "state": []}, id="no-jobs"),
        pytest.param({"jobs": [{"jid": 1}], "x": 2}, id="jobs-without-state"),
        pytest.param({"jobs": ["x" * 2_000_000]}, id="more-than-the-limit"),
    ],
)
def test_answer_of_another_program_proves_nothing(
    flink: FakeFlink, job: EngineJob, monkeypatch: pytest.MonkeyPatch, says: Any
) -> None:
    """The job may run on: neither an error of ours nor an end of the job."""
    monkeypatch.setattr(f"{MODULE}.FOLLOW_PATIENCE_S", 0.1)
    monkeypatch.setattr(f"{MODULE}.MAX_ANSWER_BYTES", 1_000_000)
    flink.says = says
    with pytest.raises(EngineAwayError) as raised:
        create_engine("flink").start(job)
    assert len(str(raised.value)) < 500
    assert flink.argv == [], "nothing is submitted"


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
