"""A real Kafka Connect with Debezium's JDBC sink: one worker with one connector, no code of this package in it.

`python -m local_stack.kafka_connect` puts its jars in place with Maven (nothing to do when they are there).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from local_stack.maven import JarsMissingError, fetch_jars
from local_stack.processes import ServerProcess, SingleServer, accepts_connections, free_port, start, wait_until

SOURCES = Path(__file__).parent / "connect_worker"
LIB = Path(__file__).parent.parent / ".work" / "kafka-connect" / "lib"
START_TIMEOUT_S = 60
_JVM_OPTIONS = (
    "-Xms128m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.net.preferIPv4Stack=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"


def fetch(lib: Path = LIB) -> Path:
    """Resolve the worker's jars into `lib` unless they are there. Raises JarsMissingError."""
    return fetch_jars(SOURCES / "pom.xml", lib)


@dataclass
class LocalKafkaConnect(SingleServer):
    """One standalone worker in an absolute folder, which reads what transactions have committed."""

    folder: Path
    bootstrap: str
    connector: Mapping[str, str]
    """Settings of the connector: Debezium's own."""
    port: int = field(default_factory=free_port)
    server: ServerProcess | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until its REST interface answers. Raises JarsMissingError, NotReadyError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        worker = {
            "bootstrap.servers": self.bootstrap,
            "listeners": self.address,
            "key.converter": _CONVERTER,
            "value.converter": _CONVERTER,
            "consumer.isolation.level": "read_committed",
            "plugin.discovery": "service_load",
            "offset.storage.file.filename": str(self.folder / "offsets"),
        }
        files = [self._write("worker", worker), self._write("connector", self.connector)]
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        command = ["java", *_JVM_OPTIONS, "-cp", f"{fetch()}/*", main, *map(str, files)]
        self.server = start("kafka-connect", command, self.folder / "connect.log", cwd=self.folder)
        wait_until(lambda: accepts_connections(self.port), START_TIMEOUT_S, "Kafka Connect", [self.server])

    def _write(self, name: str, settings: Mapping[str, str]) -> Path:
        path = self.folder / f"{name}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
        return path


if __name__ == "__main__":
    try:
        print(fetch())
    except JarsMissingError as error:
        sys.exit(str(error))
