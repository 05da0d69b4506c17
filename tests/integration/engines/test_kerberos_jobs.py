"""Services on an HDFS that takes no client without a ticket: keytab and principal come from Airflow's connections."""

from __future__ import annotations

import base64
import json
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hdfs_native import Client

from local_stack import hadoop, hudi_bundle
from local_stack.hdfs_daemons import HdfsDaemons
from local_stack.kerberos import LocalKerberos
from tests.integration.engines.hdfs_stage import HdfsStage
from tests.integration.engines.lease_server import serve_leases
from tests.integration.engines.stage import Stage

pytestmark = [pytest.mark.integration, pytest.mark.soak]

TICKET_S = 20
"""A job takes longer."""


@dataclass
class RealmStage(HdfsStage):
    """Tasks with one local core; tables are on an HDFS with Kerberos, job files on the disk."""

    kerberos: LocalKerberos = field(default_factory=lambda: LocalKerberos(Path()))
    keytab: Path = Path()
    """Of the Spark connection."""

    @property
    def root(self) -> str:
        return str(self.folder)

    @property
    def connection(self) -> Mapping[str, Any]:
        keytab = base64.b64encode(self.keytab.read_bytes()).decode()
        extra = {"principal": self.kerberos.client, "keytab": keytab}
        return {"host": self.master, "extra": json.dumps(extra)}

    @property
    def store(self) -> Client:
        return Client(
            self.store_url,
            {},
            config_dir=self.conf,
            kerberos_principal=self.kerberos.client,
            kerberos_keytab=str(self.kerberos.keytab),
        )

    def upload(self, name: str) -> str:
        self.copy_table(name)
        return f"{self.store_url}{self.folder}/lake/{name}"

    def env(self) -> Mapping[str, str]:
        env = super().env()
        extra = {"principal": self.kerberos.client, "keytab": str(self.kerberos.keytab), "config_dir": self.conf}
        return {
            **env,
            "KRB5_CONFIG": str(self.kerberos.config),
            "SPARK_SUBMIT_OPTS": f"{env['SPARK_SUBMIT_OPTS']} -Djava.security.krb5.conf={self.kerberos.config}",
            "AIRFLOW__LAKE__ALLOWED_ROOTS": f"{self.store_url}{self.folder}/lake",
            "AIRFLOW__LAKE__STORAGE_CONN_IDS": f"{self.store_url}=lake_hdfs",
            "AIRFLOW_CONN_LAKE_HDFS": json.dumps({"conn_type": "hdfs", "extra": json.dumps(extra)}),
        }


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealmStage]:
    if not hudi_bundle.JAR.exists():
        pytest.skip("no Hudi bundle: run `make install`")
    if not hadoop.LIB.is_dir() and (shutil.which("mvn") is None or shutil.which("java") is None):
        pytest.skip("Kerberos needs Maven and Java 17")
    kerberos = LocalKerberos(tmp_path_factory.mktemp("kdc"), ticket_s=TICKET_S)
    hdfs = HdfsDaemons(tmp_path_factory.mktemp("hdfs"), realm=kerberos)
    folder = tmp_path_factory.mktemp("stage")
    with serve_leases(10.0) as manager_url, pytest.MonkeyPatch.context() as patch:
        stage = RealmStage(folder, manager_url, "local[1]", store_url=hdfs.url, conf=str(hdfs.conf), kerberos=kerberos)
        writer = threading.Thread(target=Stage.write_table, args=(Template(folder, manager_url, "local[1]"),))
        writer.start()
        try:
            kerberos.start()
            stage.keytab = kerberos.keytab
            # MIT's library reads these at each use.
            patch.setenv("KRB5_CONFIG", str(kerberos.config))
            patch.setenv("KRB5CCNAME", f"FILE:{kerberos.folder}/no-such-cache")
            hdfs.start()
            writer.join()
            yield stage
        finally:
            writer.join()
            stage.close()
            hdfs.stop()
            kerberos.stop()


@dataclass
class Template(Stage):
    """The stage of the writer, which knows no HDFS."""

    @property
    def base_path(self) -> str:
        return f"file://{self.folder}/template/orders"


def test_compaction_runs_with_the_keytab_of_the_spark_connection_beyond_a_tickets_lifetime(stage: RealmStage) -> None:
    path = stage.upload("orders")
    with stage.held_lock("orders"):
        task = stage.start_task("whole", base_path=path, table_name="orders")
        stage.wait_until(
            lambda: "as soon as the table's lock is free" in stage.log_of(task) or not task.alive(), "the driver"
        )
        assert task.alive(), task.log_tail(60)
        time.sleep(TICKET_S + 5)
    stage.require_completed("orders", task)
    stage.require_executed_once("orders")
