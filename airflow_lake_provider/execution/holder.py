"""What the manager calls a task that holds a lease or a sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.manager.runs.holder_ids import ANY_TASK, holder_id

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def holder_of(context: Mapping[str, Any]) -> str:
    """Return the id of this task in its run; its tries share it."""
    task = context["ti"]
    map_index = -1 if task.map_index is None else int(task.map_index)
    return holder_id(str(task.dag_id), str(context["run_id"]), str(task.task_id), map_index)


def claimant_of(context: Mapping[str, Any]) -> str:
    """Return the id that all tasks of this run share: one claims the sinks that others then replicate."""
    return holder_id(str(context["ti"].dag_id), str(context["run_id"]), ANY_TASK)
