"""Warm Spark in a whole Airflow on a real Kubernetes: one pod serves all tables, whatever dies, and goes when idle."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from local_stack.airflow import LocalAirflow
from local_stack.kubernetes import GATEWAY
from local_stack.processes import PATIENCE
from local_stack.writer_process import StandingWriter
from tests.clusters.kubernetes_stage import NAMESPACE, KubernetesStage, held_lock
from tests.integration.engines.stage import OPTIONS
from tests.system.conftest import SETTINGS, make_airflow
from tests.system.crashes.driver_watch import kill_all, members_of_session
from tests.system.writers import send_notice

pytestmark = [pytest.mark.system, pytest.mark.soak(covered_by="tests/integration/airflow/test_warm.py")]

SERVICE_RUNS = "/api/v2/dags/lake_table_service/dagRuns"
WARM_RUNS = "/api/v2/dags/lake_warm/dagRuns"
IDLE_S = 30
LOCKED = "as soon as the table's lock is free"


@dataclass
class WarmStage:
    """An Airflow of this machine whose standing applications are pods."""

    airflow: LocalAirflow
    stage: KubernetesStage
    writer: StandingWriter

    def path(self, name: str) -> Path:
        return self.stage.folder / "lake" / name

    def write(self, name: str) -> None:
        """Write three commits of a table that belongs to the pods' user: with their notice a compaction is due."""
        table = {"name": name, "type": "MOR", "version": 9, "keys": 500, "rows": 100, "base_path": str(self.path(name))}
        for commit in range(3):
            self.writer.write(table, commit, hudi_options=OPTIONS)
        self.stage.give_to_pods(self.path(name))

    def notify(self, name: str) -> None:
        """Send the notice of a table's last commit."""
        completed = [each for each in self.stage.instants(name) if each.endswith(".deltacommit")]
        assert send_notice(self.airflow, self.path(name), max(completed).partition("_")[0]).is_success

    def read(self, name: str) -> dict[str, Any]:
        return {**self.writer.read(self.path(name)), "seconds": 0}

    def runs_of(self, names: Iterable[str]) -> list[dict[str, Any]]:
        return [run for run in self.airflow.service_runs() if run["conf"].get("table_name") in set(names)]

    def applications(self) -> list[dict[str, Any]]:
        """Return the runs of `lake_warm`, the oldest first."""
        answer = self.airflow.airflow_get(WARM_RUNS, limit=100, order_by="run_after")
        return [] if answer is None else list(answer["dag_runs"])

    def task_of(self, run: dict[str, Any]) -> dict[str, Any]:
        return self.airflow.airflow_get(f"{SERVICE_RUNS}/{run['dag_run_id']}/taskInstances/run_service") or {}

    def log(self, dag_id: str, run_id: str = "") -> str:
        folder = self.airflow.home / "logs" / f"dag_id={dag_id}" / (f"run_id={run_id}" if run_id else "")
        return "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.log")))

    def wait_for_items(self, names: Iterable[str]) -> dict[str, Any]:
        """Wait until the items of all tables wait for their locks in one application; return its pod."""
        said = [f"lake: {name}: " for name in names]

        def at_work() -> bool:
            lines = self.log("lake_warm").splitlines()
            return all(any(name in line and LOCKED in line for line in lines) for name in said)

        self.airflow.wait_until(at_work, 300, f"items of {said} at work")
        (pod,) = self.stage.pods()
        return pod

    def require_once(self, before: dict[str, dict[str, Any]], tries: set[int]) -> None:
        """Wait for a success of each table's run; require one compaction of each, and the same rows."""
        succeeded = {"success"}
        self.airflow.wait_until(
            lambda: (
                {run["conf"]["table_name"] for run in self.runs_of(before) if run["state"] in succeeded} == set(before)
            ),
            400,
            f"success of {set(before)}",
        )
        for name, rows in before.items():
            self.stage.require_compacted_once(name)
            assert self.read(name) == rows
        compactions = [run for run in self.runs_of(before) if run["conf"]["service"] == "compaction"]
        assert len(compactions) == len(before)
        assert {self.task_of(run)["try_number"] for run in compactions} == tries


@pytest.fixture(scope="module")
def warm(stage: KubernetesStage, reader: StandingWriter) -> Iterator[WarmStage]:
    airflow = make_airflow("warm-kubernetes")
    assert airflow.tables_file is not None
    defaults = {
        "heartbeat_timeout_s": 5,
        "compaction": {"delta_commits": 3, "log_to_base_ratio": None},
        "hudi_options": OPTIONS,
        "spark_conf": {**stage.spark_conf, "spark.driver.memory": "900m"},
    }
    airflow.tables_file.write_text(json.dumps({"defaults": defaults}), encoding="utf-8")
    access = stage.env()
    names = ("KUBECONFIG", "PYTHONPATH", *(name for name in access if name.startswith("AIRFLOW__KUBERNETES")))
    lake = {"conn_type": "lake", "host": f"http://{GATEWAY}:{airflow.port}", "password": airflow.service_token}
    airflow.settings |= {
        **SETTINGS,
        **{name: access[name] for name in names},
        "AIRFLOW__API__HOST": "0.0.0.0",  # pods reach it at the bridge
        "AIRFLOW_CONN_LAKE_DEFAULT": json.dumps(lake),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", **stage.connection}),
        "AIRFLOW__LAKE__ENGINE": "warm",
        "AIRFLOW__LAKE__SPARK_JARS": "",
        "AIRFLOW__LAKE__ALLOWED_ROOTS": str(stage.folder / "lake"),
        "AIRFLOW__LAKE__WORK_DIR": str(stage.folder / "work"),
        "AIRFLOW__LAKE__WARM_IDLE_S": str(IDLE_S),
        # On a busy machine an answer may take so long.
        "AIRFLOW__LAKE__EXECUTOR_LEASE_S": f"{20 * PATIENCE:.0f}",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": f"{20 * PATIENCE:.0f}",
    }
    try:
        airflow.start()
        airflow.wait_for_dags()
        yield WarmStage(airflow, stage, reader)
    finally:
        sessions = [server.process.pid for server in airflow.servers.values()]
        airflow.stop()
        for session in sessions:
            kill_all(members_of_session(session))


def delete_pod(warm: WarmStage, pod: dict[str, Any]) -> None:
    name = pod["metadata"]["name"]
    warm.stage.cluster.kubectl("-n", NAMESPACE, "delete", "pod", name, "--grace-period=0", "--force", "--wait=false")


def kill_jvm(warm: WarmStage, pod: dict[str, Any]) -> None:
    for process in warm.stage.cluster.processes_of(pod["metadata"]["uid"]):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name() == "java":
                process.kill()


def kill_worker(warm: WarmStage, pod: dict[str, Any]) -> None:
    """Kill the scheduler with all of its tasks, and start another one: the pod goes on."""
    scheduler = warm.airflow.servers["scheduler"]
    scheduler.kill()
    kill_all(members_of_session(scheduler.process.pid))
    warm.airflow.start_component("scheduler")


@pytest.mark.parametrize("blow", [delete_pod, kill_jvm, kill_worker], ids=lambda blow: str(blow.__name__))
def test_services_of_one_application_are_done_once_whatever_dies(warm: WarmStage, blow: Any) -> None:
    names = [f"{blow.__name__}_{table}" for table in ("orders", "users")]
    known = {run["dag_run_id"] for run in warm.applications()}
    with ExitStack() as locks:
        for name in names:
            warm.write(name)
            locks.enter_context(held_lock(warm.path(name)))
            warm.notify(name)
        before = {name: warm.read(name) for name in names}
        pod = warm.wait_for_items(names)
        blow(warm, pod)
        uid = pod["metadata"]["uid"]
        warm.airflow.wait_until(
            lambda: uid not in {each["metadata"]["uid"] for each in warm.stage.pods()}, 240, "the end of the pod"
        )
    warm.require_once(before, {1})
    own = [run["dag_run_id"] for run in warm.applications() if run["dag_run_id"] not in known]
    assert len(own) <= 2, "at most one for the tables, and one after it"


def test_application_ends_when_it_is_idle_and_leaves_no_pod(warm: WarmStage) -> None:
    name = "idle"
    warm.write(name)
    before = {name: warm.read(name)}
    warm.notify(name)
    warm.require_once(before, {1})
    last = warm.applications()[-1]
    warm.airflow.wait_until(
        lambda: all(run["state"] in {"success", "failed"} for run in warm.applications()), 240, "the end when idle"
    )
    ended = next(run for run in warm.applications() if run["dag_run_id"] == last["dag_run_id"])
    assert ended["state"] == "success"
    warm.stage.wait_until(lambda: warm.stage.left() == [], f"an empty namespace: {warm.stage.left()}", 60)
    kept = [path for path in (warm.stage.folder / "work").rglob("*") if path.is_file()]
    assert kept
    token = warm.airflow.service_token
    assert not [path for path in kept if token in path.read_text(encoding="utf-8")], "the manager's token is kept"
