"""Repairs without being asked: what the doctor may do by itself, on the tables whose policy names it.

`POST /sweep` calls it, so each run of `lake_watch`. Repairs that are runs of services are not started here: the loop
decides them like all others, by the same timeline.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_lake_provider.doctor.treatment import TableDoctor
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.metrics import REPAIRS, NoMetrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_lake_provider.manager.registry import Registry
    from airflow_lake_provider.metrics import Metrics
    from airflow_lake_provider.tables_config import TablesConfig
    from airflow_lake_provider.timeline.storage import Storage

log = logging.getLogger(__name__)

EVERY_MS = 600_000
"""How often one process examines a table: what it looks for is stuck for longer than that."""
MOST_EXAMINED = 20
"""Tables in one round, so that a sweep ends; the others come in the next one."""
_MOST_ROWS = 10_000


class RepairRound:
    """Examines tables in turn. Several processes may do so at once: a repair of what is gone is refused."""

    def __init__(
        self,
        registry: Registry,
        load_tables: Callable[[], TablesConfig],
        open_table: Callable[[str], Storage],
        metrics: Metrics | None = None,
    ) -> None:
        self._registry = registry
        self._load_tables = load_tables
        self._open_table = open_table
        self._metrics = metrics if metrics is not None else NoMetrics()
        self._examined_ms: dict[str, int] = {}

    def run(self) -> int:
        """Examine the tables that are due, do what their policies allow, and return how many repairs were done."""
        tables, now_ms = self._load_tables(), self._registry.now_ms()
        due = [
            (row["base_path"], policy)
            for row in self._registry.list_tables(_MOST_ROWS)
            if (policy := tables.policy_for(row["base_path"], row["table_name"])).doctor.repairs
            and now_ms - self._examined_ms.get(row["base_path"], 0) >= EVERY_MS
        ]
        done = 0
        for base_path, policy in sorted(due, key=lambda pair: self._examined_ms.get(pair[0], 0))[:MOST_EXAMINED]:
            self._examined_ms[base_path] = now_ms
            try:
                doctor = TableDoctor(self._open_table(base_path), policy, "manager", self._registry.now_ms)
                records = doctor.repair_all()
            except (LakeError, OSError) as error:
                log.warning("table %s is not repaired: %s", base_path, error)
                continue
            for record in records:
                log.warning("table %s: %s %s: %s", base_path, record.shape, record.instant, record.result)
            done += len(records)
        self._metrics.incr(REPAIRS, done)
        return done
