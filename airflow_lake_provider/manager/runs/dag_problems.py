"""What is wrong with the DAGs that the manager depends on: paused, missing, or not run for long."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.runs.airflow_runs import (
    DISCOVERY_DAG_ID,
    SERVICE_DAG_ID,
    WATCH_DAG_ID,
    DagState,
    LakeDags,
)
from airflow_lake_provider.manager.runs.run_ids import run_id_of

STALE_MS = 300_000
"""`lake_watch` runs each minute; past this it counts as not running."""


_SEARCH = {DISCOVERY_DAG_ID: "no table below the roots of the tables file (discover) is found"}


def find_service_dag_problem(dags: LakeDags) -> str:
    """Return why no run of a service would begin; empty when one would. Creating a run reports a missing DAG."""
    if dags.state(SERVICE_DAG_ID) is DagState.PAUSED:
        return f"DAG {SERVICE_DAG_ID} is paused, so no service runs: unpause it (airflow dags unpause {SERVICE_DAG_ID})"
    return ""


def find_dag_problems(dags: LakeDags, now_ms: int, *, searches: bool = False) -> tuple[str, ...]:
    """Return what is wrong with the DAGs, the most severe first; `searches` is whether there are roots to search."""
    problems = [find_service_dag_problem(dags)]
    missing = [dag_id for dag_id in (SERVICE_DAG_ID, WATCH_DAG_ID) if dags.state(dag_id) is DagState.MISSING]
    if missing:
        problems.append(
            f"DAG {' and '.join(missing)} not in Airflow's database: add the shipped DAGs to the DAG bundles "
            "(`airflow lake dag-bundles` prints the setting)"
        )
    age_s = dags.sweep_age_s(now_ms)
    if dags.state(WATCH_DAG_ID) is DagState.PAUSED:
        problems.append(
            f"DAG {WATCH_DAG_ID} is paused, so lost notices, deadlines and stuck tables go unseen: unpause it "
            f"(airflow dags unpause {WATCH_DAG_ID}); {_last_sweep(age_s)}"
        )
    elif dags.state(WATCH_DAG_ID) is DagState.ACTIVE and (age_s is None or age_s * 1000 > STALE_MS):
        problems.append(f"{_last_sweep(age_s)}, though it is due each minute: see its runs and Airflow's scheduler")
    for dag_id, what in {**dags.needed, **(_SEARCH if searches else {})}.items():
        state = dags.state(dag_id)
        if state is DagState.PAUSED:
            problems.append(f"DAG {dag_id} is paused, so {what}: unpause it (airflow dags unpause {dag_id})")
        elif state is DagState.MISSING and not missing:
            problems.append(f"DAG {dag_id} is not in Airflow's database, so {what}: add it to the DAG bundles")
    return (*(problem for problem in problems if problem), *dags.settings_problems)


@dataclass(frozen=True, slots=True)
class AirflowSettings:
    """The options of Airflow that decide whether the lake works, and the processes that they hold for."""

    overrides_params: bool = True
    """`[core] dag_run_conf_overrides_params`."""
    parallelism: int = 32
    schedulers: int = 1
    max_active_services: int = 16
    """`[lake]`'s."""
    capacity: int = 1000
    """`[triggerer] capacity`."""
    triggerers: int = 1
    token_s: int = 600
    """`[execution_api] jwt_expiration_time`."""
    heartbeat_timeout_s: int = 300
    """`[scheduler] task_instance_heartbeat_timeout`."""
    run_id_pattern: str = "^[A-Za-z0-9_.~:+-]+$"
    """`[scheduler] allowed_run_id_pattern`."""


def find_settings_problems(airflow: AirflowSettings) -> tuple[str, ...]:
    """Return which settings of Airflow keep the lake from working, and what to set."""
    problems = []
    if not airflow.overrides_params:
        problems.append(
            "[core] dag_run_conf_overrides_params = False keeps a run's Params from its tasks, so every service run "
            "fails: set it to True, which is Airflow's default"
        )
    services = airflow.max_active_services
    # A scheduler that has just ended leaves its slots to the next one.
    slots = airflow.parallelism * max(1, airflow.schedulers)
    if slots <= services:
        problems.append(
            f"[core] parallelism gives {slots} slots to {max(1, airflow.schedulers)} scheduler(s), and [lake] "
            f"max_active_services = {services} can take them all, so {WATCH_DAG_ID} and your own tasks wait: raise the "
            "one or lower the other"
        )
    triggers = airflow.capacity * max(1, airflow.triggerers)
    if triggers < services:
        problems.append(
            f"[triggerer] capacity lets {max(1, airflow.triggerers)} triggerer(s) wait for {triggers} tasks at once, "
            f"and [lake] max_active_services = {services} services may wait there: raise it"
        )
    if airflow.token_s <= airflow.heartbeat_timeout_s:
        problems.append(
            f"[execution_api] jwt_expiration_time = {airflow.token_s} is not above [scheduler] "
            f"task_instance_heartbeat_timeout = {airflow.heartbeat_timeout_s}: a task whose API server was away for "
            f"{airflow.token_s} s cannot report again, and its service is run again; raise the first one"
        )
    if not _is_allowed(airflow.run_id_pattern, _RUN_ID):
        problems.append(
            f"[scheduler] allowed_run_id_pattern = {airflow.run_id_pattern} refuses the ids of the manager's runs "
            f"({_RUN_ID}), so no service runs: allow letters, digits, '.', '-' and '_'"
        )
    return tuple(problems)


_RUN_ID = run_id_of("my_table-1-0123456789abcdef", Service.METACOMPACTION, "20261127192831123", 2)


def _is_allowed(pattern: str, run_id: str) -> bool:
    """Whether Airflow takes the id."""
    try:
        return bool(pattern.strip() and re.match(pattern.strip(), run_id))
    except re.error:
        return False


def _last_sweep(age_s: int | None) -> str:
    if age_s is None:
        return f"{WATCH_DAG_ID} has never swept"
    return (
        f"{WATCH_DAG_ID} swept last {age_s} s ago"
        if age_s < 120
        else f"{WATCH_DAG_ID} swept last {age_s // 60} min ago"
    )
