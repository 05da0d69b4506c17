"""The shipped DAGs, run by Airflow itself: a try is ended at its run's time-out; found tables reach the registry."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.integration.airflow.conftest import LAKE
from tests.support.tables import HandMadeTable

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]


def test_time_out_of_a_try_is_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import timedelta

    from airflow.dag_processing.dagbag import DagBag

    from airflow_lake_provider.operators.table_service import HudiTableServiceOperator

    seen: list[Any] = []
    monkeypatch.setattr(
        HudiTableServiceOperator, "execute", lambda self, context: seen.append((self.execution_timeout, self.engine))
    )
    monkeypatch.setattr(HudiTableServiceOperator, "find_timeout_s", lambda _: 7200.0)
    for conf in ({"base_path": "/lake/orders", "timeout_s": 1.5, "engine": "spark"}, {"base_path": "/lake/orders"}):
        # A DAG of its own each, as each try has a process of its own.
        dag = DagBag(dag_folder=str(ROOT / "dags")).dags["lake_table_service"]
        assert dag.test(run_conf=conf).state == "success"
    assert seen == [(timedelta(seconds=1.5), "spark"), (timedelta(hours=2), "")]


class Manager(BaseHTTPRequestHandler):
    """Answers the two requests of discovery."""

    roots: ClassVar[list[dict[str, Any]]] = []
    bodies: ClassVar[list[dict[str, Any]]] = []

    def do_GET(self) -> None:
        assert self.path == "/v1/hoodie/discovery/roots"
        self._answer({"roots": self.roots})

    def do_POST(self) -> None:
        assert self.path == "/v1/hoodie/discovery/tables"
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.bodies.append(body)
        self._answer({"registered": len(body["tables"]), "known": 0})

    def _answer(self, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: Any) -> None:
        return


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Manager]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Manager)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("AIRFLOW__LAKE__MANAGER_URL", f"http://127.0.0.1:{server.server_port}")
    Manager.roots, Manager.bodies = [], []
    yield Manager
    server.shutdown()
    thread.join()
    server.server_close()


def test_discovery_registers_what_lies_below_the_roots_and_a_refused_root_fails(manager: type[Manager]) -> None:
    from airflow.dag_processing.dagbag import DagBag

    root = LAKE / "landing"
    table = HandMadeTable.create(root / "2026" / "orders")
    damaged = HandMadeTable.create(root / "damaged")
    (damaged.path / ".hoodie" / "hoodie.properties").write_bytes(b"\x00")
    manager.roots = [
        {"root": str(root), "depth": 2, "problem": ""},
        {"root": "/elsewhere", "depth": 2, "problem": "lies outside the configured roots"},
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
