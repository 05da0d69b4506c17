"""A real HDFS of daemons in processes of their own: one NameNode, or two with automatic failover; with Kerberos or not.

`local_stack.clusters` has the commands that start one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from local_stack.hadoop import START_TIMEOUT_S, Daemons, DaemonServer, write_settings
from local_stack.kerberos import LocalKerberos, settings_of
from local_stack.processes import PATIENCE, NotReadyError, ServerProcess, free_port, wait_until
from local_stack.zookeeper import LocalZooKeeper

NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
CONTROLLER = "org.apache.hadoop.hdfs.tools.DFSZKFailoverController"
SERVICE = "lake"


@dataclass
class HdfsDaemons(DaemonServer):
    """One cluster in an absolute folder. With two NameNodes clients name it `hdfs://lake`, and a standby takes over
    when the active one dies. A killed daemon can be started again."""

    folder: Path
    name_nodes: int = 1
    realm: LocalKerberos | None = None
    server: ServerProcess | None = None
    rpc_ports: dict[str, int] = field(default_factory=dict)
    http_ports: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.daemons = Daemons(self.folder, self.realm.jvm_options if self.realm is not None else ())
        self.zookeeper = LocalZooKeeper(self.folder / "zookeeper")
        for name in self.names:
            self.rpc_ports[name], self.http_ports[name] = free_port(), free_port()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"nn{number}" for number in range(1, self.name_nodes + 1))

    @property
    def is_doubled(self) -> bool:
        return self.name_nodes > 1

    @property
    def url(self) -> str:
        return f"hdfs://{SERVICE}" if self.is_doubled else f"hdfs://localhost:{self.rpc_ports['nn1']}"

    @property
    def conf(self) -> Path:
        """The clients' configuration, for HADOOP_CONF_DIR."""
        return self.folder / "client"

    @property
    def address(self) -> str:
        return f"{self.url} HADOOP_CONF_DIR={self.conf}"

    def start(self) -> None:
        """Start it and wait until files can be written. Raises JarsMissingError, NotReadyError."""
        write_settings(self.conf, self._settings())
        if self.is_doubled:
            self.zookeeper.start()
            self._run("format-zk", CONTROLLER, "nn1", "-formatZK", "-force", "-nonInteractive")
        if not self._names_folder("nn1").exists():
            self._run("format", NAME_NODE, "nn1", "-format", "-force", "-nonInteractive")
            for standby in self.names[1:]:
                shutil.copytree(self._names_folder("nn1"), self._names_folder(standby))
        for name in self.names:
            self.start_name_node(name)
        self.daemons.start("datanode", DATA_NODE, self._settings() | self._data_node())
        wait_until(self.is_ready, START_TIMEOUT_S, "HDFS", self.daemons.servers())

    def start_name_node(self, name: str) -> None:
        """Start a NameNode, with its failover controller where there are two."""
        self.daemons.start(name, NAME_NODE, self._settings(name))
        self.server = self.daemons.running[name]
        if self.is_doubled:
            self.daemons.start(f"zkfc-{name}", CONTROLLER, self._settings(name))

    def kill_active(self) -> str:
        """Kill -9 the active NameNode with its controller, as when its machine dies; return its name."""
        name = self.find_active()
        assert name is not None
        self.daemons.kill(f"zkfc-{name}")
        self.daemons.kill(name)
        return name

    def find_active(self) -> str | None:
        """Return the name of the active NameNode; None while there is none."""
        states = {name: self._bean(name, "NameNodeStatus").get("State") for name in self.names}
        return next((name for name, state in states.items() if state == "active"), None)

    def is_standby(self, name: str) -> bool:
        """Whether a NameNode is the standby, out of its safe mode: it can take over."""
        return self._bean(name, "NameNodeStatus").get("State") == "standby" and not self._bean(
            name, "NameNodeInfo"
        ).get("Safemode")

    def is_ready(self) -> bool:
        """Whether a NameNode is active, out of its safe mode, and has a DataNode."""
        name = self.find_active()
        if name is None:
            return False
        return bool(
            self._bean(name, "FSNamesystemState").get("NumLiveDataNodes")
            and not self._bean(name, "NameNodeInfo").get("Safemode")
        )

    def stop(self) -> None:
        super().stop()
        self.zookeeper.stop()

    def _bean(self, name: str, bean: str) -> dict[str, object]:
        url = f"http://localhost:{self.http_ports[name]}/jmx?qry=Hadoop:service=NameNode,name={bean}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                beans = json.load(answer)["beans"]
        except (OSError, ValueError):
            return {}
        return dict(beans[0]) if beans else {}

    def _run(self, what: str, class_name: str, name: str, *arguments: str) -> None:
        self.daemons.start(what, class_name, self._settings(name), arguments)
        server = self.daemons.running.pop(what)
        try:
            code = server.process.wait(timeout=START_TIMEOUT_S * PATIENCE)
        except subprocess.TimeoutExpired:
            server.kill()
            code = -1
        if code != 0:
            raise NotReadyError(f"{what} ended with code {code}\n{server.log_tail()}")

    def _names_folder(self, name: str) -> Path:
        return self.folder / name / "names"

    def _data_node(self) -> dict[str, str]:
        home = self.folder / "datanode"
        ports = {"address": free_port(), "http.address": free_port(), "ipc.address": free_port()}
        return {f"dfs.datanode.{key}": f"127.0.0.1:{port}" for key, port in ports.items()} | {
            "dfs.datanode.data.dir": str(home / "data"),
        }

    def _settings(self, name: str = "nn1") -> dict[str, str]:
        settings = {
            "fs.defaultFS": self.url,
            "dfs.namenode.name.dir": str(self._names_folder(name)),
            "dfs.replication": "1",
            "dfs.permissions.enabled": "false",
            "dfs.namenode.safemode.extension": "0",
            "dfs.datanode.hostname": "localhost",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            # A DataNode that has lost its NameNode reports to the next one at once.
            "dfs.heartbeat.interval": "1",
            **settings_of(self.realm),
        }
        if not self.is_doubled:
            return settings | {
                "dfs.namenode.rpc-address": f"localhost:{self.rpc_ports['nn1']}",
                "dfs.namenode.http-address": f"localhost:{self.http_ports['nn1']}",
            }
        return (
            settings
            | {f"dfs.namenode.rpc-address.{SERVICE}.{key}": f"localhost:{port}" for key, port in self.rpc_ports.items()}
            | {f"dfs.namenode.http-address.{SERVICE}.{key}": f"localhost:{p}" for key, p in self.http_ports.items()}
            | {
                "dfs.nameservices": SERVICE,
                f"dfs.ha.namenodes.{SERVICE}": ",".join(self.names),
                "dfs.ha.namenode.id": name,
                f"dfs.client.failover.proxy.provider.{SERVICE}": (
                    "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
                ),
                "dfs.namenode.shared.edits.dir": f"file://{self.folder}/shared",
                "dfs.ha.automatic-failover.enabled": "true",
                "dfs.ha.fencing.methods": "shell(/bin/true)",
                "dfs.ha.zkfc.port": str(self._controller_port(name)),
                "dfs.ha.tail-edits.period": "1",
                "ha.zookeeper.quorum": self.zookeeper.address,
                "ha.zookeeper.session-timeout.ms": "4000",
            }
        )

    def _controller_port(self, name: str) -> int:
        return self.http_ports.setdefault(f"zkfc-{name}", free_port())
