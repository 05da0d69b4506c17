"""A real YARN on the loopback address, on a real HDFS: a ResourceManager and two NodeManagers, one process each.

`local_stack.clusters` has the commands that start one.
"""

from __future__ import annotations

import getpass
import json
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from local_stack.hadoop import SOURCES, START_TIMEOUT_S, Daemons, DaemonServer, compile_class, write_settings
from local_stack.hudi_bundle import QUICK_JVM, SPARK_PYTHON, find_spark_home
from local_stack.kerberos import HOST, LocalKerberos
from local_stack.processes import ServerProcess, free_port, wait_until

RESOURCE_MANAGER = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
NODE_MANAGER = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
MAX_APPLICATIONS = 4
"""That many the queue accepts; it rejects the next one."""
_ENDED = frozenset({"FINISHED", "FAILED", "KILLED"})


@dataclass
class LocalYarn(DaemonServer):
    """One cluster in an absolute folder, on the HDFS whose address is given. A killed daemon can be started again.

    The ResourceManager keeps its ports and its applications over that, as one with a state store does.
    """

    folder: Path
    default_fs: str
    memory_mb: int = 2048
    """Of each NodeManager. With less than two containers' memory left, an application waits in the queue."""
    nodes: int = 2
    settings: Mapping[str, str] = field(default_factory=dict)
    realm: LocalKerberos | None = None
    """With it the cluster takes no client without a ticket; containers run as this process's user all the same."""
    server: ServerProcess | None = None
    ports: dict[str, int] = field(default_factory=dict)
    node_web_ports: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.daemons = Daemons(self.folder, self._jvm_options)
        for name in ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address"):
            self.ports[name] = free_port()

    @property
    def address(self) -> str:
        return f"{self.web_url} HADOOP_CONF_DIR={self.conf}"

    @property
    def web_url(self) -> str:
        """The ResourceManager's REST API, for `yarn_resourcemanager_webapp_address`."""
        # A ticket is for a name.
        return f"http://{'127.0.0.1' if self.realm is None else HOST}:{self.ports['webapp.address']}"

    @property
    def conf(self) -> Path:
        """The clients' configuration, for HADOOP_CONF_DIR and SPARK_CONF_DIR."""
        return self.folder / "client"

    def start(self) -> None:
        """Start it and wait until every NodeManager is there. Raises JarsMissingError, NotReadyError."""
        write_settings(self.conf, self._settings())
        defaults = "\n".join(f"{key} {value}" for key, value in self.spark_conf().items())
        (self.conf / "spark-defaults.conf").write_text(f"{defaults}\n", encoding="utf-8")
        self.start_resource_manager()
        for number in range(1, self.nodes + 1):
            self.start_node_manager(number)
        self.wait_for_nodes(self.nodes)

    def start_resource_manager(self) -> None:
        self.daemons.start("resourcemanager", RESOURCE_MANAGER, self._settings())
        self.server = self.daemons.running["resourcemanager"]

    def start_node_manager(self, number: int) -> None:
        home = self.folder / f"nodemanager{number}"
        own = {
            "yarn.nodemanager.address": f"127.0.0.1:{free_port()}",
            "yarn.nodemanager.webapp.address": f"127.0.0.1:{self._web_port(number)}",
            "yarn.nodemanager.localizer.address": f"127.0.0.1:{free_port()}",
            "yarn.nodemanager.collector-service.address": f"127.0.0.1:{free_port()}",
            "yarn.nodemanager.local-dirs": str(home / "local"),
            "yarn.nodemanager.log-dirs": str(home / "logs"),
        }
        if self.realm is not None:
            compile_class(SOURCES / "SecureIOUtils.java", home / "conf")
        self.daemons.start(home.name, NODE_MANAGER, self._settings() | own)

    def number_of(self, web_address: str) -> int:
        """Return which NodeManager has this address, `amHostHttpAddress` of an application."""
        port = int(web_address.rpartition(":")[2])
        return next(number for number, web_port in self.node_web_ports.items() if web_port == port)

    def submit_sleep(self, seconds: int = 3600) -> str:
        """Submit an application that sleeps, without a JVM; return its id."""
        application_id = str(self._post("apps/new-application", {})["application-id"])
        body = {
            "application-id": application_id,
            "application-name": "sleep",
            "am-container-spec": {"commands": {"command": f"sleep {seconds}"}},
            "resource": {"memory": 128, "vCores": 1},
            "max-app-attempts": 1,
        }
        self._post("apps", body)
        return application_id

    def kill_application(self, application_id: str) -> None:
        """Kill an application and wait until it has ended."""
        self._post(f"apps/{application_id}/state", {"state": "KILLED"}, "PUT")
        wait_until(
            lambda: application_id not in [app["id"] for app in self.applications()], 60, "the application's end"
        )

    def _post(self, path: str, body: dict[str, Any], method: str = "POST") -> dict[str, Any]:
        url = f"{self.web_url}/ws/v1/cluster/{path}?user.name={self._user}"
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, json.dumps(body).encode(), headers, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            text = answer.read()
        return dict(json.loads(text)) if text else {}

    def _web_port(self, number: int) -> int:
        return self.node_web_ports.setdefault(number, free_port())

    def wait_for_nodes(self, count: int) -> None:
        """Wait until the ResourceManager knows so many running NodeManagers."""
        wait_until(lambda: self.metrics().get("activeNodes") == count, START_TIMEOUT_S, "YARN", self.daemons.servers())

    def metrics(self) -> dict[str, Any]:
        """Return the cluster's metrics; empty while the ResourceManager does not answer."""
        return self.ask("metrics").get("clusterMetrics", {})

    def applications(self, *, active: bool = True) -> list[dict[str, Any]]:
        """Return the applications as the ResourceManager reports them."""
        found = (self.ask("apps").get("apps") or {}).get("app", [])
        return [app for app in found if not active or app["state"] not in _ENDED]

    def ask(self, path: str) -> dict[str, Any]:
        """Return what the ResourceManager answers; empty while it does not."""
        url = f"{self.web_url}/ws/v1/cluster/{path}"
        try:
            if self.realm is not None:
                return dict(json.loads(self.realm.fetch(url)))
            with urllib.request.urlopen(url, timeout=5) as answer:
                return dict(json.load(answer))
        except (OSError, ValueError):
            return {}

    def spark_conf(self) -> dict[str, str]:
        """Return Spark's settings for containers on this machine: small, and with its own jars and Python."""
        home, quick = find_spark_home(), " ".join((QUICK_JVM, *self._jvm_options))
        python = {
            f"{key}.PYSPARK_PYTHON": str(SPARK_PYTHON) for key in ("spark.yarn.appMasterEnv", "spark.executorEnv")
        }
        return python | {
            # Drivers and executors listen where the cluster does; executors get it from their driver.
            "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
            # Or Spark would pack and upload its 300 MB for each application.
            "spark.yarn.jars": f"local:{home}/jars/*",
            "spark.driver.memory": "512m",
            "spark.driver.memoryOverhead": "256m",
            "spark.executor.memory": "512m",
            "spark.executor.memoryOverhead": "256m",
            "spark.executor.instances": "1",
            "spark.executor.cores": "1",
            "spark.yarn.am.memory": "512m",
            "spark.driver.extraJavaOptions": quick,
            "spark.executor.extraJavaOptions": quick,
            "spark.yarn.am.extraJavaOptions": quick,
            "spark.sql.shuffle.partitions": "1",
            "spark.default.parallelism": "1",
        }

    @property
    def _user(self) -> str:
        return getpass.getuser()

    @property
    def _jvm_options(self) -> tuple[str, ...]:
        return () if self.realm is None else self.realm.jvm_options

    def _settings(self) -> dict[str, str]:
        return {
            **({} if self.realm is None else self.realm.yarn_settings()),
            "fs.defaultFS": self.default_fs,
            **{f"yarn.resourcemanager.{name}": f"127.0.0.1:{port}" for name, port in self.ports.items()},
            "yarn.resourcemanager.hostname": "127.0.0.1",
            "yarn.resourcemanager.recovery.enabled": "true",
            "yarn.resourcemanager.store.class": (
                "org.apache.hadoop.yarn.server.resourcemanager.recovery.FileSystemRMStateStore"
            ),
            "yarn.resourcemanager.fs.state-store.uri": f"file://{self.folder}/state",
            "yarn.resourcemanager.work-preserving-recovery.scheduling-wait-ms": "1000",
            # A NodeManager that was killed counts as lost after ten seconds; Hadoop's default is ten minutes.
            "yarn.nm.liveness-monitor.expiry-interval-ms": "10000",
            "yarn.resourcemanager.nm.liveness-monitor.interval-ms": "1000",
            "yarn.scheduler.minimum-allocation-mb": "128",
            "yarn.scheduler.maximum-allocation-mb": str(self.memory_mb),
            "yarn.scheduler.capacity.root.queues": "default",
            "yarn.scheduler.capacity.root.default.capacity": "100",
            "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
            "yarn.scheduler.capacity.maximum-applications": str(MAX_APPLICATIONS),
            "yarn.nodemanager.resource.memory-mb": str(self.memory_mb),
            "yarn.nodemanager.resource.cpu-vcores": "4",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.enable": "false",
            "yarn.nodemanager.delete.debug-delay-sec": "0",
            "yarn.nodemanager.env-whitelist": "JAVA_HOME,PATH",
            "yarn.log-aggregation-enable": "true",
            "yarn.nodemanager.remote-app-log-dir": "/yarn-logs",
            "yarn.timeline-service.enabled": "false",
            "hadoop.http.staticuser.user": self._user,
            **self.settings,
        }
