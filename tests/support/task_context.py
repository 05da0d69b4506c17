"""What operators read of Airflow's context: which task of which run works, and its try."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def task_instance(
    try_number: int = 1, dag_id: str = "lake_table_service", task_id: str = "run_service", map_index: int = -1
) -> Any:
    """Return a task instance; by default that of a run of `lake_table_service`."""
    return SimpleNamespace(try_number=try_number, dag_id=dag_id, task_id=task_id, map_index=map_index)


def as_its_file_says(task: Any, argument: str = "hudi_options") -> Any:
    """Return the task, whose argument stands in its DAG's file, as Airflow's rendering notes it before it runs."""
    task._file_arguments = {argument: getattr(task, argument)}
    return task
