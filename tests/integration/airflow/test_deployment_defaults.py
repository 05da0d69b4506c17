"""Defaults of a deployment reach no shipped DAG: one DAG serves all tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
DEFAULTS = {
    "AIRFLOW__CORE__MAX_CONSECUTIVE_FAILED_DAG_RUNS_PER_DAG": "3",
    "AIRFLOW__CORE__DEFAULT_TASK_EXECUTION_TIMEOUT": "600",
    "AIRFLOW__CORE__MAX_ACTIVE_RUNS_PER_DAG": "1",
    "AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG": "1",
    "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
}
READ = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder=sys.argv[1])
assert not bag.import_errors, bag.import_errors
seconds = lambda found: None if found is None else found.total_seconds()
print(json.dumps({name: {
    "failed_runs": dag.max_consecutive_failed_dag_runs,
    "runs": dag.max_active_runs,
    "paused": dag.is_paused_upon_creation,
    "timeouts": {task.task_id: seconds(task.execution_timeout) for task in dag.tasks},
} for name, dag in bag.dags.items()}))
"""


def test_shipped_dags_set_what_a_deployments_defaults_would_change(tmp_path: Path) -> None:
    env = {**os.environ, **DEFAULTS, "AIRFLOW_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-c", READ, str(ROOT / "dags")],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    found = json.loads(ended.stdout.splitlines()[-1])
    assert len(found) == 10
    assert {name: dag["failed_runs"] for name, dag in found.items()} == dict.fromkeys(found, 0)
    assert all(dag["paused"] is (name in {"lake_replication", "lake_streams"}) for name, dag in found.items())
    assert {name for name, dag in found.items() if dag["runs"] == 1} == {"lake_watch", "lake_discovery", "lake_streams"}
    timeouts = {f"{name}.{task}": s for name, dag in found.items() for task, s in dag["timeouts"].items()}
    # The service's time-out is its table's, set before the job begins.
    assert {task for task, s in timeouts.items() if s == 600} == {"lake_table_service.run_service"}
    assert timeouts["lake_warm.application"] > 6 * 3600
    assert timeouts["lake_streams.streams"] > 6 * 3600
