"""Airflow's cluster policy for service runs: the pool, the queue, the retries and the priority of the run.

There is one DAG for all tables, and a pool can be neither templated nor mapped; so they are set when Airflow creates
the task instance of a run (entry point `airflow.policy`). Every Airflow process loads this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import airflow.settings
from airflow.policies import hookimpl

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance

SERVICE_DAG_ID = "lake_table_service"
WARM_DAG_ID = "lake_warm"


@hookimpl
def task_instance_mutation_hook(task_instance: TaskInstance, dag_run: DagRun | None) -> None:
    """Apply the run's conf; a run of another DAG, or without conf, stays unchanged."""
    if dag_run is None or task_instance.dag_id not in (SERVICE_DAG_ID, WARM_DAG_ID):
        return
    conf: dict[str, Any] = dag_run.conf if isinstance(dag_run.conf, dict) else {}
    if task_instance.dag_id == WARM_DAG_ID:
        # Nothing else of a standing application's conf is Airflow's.
        conf = {"queue": conf.get("queue")}
    if conf.get("pool"):
        task_instance.pool = str(conf["pool"])
    if conf.get("queue"):
        task_instance.queue = str(conf["queue"])
    weight = conf.get("priority_weight")
    if isinstance(weight, int) and weight > 0:
        task_instance.priority_weight = weight
    retries = conf.get("retries")
    # Only of a task that never began: Airflow itself counts further tries of a cleared one.
    if isinstance(retries, int) and retries >= 0 and not task_instance.try_number:
        task_instance.max_tries = retries


# Airflow calls its hooks only when this is off, and turns it off itself only where airflow_local_settings exists.
airflow.settings.task_instance_mutation_hook.is_noop = False  # type: ignore[attr-defined]
