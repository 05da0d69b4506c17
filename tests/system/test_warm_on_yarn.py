"""Warm Spark on a real YARN and HDFS, in client and cluster mode: its application master is killed in the middle."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
from hdfs_native import Client

from airflow_lake_provider.hudi.instant import Action
from airflow_lake_provider.planner.table_view import TableViewCache
from local_stack import hadoop, hdfs
from local_stack.airflow import LocalAirflow
from local_stack.writer_process import StandingWriter
from local_stack.yarn import YarnOnHdfs
from tests.system.conftest import LOCK_OPTIONS, make_airflow

pytestmark = [pytest.mark.system, pytest.mark.soak]

MODES = ("client", "cluster")
TABLES = ("orders", "users", "clicks")
QUICK = LOCK_OPTIONS | {
    "hoodie.client.heartbeat.interval_in_ms": "2000",
    "hoodie.write.lock.filesystem.expire": "1",
}


@dataclass
class Stack:
    """An Airflow whose tables, job files and applications are on HDFS and YARN."""

    airflow: LocalAirflow
    cluster: YarnOnHdfs
    writer: StandingWriter

    @property
    def lake(self) -> str:
        return f"{self.cluster.hdfs.url}/lake"

    def write(self, mode: str) -> None:
        """Write three commits of each table of a mode: then a compaction is due."""
        callback = {"url": self.airflow.callback_url, "token": self.airflow.callback_token, "headers": {}}
        for commit in range(3):
            for name in (f"{mode}_{name}" for name in TABLES):
                table = {"name": name, "type": "MOR", "version": 9, "keys": 500, "rows": 100}
                self.writer.write({**table, "base_path": f"{self.lake}/{name}"}, commit, callback, QUICK)

    def read(self, name: str) -> dict[str, Any]:
        """Return what a whole snapshot holds."""
        return {**self.writer.read(f"{self.lake}/{name}"), "seconds": 0}

    def applications(self) -> list[dict[str, Any]]:
        """Return the standing applications that YARN knows, the oldest first."""
        found = self.cluster.yarn.applications(active=False)
        return sorted((app for app in found if app["name"].startswith("lake-warm-")), key=lambda app: str(app["id"]))

    def plans(self, mode: str) -> list[str]:
        """Return the requested compactions of a mode's tables."""
        client = Client(self.cluster.hdfs.url)
        entries = [
            entry.path
            for name in TABLES
            for entry in client.list_status(f"/lake/{mode}_{name}/.hoodie/timeline")
            if entry.path.endswith(".compaction.requested")
        ]
        return entries

    def warm_logs(self) -> str:
        """Return the logs of the tasks whose applications stood."""
        logs = sorted((self.airflow.home / "logs" / "dag_id=lake_warm").rglob("*.log"))
        return "\n".join(path.read_text(encoding="utf-8") for path in logs)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    if not (hadoop.LIB.is_dir() and hdfs.LIB.is_dir()) and (
        shutil.which("mvn") is None or shutil.which("java") is None
    ):
        pytest.skip("YARN needs Maven and Java 17")
    options = "".join(f"\n      {key}: '{value}'" for key, value in QUICK.items())
    names = [(mode, f"{mode}_{name}") for mode in MODES for name in TABLES]
    more = "".join(
        f"  - name: {name}\n    spark_conn_id: yarn_{mode}\n    hudi_options:{options}\n" for mode, name in names
    )
    cluster = YarnOnHdfs(tmp_path_factory.mktemp("yarn"))
    airflow = make_airflow("warm-yarn", more_tables=more)
    airflow.settings |= {
        "AIRFLOW__LAKE__ENGINE": "warm",
        "AIRFLOW__LAKE__RETRY_DELAY_S": "3",
        "AIRFLOW__LAKE__ALLOWED_ROOTS": f"{cluster.hdfs.url}/lake",
        "AIRFLOW__LAKE__WORK_DIR": f"{cluster.hdfs.url}/work",
        # The queue has room for both.
        "AIRFLOW__LAKE__WARM_IDLE_S": "60",
        "HADOOP_CONF_DIR": str(cluster.yarn.conf),
        "SPARK_CONF_DIR": str(cluster.yarn.conf),
    }
    for mode in MODES:
        extra = {"deploy-mode": mode, "yarn_resourcemanager_webapp_address": cluster.yarn.web_url}
        connection = {"conn_type": "spark", "host": "yarn", "extra": json.dumps(extra)}
        airflow.settings[f"AIRFLOW_CONN_YARN_{mode.upper()}"] = json.dumps(connection)
    writer = StandingWriter(airflow.home)
    try:
        cluster.start()
        airflow.start()
        writer.wait_until_ready()
        airflow.wait_for_dags()
        yield Stack(airflow, cluster, writer)
    finally:
        writer.stop()
        airflow.stop()
        cluster.stop()


def master_processes(app: dict[str, Any]) -> list[psutil.Process]:
    """Return the processes of the container with an application's master."""
    container = app["amContainerLogs"].rstrip("/").split("/")[-2]
    return [process for process in psutil.process_iter(["cwd"]) if container in (process.info["cwd"] or "")]


@pytest.mark.parametrize("mode", MODES)
def test_items_run_once_although_the_application_master_is_killed_among_them(stack: Stack, mode: str) -> None:
    airflow, known = stack.airflow, {app["id"] for app in stack.applications()}
    stack.write(mode)
    names = {f"{mode}_{name}" for name in TABLES}
    before = {name: stack.read(name) for name in names}

    def own() -> list[dict[str, Any]]:
        return [app for app in stack.applications() if app["id"] not in known]

    def succeeded() -> set[str]:
        return {run["conf"]["table_name"] for run in airflow.service_runs() if run["state"] == "success"}

    airflow.wait_until(lambda: bool(stack.plans(mode)), 300, "the first item at work")
    first = own()[-1]
    for process in master_processes(first):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    airflow.wait_until(lambda: succeeded() >= names, 420, "a success for each table")

    views = TableViewCache()
    for name in names:
        view = views.refresh(f"{stack.lake}/{name}")
        assert view.timeline.pending(Action.COMPACTION) == ()
        assert len([1 for metadata in view.commits.values() if metadata.operation == "COMPACT"]) == 1, name
        assert stack.read(name) == before[name]
    tries = [
        (
            airflow.airflow_get(
                f"/api/v2/dags/lake_table_service/dagRuns/{run['dag_run_id']}/taskInstances/run_service"
            )
            or {}
        )
        for run in airflow.service_runs()
        if run["conf"]["table_name"] in names
    ]
    assert {task["try_number"] for task in tries} == {1}, "a dead application costs no try"
    if mode == "cluster":
        assert len(own()) == 2, "the one that was killed, and one after it"
    else:
        assert len(own()) == 1, "the driver lives on, and YARN gives it another master"
    # Where the containers' output is.
    for app in own():
        assert f"yarn logs -applicationId {app['id']}" in stack.warm_logs()


def test_applications_leave_yarn_when_they_have_no_work(stack: Stack) -> None:
    def active() -> list[str]:
        return [app["id"] for app in stack.cluster.yarn.applications()]

    stack.airflow.wait_until(lambda: not active(), 300, "the end of the idle applications")
    runs = stack.airflow.airflow_get("/api/v2/dags/lake_warm/dagRuns", limit=20, order_by="run_after") or {}
    stack.airflow.wait_until(
        lambda: (
            not (stack.airflow.airflow_get("/api/v2/dags/lake_warm/dagRuns", state="running") or {"dag_runs": [1]})[
                "dag_runs"
            ]
        ),
        60,
        f"the end of {runs}",
    )
