"""The sweep over deadlines: what has stood in one state for too long is ended, retried or reported (G4).

`POST /sweep` calls it, so each run of `lake_watch`. A run past its `deadline_s` is ended through Airflow; the manager
then starts another one by its own rules. A look that nobody came to is done by the sweep itself (it drains). Everything
else past a deadline is reported once, by one server: to the log, to a metric, to the notifier.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.manager.instances import (
    PEOPLE,
    Instance,
    InstanceState,
    Plans,
    instance_of_run,
    instances_of,
)
from airflow_lake_provider.manager.notifier import NoNotifier
from airflow_lake_provider.manager.reports import Reports, report_id_of
from airflow_lake_provider.manager.runs import is_manager_run
from airflow_lake_provider.manager.sinks import Sinks, retiring_text
from airflow_lake_provider.manager.table_name import is_identified
from airflow_lake_provider.metrics import DEADLINES, HOLES, OVERDUE, STUCK, NoMetrics
from airflow_lake_provider.table_id import normalise_base_path, table_id_of
from airflow_lake_provider.tables_config import TablesConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import RowMapping
    from sqlalchemy.orm import Session

    from airflow_lake_provider.manager.instances import RunFacts
    from airflow_lake_provider.manager.notifier import Notifier
    from airflow_lake_provider.manager.registry import Registry
    from airflow_lake_provider.metrics import Metrics

log = logging.getLogger(__name__)

MOST_OVERDUE_ROWS = 1000
_LIMITS = ("timeout_s", "start_within_s", "deadline_s")


class InstanceDoor(Protocol):
    """Airflow, as instances are seen in it. Both calls work in the caller's transaction."""

    def list_runs(self, session: Session, run_id_prefix: str, most_ended: int) -> Sequence[RunFacts]:
        """Return every active run whose id begins so, oldest first, then the newest ended ones."""
        ...

    def end_run(self, session: Session, run_id: str, reason: str) -> bool:
        """End an active run and its task as failed, with the reason as its note; false when it has ended by itself."""
        ...


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep found and did."""

    ended: int = 0
    overdue: int = 0


class DeadlineSweep:
    """Looks at every active run and every mark. `sweep` may run anywhere, at any time, as often as one likes."""

    def __init__(
        self,
        registry: Registry,
        door: InstanceDoor,
        metrics: Metrics | None = None,
        notifier: Notifier | None = None,
        load_tables: Callable[[], TablesConfig] = TablesConfig,
    ) -> None:
        self._registry = registry
        self._door = door
        self._metrics = metrics if metrics is not None else NoMetrics()
        self._notifier = notifier if notifier is not None else NoNotifier()
        self._load_tables = load_tables
        self._reports = Reports(registry)

    def sweep(self) -> Swept:
        """End what is past its `deadline_s`, report what is past any other deadline."""
        now_ms = self._registry.now_ms()
        with self._registry.transaction() as session:
            active = [run for run in self._door.list_runs(session, "", 0) if run.is_active]
        runs = [self._with_limits(run) for run in active]
        ended = [run for run in runs if self._end_if_late(run, now_ms)]
        overdue = [
            (base_path, instance)
            for base_path, instance in self._waiting(run for run in runs if run not in ended)
            if instance.is_overdue(now_ms)
        ]
        for base_path, instance in overdue:
            self._tell_once(base_path, instance, now_ms)
        for sink in Sinks(self._registry).list_retiring():
            self._tell_of_sink(sink)
        self._metrics.gauge(OVERDUE, len(overdue))
        self._metrics.gauge(HOLES, self._registry.count_holes())
        self._reports.forget_old()
        return Swept(len(ended), len(overdue))

    def _with_limits(self, run: RunFacts) -> RunFacts:
        """Return a run by hand with the table's limits where it was given none; the manager's were given all."""
        if is_manager_run(run.run_id):
            return run
        try:
            base_path = normalise_base_path(str(run.params.get("base_path", "")))
            row = self._registry.find(table_id_of(base_path))
            policy = self._load_tables().policy_for(base_path, _own_name(row))
        except LakeError:
            return run  # its own task says what is wrong with the path; the usual limits hold
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
            if not self._door.end_run(session, run.run_id, reason):
                return True
        base_path = str(run.params.get("base_path", ""))
        log.error("table %s: run %s %s", base_path, run.run_id, reason)
        self._metrics.incr(DEADLINES)
        failed = Instance(run.service, InstanceState.FAILED, instance.owner, reason, run.run_id, run.plans, now_ms)
        self._notifier.deadline(base_path, failed)
        return True

    def _tell_of_sink(self, sink: RowMapping) -> None:
        report_id = report_id_of(sink["base_path"], "sink", sink["sink"], str(sink["retire_ms"]))
        if not self._reports.begin(report_id):
            return
        reason = f"sink {sink['sink']} is {retiring_text(sink['retire_ms'])}"
        log.warning("table %s: %s", sink["base_path"], reason)
        instance = Instance("replication", InstanceState.ABANDONED, PEOPLE, reason, deadline_ms=sink["retire_ms"])
        self._notifier.stuck(sink["base_path"], instance, lambda: self._reports.end(report_id))

    def _tell_once(self, base_path: str, instance: Instance, now_ms: int) -> None:
        which = (instance.service, instance.run_id, str(instance.tries), instance.state.value, str(instance.since_ms))
        report_id = report_id_of(base_path, *which)
        if not self._reports.begin(report_id):
            return
        late_s = (now_ms - (instance.deadline_ms or now_ms)) // 1000
        log.error(
            "table %s: %s is stuck: %s for %s s longer than it may; %s has to act: %s",
            base_path, instance.run_id or instance.service, instance.state, late_s, instance.owner, instance.reason,
        )  # fmt: skip
        self._metrics.incr(STUCK)
        self._notifier.stuck(base_path, instance, lambda: self._reports.end(report_id))


def _own_name(row: RowMapping | None) -> str:
    # A name that was only announced may belong to another table's limits, which would end this one's run.
    return row["table_name"] if row is not None and is_identified(row) else ""
