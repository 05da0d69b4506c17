"""What a driver of many streams is given to do, and what becomes of a stream that fails, is lost, or is left behind."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_lake_provider.errors import ManagerUnreachableError, SinkBusyError
from airflow_lake_provider.execution import reporting, streams
from airflow_lake_provider.execution.engines.engine import EngineJob
from airflow_lake_provider.execution.engines.job_files import JobFolder, write_text
from airflow_lake_provider.execution.streams import StreamRuns
from airflow_lake_provider.job_contract import FailureKind, from_json, to_json
from airflow_lake_provider.operators import replication
from airflow_lake_provider.operators.replication import HudiStreamsOperator
from airflow_lake_provider.replication.job import CHANNEL, Channel, ReplicationRequest, ReplicationResult
from tests.support.task_context import task_instance


@dataclass
class Manager:
    """Says which sinks are due, in this order, and keeps what is reported. It has the hook's methods."""

    due: list[dict[str, Any]] = field(default_factory=list)
    progress: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    asked: list[tuple[list[str], int, int]] = field(default_factory=list)
    is_away: bool = False
    busy: set[str] = field(default_factory=set)

    def begin_due_sinks(self, run_id: str, running: Sequence[str], most: int, snapshots: int) -> list[dict[str, Any]]:
        self.asked.append((list(running), most, snapshots))
        if self.is_away:
            raise ManagerUnreachableError("away")
        taken, self.due = self.due[:most], self.due[most:]
        return taken

    def report_progress(self, table_id: str, sink: str, progress: Mapping[str, Any]) -> None:
        if table_id in self.busy:
            raise SinkBusyError(f"another run has {table_id}")
        self.progress.append((table_id, dict(progress)))

    def list_sinks(self, table_id: str) -> list[dict[str, Any]]:
        return []

    def ended(self) -> dict[str, str]:
        return {table_id: report["problem"] for table_id, report in self.progress if report.get("ended")}


def due(name: str, **more: Any) -> dict[str, Any]:
    named = {"table_id": name, "base_path": f"/lake/{name}", "table_name": name, "name": "noop", "sink": "noop"}
    known = {"mode": "changes", "key": [], "options": {}, "database": "", "changed_time": "5"}
    cap = {"max_hold_s": None, "max_held_bytes": None, "begins_with_snapshot": False}
    return {**named, **known, **cap, "begun": {"needs_snapshot": False, "request": "", "generation": 0}, **more}


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Manager:
    monkeypatch.setattr(streams, "CLAIM_INTERVAL_S", 0.0)
    return Manager()


def runs_of(manager: Manager, folder: Path, at_once: int = 2) -> StreamRuns:
    return StreamRuns(manager, "run-1", JobFolder(str(folder), "run-1.streams", 1), at_once)  # type: ignore[arg-type]


def pull(runs: StreamRuns, free: int) -> dict[str, ReplicationRequest]:
    answer = runs.answer({"free": free, "lines": {}, "known": []})
    return {stream: from_json(ReplicationRequest, text) for stream, text in answer["requests"].items()}


def finish(runs: StreamRuns, stream: str, **result: Any) -> None:
    text = to_json(ReplicationResult(stream, ended=True, **result))
    runs.answer({"ended": stream, "result": text, "lines": ["one line"]})


def test_streams_get_their_places_in_the_managers_order(manager: Manager, tmp_path: Path) -> None:
    manager.due = [due(name) for name in "abcd"]
    runs = runs_of(manager, tmp_path)
    assert list(pull(runs, 2)) == ["a.noop", "b.noop"]
    assert list(pull(runs, 0)) == []
    finish(runs, "a.noop", commits=1, rows=3)
    assert list(pull(runs, 1)) == ["c.noop"]
    assert (runs.commits, runs.rows, manager.ended()) == (1, 3, {"a": ""})
    finish(runs, "b.noop")
    finish(runs, "c.noop")
    assert list(pull(runs, 2)) == ["d.noop"]
    runs.end_all("the end")
    assert manager.ended() == {"a": "", "b": "", "c": "", "d": "the end"}


def test_claim_says_what_runs_and_how_many_snapshots_there_is_room_for(manager: Manager, tmp_path: Path) -> None:
    manager.due = [due("a", begins_with_snapshot=True), due("b")]
    runs = runs_of(manager, tmp_path, at_once=4)
    assert len(pull(runs, 4)) == 2
    assert manager.asked[:2] == [([], 16, 2), (["a.noop", "b.noop"], 16, 1)]
    finish(runs, "a.noop")
    pull(runs, 4)
    assert manager.asked[-1] == (["b.noop"], 16, 2)
    runs.end_all("the end")


def test_stream_that_cannot_begin_is_its_sinks_problem_alone(manager: Manager, tmp_path: Path) -> None:
    manager.due = [due("a", options={"conn_id": "no_such_connection"}), due("b")]
    runs = runs_of(manager, tmp_path)
    assert list(pull(runs, 2)) == ["b.noop"]
    assert list(manager.ended()) == ["a"]
    assert "no_such_connection" in manager.ended()["a"]
    assert runs.failures == 1
    runs.end_all("the end")


def test_failure_is_the_sinks_problem_and_others_go_on(manager: Manager, tmp_path: Path) -> None:
    manager.due = [due(name) for name in "abc"]
    runs = runs_of(manager, tmp_path)
    pull(runs, 2)
    finish(runs, "a.noop", failure_kind=FailureKind.OTHER, message="a file is missing")
    assert list(pull(runs, 1)) == ["c.noop"]
    assert (manager.ended(), runs.failures) == ({"a": "a file is missing"}, 1)
    runs.end_all("the end")


def test_stream_that_another_run_took_is_cancelled_and_reports_nothing(
    manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "PROGRESS_INTERVAL_S", 0.01)
    manager.due, manager.busy = [due("a")], {"a"}
    runs = runs_of(manager, tmp_path)
    pull(runs, 1)
    run = runs._running["a.noop"]
    run.progress._thread.join(0.2)
    while not run.lost:
        run.progress._thread.join(0.01)
    assert runs.answer({"free": 0, "lines": {}, "known": []})["cancel"] == {"a.noop": "another run has a"}
    manager.busy.clear()
    finish(runs, "a.noop", failure_kind=FailureKind.OTHER, message="cancelled")
    assert manager.ended() == {}


def test_manager_that_is_away_ends_nothing(manager: Manager, tmp_path: Path) -> None:
    manager.due = [due("a")]
    runs = runs_of(manager, tmp_path)
    assert list(pull(runs, 1)) == ["a.noop"]
    manager.due, manager.is_away = [due("b")], True
    assert pull(runs, 1) == {}
    manager.is_away = False
    assert list(pull(runs, 1)) == ["b.noop"]
    runs.end_all("the end")


def test_channel_answers_one_driver_and_ends_with_an_error_of_its_own() -> None:
    def answer(question: dict[str, Any]) -> dict[str, Any]:
        return {"half": 10 / question["by"]}

    channel = Channel(answer)
    with channel:
        assert Path(channel.path).parent.stat().st_mode & 0o077 == 0
        with Client(channel.path, family="AF_UNIX") as driver:
            driver.send_bytes(b'{"by": 2}')
            assert driver.recv_bytes() == b'{"half": 5.0}'
            driver.send_bytes(b'{"by": 0}')
            with pytest.raises((EOFError, ConnectionError)):
                driver.recv_bytes()
        channel._thread.join(10)
        assert isinstance(channel.error, ZeroDivisionError)
    assert not Path(channel.path).parent.exists()


def drive(manager: Manager, monkeypatch: pytest.MonkeyPatch, folder: Path, submit: Any = None) -> dict[str, Any]:
    """Run the operator's task, with this in place of spark-submit where it is given."""
    monkeypatch.setattr(replication, "LakeHook", lambda *_: manager)
    monkeypatch.setattr(replication, "work_dir", lambda: str(folder))
    if submit is not None:
        monkeypatch.setattr(HudiStreamsOperator, "_submit", submit)
    operator = HudiStreamsOperator(task_id="streams", at_once=2, idle_s=1, max_age_s=60)
    context: Any = {"run_id": "run-1", "ti": task_instance()}
    return operator.execute(context)


def driver_of(*, dies_with: str = "") -> Any:
    """Return a driver that runs each stream well, and has died when it gets the one with this name."""

    def submit(_: object, job: EngineJob) -> None:
        request = job.replication
        assert request is not None
        with Client(request.options[CHANNEL], family="AF_UNIX") as task:

            def ask(**question: Any) -> dict[str, Any]:
                task.send_bytes(json.dumps(question).encode())
                return dict(json.loads(task.recv_bytes()))

            while requests := ask(free=2, lines={}, known=[])["requests"]:
                for stream in requests:
                    if stream == dies_with:
                        return
                    text = to_json(ReplicationResult(stream, ended=True, commits=1, rows=5))
                    ask(ended=stream, result=text, lines=[])
        write_text(request.result_path, to_json(ReplicationResult("", ended=True)))

    return submit


def test_driver_inside_a_cluster_is_refused_because_it_could_not_ask_its_task(
    manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(inside))
    manager.due = [due("a")]
    with pytest.raises(AirflowFailException, match=r"deploy-mode cluster.*\[lake\] replication_spark_conn_id"):
        drive(manager, monkeypatch, tmp_path)
    assert not list(tmp_path.rglob("request.json"))


def test_without_a_due_sink_no_driver_starts(manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def submit(*_: object) -> None:
        raise AssertionError("a driver was started")

    assert drive(manager, monkeypatch, tmp_path, submit) == {"commits": 0, "rows": 0, "failures": 0}


def test_task_ends_with_what_its_driver_did(manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager.due = [due(name) for name in "abc"]
    assert drive(manager, monkeypatch, tmp_path, driver_of()) == {"commits": 3, "rows": 15, "failures": 0}
    assert manager.ended() == {"a": "", "b": "", "c": ""}


def test_death_of_the_driver_is_the_problem_of_what_ran_in_it(
    manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.due = [due(name) for name in "abc"]
    with pytest.raises(AirflowException, match="the driver of stream streams died"):
        drive(manager, monkeypatch, tmp_path, driver_of(dies_with="b.noop"))
    assert manager.ended()["a"] == ""
    assert "died" in manager.ended()["b"]
    # It was not begun: its claim ends by itself, and the next try has it at once.
    assert "c" not in manager.ended()
