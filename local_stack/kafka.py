"""A real Kafka on the loopback address: one broker in KRaft mode, no Docker.

`python -m local_stack.kafka --fetch` puts the broker's jars in place with Maven (nothing to do when they are there);
without `--fetch` a broker is started, its address is printed, and it runs until the command is interrupted.
"""

from __future__ import annotations

import argparse
import base64
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from local_stack.maven import JarsMissingError, fetch_jars
from local_stack.processes import ServerProcess, SingleServer, free_port, start, wait_until

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
    server: ServerProcess | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until clients can connect. Raises JarsMissingError, NotReadyError."""
        class_path = f"{fetch()}/*"
        properties = self.folder / "server.properties"
        if not properties.exists():
            self._format(class_path, properties)
        command = ["java", *_JVM_OPTIONS, "-cp", class_path, "kafka.Kafka", str(properties)]
        self.server = start("kafka", command, self.folder / "kafka.log", _environment(), cwd=self.folder)
        wait_until(self._accepts, START_TIMEOUT_S, "Kafka", [self.server])

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
        command += ["-t", cluster_id, "-c", str(part)]
        run = subprocess.run(command, capture_output=True, text=True, env=_environment(), timeout=120, check=False)
        if run.returncode != 0:
            raise RuntimeError(f"cannot format Kafka's storage\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
        part.rename(properties)

    def _accepts(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 0.5):
                return True
        except OSError:
            return False


def _environment() -> dict[str, str]:
    # A Kafka that the machine is set up for must not get into this one.
    return {key: value for key, value in os.environ.items() if not key.startswith("KAFKA_")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fetch", action="store_true", help="only put the broker's jars in place")
    parser.add_argument("--folder", type=Path, default=WORK / "run", help="where the broker's files lie")
    options = parser.parse_args()
    try:
        lib = fetch()
    except JarsMissingError as error:
        print(error, file=sys.stderr)
        return 1
    if options.fetch:
        print(lib)
        return 0
    # Or the server would outlive this command.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    broker = LocalKafka(options.folder.resolve())
    try:
        broker.start()
        print(broker.bootstrap, flush=True)
        while broker.server is not None and broker.server.alive():
            time.sleep(0.5)
    except KeyboardInterrupt:
        pass
    finally:
        broker.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
