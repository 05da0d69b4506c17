"""The DAGs that the manager lives by, and what is wrong with them in words: paused, not there, or not run for long."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.manager.runs import SERVICE_DAG_ID, WATCH_DAG_ID

if TYPE_CHECKING:
    from collections.abc import Mapping

STALE_MS = 300_000
"""`lake_watch` runs each minute; past this it counts as not running."""


class DagState(StrEnum):
    """Whether Airflow's scheduler works on a DAG."""

    ACTIVE = "active"
    PAUSED = "paused"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Net:
    """The DAGs as Airflow has them. `swept_ms` is when a run of `lake_watch` last succeeded; None: never."""

    states: Mapping[str, DagState] = field(default_factory=lambda: MappingProxyType({}))
    swept_ms: int | None = None

    def state(self, dag_id: str) -> DagState:
        """Return a DAG's state; one that Airflow does not know is missing."""
        return self.states.get(dag_id, DagState.MISSING)

    def sweep_age_s(self, now_ms: int) -> int | None:
        """Return how long ago the last sweep ended, seconds; None when there was none."""
        return None if self.swept_ms is None else max(0, now_ms - self.swept_ms) // 1000


def find_service_dag_problem(net: Net) -> str:
    """Say why no run of a service would begin; empty when it would. A missing DAG is said when a run is created."""
    if net.state(SERVICE_DAG_ID) is DagState.PAUSED:
        return f"DAG {SERVICE_DAG_ID} is paused, so no service runs: unpause it (airflow dags unpause {SERVICE_DAG_ID})"
    return ""


def find_net_problems(net: Net, now_ms: int) -> tuple[str, ...]:
    """Say what is wrong with the DAGs, the gravest first."""
    problems = [find_service_dag_problem(net)]
    missing = [dag_id for dag_id in (SERVICE_DAG_ID, WATCH_DAG_ID) if net.state(dag_id) is DagState.MISSING]
    if missing:
        problems.append(
            f"DAG {' and '.join(missing)} not in Airflow's database: add the shipped DAGs to the DAG bundles "
            "(`airflow lake dag-bundles` prints the setting)"
        )
    age_s = net.sweep_age_s(now_ms)
    if net.state(WATCH_DAG_ID) is DagState.PAUSED:
        problems.append(
            f"DAG {WATCH_DAG_ID} is paused, so lost notices, deadlines and stuck tables go unseen: unpause it "
            f"(airflow dags unpause {WATCH_DAG_ID}); {_last_sweep(age_s)}"
        )
    elif net.state(WATCH_DAG_ID) is DagState.ACTIVE and (age_s is None or age_s * 1000 > STALE_MS):
        problems.append(f"{_last_sweep(age_s)}, though it is due each minute: see its runs, and Airflow's scheduler")
    return tuple(problem for problem in problems if problem)


def _last_sweep(age_s: int | None) -> str:
    if age_s is None:
        return f"{WATCH_DAG_ID} has never swept"
    return (
        f"{WATCH_DAG_ID} swept last {age_s} s ago"
        if age_s < 120
        else f"{WATCH_DAG_ID} swept last {age_s // 60} min ago"
    )
