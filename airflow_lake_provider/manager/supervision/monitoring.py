"""The sweep over deadlines: it ends, retries or reports what is in one state for too long (G4).

`POST /sweep` calls it, so each run of `lake_watch` does. It ends a run past its `deadline_s` through Airflow; the
manager then starts another one by its own rules. The sweep itself does a late evaluation (it drains). One server
reports everything else past a deadline once: to the log, to a metric, to the notifier.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.config.settings import NO_DIGEST
from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hudi.base_path import normalise_base_path, table_id_of
from airflow_lake_provider.instant_clock import DAY_MS, HOUR_MS
from airflow_lake_provider.manager.db.backlog_history import record_backlog
from airflow_lake_provider.manager.db.bill import forget_old_bills
from airflow_lake_provider.manager.db.database import IDS_PER_QUERY, batched
from airflow_lake_provider.manager.db.health import find_tables_with
from airflow_lake_provider.manager.db.history import forget_old_history
from airflow_lake_provider.manager.db.operations import keep_error
from airflow_lake_provider.manager.db.search import count_states
from airflow_lake_provider.manager.db.sinks import Sinks
from airflow_lake_provider.manager.db.snoozes import Snoozes
from airflow_lake_provider.manager.health.health import ATTENTION, FoundBy, OpenFinding
from airflow_lake_provider.manager.health.sink_events import SinkEventKind
from airflow_lake_provider.manager.runs.run_ids import is_manager_run
from airflow_lake_provider.manager.scheduling.budgets import load_scopes, pressure_of_states
from airflow_lake_provider.manager.supervision.instances import (
    MANAGER,
    PEOPLE,
    SCHEDULER,
    Instance,
    InstanceState,
    Plans,
    instance_of_run,
    instances_of,
)
from airflow_lake_provider.manager.supervision.notifications import NoNotifier, OnceNotifier
from airflow_lake_provider.metrics import (
    BACKLOG_CORE_HOURS,
    BACKLOG_PRESSURE,
    BACKLOG_WAITING,
    DEADLINES,
    HOLES,
    NEED_ATTENTION,
    OVERDUE,
    STUCK,
    NoMetrics,
    tables_in,
)
from airflow_lake_provider.planner.ranking import Pressure
from airflow_lake_provider.planner.rules import Urgency

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.db.typed_rows import TableRow
    from airflow_lake_provider.manager.health.sink_events import SinkEvent
    from airflow_lake_provider.manager.runs.airflow_runs import InstanceGateway, RunFacts
    from airflow_lake_provider.manager.supervision.notifications import Notifier
    from airflow_lake_provider.metrics import Metrics

log = logging.getLogger(__name__)

MAX_OVERDUE_ROWS = 1000
_LIMITS = ("timeout_s", "start_within_s", "deadline_s")


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep found and did."""

    ended: int = 0
    overdue: int = 0


class DeadlineSweep:
    """Checks every active run and every mark. `sweep` may run anywhere, at any time, any number of times."""

    def __init__(
        self,
        registry: Registry,
        gateway: InstanceGateway,
        metrics: Metrics | None = None,
        notifier: Notifier | None = None,
        load_tables: Callable[[], TablesConfig] = TablesConfig,
        digest_hour: int = NO_DIGEST,
    ) -> None:
        self._registry = registry
        self._gateway = gateway
        self._metrics = metrics if metrics is not None else NoMetrics()
        self._notifier = notifier if notifier is not None else NoNotifier()
        self._load_tables = load_tables
        self._digest_hour = digest_hour
        self._people = OnceNotifier(registry, self._notifier, self._metrics, load_tables)

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
        events = Sinks(self._registry).list_events(now_ms)
        self._keep_overdue(overdue, [event for event in events if event.kind is SinkEventKind.STANDS_STILL], now_ms)
        for event in events:
            if self._people.notify_of_sink(event):
                log.warning("table %s, sink %s: %s: %s", event.base_path, event.sink, event.kind, event.reason)
        Snoozes(self._registry).end_old(now_ms)
        self._people.notify_of_tables(now_ms)
        self._people.notify_of_day(now_ms, self._digest_hour, self._count)
        self._notify_of_pressure(now_ms)
        if record_backlog(self._registry, now_ms):
            with self._registry.transaction() as session:
                forget_old_bills(session, now_ms)
                forget_old_history(session, now_ms)
        self._metrics.gauge(OVERDUE, len(overdue))
        self._metrics.gauge(HOLES, self._registry.count_holes())
        self._measure_states()
        self._people.forget_old()
        return Swept(len(ended), len(overdue))

    def _measure_states(self) -> None:
        by_state = count_states(self._registry)
        for state, tables in by_state.items():
            self._metrics.gauge(tables_in(state), tables)
        self._metrics.gauge(NEED_ATTENTION, sum(by_state[state] for state in ATTENTION))

    def _count(self) -> tuple[int, int]:
        by_state = count_states(self._registry)
        return sum(by_state.values()), sum(by_state[state] for state in ATTENTION)

    def _keep_overdue(
        self, overdue: Sequence[tuple[str, Instance]], standing: Sequence[SinkEvent], now_ms: int
    ) -> None:
        """Make what is late, or stands still, a part of its table's state, and what is not any more no part.

        A run by hand of what is no registered table has no state to be a part of.
        """
        found: dict[str, list[OpenFinding]] = {}
        late = [(path, OpenFinding(one.service, one.run_id, *_explain_delay(one))) for path, one in overdue]
        remedy = "`airflow lake replication` shows what it lacks and holds back"
        late += [
            (one.base_path, OpenFinding(one.kind, one.sink, f"sink {one.sink}: {one.reason}", remedy))
            for one in standing
        ]
        for base_path, one in late:
            with suppress(LakeError):  # a run by hand may name anything
                found.setdefault(table_id_of(normalise_base_path(base_path)), []).append(one)
        with self._registry.transaction() as session:
            before = find_tables_with(session, FoundBy.DEADLINE)
        unknown = {table_id for table_id in {*before, *found} if not self._keep(table_id, found.get(table_id, ()))}
        for base_path, instance in overdue:
            with suppress(LakeError):
                if table_id_of(normalise_base_path(base_path)) not in unknown:
                    continue
            self._notify_of_delay(base_path, instance, now_ms)

    def _keep(self, table_id: str, findings: Sequence[OpenFinding]) -> bool:
        return self._registry.keep_findings(table_id, FoundBy.DEADLINE, findings)

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
        for row in self._registry.list_waiting(MAX_OVERDUE_ROWS):
            for instance in instances_of(row, (), Plans()):
                yield row.base_path, instance

    def _end_if_late(self, run: RunFacts, now_ms: int) -> bool:
        limit_ms = run.limit_ms("deadline_s")
        if now_ms <= run.created_ms + limit_ms:
            return False
        instance = instance_of_run(run, Plans())
        reason = f"ended: not done {limit_ms // 1000} s after it was created (deadline_s); {instance.reason}"
        with self._registry.transaction() as session:
            if not self._gateway.end_run(session, run.run_id, reason):
                return True
            keep_error(session, run.run_id, reason)
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

    def _notify_of_pressure(self, now_ms: int) -> None:
        """Measure the backlog of the budgets, and notify people of each one that it outgrows, once a day."""
        try:
            states = load_scopes(self._registry, self._load_tables())
        except LakeError:
            return  # `/health` reports wrong settings
        order = list(Pressure)
        worst_of = pressure_of_states(states)
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


_REMEDIES: Mapping[str, str] = MappingProxyType(
    {
        MANAGER: "see whether the manager's loop and lake_watch run: GET /v1/hoodie/health says it",
        SCHEDULER: "see whether Airflow's scheduler runs, and whether its pool and queue have a free slot and a worker",
    }
)
"""By an instance's owner; any other owner is named as it is."""


def _explain_delay(instance: Instance) -> tuple[str, str]:
    """Return cause and remedy of an instance that is past its deadline."""
    which = f" (run {instance.run_id})" if instance.run_id else ""
    cause = f"{instance.service}{which} is {instance.state} for longer than allowed: {instance.reason}"
    return cause, _REMEDIES.get(instance.owner, f"{instance.owner or 'a person'} has to act")


def _waits_since(run: RunFacts, now_ms: int) -> int:
    """Return for how many ms a run has waited for its first try; 0 once that has begun."""
    return now_ms - run.created_ms if instance_of_run(run, Plans()).state is InstanceState.SCHEDULED else 0


def _own_name(row: TableRow | None) -> str:
    # An announced name may select another table's limits, which would end this table's run.
    return row.table_name if row is not None and row.is_identified else ""
