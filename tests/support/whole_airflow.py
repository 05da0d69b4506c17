"""What tests do with a whole Airflow: trigger a DAG, wait for a run, find spark-submit, read a table without Hudi."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from local_stack.airflow import LocalAirflow


def trigger(airflow: LocalAirflow, run_id: str, dag_id: str = "lake_table_service", **conf: Any) -> None:
    """Start a run by hand, as the form in the UI does."""
    body = {"logical_date": None, "dag_run_id": run_id, "conf": conf}
    airflow.change("POST", f"/api/v2/dags/{dag_id}/dagRuns", body)


def state_of(airflow: LocalAirflow, dag_id: str, run_id: str, task: str = "") -> str:
    """Return the state of a run, or of one of its tasks."""
    path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}"
    return str((airflow.airflow_get(f"{path}/taskInstances/{task}" if task else path) or {}).get("state"))


def run_to_success(airflow: LocalAirflow, run_id: str, dag_id: str, **conf: Any) -> None:
    """Start a run by hand, and wait for its end."""
    trigger(airflow, run_id, dag_id=dag_id, **conf)
    airflow.wait_until(lambda: state_of(airflow, dag_id, run_id) in {"success", "failed"}, 240, f"the end of {run_id}")
    assert state_of(airflow, dag_id, run_id) == "success"


def rows_of_files(table: Path) -> list[tuple[object, ...]]:
    """Return the rows of the newest base file of each file group, which is all that copy-on-write has; without Hudi."""
    newest: dict[str, Path] = {}
    for path in sorted(table.glob("[!.]*/*.parquet"), key=lambda path: path.stem.rpartition("_")[2]):
        newest[path.name.partition("_")[0]] = path
    columns = ["id", "city", "amount"]
    return sorted(
        tuple(row[name] for name in columns)
        for path in newest.values()
        for row in pq.ParquetFile(path).read(columns).to_pylist()
    )


def find_spark_submit(name: str) -> int:
    """Return the process that a task started for a job of this name."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                arguments = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"org.apache.spark.deploy.SparkSubmit" in arguments and any(
                argument.startswith(name.encode()) for argument in arguments
            ):
                return int(process.name)
    raise AssertionError(f"no spark-submit of {name}")
