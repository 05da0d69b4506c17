"""Drivers on a real Kubernetes that serve tables in an S3-compatible store; what many runs leave; how soon they end."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_lake_provider.execution.engines.engine import create_engine
from local_stack.hudi_bundle import JARS, S3A, with_jars
from local_stack.kubernetes import GATEWAY
from local_stack.object_store import LocalObjectStore, ServerMissingError
from local_stack.processes import PATIENCE
from local_stack.writer_process import StandingWriter
from local_stack.zookeeper import LocalZooKeeper
from tests.clusters.kubernetes_stage import NAMESPACE, KubernetesStage

pytestmark = [pytest.mark.system, pytest.mark.soak(covered_by="tests/integration/engines/test_clusters.py")]

RUNS = int(os.environ.get("LAKE_POD_RUNS", "3"))
NOTICED_S = 2.0
TABLES = "s3a://lake/tables"
SECRET = "s3"
"""Of the namespace, with the store's two keys."""
PLACE = "/opt/lake-jars"


@pytest.fixture(autouse=True)
def nothing_is_left(stage: KubernetesStage) -> Iterator[None]:
    yield
    stage.wait_until(lambda: set(stage.left()) <= {f"secrets/{SECRET}"}, f"an empty namespace: {stage.left()}", 60)


@dataclass
class StoreStage(KubernetesStage):
    """Tasks whose tables are in an object store; the job files are on a disk that the pods mount."""

    store: LocalObjectStore = field(default_factory=lambda: LocalObjectStore(Path()))
    zookeeper: LocalZooKeeper = field(default_factory=lambda: LocalZooKeeper(Path()))

    @property
    def s3a(self) -> Mapping[str, str]:
        return {
            "spark.hadoop.fs.s3a.endpoint": self.store.endpoint,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            # Hudi's readers hold more connections than the default pool has.
            "spark.hadoop.fs.s3a.connection.maximum": "200",
        }

    @property
    def spark_conf(self) -> Mapping[str, str]:
        keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        roles = ("driver", "executor")
        return {
            **super().spark_conf,
            **self.s3a,
            **{f"spark.kubernetes.{role}.volumes.hostPath.jars.mount.path": PLACE for role in roles},
            **{f"spark.kubernetes.{role}.volumes.hostPath.jars.options.path": str(JARS.resolve()) for role in roles},
            **{f"spark.kubernetes.{role}.secretKeyRef.{key}": f"{SECRET}:{key}" for role in roles for key in keys},
        }

    def env(self) -> Mapping[str, str]:
        keys = self.store.storage_options
        login = {"login": keys["access_key"], "password": keys["secret_key"]}
        extra = json.dumps({"endpoint_url": self.store.endpoint, "region_name": keys["region"]})
        return {
            **super().env(),
            "AIRFLOW_CONN_STORE": json.dumps({"conn_type": "aws", **login, "extra": extra}),
            "AIRFLOW__LAKE__STORAGE_CONN_IDS": f"{TABLES}=store",
            "AIRFLOW__LAKE__ALLOWED_ROOTS": TABLES,
            "AIRFLOW__LAKE__SPARK_JARS": ",".join(f"local://{PLACE}/{jar}" for jar in S3A),
            "AIRFLOW__LAKE__ALLOWED_RUN_OPTIONS": ",".join((*self.spark_conf, *self.zookeeper.lock_options())),
        }


@pytest.fixture(scope="module")
def stores(stage: KubernetesStage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreStage]:
    """A store, ZooKeeper and a Secret, which pods reach."""
    folder = tmp_path_factory.mktemp("stores")
    store = LocalObjectStore(folder, host=GATEWAY)
    zookeeper = LocalZooKeeper(folder / "zookeeper", host=GATEWAY)
    with_jars(S3A)
    keys = ("--from-literal=AWS_ACCESS_KEY_ID=local", "--from-literal=AWS_SECRET_ACCESS_KEY=local")
    try:
        store.start()
        zookeeper.start()
        store.make_bucket("lake")
        stage.cluster.kubectl("-n", NAMESPACE, "create", "secret", "generic", SECRET, *keys)
        own = StoreStage(stage.folder, stage.manager_url, "", cluster=stage.cluster, store=store, zookeeper=zookeeper)
        yield own
        own.close()
        stage.cluster.kubectl("-n", NAMESPACE, "delete", "secret", SECRET)
    except ServerMissingError as error:
        pytest.skip(str(error))
    finally:
        zookeeper.stop()
        store.stop()


@pytest.fixture(scope="module")
def writer(stores: StoreStage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandingWriter]:
    """A stock writer, on this machine, which reads as well."""
    keys = {"spark.hadoop.fs.s3a.access.key": "local", "spark.hadoop.fs.s3a.secret.key": "local"}
    conf = {"spark.jars": with_jars(S3A), **stores.s3a, **keys}
    with StandingWriter(tmp_path_factory.mktemp("writer"), conf) as writer:
        yield writer


def read(writer: StandingWriter, path: str) -> dict[str, Any]:
    return {**writer.read(path), "seconds": 0}


def test_table_in_an_object_store_is_compacted_in_pods(stores: StoreStage, writer: StandingWriter) -> None:
    path, lock = f"{TABLES}/orders", stores.zookeeper.lock_options()
    table = {"name": "orders", "base_path": path, "type": "MOR", "version": 9, "keys": 200, "rows": 40}
    for commit in range(3):
        writer.write(table, commit, hudi_options=lock)
    before = read(writer, path)
    task = stores.start_task("stored", base_path=path, table_name="orders", hudi_options=lock)
    returned = stores.wait_for_task(task, 400)
    assert (returned["outcome"], len(returned["completed_instants"])) == ("completed", 1), task.log_tail(60)
    assert read(writer, path) == before
    base_files = f"_hoodie_file_name LIKE '%_{returned['completed_instants'][0]}.parquet'"
    assert writer.read(path, base_files)["rows"] > 0
    writer.write(table, 3, hudi_options=lock)
    assert writer.read(path)["rows"] == before["rows"] + 4


@pytest.mark.usefixtures("engine_access")
def test_runs_leave_nothing_and_their_ends_are_noticed_soon(stage: KubernetesStage) -> None:
    """Each job fails, because its table does not exist: after it has begun, with an executor on its way."""
    engine = create_engine("spark-submit")
    late_s: list[float] = []
    for number in range(RUNS):
        handle = engine.start(stage.job(f"many-{number}"))
        (pod,) = stage.pods()
        ended = threading.Thread(target=wait_for_end, args=(stage, pod["metadata"]["uid"], late_s))
        ended.start()
        assert engine.wait(handle) is not None
        returned_s = time.monotonic()
        ended.join()
        late_s[-1] = returned_s - late_s[-1]
        stage.wait_until(lambda: set(stage.left()) <= {f"secrets/{SECRET}"}, f"what run {number} left", 60)
    print("ends were noticed after", *(f"{each_s:.1f}" for each_s in sorted(late_s)), "s")
    assert sorted(late_s)[RUNS // 2] < NOTICED_S * PATIENCE, late_s


def wait_for_end(stage: KubernetesStage, pod_uid: str, ends_s: list[float]) -> None:
    """Append when the last process of a pod's Spark ended, by this process's clock."""
    has_begun = False
    while True:
        runs = any(process.name() == "java" for process in stage.cluster.processes_of(pod_uid))
        has_begun = has_begun or runs
        if has_begun and not runs:
            ends_s.append(time.monotonic())
            return
        time.sleep(0.1)
