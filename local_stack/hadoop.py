"""Hadoop's own daemons, one process each, on the loopback address: how they are configured and started.

`python -m local_stack.hadoop` puts their jars in place with Maven (nothing to do when they are there).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

import psutil

from local_stack.maven import JarsMissingError, fetch_jars
from local_stack.processes import ServerProcess, SingleServer, start

ROOT = Path(__file__).parent.parent
SOURCES = Path(__file__).parent / "hadoop"
WORK = ROOT / ".work" / "hadoop"
LIB = WORK / "lib"
START_TIMEOUT_S = 90

_JVM_OPTIONS = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.net.preferIPv4Stack=true",
    # The web services' JSON library reaches into the class loader.
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    # Hadoop's Kerberos login reads fields of the JDK's classes.
    "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
)


def fetch(lib: Path = LIB) -> Path:
    """Resolve the jars of Hadoop's daemons into `lib` unless they are there. Raises JarsMissingError."""
    return fetch_jars(SOURCES / "pom.xml", lib)


def write_settings(folder: Path, settings: Mapping[str, str]) -> Path:
    """Write a folder that HADOOP_CONF_DIR can name; each of Hadoop's files holds all settings."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"<property><name>{escape(k)}</name><value>{escape(v)}</value></property>" for k, v in settings.items()]
    body = "\n".join(['<?xml version="1.0"?>', "<configuration>", *lines, "</configuration>", ""])
    for name in ("core-site.xml", "hdfs-site.xml", "yarn-site.xml"):
        # Another process may read it at this moment.
        part = folder / f"{name}.part"
        part.write_text(body, encoding="utf-8")
        part.replace(folder / name)
    (folder / "log4j.properties").write_text((SOURCES / "log4j.properties").read_text(encoding="utf-8"), "utf-8")
    return folder


@dataclass
class Daemons:
    """The daemons of one cluster, by name; each is the leader of its own process group, in a folder of its own."""

    folder: Path
    jvm_options: Sequence[str] = ()
    running: dict[str, ServerProcess] = field(default_factory=dict)

    def start(self, name: str, class_name: str, settings: Mapping[str, str], arguments: Sequence[str] = ()) -> None:
        """Start one daemon. Raises JarsMissingError."""
        lib = fetch()
        home = self.folder / name
        conf = write_settings(home / "conf", settings)
        # The web servers want the folders of their pages on the class path; only a distribution has them.
        for pages in ("hdfs", "datanode", "static"):
            (conf / "webapps" / pages).mkdir(parents=True, exist_ok=True)
        command = ["java", *_JVM_OPTIONS, *self.jvm_options, f"-Djava.io.tmpdir={_made(home / 'tmp')}"]
        command += ["-cp", f"{conf}:{lib}/*", class_name, *arguments]
        self.running[name] = start(name, command, self.folder / f"{name}.log", hadoop_env(conf), cwd=home)

    def servers(self, names: Iterable[str] = ()) -> list[ServerProcess]:
        """Return the running daemons of these names, or all."""
        return [self.running[name] for name in names] or list(self.running.values())

    def kill(self, name: str) -> None:
        """Kill -9 one daemon, as a crash of its machine's JVM does."""
        self.running.pop(name).kill()

    def stop(self) -> None:
        """End all, the last first, and what they have started."""
        while self.running:
            _, server = self.running.popitem()
            server.kill()
        kill_left(self.folder)


class DaemonServer(SingleServer):
    """A server of several daemons, of which none outlives it."""

    daemons: Daemons

    def stop(self) -> None:
        self.daemons.stop()
        self.server = None

    def kill(self) -> None:
        self.stop()


def compile_class(source: Path, conf: Path) -> None:
    """Compile a class into a daemon's folder of settings, the first one on its class path. Raises JarsMissingError."""
    command = ["javac", "-nowarn", "-proc:none", "-cp", f"{fetch()}/*", "-d", str(_made(conf)), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise JarsMissingError(f"cannot compile {source}: {done.stderr}")


def hadoop_env(conf: Path) -> dict[str, str]:
    """Return this process's environment for a daemon, without another Hadoop that the machine is set up for."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("HADOOP_", "HDFS_", "YARN_"))}
    return env | {"HADOOP_CONF_DIR": str(conf)}


def kill_left(folder: Path) -> list[int]:
    """Kill the processes that work in a folder: YARN's containers outlive a NodeManager that was killed."""
    killed = []
    for process in psutil.process_iter(["cwd"]):
        if Path(process.info["cwd"] or "/").is_relative_to(folder):
            process.kill()
            killed.append(process.pid)
    return killed


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def main() -> int:
    try:
        print(fetch())
    except JarsMissingError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
