"""Which task of which run holds a lease, a sink or a record: its id is made and read here alone."""

from __future__ import annotations

import hashlib
import re

from airflow_lake_provider.manager.runs.airflow_runs import SERVICE_DAG_ID

MAX_CHARACTERS = 250
"""As the columns have them."""
ANY_TASK = "*"
"""Instead of a task's id: what one task of a run claims, and another one of the same run takes."""
_HOLDER = re.compile(r"(?P<dag>[^/]+)/[^/]+/(?P<run>.+)", re.DOTALL)


def holder_id(dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> str:
    """Return the id of a task in a run, which all its tries share.

    The run's id alone is not enough: two DAGs with one schedule have runs with the same id, and a run may have a task
    for each table. Only `lake_table_service` has one task, whose runs the manager finds by their own id.
    """
    if dag_id == SERVICE_DAG_ID and "/" not in run_id:
        return run_id
    task = task_id if map_index < 0 else f"{task_id}[{map_index}]"
    text = f"{dag_id}/{task}/{run_id}"
    if len(text) <= MAX_CHARACTERS:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{text[: MAX_CHARACTERS - len(digest) - 1]}-{digest}"


def run_of_holder(holder: str) -> tuple[str, str]:
    """Return the ids of the holder's DAG and run; of one that was cut, a run that does not exist."""
    found = _HOLDER.fullmatch(holder)
    return (SERVICE_DAG_ID, holder) if found is None else (found["dag"], found["run"])
