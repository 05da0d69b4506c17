"""Runs of the service DAG with engine `warm`: Airflow defers them, and the manager's answers end them.

Airflow's own task runner and trigger; the manager is a small server, which also plays the standing application: it
completes the table's plan on the timeline, or does not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.support.http_server import JsonHandler, serve
from tests.support.tables import HandMadeTable

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
LOCK = {"hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"}
POLICY = {
    "hudi_options": LOCK,
    "spark_conf": {},
    "conflict": {},
    "engine": "warm",
    "spark_conn_id": "",
    "timeout_s": 90.0,
}


class Manager(JsonHandler):
    """Answers tasks and triggers; `states` are an item's states in turn."""

    table: ClassVar[HandMadeTable]
    plan: ClassVar[str] = ""
    states: ClassVar[list[dict[str, Any]]] = []
    calls: ClassVar[list[tuple[str, dict[str, Any]]]] = []
    submit_state: ClassVar[str] = "waiting"
    completes: ClassVar[bool] = True

    def do_GET(self) -> None:
        self.answer(POLICY)

    def do_POST(self) -> None:
        path = self.path.removeprefix("/v1/hoodie")
        body = self.body()
        self.calls.append((path, body))
        if path.endswith("/executors/compaction"):
            self.answer({"token": f"lease-{len(self.calls)}", "lease_s": 60.0})
        elif path.endswith("/work"):
            self.answer({"state": self.submit_state})
        elif path == "/work/ask":
            self.answer({"items": [self._item(question) for question in body["items"]]})
        else:
            self.answer({"marked": 1, "postponed": 0, "token": body.get("token", "")})

    def _item(self, question: dict[str, Any]) -> dict[str, Any]:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if state["state"] == "ended" and self.completes:
            self.complete()
        empty = {"lines": [], "line_count": 0, "result": "", "message": ""}
        return empty | state | {"item_id": question["item_id"]}

    @classmethod
    def complete(cls) -> None:
        timeline = cls.table.path / ".hoodie" / "timeline"
        body = {"operationType": "COMPACT", "partitionToWriteStats": {}}
        (timeline / f"{cls.plan}_20261121120059000.commit").write_text(json.dumps(body), encoding="utf-8")


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Manager]]:
    monkeypatch.setenv("AIRFLOW__LAKE__RETRY_DELAY_S", "1")
    # No executor reports a worker's end here.
    monkeypatch.setenv("AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL", "0")
    monkeypatch.setenv("AIRFLOW__LAKE__WORK_DIR", str(tmp_path / "work"))
    table = HandMadeTable.create(tmp_path / "orders")
    table.commit(1)
    Manager.table, Manager.plan, Manager.calls = table, table.plan(2), []
    Manager.submit_state, Manager.completes = "waiting", True
    with serve(Manager) as url:
        monkeypatch.setenv("AIRFLOW__LAKE__MANAGER_URL", url)
        yield Manager


def run_dag(manager: type[Manager], **conf: Any) -> tuple[str, Any]:
    """Run the DAG; return the task's state and what it returned."""
    from airflow.dag_processing.dagbag import DagBag

    dag = DagBag(dag_folder=str(ROOT / "dags")).dags["lake_table_service"]
    wanted = {"base_path": str(manager.table.path), "service": "compaction", "mode": "execute", "retries": 0}
    run = dag.test(run_conf=wanted | conf)
    (task,) = run.get_task_instances()
    return str(task.state), task.xcom_pull(task_ids="run_service", map_indexes=task.map_index)


def result_of(manager: type[Manager], outcome: str, **more: Any) -> str:
    from airflow_lake_provider.job_contract import FailureKind, JobResult, Outcome, Service, ServiceResult, to_json

    done = (manager.plan,) if outcome == "completed" else ()
    kind = FailureKind(more["kind"]) if "kind" in more else None
    service = ServiceResult(
        Service.COMPACTION,
        Outcome(outcome),
        completed_instants=done,
        failure_kind=kind,
        message=more.get("message", ""),
    )
    return to_json(JobResult("run/1", (service,)))


def paths(manager: type[Manager]) -> list[str]:
    return [path.rpartition("/")[2] for path, _ in manager.calls]


def test_run_waits_in_the_triggerer_and_ends_by_the_timeline(manager: type[Manager], tmp_path: Path) -> None:
    manager.states = [
        {"state": "waiting"},
        {"state": "running", "lines": ["lake: orders: compaction"], "line_count": 1},
        {"state": "ended", "result": result_of(manager, "completed"), "line_count": 1},
    ]
    state, returned = run_dag(manager)
    assert state == "success"
    assert (returned["outcome"], returned["completed_instants"]) == ("completed", [manager.plan])
    questions = [body["items"][0] for path, body in manager.calls if path == "/work/ask"]
    lease = next(body for path, body in manager.calls if path.endswith("/release"))["token"]
    assert [question["seen"] for question in questions] == [0, 0, 1]
    assert {question["lease"] for question in questions} == {lease}, "the triggerer renews the task's own lease"
    submitted = next(body for path, body in manager.calls if path.endswith("/work"))
    assert submitted["timeout_s"] == 90.0
    assert json.loads(submitted["request"])["base_path"] == str(manager.table.path)
    assert paths(manager).count("work") == 1
    assert not list(tmp_path.rglob("holder.json")), "the worker's end does not free the lease for another run"
    assert "hints" in paths(manager)


def test_application_that_says_done_is_not_believed(manager: type[Manager]) -> None:
    manager.completes = False
    manager.states = [{"state": "ended", "result": result_of(manager, "completed")}]
    state, _ = run_dag(manager)
    assert state == "failed"
    report = next(body for path, body in manager.calls if path.endswith("/runs"))
    assert report["outcome"] == "failed"


def test_failure_of_an_item_fails_its_run_with_its_reason(
    manager: type[Manager], caplog: pytest.LogCaptureFixture
) -> None:
    manager.completes = False
    message = "HoodieException: a log file is damaged"
    manager.states = [{"state": "ended", "result": result_of(manager, "failed", kind="other", message=message)}]
    state, _ = run_dag(manager)
    assert state == "failed"


def test_item_without_an_application_runs_by_its_own_spark_submit(
    manager: type[Manager], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_lake_provider.execution.engines import spark_submit
    from airflow_lake_provider.execution.engines.engine import EngineJob, Handle
    from airflow_lake_provider.execution.engines.job_files import write_text

    started: list[str] = []

    class Submit:
        def start(self, job: EngineJob) -> Handle:
            started.append(job.request.base_path)
            return Handle(job)

        def wait(self, handle: Handle) -> None:
            manager.complete()
            write_text(handle.job.request.result_path, result_of(manager, "completed"))

        def stop(self, handle: Handle) -> None:
            return

    monkeypatch.setattr(spark_submit, "SparkSubmitEngine", Submit)
    manager.states = [{"state": "running"}, {"state": "alone", "message": "two applications ended"}]
    state, returned = run_dag(manager)
    assert state == "success"
    assert returned["completed_instants"] == [manager.plan]
    assert started == [str(manager.table.path)]
    manager.submit_state = "alone"
    Manager.plan = manager.table.plan(3)
    assert run_dag(manager)[0] == "success"
    assert len(started) == 2


def test_cancelled_item_is_a_failed_try(manager: type[Manager]) -> None:
    manager.states = [{"state": "cancelled", "message": "its lease has passed on"}]
    state, _ = run_dag(manager)
    assert state == "failed"
    assert "release" in paths(manager)


def test_large_work_of_engine_auto_never_asks_for_an_application(
    manager: type[Manager], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_lake_provider.execution.engines import spark_submit

    class Submit:
        def start(self, job: Any) -> Any:
            raise RuntimeError("its own spark-submit")

        def stop(self, handle: Any) -> None:
            return

    monkeypatch.setattr(spark_submit, "SparkSubmitEngine", Submit)
    evidence = {"log_bytes": 10**12, "base_bytes": 1, "unsized_file_groups": 0}
    assert run_dag(manager, engine="auto", evidence=evidence)[0] == "failed"
    assert "work" not in paths(manager)


def test_cleared_task_has_its_item_ended(manager: type[Manager]) -> None:
    """Airflow calls `on_kill` of a trigger whose task a person has cleared or marked."""
    import asyncio

    from airflow_lake_provider.triggers.work import WorkTrigger

    asyncio.run(WorkTrigger("lake-a", "orders-1", "compaction", "lease", "lake_default", {}).on_kill())
    cancelled, released = manager.calls
    assert (cancelled[0], cancelled[1]["item_id"]) == ("/work/cancel", "lake-a")
    assert released == ("/tables/orders-1/executors/compaction/release", {"token": "lease"})


def test_trigger_waits_until_airflow_has_heard_of_the_first_workers_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_lake_provider.triggers.work import REPORTED_WITHIN_S, find_rest_s

    monkeypatch.setenv("AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL", "5")
    assert find_rest_s(1000.0, 1004.0) == 1.0 + REPORTED_WITHIN_S
    assert find_rest_s(1000.0, 1010.0) == 0.0
    monkeypatch.setenv("AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL", "0")
    assert find_rest_s(1000.0, 1000.0) == 0.0


def test_items_of_one_triggerer_are_asked_for_together(manager: type[Manager], monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    from airflow_lake_provider.triggers import work

    monkeypatch.setattr(work, "POLL_INTERVAL_S", 1.0)  # until then all fifty have begun
    manager.completes = False
    manager.states = [{"state": "ended"}]

    async def wait_for(number: int) -> dict[str, Any]:
        trigger = work.WorkTrigger(
            f"lake-{number}", "orders-1", "compaction", "lease", "lake_default", {"number": number}
        )
        (event,) = [event async for event in trigger.run()]
        return dict(event.payload)

    async def wait_for_all() -> list[dict[str, Any]]:
        return await asyncio.gather(*map(wait_for, range(50)))

    events = asyncio.run(wait_for_all())
    assert [event["number"] for event in events] == list(range(50))
    assert len([path for path, _ in manager.calls if path == "/work/ask"]) == 1
