"""What the doctor may do by itself, without being asked, on the tables whose policy names it; the rest is told.

`POST /sweep` calls it, so each run of `lake_watch`. Repairs that are runs of services are not started here: the loop
decides them like all others, by the same timeline.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, update

from airflow_lake_provider.doctor.treatment import TableDoctor
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.manager.schema import lake_table
from airflow_lake_provider.manager.table_name import is_identified, policy_of
from airflow_lake_provider.metrics import REPAIRS, NoMetrics
from airflow_lake_provider.stuck_shape import Shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import RowMapping

    from airflow_lake_provider.doctor.repairs import Repair
    from airflow_lake_provider.manager.registry import Registry
    from airflow_lake_provider.manager.stuck_tables import StuckTables
    from airflow_lake_provider.metrics import Metrics
    from airflow_lake_provider.policies import TablePolicy
    from airflow_lake_provider.tables_config import TablesConfig
    from airflow_lake_provider.timeline.storage import Storage

log = logging.getLogger(__name__)

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
