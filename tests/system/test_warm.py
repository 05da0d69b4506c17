"""Warm Spark in a whole Airflow: runs wait in the triggerer, one application serves all tables, and one that dies."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from airflow_lake_provider.execution.engines.engine import EngineJob
from airflow_lake_provider.job_contract import JobRequest
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.shared.actions import Action
from local_stack.airflow import LocalAirflow
from local_stack.writer_process import StandingWriter
from tests.system.conftest import LOCK_OPTIONS, make_airflow

# In `make test`: real applications (test_standing_on_hudi.py), and their runs (tests/integration/airflow/test_warm.py).
pytestmark = [pytest.mark.system, pytest.mark.soak(covered_by="tests/integration/airflow/test_warm.py")]

SERVICE_RUNS = "/api/v2/dags/lake_table_service/dagRuns"
REQUEST = JobRequest("", "", "", (), "")
TABLES = ("orders", "users", "clicks")
QUICK = LOCK_OPTIONS | {
    "hoodie.client.heartbeat.interval_in_ms": "2000",
    "hoodie.write.lock.filesystem.expire": "1",
}


@pytest.fixture(scope="module")
def airflow() -> Iterator[LocalAirflow]:
    options = "".join(f"\n      {key}: '{value}'" for key, value in QUICK.items())
    more = "".join(f"  - name: {name}\n    hudi_options:{options}\n" for name in TABLES)
    airflow = make_airflow("warm", more_tables=more)
    airflow.settings |= {"AIRFLOW__LAKE__ENGINE": "warm", "AIRFLOW__LAKE__RETRY_DELAY_S": "3"}
    writer = StandingWriter(airflow.home)
    try:
        airflow.start()
        writer.wait_until_ready()
        airflow.wait_for_dags()
        write(airflow, writer, range(3))
        yield airflow
    finally:
        writer.stop()
        airflow.stop()


def write(airflow: LocalAirflow, writer: StandingWriter, commits: range) -> None:
    callback = {"url": airflow.callback_url, "token": airflow.callback_token, "headers": {}}
    for commit in commits:
        for name in TABLES:
            path = str(airflow.allowed_roots[0] / name)
            table = {"name": name, "type": "MOR", "version": 9, "keys": 500, "rows": 100, "base_path": path}
            writer.write(table, commit, callback, QUICK)


def runs(airflow: LocalAirflow, dag_id: str) -> list[dict[str, Any]]:
    answer = airflow.airflow_get(f"/api/v2/dags/{dag_id}/dagRuns", limit=100, order_by="run_after")
    return [] if answer is None else list(answer["dag_runs"])


def succeeded(airflow: LocalAirflow) -> list[str]:
    return [run["conf"]["table_name"] for run in airflow.service_runs() if run["state"] == "success"]


def compactions(airflow: LocalAirflow, name: str) -> list[str]:
    view = TableViewCache().refresh(str(airflow.allowed_roots[0] / name))
    assert view.timeline.pending(Action.COMPACTION) == ()
    return [instant for instant, metadata in view.commits.items() if metadata.operation == "COMPACT"]


def application_processes(run_id: str) -> list[psutil.Process]:
    """Return the processes of a standing application: they have its request's path among their arguments."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(f"/jobs/{run_id}/" in argument for argument in process.info["cmdline"] or ())
    ]


def test_one_application_serves_all_tables_and_one_that_is_killed_loses_nothing(airflow: LocalAirflow) -> None:
    airflow.wait_until(lambda: bool(runs(airflow, "lake_warm")), 120, "the run that starts the application")
    first = runs(airflow, "lake_warm")[0]["dag_run_id"]
    airflow.wait_until(lambda: len(application_processes(first)) >= 2, 240, "the application")
    for process in application_processes(first):
        with contextlib.suppress(psutil.NoSuchProcess):
            os.kill(process.pid, signal.SIGKILL)
    airflow.wait_until(lambda: set(succeeded(airflow)) >= set(TABLES), 300, "a success for each table")
    for name in TABLES:
        assert len(compactions(airflow, name)) == 1
    started = runs(airflow, "lake_warm")
    airflow.wait_until(
        lambda: runs(airflow, "lake_warm")[0]["state"] == "failed", 60, "the end of the killed one's run"
    )
    assert 2 <= len(started) <= 3, "one application for all tables, and one after the kill"
    run = next(run for run in airflow.service_runs() if run["conf"]["table_name"] == "orders")
    task = airflow.airflow_get(f"{SERVICE_RUNS}/{run['dag_run_id']}/taskInstances/run_service") or {}
    assert task["try_number"] == 1, "a dead application costs no try"


def test_run_that_is_marked_while_it_waits_has_its_item_ended(airflow: LocalAirflow) -> None:
    """Through a real triggerer: Airflow calls `on_kill` of the trigger, and no later try finds the lease held."""
    conf = {
        "base_path": str(airflow.allowed_roots[0] / "orders"),
        "service": "clean",
        # An application of another kind: until it has started, the item waits.
        "spark_conf": {"spark.lake.kind": "another"},
    }
    airflow.change(
        "POST", "/api/v2/dags/lake_table_service/dagRuns", {"dag_run_id": "marked", "conf": conf, "logical_date": None}
    )
    path = f"{SERVICE_RUNS}/marked"

    def waits() -> bool:
        return (airflow.airflow_get(f"{path}/taskInstances/run_service") or {}).get("state") == "deferred"

    airflow.wait_until(waits, 120, "the run's deferral")
    item_id = EngineJob("", "", REQUEST, f"{airflow.home}/lake/jobs/marked/1/request.json", "").tag
    assert state_of(airflow, item_id) in {"waiting", "running"}
    airflow.change("PATCH", path, {"state": "failed"})
    airflow.wait_until(lambda: state_of(airflow, item_id) not in {"waiting", "running"}, 120, "the item's end")
    assert state_of(airflow, item_id) in {"cancelled", "ended"}
    table_id = next(table["table_id"] for table in airflow.tables() if table["table_name"] == "orders")

    def is_free() -> bool:
        return "token" in post(airflow, f"/tables/{table_id}/executors/clean", {"run_id": "later", "try_number": 1})

    # By the trigger, or, when none had begun, 10 s after the item's end: it would expire after 15 minutes.
    airflow.wait_until(is_free, 120, "the lease of the marked run")


def state_of(airflow: LocalAirflow, item_id: str) -> str:
    items = post(airflow, "/work/ask", {"items": [{"item_id": item_id}]})["items"]
    return str(items[0]["state"]) if items else "unknown"


def post(airflow: LocalAirflow, path: str, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {airflow.service_token}"}
    return dict(httpx.post(f"{airflow.url}/v1/hoodie{path}", json=body, headers=headers, timeout=30).json())
