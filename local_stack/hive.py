"""A real Hive metastore on the loopback address: the one among Spark's own jars, with its tables in an embedded Derby.

`python -m local_stack.hive` starts one, prints its address and runs until it is interrupted.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

from local_stack.hudi_bundle import WORK, BundleError, find_spark_home
from local_stack.processes import ServerProcess, SingleServer, free_port, start, wait_until

SOURCES = Path(__file__).parent / "hive"
START_TIMEOUT_S = 60
_JVM_OPTIONS = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LOG = """\
status = ERROR
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %5p %c{2}: %m%n
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
"""


@dataclass
class LocalMetastore(SingleServer):
    """One metastore in an absolute folder. Over a kill and a second start it keeps its port and its tables."""

    folder: Path
    port: int = field(default_factory=free_port)
    server: ServerProcess | None = None

    @property
    def address(self) -> str:
        return f"thrift://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """Where it writes each call, as Hive's audit."""
        return self.folder / "hive.log"

    def start(self) -> None:
        """Start it and wait until it answers. Raises BundleError, NotReadyError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        ready = self.folder / "READY"
        ready.unlink(missing_ok=True)
        (self.folder / "hive-site.xml").write_text(_site(self.folder), encoding="utf-8")
        (self.folder / "log4j2.properties").write_text(_LOG, encoding="utf-8")
        jars = find_spark_home() / "jars"
        command = ["java", *_JVM_OPTIONS, "-cp", f"{self.folder}:{jars}/*", str(SOURCES / "LoopbackMetastore.java")]
        self.server = start("hive", [*command, str(self.port), str(ready)], self.log, cwd=self.folder)
        wait_until(ready.exists, START_TIMEOUT_S, "Hive's metastore", [self.server])


def _site(folder: Path) -> str:
    settings = {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/tables;create=true",
        "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        "hive.metastore.warehouse.dir": f"file:{folder}/warehouse",
    }
    lines = (
        f"<property><name>{name}</name><value>{escape(value)}</value></property>" for name, value in settings.items()
    )
    return "\n".join(["<configuration>", *lines, "</configuration>", ""])


def main() -> int:
    try:
        LocalMetastore(WORK / "hive").serve()
    except BundleError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
