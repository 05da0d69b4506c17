"""A real Kafka on the loopback address: one broker in KRaft mode, no Docker.

`python -m local_stack.kafka --fetch` puts the broker's jars in place with Maven (nothing to do when they are there);
without `--fetch` a broker is started, its address is printed, and it runs until the command is interrupted.
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from local_stack.maven import fetch_jars, run_server
from local_stack.processes import ServerProcess, SingleServer, accepts_connections, free_port, start, wait_until

ROOT = Path(__file__).parent.parent
SOURCES = Path(__file__).parent / "kafka_broker"
WORK = ROOT / ".work" / "kafka"
LIB = WORK / "lib"
START_TIMEOUT_S = 60

_JVM_OPTIONS = (
    "-Xms128m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.net.preferIPv4Stack=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
# One node cannot hold three copies; one partition of each internal topic starts in a moment.
_SINGLE_NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "num.partitions": "1",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "2097152",
}


def fetch(lib: Path = LIB) -> Path:
    """Resolve the broker's jars into `lib` unless they are there. Raises JarsMissingError."""
    return fetch_jars(SOURCES / "pom.xml", lib)


@dataclass
class LocalKafka(SingleServer):
    """One broker in an absolute folder. Over a kill and a second start it keeps its port and its topics."""

    folder: Path
    port: int = field(default_factory=free_port)
    controller_port: int = field(default_factory=free_port)
    settings: Mapping[str, str] = field(default_factory=dict)
    jvm_options: Sequence[str] = ()
    server: ServerProcess | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        return self.bootstrap

    def start(self) -> None:
        """Start it and wait until clients can connect. Raises JarsMissingError, NotReadyError."""
        class_path = f"{fetch()}/*"
        properties = self.folder / "server.properties"
        if not properties.exists():
            self._format(class_path, properties)
        command = ["java", *_JVM_OPTIONS, *self.jvm_options, "-cp", class_path, "kafka.Kafka", str(properties)]
        self.server = start("kafka", command, self.folder / "kafka.log", _environment(), cwd=self.folder)
        wait_until(lambda: accepts_connections(self.port), START_TIMEOUT_S, "Kafka", [self.server])

    def _format(self, class_path: str, properties: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = _SINGLE_NODE | {
            "controller.quorum.voters": f"1@127.0.0.1:{self.controller_port}",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "log.dirs": str(self.folder / "data"),
            **self.settings,
        }
        part = properties.with_suffix(".part")
        part.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = ["java", *_JVM_OPTIONS, "-cp", class_path, "kafka.tools.StorageTool", "format"]
        # One argument with its value: one id in 64 begins with a dash and would be taken for an option.
        command += [f"--cluster-id={cluster_id}", f"--config={part}"]
        run = subprocess.run(command, capture_output=True, text=True, env=_environment(), timeout=120, check=False)
        if run.returncode != 0:
            raise RuntimeError(f"cannot format Kafka's storage\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
        part.rename(properties)


def _environment() -> dict[str, str]:
    # A Kafka that the machine is set up for must not get into this one.
    return {key: value for key, value in os.environ.items() if not key.startswith("KAFKA_")}


if __name__ == "__main__":
    sys.exit(run_server(str(__doc__), fetch, WORK / "run", LocalKafka))
