"""Airflow's DAG runs as the manager sees them: their states, and the gateways to them.

The gateways' implementations are in `plugins/`; this module does not import Airflow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from airflow_lake_provider.config.policies import TablePolicy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy.orm import Session

    from airflow_lake_provider.config.access import Audience
    from airflow_lake_provider.manager.db.operations import RunHour, RunPage, RunSearch

SERVICE_DAG_ID = "lake_table_service"
WATCH_DAG_ID = "lake_watch"
DISCOVERY_DAG_ID = "lake_discovery"
INDEX_DAG_ID = "lake_reindex"
RESTORE_DAG_ID = "lake_restore"
UPGRADE_DAG_ID = "lake_upgrade"
ERASE_DAG_ID = "lake_erase"
WARM_DAG_ID = "lake_warm"
REPLICATION_DAG_ID = "lake_replication"
STREAMS_DAG_ID = "lake_streams"


class RunState(StrEnum):
    """States of a DAG run, in Airflow's spelling."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ServiceRun:
    """One DAG run that exists for a table and service. `ended_ms` is None while it is active."""

    run_id: str
    state: RunState
    ended_ms: int | None = None
    pool: str = ""
    queue: str = ""
    """Set for active runs only, as they were created."""
    is_void: bool = False
    """It failed, but most of its tries ended without a verdict: their workers were killed, or vanished."""
    is_between_tries: bool = False
    """Its task waits for its next try, or for infrastructure, and has no job."""
    scopes: tuple[str, ...] = ()
    """The budgets that it is charged to, where the registry was asked for them."""

    @property
    def active(self) -> bool:
        """Whether the run has not ended."""
        return self.state in {RunState.QUEUED, RunState.RUNNING}


MANAGER = "lake manager"
"""The user that Airflow's pages name for a run that no person started."""


class RunGateway(Protocol):
    """Airflow, as the loop sees it. All calls work in the caller's transaction."""

    def find_active_runs(self, session: Session, table_id: str = "") -> Sequence[ServiceRun]:
        """Return the service DAG's active runs of a table; empty: of every table."""
        ...

    def find_runs_by_id(self, session: Session, run_ids: Sequence[str]) -> Sequence[ServiceRun]:
        """Return those of the runs that exist."""
        ...

    def find_lake_dags(self, session: Session) -> LakeDags:
        """Return the state of the DAGs that the manager depends on."""
        ...

    def create_run(
        self, session: Session, run_id: str, conf: dict[str, Any], note: str, *, user: str = MANAGER
    ) -> None:
        """Create a queued run; raises when the DAG is not there or the id exists."""
        ...


class InstanceGateway(Protocol):
    """Airflow's runs and tasks, as instances and pages need them. All calls work in the caller's transaction."""

    def list_runs(self, session: Session, table_id: str, most_ended: int) -> Sequence[RunFacts]:
        """Return every active run of a table, oldest first, then the newest ended ones; empty: of every table."""
        ...

    def end_run(self, session: Session, run_id: str, reason: str) -> bool:
        """End an active run and its task as failed, with the reason as its note; false when it has already ended."""
        ...

    def complete_run(self, session: Session, run_id: str, reason: str) -> bool:
        """End an active run and its task as successful; otherwise as `end_run`."""
        ...

    def raise_priority(self, session: Session, run_ids: Sequence[str], weight: int) -> int:
        """Give the tasks of these runs that wait for a slot at least this priority; return how many changed."""
        ...

    def is_of_other_tables(self, session: Session, run_id: str, base_path: str) -> bool:
        """Whether Airflow has a run of this holder's id whose conf names other tables."""
        ...

    def page_of_runs(self, session: Session, search: RunSearch) -> RunPage:
        """Return a page of the runs of all tables, newest first."""
        ...

    def count_runs(self, session: Session, since_ms: int, audience: Audience) -> Sequence[RunHour]:
        """Return the runs of tables of the audience that were created since a time by hour, service and state."""
        ...


class DagState(StrEnum):
    """Whether Airflow's scheduler runs a DAG."""

    ACTIVE = "active"
    PAUSED = "paused"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class LakeDags:
    """The DAGs in Airflow. `swept_ms` is when a run of `lake_watch` last succeeded; None: never."""

    states: Mapping[str, DagState] = field(default_factory=lambda: MappingProxyType({}))
    swept_ms: int | None = None
    needed: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """The DAGs that work needs now, besides those that are always needed; with what waits for each."""
    settings_problems: tuple[str, ...] = ()
    """What settings of this Airflow keep from working."""

    def state(self, dag_id: str) -> DagState:
        """Return a DAG's state; one that Airflow does not have is missing."""
        return self.states.get(dag_id, DagState.MISSING)

    def sweep_age_s(self, now_ms: int) -> int | None:
        """Return how long ago the last sweep ended, seconds; None when there was none."""
        return None if self.swept_ms is None else max(0, now_ms - self.swept_ms) // 1000


@dataclass(frozen=True, slots=True)
class TaskTry:
    """The task instance of a run, as Airflow reports it. `state` is None before it is scheduled."""

    state: str | None = None
    try_number: int = 0
    max_tries: int = 0
    host: str = ""
    started_ms: int | None = None
    next_try_ms: int | None = None
    heartbeat_ms: int | None = None
    """When its supervisor last reported to Airflow; None before its first report."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One DAG run with its task, and the Params that it was created with."""

    run_id: str
    state: RunState
    created_ms: int
    ended_ms: int | None = None
    params: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    task: TaskTry = field(default_factory=TaskTry)
    note: str = ""

    @property
    def is_active(self) -> bool:
        """Whether the run has not ended."""
        return self.state in {RunState.QUEUED, RunState.RUNNING}

    @property
    def service(self) -> str:
        """The service that it runs."""
        return str(self.params.get("service", ""))

    @property
    def plans(self) -> tuple[str, ...]:
        """Requested times of the plans that it was created for."""
        return tuple(str(instant) for instant in self.params.get("instants") or ())

    def limit_ms(self, name: str) -> int:
        """Return a limit of the run in ms: `timeout_s`, `start_within_s` or `deadline_s`."""
        value = self.params.get(name)
        limit_s = value if isinstance(value, (int, float)) and value > 0 else getattr(TablePolicy(), name)
        return int(float(limit_s) * 1000)
