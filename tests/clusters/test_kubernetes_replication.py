"""Replication whose driver runs in a pod of a real Kubernetes: a real PostgreSQL counts what it got, whatever dies."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import create_engine

from airflow_lake_provider.hudi.base_path import table_id_of
from local_stack.hudi_bundle import SPARK_PYTHON
from local_stack.kubernetes import GATEWAY
from local_stack.postgres import LocalPostgres, find_programs
from local_stack.processes import PATIENCE, ServerProcess
from local_stack.writer_process import StandingWriter
from tests.clusters.kubernetes_stage import NAMESPACE, KubernetesStage
from tests.integration.engines.mirror import (
    CHANGES,
    PASSWORD,
    Mirror,
    connection_of,
    left_of_mirrors,
    time_of_first,
)

pytestmark = [
    pytest.mark.system,
    pytest.mark.soak(covered_by="tests/unit/execution/test_job_run.py"),
    pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL: run `python -m local_stack.postgres`"),
]

CLIENT = ("sqlalchemy", "psycopg2", "psycopg2_binary.libs", "typing_extensions.py")
"""What the sink imports, which an image would have by pip."""


@dataclass
class MirrorOfPods(Mirror):
    """Where its password is while a driver runs in a pod, and what its runs leave."""

    stage: KubernetesStage

    def running(self) -> dict[str, Any]:
        (pod,) = self.stage.pods()
        return pod

    def require_password_in_request_only(self) -> None:
        """Require that the driver has the sink's password from its request, which only user and group can read."""
        requests = [Path(path) for path in left_of_mirrors(map(str, self.work())) if path.endswith("/request.json")]
        (request,) = [path for path in requests if PASSWORD in path.read_text(encoding="utf-8")]
        assert not request.stat().st_mode & stat.S_IRWXO, request.stat()
        kinds = "pods,configmaps,secrets,services,events"
        assert PASSWORD not in self.stage.cluster.kubectl("-n", NAMESPACE, "get", kinds, "-o", "json")
        (container,) = self.running()["status"]["containerStatuses"]
        assert container["state"].get("running"), container
        environments = 0
        for process in self.stage.cluster.processes_of(self.running()["metadata"]["uid"]):
            with contextlib.suppress(psutil.Error):
                assert PASSWORD not in json.dumps(process.environ()), process
                environments += 1
        assert environments
        self.require_no_password()

    def require_once(self) -> None:
        """Require each change once; nothing runs, and nothing is left."""
        self.require_rows_once()
        self.stage.wait_until(lambda: self.stage.left() == [], f"an empty namespace: {self.stage.left()}", 60)
        assert not left_of_mirrors(map(str, self.work()))

    def work(self) -> list[Path]:
        return list((self.stage.folder / "work").rglob("*"))

    def kill_worker(self, task: ServerProcess) -> str:
        """Kill a task -9; return the id of its driver's pod."""
        uid = str(self.running()["metadata"]["uid"])
        os.kill(task.process.pid, signal.SIGKILL)
        task.process.wait()
        return uid


def copy_client(folder: Path) -> None:
    """Copy the packages of the environment with Spark, whose Python is of the version that pods have."""
    (site,) = SPARK_PYTHON.parent.parent.glob("lib/python3*/site-packages")
    for name in CLIENT:
        copy = shutil.copytree if (site / name).is_dir() else shutil.copy
        copy(site / name, folder / name)


@pytest.fixture(scope="module")
def filled(stage: KubernetesStage, reader: StandingWriter) -> Iterator[MirrorOfPods]:
    server = LocalPostgres(network=f"{GATEWAY}/24")
    server.start()
    database = create_engine(server.url)
    try:
        stage.connections["mirror"] = connection_of(server, GATEWAY)
        packages = stage.folder / "packages"
        packages.mkdir()
        copy_client(packages)
        path = stage.copy_table("mirrored")
        seek_until = time_of_first(stage.instants("mirrored"))
        conf = {"spark.kubernetes.driverEnv.PYTHONPATH": str(packages)}
        mirror = MirrorOfPods(stage, database, str(path), seek_until, reader.read(path), conf)
        mirror.execute(f"alter role airflow password '{PASSWORD}'")
        mirror.fill()
        yield mirror
    finally:
        stage.connections.clear()
        database.dispose()
        server.stop()


@pytest.fixture
def mirror(filled: MirrorOfPods) -> MirrorOfPods:
    filled.execute("truncate counted")
    return filled


def test_mirror_gets_each_change_once_although_drivers_and_a_worker_are_killed(
    stage: KubernetesStage, mirror: MirrorOfPods
) -> None:
    # The driver's JVM, between two transactions or within one.
    first = mirror.seek("killed")
    mirror.wait_for_rows(0, first)
    mirror.require_password_in_request_only()
    for process in stage.cluster.processes_of(mirror.running()["metadata"]["uid"]):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name() == "java":
                process.kill()
    first.process.wait(timeout=240 * PATIENCE)
    assert "RETURNED {" not in stage.log_of(first)
    assert "exit code 137, Error" in stage.log_of(first), first.log_tail(60)

    # The pod of the next try.
    durable = mirror.counted()
    assert 0 < durable < CHANGES
    second = mirror.seek("killed", 2)
    mirror.wait_for_rows(durable, second)
    deleted = mirror.running()["metadata"]
    name = deleted["name"]
    stage.cluster.kubectl("-n", NAMESPACE, "delete", "pod", name, "--grace-period=0", "--force", "--wait=false")
    second.process.wait(timeout=240 * PATIENCE)
    assert "RETURNED {" not in stage.log_of(second)
    assert f"Kubernetes has no pod {NAMESPACE}/{name} any more" in stage.log_of(second), second.log_tail(60)
    # A pod that is deleted by force is gone before its processes.
    stage.wait_until(lambda: not list(stage.cluster.processes_of(deleted["uid"])), "the end of its processes", 60)

    # The worker of the next try: its driver goes on, and the try after it follows that one.
    durable = mirror.counted()
    third = mirror.seek("killed", 3)
    mirror.wait_for_rows(durable, third)
    uid = mirror.kill_worker(third)
    assert mirror.running()["metadata"]["uid"] == uid
    fourth = mirror.seek("killed", 4)
    returned = stage.wait_for_task(fourth, 400)
    follows = f"this try follows lake-replicate-{table_id_of(mirror.path)}.mirror of an earlier try"
    assert follows in stage.log_of(fourth), fourth.log_tail(60)
    # What the followed driver sent, which began where the one before it had ended.
    assert returned["rows"] == CHANGES - durable
    mirror.require_once()


def test_run_that_takes_the_sink_over_ends_the_driver_that_it_finds(
    stage: KubernetesStage, mirror: MirrorOfPods
) -> None:
    first = mirror.seek("left")
    mirror.wait_for_rows(0, first)
    uid = mirror.kill_worker(first)
    other = mirror.start("other")
    stage.wait_for_task(other, 400)
    assert "this try ends lake-replicate-" in stage.log_of(other), other.log_tail(60)
    assert not list(stage.cluster.processes_of(uid))
    mirror.require_once()


def test_cleared_run_ends_its_driver_and_the_next_try_goes_on(stage: KubernetesStage, mirror: MirrorOfPods) -> None:
    first = mirror.seek("cleared")
    mirror.wait_for_rows(0, first)
    os.kill(first.process.pid, signal.SIGTERM)
    first.process.wait(timeout=120 * PATIENCE)
    assert not stage.pods()
    stage.wait_for_task(mirror.seek("cleared", 2), 400)
    mirror.require_once()
