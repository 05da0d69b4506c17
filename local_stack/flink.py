"""A real Flink session cluster on the loopback address: a JobManager and TaskManagers, no Docker.

`python -m local_stack.flink --fetch` puts Flink's distribution in place (nothing to do when it is there): it is what
PyPI's `apache-flink` consists of, and lies in an environment of its own. Without `--fetch` a cluster is started, its
address is printed, and it runs until the command is interrupted.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from local_stack.maven import JarsMissingError, run_server
from local_stack.processes import ServerProcess, SingleServer, free_port, start, wait_until

VERSION = "1.20.5"
"""The newest of the newest line before 2.0 that Hudi 1.2 has a bundle for."""
ROOT = Path(__file__).parent.parent
SOURCE = Path(__file__).parent / "flink_job" / "HoodieFlinkCompactor.java"
WORK = ROOT / ".work" / "flink"
UV = ROOT / ".venv" / "bin" / "uv"
FETCH_TIMEOUT_S = 900
START_TIMEOUT_S = 60
HTTP_TIMEOUT_S = 10
HEARTBEAT_MS = 4000
"""After so long without a sign JobManager and TaskManager give each other up; Flink's default is 50 s."""
_SETTINGS: Mapping[str, object] = {
    "jobmanager.bind-host": "127.0.0.1",
    "jobmanager.rpc.address": "127.0.0.1",
    "jobmanager.memory.process.size": "800m",
    "jobmanager.memory.jvm-metaspace.size": "128m",
    "jobmanager.memory.jvm-overhead.min": "64m",
    "jobmanager.memory.off-heap.size": "64m",
    "taskmanager.bind-host": "127.0.0.1",
    "taskmanager.host": "127.0.0.1",
    "taskmanager.numberOfTaskSlots": 2,
    "taskmanager.memory.process.size": "900m",
    "taskmanager.memory.jvm-metaspace.size": "128m",
    "taskmanager.memory.managed.size": "32m",
    "taskmanager.memory.network.min": "32m",
    "taskmanager.memory.network.max": "32m",
    "rest.address": "127.0.0.1",
    "rest.bind-address": "127.0.0.1",
    # Of the client: it would ask a JobManager that is away 20 times, 3 s apart.
    "rest.retry.max-attempts": 3,
    "heartbeat.interval": 1000,
    "heartbeat.timeout": HEARTBEAT_MS,
    "slot.request.timeout": 10_000,
}


def fetch(folder: Path = WORK) -> Path:
    """Put the distribution and the stand-in's jar in place unless they are there. Raises JarsMissingError."""
    if not (folder / "home").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=folder) as scratch:
            # Its own dependencies are those of Flink's Python API, which is not used.
            env = Path(scratch) / "env"
            _run([str(UV), "venv", "--quiet", "--python", sys.executable, str(env)])
            packages = [f"{name}=={VERSION}" for name in ("apache-flink-libraries", "apache-flink")]
            install = [
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--link-mode=copy",
                "--python",
                str(env / "bin/python"),
            ]
            _run([str(UV), *install, *packages])
            (home,) = env.glob("lib/python*/site-packages/pyflink")
            for program in (home / "bin").iterdir():
                program.chmod(0o755)
            # All of it or nothing: an existing folder counts as complete.
            home.rename(folder / "home")
    return folder


def home(folder: Path = WORK) -> Path:
    """Return Flink's own folder, with `bin`, `conf` and `lib`. Raises JarsMissingError."""
    return fetch(folder) / "home"


def make_job(jar: Path) -> Path:
    """Compile what stands in for Hudi's compactor. Raises JarsMissingError."""
    (dist,) = (home() / "lib").glob("flink-dist-*.jar")
    jar.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        _run(["javac", "--release", "11", "-nowarn", "-proc:none", "-cp", str(dist), "-d", scratch, str(SOURCE)])
        with zipfile.ZipFile(jar, "w") as packed:
            for path in sorted(Path(scratch).rglob("*.class")):
                packed.write(path, path.relative_to(scratch))
    return jar


@dataclass
class LocalFlink(SingleServer):
    """A session cluster in an absolute folder. The JobManager keeps its ports over a kill and a second start."""

    folder: Path
    settings: Mapping[str, object] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    rpc_port: int = field(default_factory=free_port)
    server: ServerProcess | None = None
    workers: list[ServerProcess] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def program(self) -> Path:
        """The client."""
        return home() / "bin" / "flink"

    @property
    def conf(self) -> Path:
        """What FLINK_CONF_DIR names, also for the client."""
        return self.folder / "conf"

    def start(self) -> None:
        """Start a JobManager and a TaskManager and wait until they have met. Raises JarsMissingError, NotReadyError."""
        self.start_manager()
        self.start_worker()

    def start_manager(self) -> None:
        """Start the JobManager and wait until it answers."""
        self._write_conf()
        self.server = self._start("jobmanager")
        wait_until(lambda: self.count_slots() is not None, START_TIMEOUT_S, "Flink's JobManager", [self.server])

    def start_worker(self) -> None:
        """Start one more TaskManager and wait until the JobManager knows its slots."""
        before = self.count_slots() or 0
        worker = self._start("taskmanager")
        self.workers.append(worker)
        wait_until(lambda: (self.count_slots() or 0) > before, START_TIMEOUT_S, "Flink's TaskManager", [worker])

    def count_slots(self) -> int | None:
        """Return how many slots the JobManager has; None while it does not answer."""
        try:
            return int(ask(self.address, "/overview")["slots-total"])
        except (OSError, ValueError, KeyError):
            return None

    def stop(self) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill -9 all of it, the workers first."""
        self.kill_workers()
        super().kill()

    def kill_workers(self) -> None:
        """Kill -9 the TaskManagers, as a crash of their machines does."""
        while self.workers:
            self.workers.pop().kill()

    def kill_manager(self) -> None:
        """Kill -9 the JobManager alone."""
        super().kill()

    def client_env(self) -> dict[str, str]:
        """Return this process's environment for `flink` and its daemons, without another Flink's settings."""
        env = {key: value for key, value in os.environ.items() if not key.startswith(("FLINK_", "HADOOP_", "YARN_"))}
        return env | {"FLINK_CONF_DIR": str(self.conf), "FLINK_LOG_DIR": str(self.folder)}

    def _start(self, name: str) -> ServerProcess:
        command = [str(home() / "bin" / f"{name}.sh"), "start-foreground"]
        return start(name, command, self.folder / f"{name}.log", self.client_env(), cwd=self.folder)

    def _write_conf(self) -> None:
        self.conf.mkdir(parents=True, exist_ok=True)
        for path in (home() / "conf").glob("log4j*.properties"):
            shutil.copy(path, self.conf)
        settings = {**_SETTINGS, "rest.port": self.port, "jobmanager.rpc.port": self.rpc_port, **self.settings}
        settings["io.tmp.dirs"] = str(self.folder / "tmp")
        Path(str(settings["io.tmp.dirs"])).mkdir(exist_ok=True)
        # What a Java above 11 needs is in the distribution's own file.
        given = (home() / "conf" / "config.yaml").read_text(encoding="utf-8").splitlines()
        options = next(line.partition("all:")[2].strip() for line in given if line.strip().startswith("all:"))
        options += " -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        lines = [f"{key}: {value}" for key, value in {**settings, "env.java.opts.all": options}.items()]
        (self.conf / "config.yaml").write_text("\n".join([*lines, ""]), encoding="utf-8")


def ask(address: str, path: str) -> dict[str, Any]:
    """Return what a JobManager answers. Raises OSError, ValueError."""
    with urllib.request.urlopen(f"http://{address}{path}", timeout=HTTP_TIMEOUT_S) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def list_jobs(address: str) -> dict[str, str]:
    """Return the state of each job that a JobManager knows, by its id."""
    return {job["jid"]: job["state"] for job in ask(address, "/jobs/overview")["jobs"]}


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
    except OSError as error:
        raise JarsMissingError(f"cannot run {command[0]}: {error}") from error
    if done.returncode != 0:
        raise JarsMissingError(f"{command[0]} failed: {done.stderr[-2000:]}")


def main() -> int:
    return run_server(__doc__, fetch, WORK / "cluster", LocalFlink)


if __name__ == "__main__":
    sys.exit(main())
