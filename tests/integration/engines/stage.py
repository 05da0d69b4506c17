"""A table, a Spark cluster, a manager that gives leases, and tasks as processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_lake_provider.execution.engines.job_files import JobFolder, find_text
from airflow_lake_provider.execution.engines.local_process import find_marked
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.job_contract import JobResult, from_json
from local_stack import hudi_bundle
from local_stack.airflow import scratch_env
from local_stack.processes import PATIENCE, ServerProcess, start, wait_until

ROOT = Path(__file__).resolve().parents[3]
OPTIONS = {
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider",
    "hoodie.write.lock.filesystem.expire": "1",
    "hoodie.write.lock.client.wait_time_ms_between_retry": "500",
    "hoodie.write.lock.client.num_retries": "600",
    # A dead executor counts as dead after four seconds.
    "hoodie.client.heartbeat.interval_in_ms": "2000",
}
PLAIN_CONF = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
}
SPARK_CONF = {
    **PLAIN_CONF,
    **hudi_bundle.quick_conf(),
    "spark.executor.extraJavaOptions": hudi_bundle.jvm_options(hudi_bundle.HUDI_CLASSES),
}
_written: list[Path] = []
"""The table that the first stage of this run wrote, as it was then."""


@dataclass
class Stage:
    """Where tasks run. `master` is the Spark connection's."""

    folder: Path
    manager_url: str
    master: str
    tasks: list[ServerProcess] = field(default_factory=list)
    parts: dict[str, str] = field(default_factory=dict)
    """By run id: what of a run's folder the job's files are in."""
    connections: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Airflow's connections for sinks, by id."""

    @property
    def table(self) -> Path:
        return self.folder / "lake" / "orders"

    @property
    def root(self) -> str:
        """Where tables and job files are."""
        return str(self.folder)

    @property
    def base_path(self) -> str:
        return f"{self.root}/lake/orders"

    @property
    def spark_conf(self) -> Mapping[str, str]:
        return SPARK_CONF

    @property
    def connection(self) -> Mapping[str, Any]:
        """The Spark connection's fields."""
        return {"host": self.master}

    def write_table(self) -> None:
        """Write a merge-on-read table with log files in four partitions, or copy it from the run's first stage."""
        target = Path(self.base_path.removeprefix("file://"))
        if _written:
            shutil.copytree(_written[0], target)
            return
        written = {"name": "orders", "base_path": self.base_path, "commits": 3, "keys": 400, "rows": 100, "pause_s": 0}
        settings = {
            "tables": [{**written, "hudi_options": OPTIONS}],
            "spark_conf": {"spark.jars": str(hudi_bundle.JAR), **hudi_bundle.bundle_first()},
        }
        path = self.folder / "writer.json"
        path.write_text(json.dumps(settings), encoding="utf-8")
        command = [str(hudi_bundle.SPARK_PYTHON), str(ROOT / "local_stack" / "lake_writer.py"), str(path)]
        env = {**self.env(), "SPARK_SUBMIT_OPTS": hudi_bundle.jvm_options(hudi_bundle.HUDI_CLASSES)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=240 * PATIENCE)
        assert done.returncode == 0, done.stderr[-3000:]
        _written.append(shutil.copytree(target, self.folder / "written" / "orders"))

    def start_task(self, run_id: str, try_number: int = 1, **operator: Any) -> ServerProcess:
        """Start the task of a service, or of a `sink`, as a process; its log is `<run id>-<try>.log`."""
        arguments = {"base_path": self.base_path, "spark_conf": dict(self.spark_conf), **operator}
        if "sink" not in operator:
            arguments.setdefault("hudi_options", OPTIONS)
            arguments.setdefault("service", "compaction")
            self.parts[run_id] = f"{table_id_of(arguments['base_path'])}.{arguments['service']}"
        task = {"run_id": run_id, "try_number": try_number, "operator": arguments}
        command = [sys.executable, "-m", "tests.integration.engines.service_task", json.dumps(task)]
        log_path = self.folder / f"{run_id}-{try_number}.log"
        self.tasks.append(start(log_path.stem, command, log_path, env=self.env(), cwd=ROOT))
        return self.tasks[-1]

    def wait_for_task(self, task: ServerProcess, timeout_s: float = 240.0) -> dict[str, Any]:
        """Wait for the task's end; return what `execute` returned."""
        task.process.wait(timeout=timeout_s * PATIENCE)
        lines = task.log_path.read_text(encoding="utf-8").splitlines()
        returned = [line.removeprefix("RETURNED ") for line in lines if line.startswith("RETURNED ")]
        assert returned, task.log_tail(60)
        return dict(json.loads(returned[0]))

    def files(self, run_id: str, try_number: int = 1) -> JobFolder:
        return JobFolder(f"{self.root}/work", run_id, try_number, self.parts.get(run_id, ""))

    def drivers(self, run_id: str, try_number: int = 1) -> list[int]:
        """Return the living processes of a job."""
        return list(find_marked(self.files(run_id, try_number).request_path))

    def result(self, run_id: str, try_number: int = 1) -> JobResult:
        return from_json(JobResult, find_text(self.files(run_id, try_number).result_path) or "")

    def timeline(self) -> set[str]:
        return {path.name for path in (self.table / ".hoodie" / "timeline").iterdir()}

    def wait_until(self, ready: Any, what: str, timeout_s: float = 120.0) -> None:
        wait_until(ready, timeout_s, what, [])

    def close(self) -> None:
        for task in self.tasks:
            task.kill()

    def env(self) -> Mapping[str, str]:
        scratch = self.folder / "tmp"
        scratch.mkdir(exist_ok=True)
        spark = hudi_bundle.spark_env()
        path = f"{hudi_bundle.SPARK_PYTHON.parent}{os.pathsep}{os.environ.get('PATH', '')}"
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}
        return (
            inherited
            | {key: spark[key] for key in ("SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")}
            | scratch_env(scratch)
            | {f"AIRFLOW_CONN_{name.upper()}": json.dumps(fields) for name, fields in self.connections.items()}
            | {
                "PATH": path,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "AIRFLOW_HOME": str(self.folder / "airflow"),
                "AIRFLOW_CONN_LAKE_DEFAULT": json.dumps(
                    {"conn_type": "lake", "host": self.manager_url, "password": "service-secret"}
                ),
                "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", **self.connection}),
                "AIRFLOW__LAKE__WORK_DIR": f"{self.root}/work",
                "AIRFLOW__LAKE__ALLOWED_ROOTS": f"{self.root}/lake",
                "AIRFLOW__LAKE__ALLOWED_RUN_OPTIONS": ",".join((*SPARK_CONF, *OPTIONS)),
                "AIRFLOW__LAKE__SPARK_JARS": str(hudi_bundle.JAR),
                "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            }
        )
