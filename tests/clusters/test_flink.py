"""Jobs on a real Flink, a session cluster of this machine: whatever dies, the engine's answer is what has happened.

The job is one of the tests' own that stands in for Hudi's compactor. What `flink run` and the REST API say is recorded
(tests/recordings/flink), and played in tests/integration/engines/test_flink.py.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from airflow_lake_provider.errors import EngineAwayError, EngineError
from airflow_lake_provider.execution.engines.engine import EngineJob, Handle, create_engine
from airflow_lake_provider.execution.engines.job_files import read_result
from airflow_lake_provider.execution.engines.local_process import find_marked
from airflow_lake_provider.job_contract import FailureKind, Outcome
from local_stack.flink import LocalFlink, list_jobs, make_job
from local_stack.maven import JarsMissingError
from local_stack.processes import PATIENCE, wait_until
from local_stack.zookeeper import LocalZooKeeper
from tests.support.engine_jobs import engine_job

pytestmark = [pytest.mark.system, pytest.mark.soak(covered_by="tests/integration/engines/test_flink.py")]

LONG_S = "600"
WAIT_S = 60


@dataclass(frozen=True, slots=True)
class Stage:
    """A cluster, and a table's folder that the stand-in writes to."""

    cluster: LocalFlink
    jar: Path
    folder: Path

    @property
    def table(self) -> Path:
        return self.folder / "table"

    def job(self, run_id: str = "run", **stand_in: str) -> EngineJob:
        job = engine_job(self.folder, engine="flink", conn_id="flink", run_id=run_id)
        options = {f"stand.in.{key}": value for key, value in stand_in.items()}
        return replace(job, request=replace(job.request, base_path=str(self.table), hudi_options=options))

    def states(self) -> dict[str, str]:
        return list_jobs(self.cluster.address)

    def count_work(self) -> int:
        path = self.table / "work"
        return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0

    def wait_for_work(self) -> None:
        begun = self.count_work()
        wait_until(lambda: self.count_work() > begun, WAIT_S, "work of the job")

    def require_rest(self) -> None:
        done = self.count_work()
        time.sleep(1)
        assert self.count_work() == done, "no task works on"

    def connect(self, monkeypatch: pytest.MonkeyPatch) -> None:
        extra = json.dumps({"hudi-flink-bundle": str(self.jar), "flink-binary": str(self.cluster.program)})
        connection = {"conn_type": "generic", "host": "127.0.0.1", "port": self.cluster.port, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_FLINK", json.dumps(connection))
        for name, value in self.cluster.client_env().items():
            monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return make_job(tmp_path_factory.mktemp("jar") / "stand-in.jar")
    except JarsMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def cluster(jar: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFlink]:
    cluster = LocalFlink(tmp_path_factory.mktemp("flink"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def stage(cluster: LocalFlink, jar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """A cluster with free slots and no job at work."""
    stage = Stage(cluster, jar, tmp_path)
    stage.connect(monkeypatch)
    if cluster.server is None:
        cluster.start_manager()
    if not cluster.workers:
        cluster.start_worker()
    yield stage
    running = [job_id for job_id, state in stage.states().items() if state in {"RUNNING", "CREATED"}]
    assert running == [], "no test leaves a job"


def wait_as_another_process(handle: Handle) -> object:
    return create_engine("flink").wait(handle)


def outcome_of(job: EngineJob) -> Outcome | None:
    result = read_result(job.request.result_path)
    return result.services[0].outcome if result is not None else None


def test_job_is_followed_to_its_end_by_another_process(stage: Stage) -> None:
    handle = create_engine("flink").start(stage.job(seconds="3"))
    assert stage.states()[handle.external_id] in {"INITIALIZING", "CREATED", "RUNNING"}
    assert wait_as_another_process(handle) is None
    assert (stage.table / "done").exists()
    assert outcome_of(handle.job) is Outcome.COMPLETED


def test_job_that_finds_no_plan_submits_nothing(stage: Stage) -> None:
    before = stage.states()
    engine = create_engine("flink")
    handle = engine.start(stage.job(plans="0"))
    assert engine.wait(handle) is None
    assert outcome_of(handle.job) is Outcome.NOTHING_TO_DO
    assert stage.states() == before


def test_failing_jobs_reason_is_in_the_log_and_the_same_try_can_begin_again(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    handles = [create_engine("flink").start(stage.job(fails="the disk is full"))]
    death = create_engine("flink").wait(handles[0])
    assert death is not None
    assert death.reason == f"Flink job {handles[0].external_id} ended as FAILED: IOException: the disk is full"
    assert "Caused by: java.io.IOException: the disk is full" in caplog.text
    assert outcome_of(handles[0].job) is None, "the timeline judges"
    # Flink takes no id twice, and knows an ended job for an hour.
    again = create_engine("flink").start(handles[0].job)
    assert again.external_id != handles[0].external_id
    assert create_engine("flink").wait(again) is not None


def test_job_is_cancelled_though_its_id_was_not_recorded(stage: Stage) -> None:
    job = stage.job(seconds=LONG_S, lingers="3")
    stranger = stage.job("stranger", seconds=LONG_S)
    ids = [create_engine("flink").start(each).external_id for each in (job, stranger)]
    stage.wait_for_work()
    create_engine("flink").stop(Handle(job))
    states = stage.states()
    assert (states[ids[0]], states[ids[1]]) == ("CANCELED", "RUNNING")
    create_engine("flink").stop(Handle(job))
    create_engine("flink").stop(Handle(stranger, ids[1]))
    stage.require_rest()


def test_submitter_that_is_ended_leaves_no_job(stage: Stage) -> None:
    job = stage.job(seconds=LONG_S)
    errors: list[Exception] = []

    def start() -> None:
        try:
            create_engine("flink").start(job)
        except EngineError as error:
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    wait_until(lambda: any(find_marked(f"-Dlake.job={job.tag}")), WAIT_S, "the client")
    create_engine("flink").stop(Handle(job))
    thread.join(WAIT_S * PATIENCE)
    assert errors
    assert "could not be submitted" in str(errors[0])
    stage.require_rest()


def test_submission_that_hudis_program_refuses_says_why(stage: Stage) -> None:
    with pytest.raises(EngineError, match=r"could not be submitted: NumberFormatException: For input string: .soon"):
        create_engine("flink").start(stage.job(seconds="soon"))


def test_killed_task_manager_is_the_reason(stage: Stage) -> None:
    handle = create_engine("flink").start(stage.job(seconds=LONG_S))
    stage.wait_for_work()
    stage.cluster.kill_workers()
    death = create_engine("flink").wait(handle)
    assert death is not None
    # Its JobMaster or its ResourceManager is the first to see it.
    assert re.search(r"ended as FAILED: \w+Exception: TaskManager with id .* is no longer reachable", death.reason)
    assert death.failure_kind is FailureKind.OTHER


def test_cluster_without_a_free_slot_is_waited_for(stage: Stage) -> None:
    stage.cluster.kill_workers()
    wait_until(lambda: stage.cluster.count_slots() == 0, WAIT_S, "a cluster without slots")
    handle = create_engine("flink").start(stage.job(seconds="1"))
    death = create_engine("flink").wait(handle)
    assert death is not None
    assert "Could not acquire the minimum required resources" in death.reason
    assert death.failure_kind is FailureKind.INFRASTRUCTURE


def test_job_manager_that_forgets_its_jobs_has_run_nothing_to_its_end(stage: Stage) -> None:
    handle = create_engine("flink").start(stage.job(seconds=LONG_S, lingers="40"))
    stage.wait_for_work()
    stage.cluster.kill_manager()
    with pytest.raises(EngineAwayError, match="does not answer"):
        create_engine("flink").start(stage.job("other"))
    stage.cluster.start_manager()
    death = create_engine("flink").wait(handle)
    assert death is not None
    assert f"does not know job {handle.external_id} any more" in death.reason
    assert outcome_of(handle.job) is None
    # A TaskManager worked on after the JobManager had forgotten the job.
    stage.require_rest()


def test_highly_available_job_manager_goes_on_with_its_jobs(
    jar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = LocalZooKeeper(tmp_path / "zookeeper")
    settings = {
        "high-availability.type": "zookeeper",
        "high-availability.zookeeper.quorum": keeper.address,
        "high-availability.storageDir": f"file://{tmp_path}/ha",
    }
    stage = Stage(LocalFlink(tmp_path / "flink", settings), jar, tmp_path)
    stage.connect(monkeypatch)
    try:
        keeper.start()
        stage.cluster.start()
        handle = create_engine("flink").start(stage.job(seconds="20"))
        stage.wait_for_work()
        stage.cluster.kill_manager()
        stage.cluster.start_manager()
        assert create_engine("flink").wait(handle) is None
        assert (stage.table / "done").exists()
        assert outcome_of(handle.job) is Outcome.COMPLETED
    finally:
        stage.cluster.stop()
        keeper.stop()
