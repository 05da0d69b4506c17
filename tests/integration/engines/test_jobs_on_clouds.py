"""A compaction on Google's and on Microsoft's store, as a task with spark-submit: Hadoop's connectors and fsspec's.

The stores are stand-ins. A writer with stock settings writes and reads through Hadoop's connector as well.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from local_stack.hudi_bundle import with_jars
from local_stack.object_store import ServerMissingError
from local_stack.other_stores import AZURE_ACCOUNT, AZURE_KEY, CLIENTS, Azurite, FakeGcs
from local_stack.writer_process import StandingWriter
from local_stack.zookeeper import LocalZooKeeper
from tests.integration.engines.lease_server import Leases, serve_leases
from tests.integration.engines.stage import PLAIN_CONF, Stage

pytestmark = [pytest.mark.integration, pytest.mark.soak(covered_by="tests/integration/storage/test_tables.py")]

LEASE_S = 30.0
GCS_JARS = ("gcs-connector-hadoop3-2.2.26-shaded.jar",)
AZURE_JARS = (
    "hadoop-azure-3.3.4.jar",
    "azure-storage-7.0.1.jar",
    "azure-keyvault-core-1.0.0.jar",
    "jetty-util-ajax-9.4.43.v20210629.jar",
    "jetty-util-9.4.43.v20210629.jar",
)
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@dataclass
class CloudStage(Stage):
    """Tasks whose tables are in a cloud's store, with Spark on this machine."""

    tables: str = ""
    jars: tuple[str, ...] = ()
    connector: Mapping[str, str] = field(default_factory=dict)
    """The settings of Spark that a user needs for the store."""
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    lock: Mapping[str, str] = field(default_factory=dict)

    @property
    def base_path(self) -> str:
        return f"{self.tables}/orders"

    @property
    def spark_conf(self) -> Mapping[str, str]:
        return {**PLAIN_CONF, "spark.driver.extraJavaOptions": QUICK, **self.connector}

    def env(self) -> Mapping[str, str]:
        store = {"conn_type": "generic", "extra": json.dumps({"storage_options": dict(self.storage_options)})}
        return {
            **super().env(),
            "PYTHONPATH": str(CLIENTS),
            # Of a folder's kind gcsfs asks by gRPC, which the server does not speak.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            "AIRFLOW_CONN_STORE": json.dumps(store),
            "AIRFLOW__LAKE__STORAGE_CONN_IDS": f"{self.tables}=store",
            "AIRFLOW__LAKE__ALLOWED_ROOTS": self.tables,
            "AIRFLOW__LAKE__ALLOWED_RUN_OPTIONS": ",".join((*self.spark_conf, *self.lock)),
            "AIRFLOW__LAKE__SPARK_JARS": with_jars(self.jars),
        }


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[CloudStage]:
    """A stage without a store."""
    zookeeper = LocalZooKeeper(tmp_path / "zookeeper")
    zookeeper.start()
    try:
        with serve_leases(LEASE_S, Leases(LEASE_S)) as manager_url:
            stage = CloudStage(tmp_path / "stage", manager_url, "local[2]", lock=zookeeper.lock_options())
            stage.folder.mkdir()
            yield stage
            stage.close()
    finally:
        zookeeper.stop()


def require_compacted(stage: CloudStage, folder: Path) -> None:
    """Write a table, compact it in a task, and require that a reader sees the same rows, and that writes go on."""
    table = {"name": "orders", "base_path": stage.base_path, "type": "MOR", "version": 9, "keys": 200, "rows": 40}
    conf = {"spark.jars": with_jars(stage.jars), "spark.driver.extraJavaOptions": QUICK, **stage.connector}
    with StandingWriter(folder, conf) as writer:
        for commit in range(3):
            writer.write(table, commit, hudi_options=stage.lock)
        before = writer.read(stage.base_path)
        task = stage.start_task("compaction", hudi_options=dict(stage.lock))
        returned = stage.wait_for_task(task, 400)
        assert (returned["outcome"], len(returned["completed_instants"])) == ("completed", 1), task.log_tail(60)
        assert {**writer.read(stage.base_path), "seconds": 0} == {**before, "seconds": 0}
        base_files = f"_hoodie_file_name LIKE '%_{returned['completed_instants'][0]}.parquet'"
        assert writer.read(stage.base_path, base_files)["rows"] > 0
        writer.write(table, 3, hudi_options=stage.lock)
        assert writer.read(stage.base_path)["rows"] == before["rows"] + 4


def start(server: FakeGcs | Azurite) -> None:
    try:
        server.start()
    except ServerMissingError as error:
        pytest.skip(str(error))


def test_compaction_on_google_cloud_storage(stage: CloudStage, tmp_path: Path) -> None:
    server = FakeGcs(tmp_path / "gcs")
    start(server)
    try:
        server.make_bucket("lake")
        stage.tables = "gs://lake/tables"
        stage.jars = GCS_JARS
        stage.storage_options = server.storage_options
        stage.connector = {
            # Those that Spark is given as `--jars` do not announce their file systems.
            "spark.hadoop.fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
            "spark.hadoop.fs.gs.storage.root.url": f"{server.endpoint}/",
            "spark.hadoop.fs.gs.auth.service.account.enable": "false",
            "spark.hadoop.fs.gs.auth.null.enable": "true",
            "spark.hadoop.fs.gs.project.id": "local",
        }
        require_compacted(stage, tmp_path / "writer")
    finally:
        server.stop()


def test_compaction_on_azure_blob_storage(stage: CloudStage, tmp_path: Path) -> None:
    """By `wasb`: Azurite has no interface for `abfs`."""
    server = Azurite(tmp_path / "azure")
    start(server)
    try:
        # A name of an account is the first part of its host's name, which Java has to find.
        host = f"{AZURE_ACCOUNT}.blob.localhost"
        hosts = tmp_path / "hosts"
        hosts.write_text(f"127.0.0.1 {host} localhost {os.uname().nodename}\n", encoding="utf-8")
        stage.tables = f"wasb://lake@{host}:{server.port}/tables"
        stage.jars = AZURE_JARS
        stage.storage_options = server.storage_options
        stage.connector = {
            "spark.hadoop.fs.wasb.impl": "org.apache.hadoop.fs.azure.NativeAzureFileSystem",
            f"spark.hadoop.fs.azure.account.key.{host}:{server.port}": AZURE_KEY,
            "spark.driver.extraJavaOptions": f"{QUICK} -Djdk.net.hosts.file={hosts}",
        }
        require_compacted(stage, tmp_path / "writer")
    finally:
        server.stop()
