"""The sweep over deadlines: it ends, retries or reports what is in one state for too long (G4).

`POST /sweep` calls it, so each run of `lake_watch` does. It ends a run past its `deadline_s` through Airflow; the
manager then starts another one by its own rules. The sweep itself does a late evaluation (it drains). One server
reports everything else past a deadline once: to the log, to a metric, to the notifier. What is wrong with the DAGs
themselves (paused, missing, no sweep for long) follows at the end.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hudi.base_path import normalise_base_path, table_id_of
from airflow_lake_provider.manager.budgets import load_scopes, pressure_of_states
from airflow_lake_provider.manager.db.leases import NotificationLog, report_id_of
from airflow_lake_provider.manager.db.rows import IDS_PER_QUERY, batched, is_identified
from airflow_lake_provider.manager.db.search import record_backlog
from airflow_lake_provider.manager.db.sinks import Sinks, retiring_text
from airflow_lake_provider.manager.instances import (
    PEOPLE,
    Instance,
    InstanceState,
    NoNotifier,
    Plans,
    instance_of_run,
    instances_of,
)
from airflow_lake_provider.manager.scheduling import SERVICE_DAG_ID, WATCH_DAG_ID, is_manager_run
from airflow_lake_provider.metrics import (
    BACKLOG_CORE_HOURS,
    BACKLOG_PRESSURE,
    BACKLOG_WAITING,
    DEADLINES,
    HOLES,
    OVERDUE,
    STUCK,
    STUCK_PROBLEMS,
    NoMetrics,
)
from airflow_lake_provider.planner.ranking import DAY_MS, HOUR_MS, Pressure
from airflow_lake_provider.planner.rules import Urgency

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sqlalchemy import RowMapping
    from sqlalchemy.orm import Session

    from airflow_lake_provider.config.access import Audience
    from airflow_lake_provider.doctor.diagnosis import Finding
    from airflow_lake_provider.manager.db.operations import RunHour, RunPage, RunSearch
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.instances import Notifier, RunFacts
    from airflow_lake_provider.metrics import Metrics

log = logging.getLogger(__name__)

MOST_OVERDUE_ROWS = 1000
_LIMITS = ("timeout_s", "start_within_s", "deadline_s")


class InstanceGateway(Protocol):
    """Airflow's runs and tasks, as instances and pages need them. All calls work in the caller's transaction."""

    def list_runs(self, session: Session, run_id_prefix: str, most_ended: int) -> Sequence[RunFacts]:
        """Return every active run whose id begins with the prefix, oldest first, then the newest ended ones."""
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

    def page_of_runs(self, session: Session, search: RunSearch) -> RunPage:
        """Return a page of the runs of all tables, newest first."""
        ...

    def count_runs(self, session: Session, since_ms: int, audience: Audience) -> Sequence[RunHour]:
        """Return the runs of tables of the audience that were created since a time by hour, service and state."""
        ...


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep found and did."""

    ended: int = 0
    overdue: int = 0


class OnceNotifier:
    """Notifies people of an instance once per key, whichever server finds it; safe with any number of servers."""

    def __init__(self, registry: Registry, notifier: Notifier) -> None:
        self._log = NotificationLog(registry)
        self._notifier = notifier

    def notify(self, base_path: str, instance: Instance, *key: str) -> bool:
        """Notify people, and return true, unless that is done or another server is doing it."""
        report_id = report_id_of(base_path, *key)
        if not self._log.begin(report_id):
            return False
        self._notifier.stuck(base_path, instance, lambda: self._log.end(report_id))
        return True

    def forget_old(self) -> None:
        """Allow notifications of long ago to be repeated."""
        self._log.forget_old()


class DeadlineSweep:
    """Checks every active run and every mark. `sweep` may run anywhere, at any time, any number of times."""

    def __init__(
        self,
        registry: Registry,
        gateway: InstanceGateway,
        metrics: Metrics | None = None,
        notifier: Notifier | None = None,
        load_tables: Callable[[], TablesConfig] = TablesConfig,
    ) -> None:
        self._registry = registry
        self._gateway = gateway
        self._metrics = metrics if metrics is not None else NoMetrics()
        self._notifier = notifier if notifier is not None else NoNotifier()
        self._load_tables = load_tables
        self._people = OnceNotifier(registry, self._notifier)

    def sweep(self) -> Swept:
        """End the runs past their `deadline_s`, report what is past any other deadline."""
        now_ms = self._registry.now_ms()
        with self._registry.transaction() as session:
            active = [run for run in self._gateway.list_runs(session, "", 0) if run.is_active]
        runs = [self._with_limits(run) for run in active]
        ended = [run for run in runs if self._end_if_late(run, now_ms)]
        self._raise_old(runs, now_ms)
        overdue = [
            (base_path, instance)
            for base_path, instance in self._waiting(run for run in runs if run not in ended)
            if instance.is_overdue(now_ms)
        ]
        for base_path, instance in overdue:
            self._notify_of_delay(base_path, instance, now_ms)
        for sink in Sinks(self._registry).list_retiring():
            self._notify_of_sink(sink)
        self._notify_of_pressure(now_ms)
        record_backlog(self._registry)
        self._metrics.gauge(OVERDUE, len(overdue))
        self._metrics.gauge(HOLES, self._registry.count_holes())
        self._people.forget_old()
        return Swept(len(ended), len(overdue))

    def _with_limits(self, run: RunFacts) -> RunFacts:
        """Return a run by hand with the table's limits where it has none; the manager's own runs have all."""
        if is_manager_run(run.run_id):
            return run
        try:
            base_path = normalise_base_path(str(run.params.get("base_path", "")))
            row = self._registry.find(table_id_of(base_path))
            policy = self._load_tables().policy_for(base_path, _own_name(row))
        except LakeError:
            return run  # its own task reports what is wrong with the path; the default limits hold
        limits = {name: getattr(policy, name) for name in _LIMITS}
        return replace(run, params={**limits, **{key: value for key, value in run.params.items() if value is not None}})

    def _waiting(self, runs: Iterator[RunFacts]) -> Iterator[tuple[str, Instance]]:
        for run in runs:
            yield str(run.params.get("base_path", "")), instance_of_run(run, Plans())
        for row in self._registry.list_waiting(MOST_OVERDUE_ROWS):
            for instance in instances_of(row, (), Plans()):
                yield row["base_path"], instance

    def _end_if_late(self, run: RunFacts, now_ms: int) -> bool:
        limit_ms = run.limit_ms("deadline_s")
        if now_ms <= run.created_ms + limit_ms:
            return False
        instance = instance_of_run(run, Plans())
        reason = f"ended: not done {limit_ms // 1000} s after it was created (deadline_s); {instance.reason}"
        with self._registry.transaction() as session:
            if not self._gateway.end_run(session, run.run_id, reason):
                return True
        base_path = str(run.params.get("base_path", ""))
        log.error("table %s: run %s %s", base_path, run.run_id, reason)
        self._metrics.incr(DEADLINES)
        failed = Instance(run.service, InstanceState.FAILED, instance.owner, reason, run.run_id, run.plans, now_ms)
        self._notifier.deadline(base_path, failed)
        return True

    def _raise_old(self, runs: Sequence[RunFacts], now_ms: int) -> None:
        """Let runs that have waited for half of `start_within_s` come first, so that urgent ones never starve them."""
        old = [run.run_id for run in runs if _waits_since(run, now_ms) > run.limit_ms("start_within_s") // 2]
        if not old:
            return
        raised = 0
        with self._registry.transaction() as session:
            for some in batched(old, IDS_PER_QUERY):
                raised += self._gateway.raise_priority(session, some, Urgency.AGED)
        if raised:
            log.info("%d runs that have waited long for a slot now come before others", raised)

    def _notify_of_sink(self, sink: RowMapping) -> None:
        reason = f"sink {sink['sink']} is {retiring_text(sink['retire_ms'])}"
        instance = Instance("replication", InstanceState.ABANDONED, PEOPLE, reason, deadline_ms=sink["retire_ms"])
        if self._people.notify(sink["base_path"], instance, "sink", sink["sink"], str(sink["retire_ms"])):
            log.warning("table %s: %s", sink["base_path"], reason)

    def _notify_of_pressure(self, now_ms: int) -> None:
        """Measure the backlog of the budgets, and notify people of each one that it outgrows, once a day."""
        try:
            states = load_scopes(self._registry, self._load_tables())
        except LakeError:
            return  # `/health` reports wrong settings
        order, worst_of = list(Pressure), pressure_of_states(states)
        self._metrics.gauge(BACKLOG_WAITING, max((state.load.waiting for state in states), default=0))
        hours = max((state.load.waiting_core_ms for state in states), default=0) / HOUR_MS
        self._metrics.gauge(BACKLOG_CORE_HOURS, hours)
        self._metrics.gauge(BACKLOG_PRESSURE, order.index(worst_of))
        for state in states:
            if state.pressure is Pressure.OK:
                continue
            instance = Instance("backlog", InstanceState.REQUESTED, PEOPLE, state.explain(), since_ms=now_ms)
            if self._people.notify(state.limit.shown, instance, "pressure", state.limit.scope, str(now_ms // DAY_MS)):
                log.warning("the backlog outgrows a budget: %s", state.explain())

    def _notify_of_delay(self, base_path: str, instance: Instance, now_ms: int) -> None:
        which = (instance.service, instance.run_id, str(instance.tries), instance.state.value, str(instance.since_ms))
        if not self._people.notify(base_path, instance, *which):
            return
        late_s = (now_ms - (instance.deadline_ms or now_ms)) // 1000
        log.error(
            "table %s: %s is stuck: %s for %s s longer than allowed; %s has to act: %s",
            base_path, instance.run_id or instance.service, instance.state, late_s, instance.owner, instance.reason,
        )  # fmt: skip
        self._metrics.incr(STUCK)


def _waits_since(run: RunFacts, now_ms: int) -> int:
    """Return for how many ms a run has waited for its first try; 0 once that has begun."""
    return now_ms - run.created_ms if instance_of_run(run, Plans()).state is InstanceState.SCHEDULED else 0


def _own_name(row: RowMapping | None) -> str:
    # An announced name may select another table's limits, which would end this table's run.
    return row["table_name"] if row is not None and is_identified(row) else ""


# --- Notifies people of findings of the doctor that no service repairs: each kind and instant once


class StuckNotifier:
    """Records notifications in the database, so that servers and restarts do not repeat them."""

    def __init__(self, registry: Registry, metrics: Metrics | None = None, notifier: Notifier | None = None) -> None:
        self._people = OnceNotifier(registry, notifier if notifier is not None else NoNotifier())
        self._metrics = metrics if metrics is not None else NoMetrics()

    def notify(self, base_path: str, finding: Finding) -> None:
        """Log it, count it, and notify, unless that is done."""
        reason = f"{finding.message}; holds up {finding.holds_up}; repaired by: {finding.repair}"
        plans = (finding.instant,) if finding.instant else ()
        instance = Instance(finding.kind.value, InstanceState.ABANDONED, PEOPLE, reason, plans=plans)
        if self._people.notify(base_path, instance, "doctor", finding.kind.value, finding.instant):
            log.error("table %s is stuck (%s): %s", base_path, finding.kind, reason)
            self._metrics.incr(STUCK_PROBLEMS)

    def notify_once(self, base_path: str, instance: Instance) -> None:
        """Log, count and notify of services that are given up or blocked, once since `instance.since_ms`."""
        if self._people.notify(base_path, instance, "stuck", instance.service, str(instance.since_ms)):
            log.error("table %s: %s needs %s: %s", base_path, instance.service, instance.owner, instance.reason)
            self._metrics.incr(STUCK)


# --- The DAGs that the manager depends on, and what is wrong with them: paused, missing, or not run for long

STALE_MS = 300_000
"""`lake_watch` runs each minute; past this it counts as not running."""


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

    def state(self, dag_id: str) -> DagState:
        """Return a DAG's state; one that Airflow does not have is missing."""
        return self.states.get(dag_id, DagState.MISSING)

    def sweep_age_s(self, now_ms: int) -> int | None:
        """Return how long ago the last sweep ended, seconds; None when there was none."""
        return None if self.swept_ms is None else max(0, now_ms - self.swept_ms) // 1000


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
    return tuple(problem for problem in problems if problem)


def _last_sweep(age_s: int | None) -> str:
    if age_s is None:
        return f"{WATCH_DAG_ID} has never swept"
    return (
        f"{WATCH_DAG_ID} swept last {age_s} s ago"
        if age_s < 120
        else f"{WATCH_DAG_ID} swept last {age_s // 60} min ago"
    )
