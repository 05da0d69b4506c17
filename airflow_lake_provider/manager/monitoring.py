"""The sweep over deadlines: what has stood in one state for too long is ended, retried or reported (G4).

`POST /sweep` calls it, so each run of `lake_watch`. A run past its `deadline_s` is ended through Airflow; the manager
then starts another one by its own rules. A look that nobody came to is done by the sweep itself (it drains). Everything
else past a deadline is reported once, by one server: to the log, to a metric, to the notifier.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import func, update

from airflow_lake_provider.config.policies import Shape
from airflow_lake_provider.config.tables_file import TablesConfig
from airflow_lake_provider.doctor.treatment import TableDoctor
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hudi.base_path import normalise_base_path, table_id_of
from airflow_lake_provider.manager.db.notification_log import Reports, report_id_of
from airflow_lake_provider.manager.db.registry import is_identified, policy_of
from airflow_lake_provider.manager.db.schema import lake_table
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
from airflow_lake_provider.manager.scheduling import is_manager_run
from airflow_lake_provider.metrics import DEADLINES, HOLES, OVERDUE, REPAIRS, STUCK, STUCK_SHAPES, NoMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import RowMapping
    from sqlalchemy.orm import Session

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.doctor.diagnosis import Finding
    from airflow_lake_provider.doctor.repairs import Repair
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.instances import Notifier, RunFacts
    from airflow_lake_provider.metrics import Metrics
    from airflow_lake_provider.storage.table_storage import Storage

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


# --- Tells people what the doctor found on a table and nobody mends by itself: each shape of each instant once


class StuckTables:
    """Remembers in the database what was told, so that servers and restarts do not tell it again."""

    def __init__(self, registry: Registry, metrics: Metrics | None = None, notifier: Notifier | None = None) -> None:
        self._reports = Reports(registry)
        self._metrics = metrics if metrics is not None else NoMetrics()
        self._notifier = notifier if notifier is not None else NoNotifier()

    def tell(self, base_path: str, finding: Finding) -> None:
        """Log it, count it, and notify, unless that was done."""
        report_id = report_id_of(base_path, "doctor", finding.shape.value, finding.instant)
        if not self._reports.begin(report_id):
            return
        reason = f"{finding.says}; holds up {finding.holds_up}; mended by: {finding.repair}"
        log.error("table %s is stuck (%s): %s", base_path, finding.shape, reason)
        self._metrics.incr(STUCK_SHAPES)
        plans = (finding.instant,) if finding.instant else ()
        instance = Instance(finding.shape.value, InstanceState.ABANDONED, PEOPLE, reason, plans=plans)
        self._notifier.stuck(base_path, instance, lambda: self._reports.end(report_id))


# --- What the doctor may do by itself, without being asked, on the tables whose policy names it; the rest is told
#
# `POST /sweep` calls it, so each run of `lake_watch`. Repairs that are runs of services are not started here: the
# loop
# decides them like all others, by the same timeline.

EVERY_MS = 600_000
"""How often a table is examined, by whichever server: what is looked for is stuck for longer than that."""
MOST_EXAMINED = 20
"""Tables in one round, so that a sweep ends; the others come in the next one."""
ROUND_S = 10.0
"""The same for a slow store: no table is begun later than this."""
_MOST_ROWS = 10_000


_BY_HAND = frozenset(
    {Shape.UNREADABLE_FILE, Shape.INDEX_WITHOUT_PLAN, Shape.FOREIGN_TIME_ZONE, Shape.DISORDERED_WRITES}
)
_BY_DOCTOR = frozenset({Shape.ORPHANED_LOCK, Shape.OVERTAKEN_LOG_COMPACTION})


def needs_people(repair: Repair) -> bool:
    """Whether nobody but people, or a doctor that is not allowed to, will mend a shape.

    All others are services' work: one is due, or at work now, or its decision says why not. A refused repair waits
    until it is sure that nobody lives.
    """
    return repair.shape in _BY_HAND or (repair.shape in _BY_DOCTOR and not repair.refusal)


class RepairRound:
    """Examines tables in turn. Several processes may do so at once: each table is examined by one of them."""

    def __init__(
        self,
        registry: Registry,
        load_tables: Callable[[], TablesConfig],
        open_table: Callable[[str], Storage],
        metrics: Metrics | None = None,
        stuck: StuckTables | None = None,
    ) -> None:
        self._registry = registry
        self._load_tables = load_tables
        self._open_table = open_table
        self._metrics = metrics if metrics is not None else NoMetrics()
        self._stuck = stuck

    def run(self) -> int:
        """Examine the tables that are due, do what their policies allow, and return how many repairs were done.

        What is left then, and waits for no service, people are told of.
        """
        tables, now_ms = self._load_tables(), self._registry.now_ms()
        due = [
            row
            for row in self._registry.list_tables(_MOST_ROWS)
            if (row["examined_ms"] or 0) <= now_ms - EVERY_MS and self._may_want(row, tables)
        ]
        done, began_s = 0, time.monotonic()
        for row in sorted(due, key=lambda row: row["examined_ms"] or 0)[:MOST_EXAMINED]:
            if time.monotonic() - began_s > ROUND_S:
                break
            if not self._take(row["table_id"]):
                continue
            try:
                done += self._examine(row, policy_of(row, tables, self._open_table))
            except (LakeError, OSError) as error:
                log.warning("table %s is not repaired: %s", row["base_path"], error)
        self._metrics.incr(REPAIRS, done)
        return done

    def _examine(self, row: RowMapping, policy: TablePolicy) -> int:
        if not self._wants(policy):
            return 0
        base_path, now = row["base_path"], self._registry.now_ms
        # Reading every instant's file costs; where one is damaged, the last look has said that something is.
        doctor = TableDoctor(self._open_table(base_path), policy, "manager", now, reads_all=bool(row["problem"]))
        left = doctor.examine()
        # Most tables are well, and one look says so.
        records = doctor.repair_all() if left and policy.doctor.repairs else ()
        if records:
            left = doctor.examine()
        for record in records:
            log.warning("table %s: %s %s: %s", base_path, record.shape, record.instant, record.result)
        for finding, repair in left:
            if self._stuck is not None and policy.doctor.notify and needs_people(repair):
                self._stuck.tell(base_path, finding)
        return len(records)

    def _may_want(self, row: RowMapping, tables: TablesConfig) -> bool:
        # What an announced name would select says nothing.
        return not is_identified(row) or self._wants(tables.policy_for(row["base_path"], row["table_name"]))

    def _wants(self, policy: TablePolicy) -> bool:
        return bool(policy.doctor.repairs) or (policy.doctor.notify and self._stuck is not None)

    def _take(self, table_id: str) -> bool:
        """Return whether this server is the one to examine the table now."""
        with self._registry.transaction() as session:
            now_ms = self._registry.clock.read_ms(session)
            is_due = func.coalesce(lake_table.c.examined_ms, 0) <= now_ms - EVERY_MS
            taken: Any = session.execute(
                update(lake_table).where(lake_table.c.table_id == table_id, is_due).values(examined_ms=now_ms)
            )
            return bool(taken.rowcount)
