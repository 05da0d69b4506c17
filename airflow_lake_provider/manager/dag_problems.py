"""What is wrong with the DAGs that the manager depends on: paused, missing, or not run for long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.manager.airflow_runs import (
    SERVICE_DAG_ID,
    WATCH_DAG_ID,
    DagState,
    LakeDags,
)

if TYPE_CHECKING:
    from collections.abc import Callable

STALE_MS = 300_000
"""`lake_watch` runs each minute; past this it counts as not running."""


def find_service_dag_problem(dags: LakeDags) -> str:
    """Return why no run of a service would begin; empty when one would. Creating a run reports a missing DAG."""
    if dags.state(SERVICE_DAG_ID) is DagState.PAUSED:
        return f"DAG {SERVICE_DAG_ID} is paused, so no service runs: unpause it (airflow dags unpause {SERVICE_DAG_ID})"
    return ""


def find_dag_problems(dags: LakeDags, now_ms: int) -> tuple[str, ...]:
    """Return what is wrong with the DAGs, the most severe first."""
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
    for dag_id, what in dags.needed.items():
        state = dags.state(dag_id)
        if state is DagState.PAUSED:
            problems.append(f"DAG {dag_id} is paused, so {what}: unpause it (airflow dags unpause {dag_id})")
        elif state is DagState.MISSING and not missing:
            problems.append(f"DAG {dag_id} is not in Airflow's database, so {what}: add it to the DAG bundles")
    return (*(problem for problem in problems if problem), *dags.settings_problems)


OVERRIDES_PARAMS = ("core", "dag_run_conf_overrides_params")


def find_settings_problems(is_on: Callable[[str, str], bool]) -> tuple[str, ...]:
    """Return what settings of Airflow keep the shipped DAGs from working; `is_on` reads one by section and name."""
    section, name = OVERRIDES_PARAMS
    if is_on(section, name):
        return ()
    return (
        f"[{section}] {name} = False keeps a run's Params from its tasks, so every service run fails: set it to True, "
        "which is Airflow's default",
    )


def _last_sweep(age_s: int | None) -> str:
    if age_s is None:
        return f"{WATCH_DAG_ID} has never swept"
    return (
        f"{WATCH_DAG_ID} swept last {age_s} s ago"
        if age_s < 120
        else f"{WATCH_DAG_ID} swept last {age_s // 60} min ago"
    )
