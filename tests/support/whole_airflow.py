"""What tests do with a whole Airflow: trigger a DAG, find spark-submit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from local_stack.airflow import LocalAirflow


def trigger(airflow: LocalAirflow, run_id: str, dag_id: str = "lake_table_service", **conf: Any) -> None:
    """Start a run by hand, as the form in the UI does."""
    body = {"logical_date": None, "dag_run_id": run_id, "conf": conf}
    airflow.change("POST", f"/api/v2/dags/{dag_id}/dagRuns", body)


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
