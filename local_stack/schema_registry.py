"""A real schema registry with Confluent's interface: Apicurio Registry, which keeps its schemas in memory.

`python -m local_stack.schema_registry` starts one, prints its address and runs until it is interrupted; `--fetch` only
puts its archive in place with Maven.
"""

from __future__ import annotations

import os
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

from local_stack.maven import fetch_jars, run_server
from local_stack.processes import ServerProcess, SingleServer, accepts_connections, free_port, start, wait_until

SOURCES = Path(__file__).parent / "registry_server"
WORK = Path(__file__).parent.parent / ".work" / "schema-registry"
LIB = WORK / "archive"
APP = WORK / "app"
START_TIMEOUT_S = 90
_JVM_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def fetch(lib: Path = LIB, app: Path = APP) -> Path:
    """Return the folder of the unpacked server. Raises JarsMissingError."""
    if not app.is_dir():
        (archive,) = fetch_jars(SOURCES / "pom.xml", lib).glob("*.tar.gz")
        scratch = app.with_name(f"{app.name}.{os.getpid()}")
        with tarfile.open(archive) as packed:
            packed.extractall(scratch, filter="data")
        # All of it or nothing: an existing folder counts as complete.
        scratch.rename(app)
    return app


@dataclass
class LocalSchemaRegistry(SingleServer):
    """One server in an absolute folder, for its log."""

    folder: Path
    port: int = field(default_factory=free_port)
    server: ServerProcess | None = None

    @property
    def address(self) -> str:
        """Where it answers as Confluent's does."""
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def start(self) -> None:
        """Start it and wait until it answers. Raises JarsMissingError, NotReadyError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (jar,) = fetch().glob("*-runner.jar")
        command = ["java", *_JVM_OPTIONS, "-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={self.port}"]
        self.server = start(
            "schema-registry", [*command, "-jar", str(jar)], self.folder / "registry.log", cwd=self.folder
        )
        wait_until(lambda: accepts_connections(self.port), START_TIMEOUT_S, "the schema registry", [self.server])


if __name__ == "__main__":
    raise SystemExit(run_server(__doc__ or "", fetch, WORK / "run", LocalSchemaRegistry))
