"""G2 where jobs begin: whatever an earlier executor left has ended, or is followed, before another one starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_lake_provider.errors import EngineAwayError, EngineError, LakeError
from airflow_lake_provider.execution.engines.engine import Death, EngineJob, Handle
from airflow_lake_provider.execution.engines.job_files import (
    ExecutorRecord,
    find_result,
    read_result,
    write_request,
    write_text,
)
from airflow_lake_provider.execution.job import JobRun
from airflow_lake_provider.execution.more_memory import first_shortage
from airflow_lake_provider.job_contract import FailureKind, Mode, Outcome, Service, ServiceRequest, from_json, to_json
from airflow_lake_provider.replication.job import ReplicationRequest, ReplicationResult
from tests.support.engine_jobs import FakeEngine, engine_job, lost, never_lost, replication_job


class WorkerKilledError(BaseException):
    """Stands for kill -9: nothing of the run is executed any more."""


def record_of(folder: Path) -> ExecutorRecord:
    return ExecutorRecord(str(folder), "t", Service.COMPACTION)


def job_run(folder: Path, job: EngineJob, engine: FakeEngine) -> JobRun:
    return JobRun(job, record_of(folder), lambda _: engine)


def crash(folder: Path, engine: FakeEngine, at: str, monkeypatch: pytest.MonkeyPatch, **job: object) -> EngineJob:
    """Run a job whose worker dies inside one of the engine's methods, and return it."""
    died = engine_job(folder, **job)  # type: ignore[arg-type]
    engine.raises = {at: WorkerKilledError()}
    run = job_run(folder, died, engine)
    monkeypatch.setattr(run, "stop", lambda: None)
    with pytest.raises(WorkerKilledError):
        run.run(never_lost)
    engine.raises = {}
    engine.calls.clear()
    return died


def test_job_that_ends_leaves_no_record(tmp_path: Path) -> None:
    engine, job = FakeEngine(external_id="app_1"), engine_job(tmp_path)
    assert job_run(tmp_path, job, engine).run(never_lost) is job.request
    assert engine.calls == [("start", "run/1"), ("wait", "run/1")]
    assert record_of(tmp_path).find() is None


@pytest.mark.parametrize("at", ["start", "wait"])
def test_job_of_a_killed_worker_is_ended_before_the_next_begins(
    tmp_path: Path, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an external id there is nothing to follow; dying while starting leaves none either."""
    engine = FakeEngine()
    died = crash(tmp_path, engine, at, monkeypatch)
    engine.running.add(died.tag)
    job_run(tmp_path, engine_job(tmp_path, try_number=2), engine).run(never_lost)
    assert engine.calls == [("stop", "run/1"), ("start", "run/2"), ("wait", "run/2")]
    assert engine.most_at_once == 1


def test_request_of_a_fenced_job_is_taken_away_so_a_late_driver_finds_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine()
    died = crash(tmp_path, engine, "start", monkeypatch)
    assert os.path.exists(died.request_path)
    job_run(tmp_path, engine_job(tmp_path, try_number=2), engine).run(never_lost)
    assert not os.path.exists(died.request_path)


def test_job_that_outlived_its_worker_is_followed_and_its_result_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine(external_id="app_1")
    died = crash(tmp_path, engine, "wait", monkeypatch)
    assert died.tag in engine.running
    ran = job_run(tmp_path, engine_job(tmp_path, try_number=2), engine).run(never_lost)
    assert engine.calls == [("wait", "run/1")]
    assert ran.result_path == died.request.result_path
    assert record_of(tmp_path).find() is None


def test_job_that_died_with_its_worker_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(external_id="app_1")
    crash(tmp_path, engine, "wait", monkeypatch)
    engine.running.clear()
    job_run(tmp_path, engine_job(tmp_path, try_number=2), engine).run(never_lost)
    assert engine.calls == [("wait", "run/1"), ("start", "run/2"), ("wait", "run/2")]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"run_id": "another run"}, id="of-another-run"),
        pytest.param({"wanted": ServiceRequest(Service.COMPACTION, Mode.EXECUTE, ("001",))}, id="with-other-work"),
    ],
)
def test_job_that_does_something_else_is_ended_not_followed(
    tmp_path: Path, other: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine(external_id="app_1")
    died = crash(tmp_path, engine, "wait", monkeypatch)
    job_run(tmp_path, engine_job(tmp_path, try_number=2, **other), engine).run(never_lost)  # type: ignore[arg-type]
    assert engine.calls[0] == ("stop", died.request.job_id)
    assert engine.most_at_once == 1


def test_nothing_begins_while_it_is_unknown_whether_the_old_job_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine()
    crash(tmp_path, engine, "wait", monkeypatch)
    engine.raises = {"stop": EngineError("the cluster does not answer")}
    with pytest.raises(EngineError, match="does not answer"):
        job_run(tmp_path, engine_job(tmp_path, try_number=2), engine).run(never_lost)
    assert [what for what, _ in engine.calls] == ["stop"]
    assert record_of(tmp_path).find() is not None


def test_lost_lease_begins_nothing(tmp_path: Path) -> None:
    engine = FakeEngine()
    with pytest.raises(LakeError, match="lost"):
        job_run(tmp_path, engine_job(tmp_path), engine).run(lost)
    assert engine.calls == []


def test_job_whose_end_is_unknown_stays_on_record(tmp_path: Path) -> None:
    engine = FakeEngine(external_id="app_1", raises={"wait": EngineError("no answer"), "stop": EngineError("nor now")})
    with pytest.raises(EngineError, match="no answer"):
        job_run(tmp_path, engine_job(tmp_path), engine).run(never_lost)
    left = record_of(tmp_path).find()
    assert left is not None
    assert left.external_id == "app_1"


def test_job_whose_cluster_is_away_for_a_while_runs_on_and_is_followed_by_the_same_try(tmp_path: Path) -> None:
    engine, job = FakeEngine(external_id="app_1", raises={"wait": EngineAwayError("no answer")}), engine_job(tmp_path)
    with pytest.raises(EngineAwayError, match="no answer"):
        job_run(tmp_path, job, engine).run(never_lost)
    assert job.tag in engine.running
    engine.raises = {}
    # Airflow runs the same try again after its wait.
    assert job_run(tmp_path, job, engine).run(never_lost).job_id == job.request.job_id
    assert engine.calls == [("start", "run/1"), ("wait", "run/1"), ("wait", "run/1")]
    assert record_of(tmp_path).find() is None


@pytest.mark.parametrize(("external_id", "at"), [("", "wait"), ("app_1", "start")])
def test_job_that_cannot_be_found_again_is_ended_when_its_cluster_is_away(
    tmp_path: Path, external_id: str, at: str
) -> None:
    engine, job = FakeEngine(external_id=external_id, raises={at: EngineAwayError("no answer")}), engine_job(tmp_path)
    with pytest.raises(EngineAwayError):
        job_run(tmp_path, job, engine).run(never_lost)
    assert engine.calls[-1] == ("stop", "run/1")
    assert engine.running == set()
    assert not os.path.exists(job.request_path)


def test_stop_ends_the_job_and_takes_its_request_away(tmp_path: Path) -> None:
    engine, job = FakeEngine(), engine_job(tmp_path)
    run = job_run(tmp_path, job, engine)
    run.stop()
    assert engine.calls == []

    def stop_while_it_runs() -> None:
        run.stop()
        assert not os.path.exists(job.request_path)

    engine.wait = lambda _: stop_while_it_runs()  # type: ignore[method-assign]
    run.run(never_lost)
    assert engine.calls == [("start", "run/1"), ("stop", "run/1")]


def test_job_that_died_without_a_result_leaves_what_its_cluster_says(tmp_path: Path) -> None:
    """The verdict then has the reason, and a job that was out of memory gets more."""
    engine = FakeEngine(writes_result=False, death=Death("the node is lost", FailureKind.OUT_OF_MEMORY))
    job = engine_job(tmp_path)
    job_run(tmp_path, job, engine).run(never_lost)
    result = read_result(job.request.result_path)
    assert result is not None
    (service,) = result.services
    assert (service.outcome, service.message) == (Outcome.FAILED, "the node is lost")
    assert first_shortage([result]) == {}


def test_result_of_the_job_is_not_replaced_by_what_its_cluster_says(tmp_path: Path) -> None:
    engine, job = FakeEngine(death=Death("ended as FAILED")), engine_job(tmp_path)
    job_run(tmp_path, job, engine).run(never_lost)
    result = read_result(job.request.result_path)
    assert result is not None
    assert [service.outcome for service in result.services] == [Outcome.COMPLETED]


# --- Runs of replication: the same rules, with a request that may be secret


def sink_record(folder: Path) -> ExecutorRecord:
    return ExecutorRecord.for_sink(str(folder), "t", "a mirror/..")


def sink_run(folder: Path, engine: FakeEngine, **job: object) -> JobRun:
    return JobRun(replication_job(folder, **job), sink_record(folder), lambda _: engine)  # type: ignore[arg-type]


def kill_sink_run(folder: Path, engine: FakeEngine, at: str, monkeypatch: pytest.MonkeyPatch) -> EngineJob:
    engine.raises = {at: WorkerKilledError()}
    run = sink_run(folder, engine)
    monkeypatch.setattr(run, "stop", lambda: None)
    with pytest.raises(WorkerKilledError):
        run.run(never_lost)
    engine.raises = {}
    engine.calls.clear()
    return run.job


def test_run_of_replication_that_outlived_its_worker_is_followed_and_its_result_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine(external_id="app_1")
    died = kill_sink_run(tmp_path, engine, "wait", monkeypatch)
    again = sink_run(tmp_path, engine, try_number=2)
    # What the driver reports meanwhile is in the file of the try that began it.
    monkeypatch.setattr(engine, "wait", watched(engine, again, died.request.result_path))
    ran = again.run(never_lost)
    assert ran.result_path == died.request.result_path
    assert find_result(ran.result_path, ReplicationResult) is not None
    assert not list(tmp_path.rglob("request.json"))
    assert sink_record(tmp_path).find() is None


def watched(engine: FakeEngine, run: JobRun, result_path: str) -> object:
    wait = engine.wait

    def check(handle: Handle) -> Death | None:
        assert run.result_path == result_path
        return wait(handle)

    return check


def test_sink_of_another_run_has_its_driver_ended_before_the_next_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine(external_id="app_1")
    died = kill_sink_run(tmp_path, engine, "wait", monkeypatch)
    sink_run(tmp_path, engine, run_id="other").run(never_lost)
    assert engine.calls[0] == ("stop", died.request.job_id)
    assert engine.most_at_once == 1
    assert not list(tmp_path.rglob("request.json"))


def test_run_whose_driver_another_one_has_ended_leaves_the_record_of_that_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has lost its sink, and may not have noticed: the manager could not be reached from its machine."""
    engine = FakeEngine(external_id="app_1")
    other = replication_job(tmp_path, run_id="other")

    def wait(_: Handle) -> Death:
        sink_record(tmp_path).begin(other)
        return Death("YARN application ended as KILLED")

    monkeypatch.setattr(engine, "wait", wait)
    sink_run(tmp_path, engine).run(never_lost)
    left = sink_record(tmp_path).find()
    assert left is not None
    assert left.job.tag == other.tag


def test_driver_of_replication_that_died_while_it_was_not_watched_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has left how far it was, which is no result."""
    engine = FakeEngine(external_id="app_1")
    died = kill_sink_run(tmp_path, engine, "wait", monkeypatch)
    engine.running.clear()
    write_text(died.request.result_path, to_json(ReplicationResult("orders-1.mirror", ended=False, checkpoint="c")))
    run = sink_run(tmp_path, engine, try_number=2)
    assert run.run(never_lost).result_path != died.request.result_path
    assert engine.calls == [("wait", "run/1"), ("start", "run/2"), ("wait", "run/2")]


def test_record_of_a_run_of_replication_has_none_of_the_sinks_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = kill_sink_run(tmp_path, FakeEngine(external_id="app_1"), "wait", monkeypatch)
    holding = [path.name for path in tmp_path.rglob("*") if path.is_file() and "hunter2" in path.read_text()]
    assert holding == ["request.json"]
    assert "hunter2" not in repr(job)


def test_run_that_has_lost_its_sink_leaves_no_request(tmp_path: Path) -> None:
    engine = FakeEngine()
    with pytest.raises(LakeError, match="lease is lost"):
        sink_run(tmp_path, engine).run(lost)
    assert engine.calls == []
    assert not list(tmp_path.rglob("request.json"))


def test_reason_of_a_dead_driver_of_replication_takes_no_place_of_its_result(tmp_path: Path) -> None:
    engine = FakeEngine(writes_result=False, death=Death("YARN application ended as FAILED"))
    run = sink_run(tmp_path, engine)
    run.run(never_lost)
    assert run.death is engine.death
    assert not os.path.exists(run.result_path)


@pytest.mark.parametrize("outlives_task", [False, True])
def test_driver_that_outlives_its_task_does_not_watch_it(tmp_path: Path, outlives_task: bool) -> None:
    job = replication_job(tmp_path)
    write_request(job, outlives_task=outlives_task)
    sent = from_json(ReplicationRequest, Path(job.request_path).read_text(encoding="utf-8"))
    assert (sent.submitter is None) is outlives_task
    assert sent.options == {"url": "postgresql://lake:hunter2@db/x"}
