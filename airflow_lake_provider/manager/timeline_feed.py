"""Feeds the registry to a timeline server: its tables, and the marks that any process made since the last poll.

One indexed query per poll. So a hint reaches every timeline server, whichever API server took it, and survives the
death of all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import or_, select

from airflow_lake_provider.manager.notice import Source
from airflow_lake_provider.manager.schema import lake_table
from airflow_lake_provider.view.timeline_server import FedTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sqlalchemy import RowMapping

    from airflow_lake_provider.manager.registry import Registry
    from airflow_lake_provider.manager.unannounced import UnannouncedCommits
    from airflow_lake_provider.tables_config import TablesConfig

# Servers' clocks differ, and a mark is committed a little after its time was taken.
_OVERLAP_MS = 30_000


class RegistryFeed:
    """Implements the timeline server's HintFeed."""

    def __init__(
        self, registry: Registry, load_tables: Callable[[], TablesConfig], unannounced: UnannouncedCommits | None = None
    ) -> None:
        self._registry = registry
        self._unannounced = unannounced
        self._load_tables = load_tables
        self._seen_ms: int | None = None
        self._seen: dict[str, tuple[int, str]] = {}

    def poll(self) -> Iterable[FedTable]:
        """Return all tables at first, then those with a new mark."""
        if self._unannounced is not None:
            self._unannounced.retry()
        tables = self._load_tables()
        since_ms = None if self._seen_ms is None else self._seen_ms - _OVERLAP_MS
        is_first = since_ms is None
        fed = []
        for row in self._rows_since(since_ms):
            self._seen_ms = max(self._seen_ms or 0, row["last_notice_ms"] or 0, row["identified_ms"] or 0)
            before = self._seen.get(row["table_id"])
            now = (row["dirty_seq"], row["table_name"])
            if before == now:
                continue
            self._seen[row["table_id"]] = now
            policy = tables.policy_for(row["base_path"], row["table_name"])
            # A name that a look has found out changes the heartbeat, and asks for no look.
            is_marked = row["dirty_since_ms"] is not None if is_first else before is None or before[0] != now[0]
            fed.append(_fed(row, policy.heartbeat_timeout_s, is_marked=is_marked))
        if self._seen_ms is None:
            self._seen_ms = 0
        return fed

    def _rows_since(self, since_ms: int | None) -> list[RowMapping]:
        query = select(
            lake_table.c.table_id,
            lake_table.c.base_path,
            lake_table.c.table_name,
            lake_table.c.dirty_seq,
            lake_table.c.dirty_since_ms,
            lake_table.c.last_notice_ms,
            lake_table.c.identified_ms,
            lake_table.c.last_notice_source,
            lake_table.c.last_notice_instant,
        )
        if since_ms is not None:
            query = query.where(or_(lake_table.c.last_notice_ms > since_ms, lake_table.c.identified_ms > since_ms))
        with self._registry.transaction() as session:
            return list(session.execute(query).mappings().all())


def _fed(row: RowMapping, fixed_pause_s: float | None, *, is_marked: bool) -> FedTable:
    is_by_writer = row["last_notice_source"] == Source.COMMIT_CALLBACK
    if not is_marked:
        return FedTable(row["base_path"], is_by_writer=is_by_writer, fixed_pause_s=fixed_pause_s)
    # Marks coalesce and only the newest instant is kept, so the others' instants are not named: that asks for a look.
    return FedTable(
        base_path=row["base_path"],
        mark=row["dirty_seq"],
        is_by_writer=is_by_writer,
        fixed_pause_s=fixed_pause_s,
    )
