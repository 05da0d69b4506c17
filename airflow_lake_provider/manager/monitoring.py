"""The sweep over deadlines: it ends, retries or reports what is in one state for too long (G4).

`POST /sweep` calls it, so each run of `lake_watch` does. It ends a run past its `deadline_s` through Airflow; the
manager then starts another one by its own rules. The sweep itself does a late evaluation (it drains). One server
reports everything else past a deadline once: to the log, to a metric, to the notifier.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from cachetools import LRUCache
from sqlalchemy import select, update

from airflow_lake_provider.config.policies import StuckKind
from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.doctor.diagnosis import needs_doctor
from airflow_lake_provider.doctor.table_doctor import TableDoctor
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hudi.base_path import normalise_base_path, store_of, table_id_of
from airflow_lake_provider.hudi.heartbeat import LOCK_FILE
from airflow_lake_provider.manager.backlog import load_scopes, pressure_of_states
from airflow_lake_provider.manager.db.leases import NotificationLog, report_id_of
from airflow_lake_provider.manager.db.rows import IDS_PER_QUERY, batched, is_identified, policy_of
from airflow_lake_provider.manager.db.schema import lake_table
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
from airflow_lake_provider.manager.scheduling import is_manager_run
from airflow_lake_provider.metrics import (
    BACKLOG_CORE_HOURS,
    BACKLOG_PRESSURE,
    BACKLOG_WAITING,
    DEADLINES,
    HOLES,
    OVERDUE,
    REPAIRS,
    STUCK,
    STUCK_PROBLEMS,
    NoMetrics,
)
from airflow_lake_provider.planner.ranking import DAY_MS, HOUR_MS, Pressure
from airflow_lake_provider.planner.rules import Urgency

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import RowMapping
    from sqlalchemy.orm import Session

    from airflow_lake_provider.config.access import Audience
    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.doctor.diagnosis import Finding
    from airflow_lake_provider.doctor.repairs import Repair
    from airflow_lake_provider.manager.db.operations import RunHour, RunPage, RunSearch
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.instances import Notifier, RunFacts
    from airflow_lake_provider.metrics import Metrics
    from airflow_lake_provider.planner.table_view import TableViewCache
    from airflow_lake_provider.storage.table_storage import Storage

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
        """Let runs that wait for a slot since half of `start_within_s` come first: urgent ones may not starve them."""
        old = [run.run_id for run in runs if _waits_since(run, now_ms) > run.limit_ms("start_within_s") // 2]
        if not old:
            return
        raised = 0
        with self._registry.transaction() as session:
            for some in batched(old, IDS_PER_QUERY):
                raised += self._gateway.raise_priority(session, some, Urgency.AGED)
        if raised:
            log.info("%d runs that wait for a slot for long now come before others", raised)

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


# --- Repairs that the doctor may do by itself on the tables whose policy names them; people are notified of the rest
#
# `POST /sweep` calls it, so each run of `lake_watch` does. It starts no repair that is a run of a service: the loop
# decides those like all others, by the same timeline.
#
# A whole examination takes some eight calls of the store. What it searches for shows on the timeline, which heartbeats
# keep in memory, or in its folder's lock, but for what develops over hours (foreign zones, an archive that stands
# still). So after an examination that found nothing, a stat of the lock is enough for an hour, or for a day when the
# timeline stays as it was.

EVERY_MS = 600_000
"""How often a server examines a table: the problems that it searches for last longer than that."""
WHOLE_EVERY_MS = 3_600_000
"""How often it examines a table whole that changes, although nothing indicates a problem."""
WHOLE_AT_LATEST_MS = 86_400_000
"""The same for a table that does not change."""
ROUND_S = 30.0
"""The round begins no table later than this, so that slow stores do not delay it; the next one goes on."""
THREADS = 4
_HANGS_S = 5.0
"""So long a round waits for the tables that it has begun; a store that answers later gets one thread until it does."""
_PAGE = 500
_MOST_WELL = 20_000


_BY_HAND = frozenset(
    {StuckKind.UNREADABLE_FILE, StuckKind.INDEX_WITHOUT_PLAN, StuckKind.FOREIGN_TIME_ZONE, StuckKind.DISORDERED_WRITES}
)
_BY_DOCTOR = frozenset({StuckKind.ORPHANED_LOCK, StuckKind.OVERTAKEN_LOG_COMPACTION})


def needs_people(repair: Repair) -> bool:
    """Whether this problem needs a person.

    Services repair all others: one is due, or running, or its decision gives the reason why not. A refused repair waits
    until it is certain that no owner is alive.
    """
    return repair.kind in _BY_HAND or (repair.kind in _BY_DOCTOR and not repair.refusal)


@dataclass
class _Turns:
    """What the threads of a round share."""

    rows: Iterator[RowMapping] = field(default_factory=lambda: iter(()))
    had: list[str] = field(default_factory=list)
    """Tables that need no examination now, whose turn is over."""
    in_store: Counter[str] = field(default_factory=Counter)
    repaired: int = 0


class RepairRound:
    """Examines tables in turn. Several processes may run it concurrently: one of them examines each table."""

    def __init__(  # noqa: PLR0913 - the parts of one process, each used as it is
        self,
        registry: Registry,
        load_tables: Callable[[], TablesConfig],
        open_table: Callable[[str], Storage],
        metrics: Metrics | None = None,
        stuck: StuckNotifier | None = None,
        views: TableViewCache | None = None,
        threads: int = THREADS,
    ) -> None:
        self._registry = registry
        self._load_tables = load_tables
        self.open_table = open_table
        self._metrics = metrics if metrics is not None else NoMetrics()
        self._stuck = stuck
        self._views = views
        self._threads = threads
        self._well: LRUCache[str, tuple[int, str]] = LRUCache(_MOST_WELL)
        """When the last whole examination of a table found nothing, ms since the epoch, and its timeline's version."""
        self._hanging: Counter[str] = Counter()
        """Threads by the store that they wait for since a round ended."""
        self._lock = threading.Lock()
        self._is_running = False
        self._repaired = 0

    def start(self) -> int:
        """Begin a round in a thread of its own unless one is going on; return the repairs since the last call."""
        with self._lock:
            repaired, self._repaired = self._repaired, 0
            if self._is_running:
                return repaired
            self._is_running = True
        # A daemon: a store that does not answer must not keep the process from ending.
        threading.Thread(target=self._run_and_count, name="lake-repairs", daemon=True).start()
        return repaired

    def _run_and_count(self) -> None:
        try:
            done = self.run()
        except Exception:  # the outermost call of this thread; the next sweep begins another round
            log.exception("a round of repairs failed")
            done = 0
        with self._lock:
            self._repaired += done
            self._is_running = False

    def run(self) -> int:
        """Examine the tables that are due, repair what their policies allow, and return the number of repairs.

        Notifies people of the problems that are left and wait for no service.
        """
        tables, ends_s = self._load_tables(), time.monotonic() + ROUND_S
        turns = _Turns()
        while (page := self._list_due()) and time.monotonic() <= ends_s:
            wanted = [row for row in page if self._may_need_examination(row, tables)]
            ids = {row["table_id"] for row in wanted}
            turns.had = [row["table_id"] for row in page if row["table_id"] not in ids]
            turns.rows = iter(wanted)
            threads = [
                threading.Thread(target=self._take_turns, args=(turns, tables, ends_s), daemon=True)
                for _ in range(min(self._threads, len(wanted)))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(max(ends_s - time.monotonic(), 0.0) + _HANGS_S)
            with self._lock:
                had, turns.had = turns.had, []
                turns.rows = iter(())
                self._hanging.update(turns.in_store)
                turns.in_store.clear()
            self._skip(had)
        self._metrics.incr(REPAIRS, turns.repaired)
        return turns.repaired

    def _take_turns(self, turns: _Turns, tables: TablesConfig, ends_s: float) -> None:
        """Examine one table after the other, until none is left or the round ends."""
        while time.monotonic() <= ends_s:
            with self._lock:
                row = next(turns.rows, None)
                if row is None:
                    return
                store = store_of(row["base_path"])
                if self._hanging[store]:
                    turns.had.append(row["table_id"])  # the others of that store have their turn later
                    continue
                turns.in_store[store] += 1
            done = self._take_turn(row, tables)
            with self._lock:
                counts = turns.in_store if turns.in_store[store] else self._hanging
                counts[store] -= 1
                if done is None:
                    turns.had.append(row["table_id"])
                turns.repaired += done or 0

    def _take_turn(self, row: RowMapping, tables: TablesConfig) -> int | None:
        """Return the repairs of a table's examination; None when it needs none now."""
        try:
            if self._is_well(row):
                return None
            if not self._take(row["table_id"]):
                return 0
            return self._examine(row, policy_of(row, tables, self.open_table))
        except (LakeError, OSError) as error:
            log.warning("table %s is not repaired: %s", row["base_path"], error)
            return None
        except Exception:  # an unexpected error of one table, a library's, must not end the others' turns
            log.exception("the examination of table %s failed unexpectedly", row["base_path"])
            return None

    def _is_well(self, row: RowMapping) -> bool:
        """Whether nothing of the table indicates a problem, and it was examined as a whole not long ago."""
        seen = None if self._views is None else self._views.find_snapshot(row["base_path"], 0, math.inf)
        with self._lock:
            examined_ms, version = self._well.get(row["table_id"], (0, ""))
        if seen is None or row["problem"] or needs_doctor(seen):
            return False
        is_changed = seen.version != version
        if self._registry.now_ms() - examined_ms > (WHOLE_EVERY_MS if is_changed else WHOLE_AT_LATEST_MS):
            return False
        storage = self.open_table(row["base_path"])
        # Hudi refuses the lock provider with that file where a store cannot move a file in one step.
        return not storage.moves_at_once or storage.stat(LOCK_FILE) is None

    def _list_due(self) -> Sequence[RowMapping]:
        """Return tables whose last examination is `EVERY_MS` ago, the oldest first; not their decisions."""
        table = lake_table.c
        names = ("table_id", "base_path", "table_name", "identified_ms", "problem", "is_only_discovered")
        with self._registry.transaction() as session:
            due_ms = self._registry.clock.read_ms(session) - EVERY_MS
            query = (
                select(*(table[name] for name in names))
                .where(table.examined_ms <= due_ms)
                .order_by(table.examined_ms)
                .limit(_PAGE)
            )
            return session.execute(query).mappings().all()

    def _skip(self, table_ids: Sequence[str]) -> None:
        """Record that tables whose policy needs no examination had their turn."""
        if table_ids:
            with self._registry.transaction() as session:
                values = {"examined_ms": self._registry.clock.read_ms(session)}
                session.execute(update(lake_table).where(lake_table.c.table_id.in_(table_ids)).values(**values))

    def _examine(self, row: RowMapping, policy: TablePolicy) -> int:
        if not self._needs_examination(policy):
            return 0
        base_path, now = row["base_path"], self._registry.now_ms
        # Reading every instant's file costs; the last evaluation has reported whether one is damaged.
        doctor = TableDoctor(self.open_table(base_path), policy, "manager", now, reads_all=bool(row["problem"]))
        left = doctor.examine()
        if not left and self._views is not None:
            seen = self._views.find_snapshot(base_path, 0, math.inf)
            with self._lock:
                self._well[row["table_id"]] = (now(), seen.version if seen is not None else "")
        # Most tables are well, and one examination shows it.
        may_repair = policy.doctor.repairs and not self._is_observed(row, policy)
        records = doctor.repair_all() if left and may_repair else ()
        if records:
            left = doctor.examine()
        for record in records:
            log.warning("table %s: %s %s: %s", base_path, record.kind, record.instant, record.result)
        for finding, repair in left:
            if self._stuck is not None and policy.doctor.notify and needs_people(repair):
                self._stuck.notify(base_path, finding)
        return len(records)

    def _is_observed(self, row: RowMapping, policy: TablePolicy) -> bool:
        tables, base_path = self._load_tables(), row["base_path"]
        return bool(tables.find_why_observed(base_path, policy, is_only_discovered=row["is_only_discovered"]))

    def _may_need_examination(self, row: RowMapping, tables: TablesConfig) -> bool:
        # An announced name must not decide.
        return not is_identified(row) or self._needs_examination(tables.policy_for(row["base_path"], row["table_name"]))

    def _needs_examination(self, policy: TablePolicy) -> bool:
        return bool(policy.doctor.repairs) or (policy.doctor.notify and self._stuck is not None)

    def _take(self, table_id: str) -> bool:
        """Return whether this server is the one to examine the table now."""
        with self._registry.transaction() as session:
            now_ms = self._registry.clock.read_ms(session)
            is_due = lake_table.c.examined_ms <= now_ms - EVERY_MS
            taken: Any = session.execute(
                update(lake_table).where(lake_table.c.table_id == table_id, is_due).values(examined_ms=now_ms)
            )
            return bool(taken.rowcount)
