"""Two Celery workers that share no disk, and logs in S3: a worker dies in the middle, and the other one goes on.

A worker has a name, processes and folders of its own, as a machine has (`local_stack/celery_worker.py`). It shares the
lake and the sink's folder with the rest, no `work_dir`, no logs and no copy of the DAGs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.shared.actions import Action
from local_stack.airflow import LocalAirflow
from local_stack.celery_worker import PACKAGES, CeleryWorker, is_possible
from local_stack.object_store import LocalObjectStore
from local_stack.postgres import LocalPostgres
from local_stack.redis import LocalRedis
from local_stack.writer_process import StandingWriter
from tests.system.conftest import LOCK_OPTIONS, SETTINGS, WORK, make_airflow

pytestmark = [
    pytest.mark.system,
    pytest.mark.soak(covered_by="tests/system/test_end_to_end.py"),
    pytest.mark.skipif(not is_possible(), reason="needs root, unshare and `make celery-packages`"),
]

KEYS, ROWS = 500, 100
PLAIN, WARM, COPIED = "orders", "clicks", "visits"
NAMES = ("worker-a", "worker-b")
BROKER = os.environ.get("LAKE_CELERY_BROKER", "")
"""Address of a broker that runs elsewhere, such as a RabbitMQ; without one it is a Redis of the test's own."""
BUCKET = "logs"
QUICK = LOCK_OPTIONS | {
    "hoodie.client.heartbeat.interval_in_ms": "2000",
    "hoodie.write.lock.filesystem.expire": "1",
    "hoodie.metadata.streaming.write.enabled": "false",
}
SERVICE_DAG = "lake_table_service"


@dataclass
class Deployment:
    """One machine with scheduler, API server and triggerer, and two workers."""

    airflow: LocalAirflow
    workers: dict[str, CeleryWorker]
    store: LocalObjectStore
    writer: StandingWriter
    sink: Path

    def path(self, name: str) -> Path:
        return self.airflow.allowed_roots[0] / name

    def write(self, name: str, commits: range) -> None:
        callback = {"url": self.airflow.callback_url, "token": self.airflow.callback_token, "headers": {}}
        table = {"name": name, "type": "MOR", "version": 9, "keys": KEYS, "rows": ROWS}
        for commit in commits:
            self.writer.write(table | {"base_path": str(self.path(name))}, commit, callback, QUICK)

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        answer = self.airflow.airflow_get(f"/api/v2/dags/{dag_id}/dagRuns", limit=100, order_by="run_after")
        return [] if answer is None else list(answer["dag_runs"])

    def services(self, name: str, service: str, state: str = "success") -> list[dict[str, Any]]:
        """Return the runs of a table's service that have a state."""
        return [
            run
            for run in self.runs(SERVICE_DAG)
            if (run["conf"].get("base_path"), run["conf"].get("service")) == (str(self.path(name)), service)
            and run["state"] == state
        ]

    def tries(self, dag_id: str, run_id: str) -> list[tuple[str, str]]:
        """Return state and worker of each try of a run's task, of all tasks, the last ones too."""
        base = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances"
        tasks = (self.airflow.airflow_get(base) or {"task_instances": []})["task_instances"]
        found = []
        for task in tasks:
            answer = self.airflow.airflow_get(f"{base}/{task['task_id']}/tries") or {"task_instances": []}
            found += [(entry["state"], entry["hostname"]) for entry in answer["task_instances"]]
        return found

    def find_running(self, dag_id: str, table: str = "") -> tuple[str, str] | None:
        """Return the run and the worker of a task that runs; of any run of the DAG unless a table is named."""
        for run in self.runs(dag_id):
            if run["state"] != "running" or (table and run["conf"].get("base_path") != str(self.path(table))):
                continue
            for state, host in self.tries(dag_id, run["dag_run_id"]):
                if state == "running" and host in self.workers:
                    return run["dag_run_id"], host
        return None

    def compactions(self, name: str) -> list[str]:
        view = TableViewCache().refresh(str(self.path(name)))
        assert view.timeline.pending(Action.COMPACTION) == ()
        return [instant for instant, metadata in view.commits.items() if metadata.operation == "COMPACT"]

    def wait(self, ready: Callable[[], Any], timeout_s: float, what: str) -> Any:
        found: list[Any] = []

        def poll() -> bool:
            found[:] = [ready()]
            return bool(found[0])

        self.airflow.wait_until(poll, timeout_s, what)
        return found[0]

    def log_of(self, dag_id: str, run_id: str, task_id: str, try_number: int) -> str:
        """Return what Airflow's API shows of a try."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{try_number}"
        answer = httpx.get(self.airflow.url + path, params={"full_content": True}, timeout=60).json()
        return "\n".join(str(line.get("event", line)) for line in answer["content"])


@pytest.fixture(scope="module")
def deployment(postgres: LocalPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = WORK / "celery"
    sink = folder / "sink"
    quick = "".join(f"\n      {key}: '{value}'" for key, value in QUICK.items())
    more = (
        f"  - name: {PLAIN}\n    indexing: {{indexes: [record_index]}}\n"
        f"    clean: {{commits: 2, retained_commits: 2}}\n    hudi_options:{quick}\n"
        f"  - name: {WARM}\n    engine: warm\n    hudi_options:{quick}\n"
        f"  - name: {COPIED}\n    replication: [{{sink: file, mode: latest, path: '{sink}'}}]\n"
        f"    hudi_options:{quick}\n"
    )
    airflow = make_airflow("celery", postgres=postgres, more_tables=more)
    shutil.rmtree(sink, ignore_errors=True)
    sink.mkdir()
    redis, store = LocalRedis(folder / "redis"), LocalObjectStore(tmp_path_factory.mktemp("s3"))
    logs = {
        "conn_type": "aws",
        "login": "local",
        "password": "local",
        "extra": {"endpoint_url": store.endpoint, "region_name": "us-east-1"},
    }
    airflow.settings |= SETTINGS | {
        "PYTHONPATH": f"{Path(__file__).resolve().parents[2]}:{PACKAGES}",
        "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
        "AIRFLOW__CELERY__BROKER_URL": BROKER or redis.address,
        "AIRFLOW__CELERY__RESULT_BACKEND": f"db+{airflow.database_url}",
        "AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__VISIBILITY_TIMEOUT": "86400",
        "AIRFLOW__LAKE__SINK_ROOTS": str(sink),
        "AIRFLOW__LAKE__WARM_PATIENCE_S": "240",
        "AIRFLOW__LOGGING__REMOTE_LOGGING": "True",
        "AIRFLOW__LOGGING__REMOTE_BASE_LOG_FOLDER": f"s3://{BUCKET}/airflow",
        "AIRFLOW__LOGGING__REMOTE_LOG_CONN_ID": "logs_s3",
        "AIRFLOW__LOGGING__DELETE_LOCAL_LOGS": "True",
        "AIRFLOW_CONN_LOGS_S3": json.dumps(logs),
    }
    workers = {name: CeleryWorker.of(airflow, name, folder, (airflow.allowed_roots[0], sink)) for name in NAMES}
    writer = StandingWriter(airflow.home)
    deployment = Deployment(airflow, workers, store, writer, sink)
    try:
        redis.start()
        store.start()
        store.make_bucket(BUCKET)
        airflow.start()
        for worker in workers.values():
            worker.start()
        writer.wait_until_ready()
        airflow.wait_for_dags()
        yield deployment
    finally:
        writer.stop()
        for worker in workers.values():
            worker.kill()
        airflow.stop()
        redis.stop()
        store.stop()


def test_workers_share_nothing_but_the_lake(deployment: Deployment) -> None:
    folder = deployment.airflow.home.parent
    first, second = (deployment.workers[name] for name in NAMES)
    deployment.wait(lambda: (first.airflow.home / "logs").exists() or first.sees(first.airflow.home), 60, "a worker")
    deployment.wait(lambda: not first.sees(deployment.airflow.home), 60, "the first worker's own view")
    deployment.wait(lambda: not second.sees(deployment.airflow.home), 60, "the second worker's own view")
    assert first.sees(deployment.airflow.allowed_roots[0])
    assert not first.sees(second.airflow.home)
    assert not second.sees(first.airflow.home)
    assert not first.sees(folder / "tables.yaml")


def test_compaction_of_a_worker_that_dies_ends_once_on_the_other(deployment: Deployment) -> None:
    deployment.write(PLAIN, range(3))
    timeline = deployment.path(PLAIN) / ".hoodie" / "timeline"
    deployment.wait(lambda: list(timeline.glob("*.compaction.inflight")), 240, "a compaction in the middle")
    run_id, dead = deployment.wait(lambda: deployment.find_running(SERVICE_DAG, PLAIN), 20, "its worker")
    deployment.workers[dead].kill()
    assert not deployment.services(PLAIN, "compaction"), "the kill came too late"
    deployment.wait(lambda: deployment.services(PLAIN, "compaction"), 300, "the compaction on the other worker")
    (alive,) = set(NAMES) - {dead}
    assert len(deployment.compactions(PLAIN)) == 1
    assert [host for _, host in deployment.tries(SERVICE_DAG, run_id)][-2:] == [dead, alive]
    deployment.workers[dead].start()
    deployment.write(PLAIN, range(3, 6))
    for service in ("clean", "indexing"):
        deployment.wait(lambda service=service: has_done(deployment, service), 300, service)
    rows = deployment.writer.read(str(deployment.path(PLAIN)))
    assert rows["rows"] == rows["ids"] > KEYS


def has_done(deployment: Deployment, service: str) -> bool:
    if service == "indexing":
        properties = (deployment.path(PLAIN) / ".hoodie" / "hoodie.properties").read_text()
        return re.search(r"metadata\.partitions=.*record_index", properties) is not None
    return bool(deployment.services(PLAIN, service))


def test_log_of_a_worker_that_is_gone_is_in_the_bucket_and_in_airflows_api(deployment: Deployment) -> None:
    run = deployment.services(PLAIN, "clean")[0]["dag_run_id"]
    tries = deployment.tries(SERVICE_DAG, run)
    worker = deployment.workers[tries[-1][1]]
    worker.kill()
    try:
        text = deployment.log_of(SERVICE_DAG, run, "run_service", len(tries))
    finally:
        worker.start()
    assert "ended with code 0" in text, text[-3000:]
    assert "table " in text
    listing = httpx.get(f"{deployment.store.endpoint}/{BUCKET}", timeout=20).text
    assert f"run_id={run}" in listing.replace("%3A", ":").replace("%2B", "+")


def test_standing_application_of_a_worker_that_dies_starts_on_the_other(deployment: Deployment) -> None:
    deployment.write(WARM, range(3))
    deployment.wait(lambda: deployment.runs("lake_warm"), 120, "the run that starts the application")
    _, dead = deployment.wait(lambda: deployment.find_running("lake_warm"), 120, "the application's worker")
    deployment.workers[dead].kill()
    deployment.wait(lambda: deployment.services(WARM, "compaction"), 400, "the compaction")
    assert len(deployment.compactions(WARM)) == 1
    assert not deployment.services(WARM, "compaction", "failed")
    deployment.workers[dead].start()


def test_replication_of_a_worker_that_dies_goes_on_on_the_other(deployment: Deployment) -> None:
    deployment.airflow.pause("lake_replication", is_paused=False)
    deployment.write(COPIED, range(2))
    _, dead = deployment.wait(lambda: deployment.find_running("lake_replication"), 240, "a run of replication")
    deployment.workers[dead].kill()
    deployment.write(COPIED, range(2, 4))
    rows = deployment.writer.read(str(deployment.path(COPIED)))
    deployment.wait(lambda: count_keys(deployment) == rows["ids"], 400, "all rows in the sink")
    table = table_id_of(str(deployment.path(COPIED)))
    answer = deployment.airflow.get(f"/v1/hoodie/tables/{table}/sinks")
    assert answer is not None
    assert [sink["problem"] for sink in answer["sinks"]] == [""]
    deployment.workers[dead].start()
    time.sleep(1)


def count_keys(deployment: Deployment) -> int:
    """Return how many keys the sink's files have; the writer deletes none."""
    lines = [
        json.loads(line)
        for file in deployment.sink.rglob("*.jsonl")
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    return len({line["id"] for line in lines if "id" in line})
