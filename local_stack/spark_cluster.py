"""A standalone Spark cluster on loopback: one master and one worker, out of the jars that pyspark brings along."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from local_stack.hudi_bundle import find_spark_home, jvm_options, spark_env
from local_stack.processes import ServerProcess, free_port, start, wait_until


@dataclass
class LocalSparkCluster:
    """Master and worker, each the leader of its own process group; executors belong to the worker's."""

    folder: Path
    cores: int = 1
    memory: str = "1g"
    port: int = field(default_factory=free_port)
    web_port: int = field(default_factory=free_port)
    servers: list[ServerProcess] = field(default_factory=list)

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def start(self, timeout_s: float = 120.0) -> None:
        """Start both and wait until the master knows the worker."""
        address = ["--host", "127.0.0.1"]
        self._start("master", "master.Master", [*address, "--port", str(self.port), "--webui-port", str(self.web_port)])
        resources = ["--cores", str(self.cores), "--memory", self.memory, "--work-dir", str(self.folder / "work")]
        self._start("worker", "worker.Worker", [*address, "--webui-port", str(free_port()), *resources, self.master])
        wait_until(lambda: self.state().get("aliveworkers", 0) > 0, timeout_s, "the Spark cluster", self.servers)

    def state(self) -> dict[str, object] | dict[str, int]:
        """Return the master's state; empty while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.web_port}/json/", timeout=5) as answer:
                return dict(json.load(answer))
        except (OSError, ValueError):
            return {}

    def applications(self) -> list[str]:
        """Return the names of the applications that hold executors now."""
        found = self.state().get("activeapps", [])
        return [app["name"] for app in found] if isinstance(found, list) else []

    def stop(self) -> None:
        """Kill worker, executors and master."""
        while self.servers:
            self.servers.pop().kill()

    def _start(self, name: str, class_name: str, arguments: list[str]) -> None:
        env = spark_env() | {
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": jvm_options(),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.folder),
        }
        command = [str(find_spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{class_name}", *arguments]
        self.servers.append(start(f"spark-{name}", command, self.folder / f"{name}.log", env=env, cwd=self.folder))
