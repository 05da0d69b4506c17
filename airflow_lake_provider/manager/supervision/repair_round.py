"""Examines tables in turn: repairs what the doctor may do by itself where a policy names it, notifies of the rest.

`POST /sweep` calls it, so each run of `lake_watch` does. It starts no repair that is a run of a service: the loop
decides those like all others, by the same timeline.

A whole examination takes some eight calls of the store. What it searches for shows on the timeline, which heartbeats
keep in memory, or in its folder's lock, but for what develops over hours (foreign zones, an archive that stands
still). So after an examination that found nothing, a stat of the lock is enough for an hour, or for a day when the
timeline stays as it was.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cachetools import LRUCache
from sqlalchemy import select, update

from airflow_lake_provider.config.policies import StuckKind
from airflow_lake_provider.doctor.diagnosis import needs_doctor
from airflow_lake_provider.doctor.repairs import FOR_PEOPLE, WITHOUT_REPAIR
from airflow_lake_provider.doctor.table_doctor import TableDoctor
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hudi.active_writes import LOCK_FILE
from airflow_lake_provider.hudi.base_path import store_of
from airflow_lake_provider.manager.db.health import find_suspects
from airflow_lake_provider.manager.db.rows import policy_of
from airflow_lake_provider.manager.db.schema import lake_table
from airflow_lake_provider.manager.db.typed_rows import columns_of, rows_from
from airflow_lake_provider.manager.health.health import FoundBy, OpenFinding
from airflow_lake_provider.metrics import FIGURES_ERROR, REPAIRS, WRONG_FIGURES, NoMetrics
from airflow_lake_provider.planner.facts import TableFacts, check_figures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.config.tables_config import TablesConfig
    from airflow_lake_provider.doctor.diagnosis import Finding
    from airflow_lake_provider.doctor.repairs import Repair
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.metrics import Metrics
    from airflow_lake_provider.planner.table_view import TableViewCache
    from airflow_lake_provider.storage.table_storage import Storage

log = logging.getLogger(__name__)

EVERY_MS = 600_000
"""How often a server examines a table: the problems that it searches for last longer than that."""
WHOLE_EVERY_MS = 3_600_000
"""How often it examines a table whole that changes, although nothing indicates a problem."""
WHOLE_AT_LATEST_MS = 86_400_000
"""The same for a table that does not change."""
ROUND_S = 30.0
"""The round begins no table later than this, so that slow stores do not delay it; the next one goes on."""
FIGURES_SHARE = 0.05
"""So many of the examinations compare the table's figures with its files: at most four listings more."""
MAX_FIGURES_ERROR = 0.25
"""The predictions' bound for bytes."""
THREADS = 4
_HANGS_S = 5.0
"""So long a round waits for the tables that it has begun; a store that answers later gets one thread until it does."""
_PAGE = 500
_MAX_WELL = 20_000


_FOR_PEOPLE = (FOR_PEOPLE | WITHOUT_REPAIR.keys() | {StuckKind.LOST_METADATA_TABLE}) - {StuckKind.UNGUARDED_SERVICE}
"""The manager executes a plan of a service that no process guards, `doctor.unguarded_after_s` after its last sign."""
_BY_DOCTOR = frozenset({StuckKind.ORPHANED_LOCK, StuckKind.OVERTAKEN_LOG_COMPACTION, StuckKind.EMPTY_PLAN})


def needs_people(repair: Repair) -> bool:
    """Whether this problem needs a person.

    Services repair all others: one is due, or running, or its decision gives the reason why not. A refused repair waits
    until it is certain that no owner is alive.
    """
    return repair.kind in _FOR_PEOPLE or repair.needs_request or (repair.kind in _BY_DOCTOR and not repair.refusal)


@dataclass(frozen=True, slots=True)
class RepairRow:
    """What a round reads of a row of `lake_table`."""

    table_id: str
    base_path: str
    table_name: str
    identified_ms: int | None
    problem: str
    is_only_discovered: bool

    @property
    def is_identified(self) -> bool:
        """As that of `TableRow`."""
        return self.identified_ms is not None


def open_finding_of(finding: Finding) -> OpenFinding:
    """Return what a table's state has of a finding."""
    blocks = f" ({'; '.join(finding.blocks)})" if finding.blocks else ""
    cause = f"{finding.message}; it holds up {finding.holds_up}{blocks}"
    return OpenFinding(finding.kind.value, finding.instant, cause, finding.repair)


@dataclass
class _Turns:
    """What the threads of a round share."""

    rows: Iterator[RepairRow] = field(default_factory=lambda: iter(()))
    had: list[str] = field(default_factory=list)
    """Tables whose turn is over, because they need no examination now."""
    stuck: frozenset[str] = frozenset()
    """Tables with open findings, of which only an examination shows that they are gone, or with new ones of a check."""
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
        views: TableViewCache | None = None,
        threads: int = THREADS,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._registry = registry
        self._chance = chance
        self._load_tables = load_tables
        self.open_table = open_table
        self._metrics = metrics if metrics is not None else NoMetrics()
        self._views = views
        self._threads = threads
        self._well: LRUCache[str, tuple[int, str]] = LRUCache(_MAX_WELL)
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

        What is left and waits for no service becomes a part of the table's state, which notifies people.
        """
        tables = self._load_tables()
        ends_s = time.monotonic() + ROUND_S
        with self._registry.transaction() as session:
            since_ms = self._registry.clock.read_ms(session) - WHOLE_EVERY_MS
            turns = _Turns(stuck=find_suspects(session, since_ms))
        while (page := self._list_due()) and time.monotonic() <= ends_s:
            wanted = [row for row in page if self._may_need_examination(row, tables)]
            ids = {row.table_id for row in wanted}
            turns.had = [row.table_id for row in page if row.table_id not in ids]
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
                store = store_of(row.base_path)
                if self._hanging[store]:
                    turns.had.append(row.table_id)  # the others of that store have their turn later
                    continue
                turns.in_store[store] += 1
            done = self._take_turn(row, tables, is_stuck=row.table_id in turns.stuck)
            with self._lock:
                counts = turns.in_store if turns.in_store[store] else self._hanging
                counts[store] -= 1
                if done is None:
                    turns.had.append(row.table_id)
                turns.repaired += done or 0

    def _take_turn(self, row: RepairRow, tables: TablesConfig, *, is_stuck: bool) -> int | None:
        """Return the repairs of a table's examination; None when it needs none now."""
        try:
            if not is_stuck and self._is_well(row):
                return None
            if not self._take(row.table_id):
                return 0
            return self._examine(row, policy_of(row, tables, self.open_table))
        except (LakeError, OSError) as error:
            log.warning("table %s is not repaired: %s", row.base_path, error)
            return None
        except Exception:  # an unexpected error of one table, a library's, must not end the others' turns
            log.exception("the examination of table %s failed unexpectedly", row.base_path)
            return None

    def _is_well(self, row: RepairRow) -> bool:
        """Whether nothing of the table indicates a problem, and it was examined as a whole not long ago."""
        seen = None if self._views is None else self._views.find_snapshot(row.base_path, 0, math.inf)
        with self._lock:
            examined_ms, version = self._well.get(row.table_id, (0, ""))
        if seen is None or row.problem or needs_doctor(seen):
            return False
        is_changed = seen.version != version
        if self._registry.now_ms() - examined_ms > (WHOLE_EVERY_MS if is_changed else WHOLE_AT_LATEST_MS):
            return False
        storage = self.open_table(row.base_path)
        # Hudi refuses the lock provider with that file where a store cannot move a file in one step.
        return not storage.moves_at_once or storage.stat(LOCK_FILE) is None

    def _list_due(self) -> Sequence[RepairRow]:
        """Return tables whose last examination is `EVERY_MS` ago, the oldest first; not their decisions."""
        table = lake_table.c
        with self._registry.transaction() as session:
            due_ms = self._registry.clock.read_ms(session) - EVERY_MS
            query = (
                select(*columns_of(RepairRow, lake_table))
                .where(table.examined_ms <= due_ms)
                .order_by(table.examined_ms)
                .limit(_PAGE)
            )
            return rows_from(RepairRow, session.execute(query))

    def _skip(self, table_ids: Sequence[str]) -> None:
        """Record that tables whose policy needs no examination had their turn."""
        if table_ids:
            with self._registry.transaction() as session:
                values = {"examined_ms": self._registry.clock.read_ms(session)}
                session.execute(update(lake_table).where(lake_table.c.table_id.in_(table_ids)).values(**values))

    def _examine(self, row: RepairRow, policy: TablePolicy) -> int:
        if not self._needs_examination(policy):
            return 0
        base_path = row.base_path
        now = self._registry.now_ms
        # Reading every instant's file costs; the last evaluation has reported whether one is damaged.
        doctor = TableDoctor(self.open_table(base_path), policy, "manager", now, reads_all=bool(row.problem))
        left = doctor.examine()
        if not left and self._views is not None:
            seen = self._views.find_snapshot(base_path, 0, math.inf)
            with self._lock:
                self._well[row.table_id] = (now(), seen.version if seen is not None else "")
        if self._chance() < FIGURES_SHARE:
            self._check_figures(base_path)
        # Most tables are well, and one examination shows it.
        may_repair = policy.doctor.repairs and not self._is_left_alone(row, policy)
        records = doctor.repair_all() if left and may_repair else ()
        if records:
            left = doctor.examine()
        for record in records:
            log.warning("table %s: %s %s: %s", base_path, record.kind, record.instant, record.result)
        stuck = [finding for finding, repair in left if needs_people(repair)]
        self._registry.keep_findings(row.table_id, FoundBy.DOCTOR, [open_finding_of(one) for one in stuck])
        return len(records)

    def _check_figures(self, base_path: str) -> None:
        """Compare what ranks the table's compaction with its files: commit metadata alone say how large they are."""
        if self._views is None:
            return
        facts = TableFacts(self._views.refresh(base_path))
        check = check_figures(self.open_table(base_path), facts, random.sample)
        if check is None:
            return
        self._metrics.gauge(FIGURES_ERROR, check.error)
        if check.error > MAX_FIGURES_ERROR:
            self._metrics.incr(WRONG_FIGURES)
            log.warning(
                "table %s: its commit metadata show %d bytes in %d log files of %d partitions, a listing %d bytes "
                "in %d: ranking and predictions of its compaction are wrong by as much",
                base_path,
                check.expected_bytes,
                check.expected_files,
                check.partitions,
                check.listed_bytes,
                check.listed_files,
            )

    def _is_left_alone(self, row: RepairRow, policy: TablePolicy) -> bool:
        tables = self._load_tables()
        base_path = row.base_path
        why = tables.find_why_observed(base_path, policy, is_only_discovered=row.is_only_discovered)
        return bool(why) or policy.is_paused_at(self._registry.now_ms())

    def _may_need_examination(self, row: RepairRow, tables: TablesConfig) -> bool:
        # An announced name must not decide.
        return not row.is_identified or self._needs_examination(tables.policy_for(row.base_path, row.table_name))

    def _needs_examination(self, policy: TablePolicy) -> bool:
        return bool(policy.doctor.repairs) or policy.doctor.notify

    def _take(self, table_id: str) -> bool:
        """Return whether this server is the one to examine the table now."""
        with self._registry.transaction() as session:
            now_ms = self._registry.clock.read_ms(session)
            is_due = lake_table.c.examined_ms <= now_ms - EVERY_MS
            taken: Any = session.execute(
                update(lake_table).where(lake_table.c.table_id == table_id, is_due).values(examined_ms=now_ms)
            )
            return bool(taken.rowcount)
