"""A whole Airflow on a real YARN and HDFS, in client and cluster mode.

The application master of warm Spark is killed in the middle, and a run is cleared through Airflow's own API.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
from hdfs_native import Client

from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.shared.actions import Action
from local_stack import hadoop, hdfs
from local_stack.airflow import LocalAirflow
from local_stack.clusters import YarnOnHdfs
from local_stack.writer_process import StandingWriter
from tests.integration.engines.hdfs_stage import held_lock
from tests.system.conftest import LOCK_OPTIONS, make_airflow

pytestmark = [pytest.mark.system, pytest.mark.soak(covered_by="tests/integration/engines/test_yarn.py")]

SERVICE_RUNS = "/api/v2/dags/lake_table_service/dagRuns"
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

    def write(self, names: Iterable[str]) -> None:
        """Write three commits of each table: then a compaction is due."""
        callback = {"url": self.airflow.callback_url, "token": self.airflow.callback_token, "headers": {}}
        for commit in range(3):
            for name in names:
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
        instants = [instant for name in TABLES for instant in self.instants(f"{mode}_{name}")]
        return [instant for instant in instants if instant.endswith(".compaction.requested")]

    def instants(self, name: str) -> list[str]:
        """Return the files of a table's timeline."""
        entries = Client(self.cluster.hdfs.url).list_status(f"/lake/{name}/.hoodie/timeline")
        return [entry.path for entry in entries]

    def require_compacted_once(self, name: str) -> None:
        view = TableViewCache().refresh(f"{self.lake}/{name}")
        assert view.timeline.pending(Action.COMPACTION) == ()
        assert len([1 for metadata in view.commits.values() if metadata.operation == "COMPACT"]) == 1, name

    def task_of(self, run: dict[str, Any]) -> dict[str, Any]:
        path = f"{SERVICE_RUNS}/{run['dag_run_id']}/taskInstances/run_service"
        return self.airflow.airflow_get(path) or {}

    def logs(self, folder: str = "dag_id=lake_warm") -> str:
        """Return the logs of tasks; without a folder of those whose applications stood."""
        logs = sorted((self.airflow.home / "logs" / folder).rglob("*.log"))
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
    more += "".join(
        f"  - name: cleared_{mode}\n    engine: spark-submit\n    spark_conn_id: yarn_{mode}\n"
        f"    hudi_options:{options}\n"
        for mode in MODES
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
    names = {f"{mode}_{name}" for name in TABLES}
    stack.write(sorted(names))
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

    for name in names:
        stack.require_compacted_once(name)
        assert stack.read(name) == before[name]
    tries = [stack.task_of(run) for run in airflow.service_runs() if run["conf"]["table_name"] in names]
    assert {task["try_number"] for task in tries} == {1}, "a dead application costs no try"
    if mode == "cluster":
        assert len(own()) == 2, "the one that was killed, and one after it"
    else:
        assert len(own()) == 1, "the driver lives on, and YARN gives it another master"
    # Where the containers' output is.
    for app in own():
        assert f"yarn logs -applicationId {app['id']}" in stack.logs()


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


@pytest.mark.parametrize("mode", MODES)
def test_run_that_is_cleared_in_the_middle_has_its_application_ended_and_runs_once_more(
    stack: Stack, mode: str
) -> None:
    airflow, yarn, name = stack.airflow, stack.cluster.yarn, f"cleared_{mode}"
    known = {app["id"] for app in yarn.applications(active=False)}
    stack.write([name])
    with held_lock(Client(stack.cluster.hdfs.url), f"/lake/{name}"):
        before = stack.read(name)

        def runs() -> list[dict[str, Any]]:
            return [run for run in airflow.service_runs() if run["conf"]["table_name"] == name]

        airflow.wait_until(lambda: bool(runs()), 120, "the run")
        (run,) = runs()
        log = f"dag_id=lake_table_service/run_id={run['dag_run_id']}"
        airflow.wait_until(lambda: "as soon as the table's lock is free" in stack.logs(log), 240, "the driver")
        (first,) = [app for app in yarn.applications() if app["id"] not in known]
        cleared = {"dry_run": False, "dag_run_id": run["dag_run_id"], "only_failed": False}
        airflow.change("POST", SERVICE_RUNS.replace("dagRuns", "clearTaskInstances"), cleared)
        airflow.wait_until(lambda: not is_at_work(stack, first["id"]), 120, "the end of the cleared run's application")
        assert not [entry for entry in stack.instants(name) if ".compaction." in entry]
    airflow.wait_until(lambda: runs()[0]["state"] == "success", 300, "the run's success")

    assert len(runs()) == 1
    assert stack.task_of(run)["try_number"] == 2
    stack.require_compacted_once(name)
    assert stack.read(name) == before
    ended = [app for app in yarn.applications(active=False) if app["id"] not in known]
    assert len(ended) == 2, "the cleared one, and the next try's"


def is_at_work(stack: Stack, application_id: str) -> bool:
    """Whether YARN has an application, or this machine a process of it."""
    active = {app["id"] for app in stack.cluster.yarn.applications()}
    processes = [process for process in psutil.process_iter(["cwd"]) if application_id in (process.info["cwd"] or "")]
    return application_id in active or bool(processes)
