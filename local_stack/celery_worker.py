"""A worker of Airflow's CeleryExecutor that is as good as a machine of its own.

It has its own name, its own processes and, of the folders that a test uses, only those that a network file system would
show it. Needs root, for Linux' namespaces. `make celery-packages` installs what Airflow needs.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from local_stack.airflow import LocalAirflow
from local_stack.processes import ServerProcess, start

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ROOT / ".work" / "celery"
"""Celery's provider, Amazon's provider for logs in S3, and what they need; not among Airflow's own packages."""


def is_possible() -> bool:
    """Whether this machine can run one."""
    return (PACKAGES / ".installed").exists() and os.geteuid() == 0 and shutil.which("unshare") is not None


@dataclass
class CeleryWorker:
    """One worker. Of `hidden` it sees `shared` and its own home, and nothing else."""

    name: str
    airflow: LocalAirflow
    """As this worker has it: a home of its own with a copy of the DAGs."""
    hidden: Path
    shared: Sequence[Path]
    server: ServerProcess | None = None

    @classmethod
    def of(cls, airflow: LocalAirflow, name: str, hidden: Path, shared: Sequence[Path]) -> CeleryWorker:
        """Return a worker of an Airflow whose scheduler runs elsewhere."""
        home = hidden / name
        own = replace(airflow, home=home, servers={}, settings=dict(airflow.settings))
        bundle = {"path": str(home / "dags")}
        classpath = "airflow.dag_processing.bundles.local.LocalDagBundle"
        own.settings |= {
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(
                [{"name": "lake", "classpath": classpath, "kwargs": bundle}]
            ),
            "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        }
        return cls(name, own, hidden, shared)

    def start(self) -> None:
        """Start it, also after `kill`. It serves when tasks run."""
        home = self.airflow.home
        (home / "tmp").mkdir(parents=True, exist_ok=True)
        shutil.copytree(ROOT / "dags", home / "dags", dirs_exist_ok=True)
        # Java resolves the machine's own name.
        (home / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {self.name}\n")
        self.server = start(
            self.name,
            [
                "unshare", "--mount", "--pid", "--fork", "--mount-proc", "--uts", "--kill-child=KILL",
                "sh", "-euc", self._script(),
            ],
            home.parent / f"{self.name}.log",
            env=self.airflow.env(),
        )  # fmt: skip

    def kill(self) -> None:
        """End all its processes together, as a machine that loses its power."""
        if self.server is not None:
            self.server.kill()

    def sees(self, path: Path) -> bool:
        """Whether a path exists for this worker."""
        assert self.server is not None
        children = Path(f"/proc/{self.server.process.pid}/task/{self.server.process.pid}/children").read_text().split()
        return Path(f"/proc/{children[0]}/root{path.resolve()}").exists()

    def _script(self) -> str:
        hidden, home = self.hidden.resolve(), self.airflow.home.resolve()
        kept = [home, *(path.resolve() for path in self.shared)]
        lines = [f"hostname {self.name}", f"mount --bind {home}/hosts /etc/hosts"]
        # First what it keeps to a new place, then this place over the folder.
        lines += ["place=$(mktemp -d)", "mount -t tmpfs lake $place"]
        for path in kept:
            inside = shlex.quote(str(path.relative_to(hidden)))
            lines += [f"mkdir -p $place/{inside}", f"mount --bind {shlex.quote(str(path))} $place/{inside}"]
        worker = [str(self.airflow.bin() / "airflow"), "celery", "worker", "--concurrency", "2", "--skip-serve-logs"]
        lines += [
            f"mount --rbind $place {shlex.quote(str(hidden))}",
            f"mount -t tmpfs lake {shlex.quote(str(ROOT / 'dags'))}",
            f"cd {shlex.quote(str(home))}",
            f"exec {shlex.join([*worker, '--celery-hostname', f'{self.name}@%h'])}",
        ]
        return "\n".join(lines)
