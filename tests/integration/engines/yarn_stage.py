"""A stage whose tables and job files are on HDFS, and whose jobs run on YARN."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_lake_provider.hudi.base_path import table_id_of
from local_stack import hadoop, hdfs, hudi_bundle
from local_stack.clusters import YarnOnHdfs
from local_stack.processes import ServerProcess
from local_stack.yarn import LocalYarn
from tests.integration.engines.hdfs_stage import HdfsStage
from tests.integration.engines.lease_server import Leases, serve_leases
from tests.integration.engines.stage import OPTIONS, Stage

LEASE_S = 10.0
# Hadoop's client would try for a quarter of an hour to reach a ResourceManager.
HASTY = {
    "spark.hadoop.yarn.resourcemanager.connect.max-wait.ms": "2000",
    "spark.hadoop.yarn.resourcemanager.connect.retry-interval.ms": "500",
    "spark.hadoop.ipc.client.connect.max.retries": "1",
}


@dataclass
class YarnStage(HdfsStage):
    """Tasks whose Spark connection names YARN."""

    yarn: LocalYarn = field(default_factory=lambda: LocalYarn(Path(), ""))
    leases: Leases = field(default_factory=lambda: Leases(LEASE_S))
    deploy_mode: str = "cluster"

    @property
    def spark_conf(self) -> Mapping[str, str]:
        # As in production: the cluster's own settings are in its spark-defaults.conf.
        return {}

    @property
    def connection(self) -> Mapping[str, Any]:
        extra = {"deploy-mode": self.deploy_mode, "yarn_resourcemanager_webapp_address": self.yarn.web_url}
        return {"host": "yarn", "extra": json.dumps(extra)}

    def wait_for_driver(self, task: ServerProcess) -> dict[str, Any]:
        """Wait until a task's driver waits for the lock; return its application."""
        self.wait_until(
            lambda: "as soon as the table's lock is free" in self.log_of(task) or not task.alive(), "the driver"
        )
        assert task.alive(), task.log_tail(60)
        (app,) = self.yarn.applications()
        return app

    def containers(self, application_id: str) -> list[psutil.Process]:
        """Return the processes that work in an application's containers."""
        found = [process for process in psutil.process_iter(["cwd"]) if application_id in (process.info["cwd"] or "")]
        return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]

    def master_processes(self, app: Mapping[str, Any]) -> list[psutil.Process]:
        """Return the processes of the container with an application's master: in cluster mode it has the driver."""
        container = app["amContainerLogs"].rstrip("/").split("/")[-2]
        return [process for process in self.containers(app["id"]) if container in process.info["cwd"]]

    def lease_of(self, name: str) -> str:
        """Return the key of the lease that is held for a table."""
        (key,) = [key for key in self.leases.held if f"/{table_id_of(self.path_of(name))}/" in key]
        return key

    def env(self) -> Mapping[str, str]:
        # Spark passes this process's PYTHONPATH on; only what was submitted may be found in the container.
        inherited = {key: value for key, value in super().env().items() if key != "PYTHONPATH"}
        return {
            **inherited,
            "SPARK_CONF_DIR": self.conf,
            "AIRFLOW__LAKE__ALLOWED_RUN_OPTIONS": ",".join((*HASTY, *OPTIONS)),
        }


@contextmanager
def yarn_stage(make_folder: pytest.TempPathFactory, nodes: int = 2) -> Iterator[YarnStage]:
    """Start HDFS and a YARN of so many nodes while a table is written; skip where Hudi, Maven or Java are missing."""
    if not hudi_bundle.JAR.exists():
        pytest.skip("no Hudi bundle: run `make install`")
    if not (hadoop.LIB.is_dir() and hdfs.LIB.is_dir()) and (
        shutil.which("mvn") is None or shutil.which("java") is None
    ):
        pytest.skip("YARN needs Maven and Java 17")
    stack, leases = YarnOnHdfs(make_folder.mktemp("yarn"), nodes), Leases(LEASE_S)
    with serve_leases(LEASE_S, leases) as manager_url:
        stage = YarnStage(
            make_folder.mktemp("stage"),
            manager_url,
            "yarn",
            store_url=stack.hdfs.url,
            conf=str(stack.yarn.conf),
            yarn=stack.yarn,
            leases=leases,
        )
        written: list[Exception] = []
        writer = threading.Thread(target=_write, args=(stage, written))
        writer.start()
        try:
            stack.start()
            writer.join()
            assert not written, written
            yield stage
        finally:
            writer.join()
            stage.close()
            stack.stop()


def _write(stage: YarnStage, errors: list[Exception]) -> None:
    try:
        Stage.write_table(stage)
    except Exception as error:  # noqa: BLE001 - raised by the thread that waits for this one
        errors.append(error)
