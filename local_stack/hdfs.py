"""A real HDFS on the loopback address: Hadoop's own test cluster, one NameNode and one DataNode in one JVM.

`python -m local_stack.hdfs --fetch` puts Hadoop's jars in place with Maven (nothing to do when they are there);
without `--fetch` a cluster is started, its addresses are printed, and it runs until the command is interrupted.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from local_stack.maven import fetch_jars, run_server
from local_stack.processes import ServerProcess, SingleServer, free_port, start, wait_until

ROOT = Path(__file__).parent.parent
SOURCES = Path(__file__).parent / "hdfs"
WORK = ROOT / ".work" / "hdfs"
LIB = WORK / "lib"
START_TIMEOUT_S = 60
# Counters are sampled once a second, see hadoop-metrics2.properties: only a later sample is sure to hold everything.
SAMPLE_S = 2.2

_JVM_OPTIONS = (
    "-Xmx768m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.net.preferIPv4Stack=true",
    # WebHDFS answers 500 without it: its JSON library reaches into the class loader.
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
)
# What the cluster does by itself, without clients.
_OWN_METHODS = frozenset(
    {"SendHeartbeat", "BlockReport", "BlockReceivedAndDeleted", "RegisterDatanode", "VersionRequest"}
)


def fetch(lib: Path = LIB) -> Path:
    """Resolve Hadoop's jars into `lib` unless they are there. Raises JarsMissingError."""
    return fetch_jars(SOURCES / "pom.xml", lib)


@dataclass
class LocalHdfs(SingleServer):
    """One cluster in an absolute folder. Over a kill and a second start it keeps its ports and its files."""

    folder: Path
    rpc_port: int = field(default_factory=free_port)
    http_port: int = field(default_factory=free_port)
    settings: Mapping[str, str] = field(default_factory=dict)
    server: ServerProcess | None = None

    @property
    def url(self) -> str:
        return f"hdfs://127.0.0.1:{self.rpc_port}"

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def address(self) -> str:
        return f"{self.url} {self.http_url}"

    def start(self) -> None:
        """Start it and wait until files can be written. Raises JarsMissingError, NotReadyError."""
        lib = fetch()
        ready = self.folder / "READY"
        ready.unlink(missing_ok=True)
        command = ["java", *_JVM_OPTIONS, "-cp", f"{SOURCES}:{lib}/*", str(SOURCES / "MiniHdfs.java")]
        command += [str(self.folder), str(self.rpc_port), str(self.http_port)]
        command += [f"{key}={value}" for key, value in self.settings.items()]
        self.folder.mkdir(parents=True, exist_ok=True)
        # A Hadoop that the machine is set up for must not get into this one.
        env = {key: value for key, value in os.environ.items() if not key.startswith(("HADOOP_", "HDFS_"))}
        self.server = start("hdfs", command, self.folder / "hdfs.log", env, cwd=self.folder)
        wait_until(ready.exists, START_TIMEOUT_S, "HDFS", [self.server])


def namenode_operations(http_url: str, wait_s: float = SAMPLE_S) -> dict[str, int]:
    """Return the NameNode's operations since its start: its own counters, and one per RPC method (`rpc.<name>`).

    It waits for the next sample first. What the cluster does by itself (heartbeats, block reports) is left out.
    """
    time.sleep(wait_s)
    activity = _beans(http_url, "Hadoop:service=NameNode,name=NameNodeActivity")
    operations = {
        key: value for key, value in activity.items() if isinstance(value, int) and not key.startswith("tag.")
    }
    for key, value in _beans(http_url, "Hadoop:service=NameNode,name=RpcDetailedActivityForPort*").items():
        method = re.fullmatch(r"(?!Overall)(\w+)NumOps", key)
        if method and method.group(1) not in _OWN_METHODS:
            operations[f"rpc.{method.group(1)}"] = int(value)
    return operations


def _beans(http_url: str, name: str) -> dict[str, Any]:
    query = urllib.parse.urlencode({"qry": name})
    with urllib.request.urlopen(f"{http_url}/jmx?{query}", timeout=10) as response:
        beans = json.load(response)["beans"]
    return {key: value for bean in beans for key, value in bean.items()}


if __name__ == "__main__":
    sys.exit(run_server(str(__doc__), fetch, WORK / "run", LocalHdfs))
