"""A stage whose jobs run in pods of a real Kubernetes; tables and job files are on a disk that the pods mount."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_lake_provider.execution.engines.engine import EngineJob
from airflow_lake_provider.execution.engines.packaging import install_jobs
from local_stack.hudi_bundle import QUICK_JVM
from local_stack.kubernetes import LocalKubernetes
from local_stack.kubernetes_build import SPARK_IMAGE, USER
from local_stack.processes import ServerProcess
from tests.integration.engines.kubernetes_client import PACKAGES
from tests.integration.engines.lease_server import Leases, serve_leases
from tests.integration.engines.stage import OPTIONS, Stage
from tests.support.engine_jobs import engine_job

NAMESPACE = "lake"
LEASE_S = 10.0
ROLES = Path(__file__).resolve().parents[2] / "docs" / "kubernetes" / "roles.yaml"
CONF = {
    "spark.kubernetes.container.image": SPARK_IMAGE,
    "spark.kubernetes.container.image.pullPolicy": "Never",
    "spark.kubernetes.authenticate.driver.serviceAccountName": "lake-driver",
    "spark.pyspark.python": "python3",
    "spark.driver.memory": "600m",
    "spark.executor.memory": "500m",
    "spark.executor.instances": "1",
    "spark.kubernetes.driver.request.cores": "0.1",
    "spark.kubernetes.executor.request.cores": "0.1",
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.executor.extraJavaOptions": QUICK_JVM,
}


@dataclass
class KubernetesStage(Stage):
    """Tasks whose Spark connection names a Kubernetes, as the accounts of docs/kubernetes/roles.yaml."""

    cluster: LocalKubernetes = field(default_factory=lambda: LocalKubernetes(Path()))
    account: str = "lake-worker"

    @property
    def spark_conf(self) -> Mapping[str, str]:
        mounts = {"share": str(self.folder), "jobs": str(self.jobs)}
        volumes = {
            f"spark.kubernetes.{role}.volumes.hostPath.{name}.{what}": path
            for role in ("driver", "executor")
            for name, path in mounts.items()
            for what in ("mount.path", "options.path")
        }
        # A mount plays the folder that the image's build fills, so that a change of the jobs needs no other image.
        return {**CONF, **volumes, "spark.lake.jobs": f"local://{self.jobs}"}

    @property
    def jobs(self) -> Path:
        return self.folder / "jobs"

    @property
    def connection(self) -> Mapping[str, Any]:
        extra = {"deploy-mode": "cluster", "namespace": NAMESPACE}
        return {"host": f"k8s://{self.cluster.address}", "extra": json.dumps(extra)}

    def config_of(self, account: str) -> Path:
        """Return the settings for kubectl of an account of the namespace."""
        return self.cluster.write_account_config(NAMESPACE, account)

    def env(self) -> Mapping[str, str]:
        config = str(self.config_of(self.account))
        return {
            **super().env(),
            **self.access(config),
            "PYTHONPATH": f"{Path(__file__).resolve().parents[2]}{os.pathsep}{PACKAGES}",
            "AIRFLOW__LAKE__SPARK_JARS": "",
            "AIRFLOW__LAKE__ALLOWED_RUN_OPTIONS": ",".join((*self.spark_conf, *OPTIONS)),
        }

    @staticmethod
    def access(config: str) -> dict[str, str]:
        """Return the variables with which spark-submit and the task's follower use a file."""
        return {
            "KUBECONFIG": config,
            "AIRFLOW__KUBERNETES_EXECUTOR__IN_CLUSTER": "False",
            "AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE": config,
        }

    def copy_table(self, name: str) -> Path:
        """Return a copy of the written table that belongs to the pods' user."""
        path = self.folder / "lake" / name
        shutil.copytree(self.table, path)
        self.give_to_pods(path)
        return path

    @staticmethod
    def give_to_pods(table: Path) -> None:
        """Let the pods' user own a table."""
        for each in (table, *table.rglob("*")):
            os.chown(each, USER, USER)

    def start(self, name: str, try_number: int = 1, **operator: Any) -> ServerProcess:
        """Start the compaction of a copied table."""
        path = str(self.folder / "lake" / name)
        return self.start_task(name, try_number, base_path=path, table_name=name, **operator)

    def job(self, name: str, **conf: str) -> EngineJob:
        """Return a job for an engine without a task, on a table that does not exist."""
        settings = {**self.spark_conf, **{key.replace("__", "."): value for key, value in conf.items()}}
        return engine_job(
            self.folder / "work", engine="spark-submit", run_id=name, conn_id="spark_default", conf=settings
        )

    def log_of(self, task: ServerProcess) -> str:
        return task.log_path.read_text(encoding="utf-8")

    def instants(self, name: str) -> set[str]:
        return {path.name for path in (self.folder / "lake" / name / ".hoodie" / "timeline").iterdir()}

    def require_compacted_once(self, name: str) -> None:
        """Require one plan and one compaction on a table's timeline."""
        instants = self.instants(name)
        assert len([each for each in instants if each.endswith(".compaction.requested")]) == 1, instants
        assert len([each for each in instants if re.fullmatch(r"\d+_\d+\.commit", each)]) == 1, instants

    def pods(self, role: str = "driver") -> list[dict[str, Any]]:
        """Return the pods of a role that there are."""
        return self.cluster.items("pods", NAMESPACE, "-l", f"spark-role={role}")

    def wait_for_driver(self, task: ServerProcess) -> dict[str, Any]:
        """Wait until a task's driver waits for the table's lock; return its pod."""
        said = "as soon as the table's lock is free"
        self.wait_until(lambda: said in self.log_of(task) or not task.alive(), "the driver", 300)
        assert task.alive(), task.log_tail(60)
        (pod,) = self.pods()
        return pod

    def left(self) -> list[str]:
        """Return what Spark has made in the namespace and is still there."""
        return [
            f"{kind}/{each['metadata']['name']}"
            for kind in ("pods", "services", "configmaps", "secrets", "persistentvolumeclaims")
            for each in self.cluster.items(kind, NAMESPACE)
            if each["metadata"]["name"] != "kube-root-ca.crt"
        ]


@contextmanager
def held_lock(table: Path) -> Iterator[None]:
    """Hold a table's lock as a writer does, so that its driver waits."""
    lock, done = table / ".hoodie" / "lock", threading.Event()

    def hold() -> None:
        while not done.wait(5):
            lock.touch()

    lock.touch()
    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    try:
        yield
    finally:
        done.set()
        holder.join()
        lock.unlink(missing_ok=True)


@contextmanager
def kubernetes_stage() -> Iterator[KubernetesStage]:
    """Start a Kubernetes with the documented accounts, write a table, and share its folder with the pods' group."""
    # pytest's own folders are closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="lake-kubernetes-", dir="/tmp"))
    folder.chmod(0o755)
    cluster = LocalKubernetes(folder / "cluster")
    try:
        with serve_leases(LEASE_S, Leases(LEASE_S)) as manager_url:
            stage = KubernetesStage(folder / "stage", manager_url, "", cluster=cluster)
            work = stage.folder / "work"
            work.mkdir(parents=True)
            os.chown(work, 0, USER)
            work.chmod(0o2770)
            install_jobs(stage.jobs)
            cluster.start()
            cluster.kubectl("create", "namespace", NAMESPACE)
            cluster.kubectl("-n", NAMESPACE, "apply", "-f", str(ROLES))
            stage.write_table()
            yield stage
            stage.close()
    finally:
        cluster.stop()
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
