"""A stage in a Kerberos realm: tables are on an HDFS that takes no client without a ticket, job files on the disk."""

from __future__ import annotations

import base64
import json
import re
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hdfs_native import Client

from local_stack import hadoop, hudi_bundle
from local_stack.clusters import SecureHdfs, SecureYarn
from local_stack.hdfs_daemons import HdfsDaemons
from local_stack.kerberos import LocalKerberos
from tests.integration.engines.hdfs_stage import HdfsStage
from tests.integration.engines.lease_server import Leases, serve_leases
from tests.integration.engines.stage import Stage
from tests.integration.engines.yarn_stage import LEASE_S, YarnStage

TICKET_S = 20
"""A job takes longer."""
ALLOWED = (
    "spark.executor.extraJavaOptions,spark.hadoop.dfs.client.retry.policy.enabled,"
    "spark.hadoop.dfs.client.retry.policy.spec,spark.kerberos.principal,spark.kerberos.keytab"
)


@dataclass
class RealmStage(HdfsStage):
    """Tasks with one local core; tables are on an HDFS with Kerberos, job files on the disk."""

    kerberos: LocalKerberos = field(default_factory=lambda: LocalKerberos(Path()))
    hdfs: HdfsDaemons = field(default_factory=lambda: HdfsDaemons(Path()))
    keytab: Path | None = None
    """Of the Spark connection; None: it has none, and the job has `cache` only."""

    @property
    def cache(self) -> str:
        """The ticket cache of jobs without a keytab."""
        return f"FILE:{self.folder}/tickets"

    def renew_ticket(self, lifetime_s: int) -> float:
        """Fetch a ticket into the cache, as `airflow kerberos` does; return when it ends, by the monotonic clock."""
        config = self.folder / "krb5.conf"
        text = self.kerberos.config.read_text("utf-8")
        config.write_text(re.sub(r"ticket_lifetime = \d+s", f"ticket_lifetime = {lifetime_s}s", text), "utf-8")
        # MIT's library fetches none while the cache has a valid one.
        (self.folder / "tickets").unlink(missing_ok=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KRB5_CONFIG", str(config))
            self.client(kerberos_cache=self.cache).get_file_info("/")
        return time.monotonic() + lifetime_s

    @property
    def root(self) -> str:
        return str(self.folder)

    @property
    def connection(self) -> Mapping[str, Any]:
        if self.keytab is None:
            return {"host": self.master}
        keytab = base64.b64encode(self.keytab.read_bytes()).decode()
        extra = {"principal": self.kerberos.client, "keytab": keytab}
        return {"host": self.master, "extra": json.dumps(extra)}

    @property
    def store(self) -> Client:
        return self.client()

    def client(self, **more: str) -> Client:
        login = {"kerberos_principal": self.kerberos.client, "kerberos_keytab": str(self.kerberos.keytab)}
        return Client(self.store_url, {}, config_dir=self.conf, **login, **more)

    def env(self) -> Mapping[str, str]:
        env = super().env()
        # MIT's library would keep the reader's tickets in the jobs' cache.
        own = {"ticket_cache": f"FILE:{self.folder}/reader-tickets", "config_dir": self.conf}
        extra = {"principal": self.kerberos.client, "keytab": str(self.kerberos.keytab), **own}
        return {
            **env,
            "KRB5_CONFIG": str(self.kerberos.config),
            "KRB5CCNAME": self.cache,
            "SPARK_SUBMIT_OPTS": f"{env['SPARK_SUBMIT_OPTS']} -Djava.security.krb5.conf={self.kerberos.config}",
            "AIRFLOW__LAKE__ALLOWED_ROOTS": f"{self.store_url}{self.folder}/lake",
            "AIRFLOW__LAKE__ALLOWED_RUN_OPTIONS": ALLOWED,
            "AIRFLOW__LAKE__STORAGE_CONN_IDS": f"{self.store_url}=lake_hdfs",
            "AIRFLOW_CONN_LAKE_HDFS": json.dumps({"conn_type": "hdfs", "extra": json.dumps(extra)}),
        }


@dataclass
class SecureYarnStage(RealmStage, YarnStage):
    """Tasks whose jobs run on a YARN of the realm, which answers nothing without a ticket."""

    is_in_spark_conf: bool = False
    """Whether the keytab is in Spark's settings, and not in the connection."""

    @property
    def root(self) -> str:
        return f"file://{self.folder}"

    @property
    def spark_conf(self) -> Mapping[str, str]:
        if self.keytab is None or not self.is_in_spark_conf:
            return {}
        return {"spark.kerberos.principal": self.kerberos.client, "spark.kerberos.keytab": str(self.keytab)}

    @property
    def connection(self) -> Mapping[str, Any]:
        login = {} if self.is_in_spark_conf else json.loads(super().connection.get("extra", "{}"))
        extra = {"deploy-mode": self.deploy_mode, "yarn_resourcemanager_webapp_address": self.yarn.web_url, **login}
        return {"host": "yarn", "extra": json.dumps(extra)}


@contextmanager
def realm_stage(make_folder: pytest.TempPathFactory, *, has_yarn: bool = False) -> Iterator[Any]:
    """Start the realm and its HDFS while a table is written; skip where Hudi, Maven or Java are missing."""
    if not hudi_bundle.JAR.exists():
        pytest.skip("no Hudi bundle: run `make install`")
    if not hadoop.LIB.is_dir() and (shutil.which("mvn") is None or shutil.which("java") is None):
        pytest.skip("Kerberos needs Maven and Java 17")
    folder, leases = make_folder.mktemp("stage"), Leases(LEASE_S)
    cluster = SecureYarn(make_folder.mktemp("realm")) if has_yarn else SecureHdfs(make_folder.mktemp("realm"), TICKET_S)
    with serve_leases(LEASE_S, leases) as manager_url, pytest.MonkeyPatch.context() as patch:
        own: dict[str, Any] = {"store_url": cluster.hdfs.url, "kerberos": cluster.realm, "hdfs": cluster.hdfs}
        own["keytab"] = cluster.realm.keytab
        if isinstance(cluster, SecureYarn):
            own |= {"conf": str(cluster.yarn.conf), "yarn": cluster.yarn, "leases": leases}
            stage: RealmStage = SecureYarnStage(folder, manager_url, "yarn", **own)
        else:
            stage = RealmStage(folder, manager_url, "local[1]", conf=str(cluster.hdfs.conf), **own)
        # MIT's library reads these at each use.
        patch.setenv("KRB5_CONFIG", str(cluster.realm.config))
        patch.setenv("KRB5CCNAME", f"FILE:{cluster.realm.folder}/no-such-cache")
        writer = threading.Thread(target=Stage.write_table, args=(Template(folder, manager_url, "local[1]"),))
        writer.start()
        try:
            cluster.start()
            writer.join()
            yield stage
        finally:
            writer.join()
            stage.close()
            cluster.stop()


@dataclass
class Template(Stage):
    """The stage of the writer, which knows no HDFS."""

    @property
    def base_path(self) -> str:
        return f"file://{self.folder}/template/orders"
