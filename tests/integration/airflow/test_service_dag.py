"""The shipped DAGs, run by Airflow itself: a try is ended at its run's time-out; found tables reach the registry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.integration.airflow.conftest import LAKE
from tests.support.http_server import JsonHandler, serve
from tests.support.tables import HandMadeTable

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
LOCK = {"hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"}


def test_time_out_of_a_try_is_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import timedelta

    from airflow.dag_processing.dagbag import DagBag

    from airflow_lake_provider.operators.table_service import HudiTableServiceOperator

    seen: list[Any] = []
    monkeypatch.setattr(
        HudiTableServiceOperator, "execute", lambda self, context: seen.append((self.execution_timeout, self.engine))
    )
    monkeypatch.setattr(HudiTableServiceOperator, "find_timeout_s", lambda *_: 7200.0)
    for conf in ({"base_path": "/lake/orders", "timeout_s": 1.5, "engine": "spark"}, {"base_path": "/lake/orders"}):
        # A DAG of its own each, as each try has a process of its own.
        dag = DagBag(dag_folder=str(ROOT / "dags")).dags["lake_table_service"]
        assert dag.test(run_conf=conf).state == "success"
    assert seen == [(timedelta(seconds=1.5), "spark"), (timedelta(hours=2), "")]


class Manager(JsonHandler):
    """Answers the two requests of discovery."""

    roots: ClassVar[list[dict[str, Any]]] = []
    bodies: ClassVar[list[dict[str, Any]]] = []

    def do_GET(self) -> None:
        assert self.path == "/v1/hoodie/discovery/roots"
        self.answer({"roots": self.roots})

    def do_POST(self) -> None:
        assert self.path == "/v1/hoodie/discovery/tables"
        body = self.body()
        self.bodies.append(body)
        self.answer({"registered": len(body["tables"]), "known": 0})


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Manager]]:
    Manager.roots, Manager.bodies = [], []
    with serve(Manager) as url:
        monkeypatch.setenv("AIRFLOW__LAKE__MANAGER_URL", url)
        yield Manager


def test_discovery_registers_what_lies_below_the_roots_and_a_refused_root_fails(manager: type[Manager]) -> None:
    from airflow.dag_processing.dagbag import DagBag

    root = LAKE / "landing"
    table = HandMadeTable.create(root / "2026" / "orders")
    damaged = HandMadeTable.create(root / "damaged")
    (damaged.path / ".hoodie" / "hoodie.properties").write_bytes(b"\x00")
    manager.roots = [
        {"root": str(root), "depth": 2, "problem": "", "metastore": "", "databases": []},
        {"root": "/elsewhere", "problem": "lies outside the configured roots"},
    ]
    dag = DagBag(dag_folder=str(ROOT / "dags")).dags["lake_discovery"]
    run = dag.test()
    assert manager.bodies == [{"tables": [{"base_path": str(table.path), "table_name": "orders"}]}]
    states = {task.map_index: task.state for task in run.get_task_instances() if task.task_id == "search"}
    assert states == {0: "success", 1: "failed"}
    assert run.state == "failed"


def test_discovery_without_roots_searches_nothing(manager: type[Manager]) -> None:
    from airflow.dag_processing.dagbag import DagBag

    run = DagBag(dag_folder=str(ROOT / "dags")).dags["lake_discovery"].test()
    assert run.state == "success"
    assert manager.bodies == []
    assert {task.state for task in run.get_task_instances()} == {"success"}, "a skipped task is noise each hour"


def test_try_that_finds_no_manager_waits_and_counts_as_no_try(
    manager: type[Manager], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By Airflow's own task runner and database: the manager refuses twice, and the run has one try."""
    from airflow.dag_processing.dagbag import DagBag
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.taskreschedule import TaskReschedule
    from airflow.utils.session import create_session
    from sqlalchemy import func, select

    table = HandMadeTable.create(tmp_path / "orders")
    table.commit(1)
    refused: list[str] = []
    policy = {"hudi_options": LOCK, "spark_conf": {}, "conflict": {}, "engine": "", "spark_conn_id": ""}

    def answer(self: Manager) -> None:
        assert self.path.startswith("/v1/hoodie/policy?")
        if len(refused) < 2:
            refused.append(self.path)
            self.send_response(503)
            self.send_header("content-length", "0")
            self.end_headers()
        else:
            self.answer(policy | {"timeout_s": 60.0})

    monkeypatch.setattr(manager, "do_GET", answer)
    monkeypatch.setenv("AIRFLOW__LAKE__RETRY_DELAY_S", "1")
    monkeypatch.setenv("AIRFLOW__LAKE__MANAGER_PATIENCE_S", "0")
    monkeypatch.setenv("AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL", "0")  # Else each wait takes seven seconds.
    dag = DagBag(dag_folder=str(ROOT / "dags")).dags["lake_table_service"]
    conf = {"base_path": str(table.path), "service": "compaction", "dry_run": True, "retries": 0}
    run = dag.test(run_conf=conf)
    assert run.state == "success"
    with create_session() as session:
        task = session.scalars(select(TaskInstance).where(TaskInstance.run_id == run.run_id)).one()
        waits = session.scalar(select(func.count(TaskReschedule.id)).where(TaskReschedule.ti_id == task.id))
    assert (task.try_number, task.max_tries, waits) == (1, 0, 2)


def test_each_completed_service_is_an_event_of_its_tables_asset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's own task runner and database: the job is played, what it completed is given."""
    from airflow.dag_processing.dagbag import DagBag
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    from airflow_lake_provider.execution.reporting import emit_asset_event
    from airflow_lake_provider.hudi.pending import ServiceEffect
    from airflow_lake_provider.job_contract import JobRequest, Outcome, Service
    from airflow_lake_provider.operators.table_service import HudiTableServiceOperator
    from airflow_lake_provider.planner.verdict import RunVerdict

    done = {"first": ("20260101000000001",), "idle": (), "second": ("20260101000000002",), "other": ("3",)}

    def run(self: HudiTableServiceOperator, context: Any) -> RunVerdict:
        judged = RunVerdict(Outcome.COMPLETED, "", done[self.table_name], ())
        request = JobRequest("j", self.base_path, self.table_name, (), "/r")
        emit_asset_event(context, request, Service(self.service), judged, ServiceEffect(files_before=4, files_after=1))
        return judged

    monkeypatch.setattr(HudiTableServiceOperator, "_run", run)
    monkeypatch.setattr(HudiTableServiceOperator, "find_timeout_s", lambda *_: 60.0)
    for name in done:
        table = f"/lake/assets {'x' if name == 'other' else 'ü'}"
        dag = DagBag(dag_folder=str(ROOT / "dags")).dags["lake_table_service"]
        conf = {"base_path": table, "service": "compaction", "table_name": name}
        assert dag.test(run_conf=conf).state == "success"
    with create_session() as session:
        rows = session.execute(
            select(AssetModel.name, AssetModel.uri, AssetEvent.extra)
            .join(AssetEvent, AssetEvent.asset_id == AssetModel.id)
            .where(AssetModel.uri.contains("/lake/assets"))
            .order_by(AssetEvent.id)
        ).all()
    uri = "file:///lake/assets%20%C3%BC"
    assert [(row.name, row.uri, row.extra["table"]) for row in rows] == [
        (uri, uri, "first"),
        (uri, uri, "second"),
        ("file:///lake/assets%20x", "file:///lake/assets%20x", "other"),
    ]
    assert rows[0].extra["instants"] == ["20260101000000001"]
    assert (rows[0].extra["service"], rows[0].extra["files_before"], rows[0].extra["files_after"]) == (
        "compaction",
        4,
        1,
    )
