"""How a table gets from a notice to an evaluation, as values; then the registry's rows as readers see
them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, or_, select

from airflow_lake_provider.config.access import EVERYONE
from airflow_lake_provider.errors import TableUnknownError
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.manager.db.database import IDS_PER_QUERY, Database, batched
from airflow_lake_provider.manager.db.schema import lake_search, lake_table
from airflow_lake_provider.manager.db.search import audience_clauses
from airflow_lake_provider.manager.db.typed_rows import TableNames, TableRow, columns_of, rows_from
from airflow_lake_provider.planner.write_history import NO_BASE_FILES, BaseFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import ColumnElement, Select

    from airflow_lake_provider.config.access import Audience
    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.config.tables_config import TablesConfig
    from airflow_lake_provider.manager.db.typed_rows import Named
    from airflow_lake_provider.manager.health.health import PausedService
    from airflow_lake_provider.storage.table_storage import Storage


log = logging.getLogger(__name__)

# --- A notice: a caller claims that a table changed. It causes an evaluation and is never trusted


class Source(StrEnum):
    """The sender of the notice."""

    COMMIT_CALLBACK = "commit_callback"
    SERVICE_MANAGER_CLIENT = "service_manager_client"
    HINT = "hint"
    """A task of the provider: a service ended, or a sensor saw a commit without a notice."""
    CONFIG = "config"
    DISCOVERY = "discovery"
    """The search of a root found the table."""
    HEARTBEAT = "heartbeat"
    """The timeline server refreshed a silent table and found a commit without a notice."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One table changed, as the sender claims.

    `base_path` is normalised. `instants` are requested times, oldest first, and may be empty.
    """

    base_path: str
    table_name: str
    source: Source
    instants: tuple[str, ...] = ()
    database: str = ""
    owner: str = ""
    is_own: bool = False
    """A task of the provider reports the end of a service; `instants` are those that it completed."""


# --- What the registry makes of it: a mark, then a lease, then the result of an evaluation


@dataclass(frozen=True, slots=True)
class Mark:
    """A durable dirty mark: an evaluation that begins after it sees the change that caused it."""

    table_id: str
    seq: int
    base_path: str
    """As the registry spells it: the first notice's spelling is kept, since jobs and readers use the path."""


@dataclass(frozen=True, slots=True)
class TableLease:
    """The right to evaluate one dirty table until the lease ends."""

    table_id: str
    base_path: str
    table_name: str
    database: str
    token: str
    dirty_seq: int
    dirty_since_ms: int
    evaluation_failures: int
    evaluated_ms: int | None = None
    """When the table was evaluated before; None when it never was."""
    is_retry: bool = False
    """The loop's own time to retry has come; otherwise only the marks up to `dirty_seq` made the table due."""
    last_runs: str | None = None
    """The services' last runs, as text (`planner.last_runs`)."""
    decisions: str = "[]"
    """The decisions of the last evaluation that did not fail, as the registry stores them."""
    is_identified: bool = False
    """Name and database come from hoodie.properties; otherwise they are what a notice announced."""
    has_database: bool = False
    """hoodie.properties name a database; otherwise `database` is what a commit callback announced."""
    is_only_discovered: bool = False
    """Discovery registered it, and no writer has announced a commit since."""
    real_id: str | None = None
    """`table_id_of` where a local path leads, as the last evaluation found it."""
    registered_ms: int = 0
    announced: str = ""
    """The newest commits that a commit callback announced (`parse_instants`)."""
    served: str = ""
    """The newest instants that tasks reported as their own, with the moments of the reports (`parse_instants`)."""
    conformance: str | None = None
    """What the checks of the table's writers proved, as text (`planner.conformance`)."""
    owner: str = ""
    """The table's owner, as a commit callback named it."""
    source: str = ""
    """What sent the last notice (`Source`)."""
    last_notice_ms: int = 0
    """When it came; 0 before the first one."""
    event_cursor: str | None = None
    """Which commits have become events of the table's asset, as text (`manager.commit_events`)."""


@dataclass(frozen=True, slots=True)
class FirstLease:
    """The lease of the table that has waited longest, if one waited."""

    lease: TableLease | None
    are_more: bool
    """Whether others waited behind it."""


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """What an evaluation of a table found.

    `next_evaluation_ms` is when the table counts as silent. `retry_ms` is when the loop evaluates the table again
    without a notice: a back-off ends, a run should have ended, a failed evaluation is due again.
    """

    next_evaluation_ms: int
    retry_ms: int | None = None
    completed_time: str = ""
    changed_time: str = ""
    last_commit_ms: int | None = None
    """`changed_time` as a moment; None of a table without a write, or when the zone does not say it."""
    view_version: str = ""
    decisions_json: str = "[]"
    holes: int = 0
    base_files: BaseFiles = NO_BASE_FILES
    problem: str = ""
    failed: bool = False
    is_missing: bool = False
    """No table is at the base path; only with `failed`."""
    last_runs_json: str = ""
    """Set by an evaluation that did not fail."""
    conformance: str | None = None
    """Set by an evaluation that checked the table's writers; None leaves what is stored."""
    observed: str = ""
    """Why the manager starts nothing on the table; empty when it does."""
    paused: Mapping[str, PausedService] = field(default_factory=lambda: MappingProxyType({}))
    """Paused services."""
    left_out: tuple[str, ...] = ()
    """What the table sets of its own policy, and may not: a sentence each."""


class TableRows(Database):
    """Reads `lake_table`."""

    def list_unknown(self, table_ids: Sequence[str]) -> tuple[str, ...]:
        """Return which of the tables the registry does not have, in their order."""
        known: set[str] = set()
        with self.transaction() as session:
            for some in batched(table_ids, IDS_PER_QUERY):
                known.update(session.scalars(select(lake_table.c.table_id).where(lake_table.c.table_id.in_(some))))
        return tuple(table_id for table_id in table_ids if table_id not in known)

    def find(self, table_id: str) -> TableRow | None:
        """Return a table's row, or None."""
        with self.transaction() as session:
            found = session.execute(select(lake_table).where(lake_table.c.table_id == table_id))
            return next(iter(rows_from(TableRow, found)), None)

    def get(self, table_id: str) -> TableRow:
        """Return a table's row; raise TableUnknownError."""
        row = self.find(table_id)
        if row is None:
            raise TableUnknownError(f"no table {table_id!r} in the registry")
        return row

    def list_tables(self, limit: int = 1000, after: str = "", audience: Audience = EVERYONE) -> list[TableRow]:
        """Return rows in the order of their ids, those after `after` (exclusive), that an audience may see."""
        with self.transaction() as session:
            query = _seen_by(audience).where(lake_table.c.table_id > after).order_by(lake_table.c.table_id)
            return rows_from(TableRow, session.execute(query.limit(limit)))

    def list_names(self, limit: int = 1000, after: str = "") -> list[TableNames]:
        """Return what selects policies and shows progress, without decisions, in the order of `list_tables`."""
        table = lake_table.c
        columns = columns_of(TableNames, lake_table)
        with self.transaction() as session:
            query = select(*columns).where(table.table_id > after).order_by(table.table_id).limit(limit)
            return rows_from(TableNames, session.execute(query))

    def list_identities(self) -> list[str]:
        """Return what identifies the base path of each table, with a slash behind, in no order."""
        with self.transaction() as session:
            return list(session.scalars(select(lake_search.c.identity)))

    def find_by_name(self, table_name: str, limit: int = 100) -> list[TableRow]:
        """Return the tables of this name, in the order of their ids."""
        with self.transaction() as session:
            query = select(lake_table).where(lake_table.c.table_name == table_name).order_by(lake_table.c.table_id)
            return rows_from(TableRow, session.execute(query.limit(limit)))

    def list_silent(self, limit: int = 1000, audience: Audience = EVERYONE) -> list[TableRow]:
        """Return the tables that are due for an evaluation without a notice, longest overdue first."""
        now_ms = self.now_ms()
        with self.transaction() as session:
            query = (
                _seen_by(audience)
                .where(lake_table.c.next_evaluation_ms <= now_ms, lake_table.c.dirty_since_ms.is_(None))
                .order_by(lake_table.c.next_evaluation_ms)
                .limit(limit)
            )
            return rows_from(TableRow, session.execute(query))

    def count_holes(self) -> int:
        """Return how many holes the last evaluations saw, over all tables."""
        with self.transaction() as session:
            holes = select(func.coalesce(func.sum(lake_table.c.holes), 0)).where(lake_table.c.holes > 0)
            return int(session.execute(holes).scalar_one())

    def count_waiting(self, most: int = 1000) -> int:
        """Return how many tables wait for an evaluation, by a mark or by their own time, at most `most`."""
        with self.transaction() as session:
            some = select(lake_table.c.table_id).where(_is_waiting(self.now_ms())).limit(most).subquery()
            return int(session.execute(select(func.count()).select_from(some)).scalar_one())

    def list_waiting(self, limit: int = 1000) -> list[TableRow]:
        """Return the tables that wait for an evaluation, by a mark or by their own time, longest waiting first."""
        since_ms = func.coalesce(lake_table.c.dirty_since_ms, lake_table.c.retry_ms)
        with self.transaction() as session:
            query = select(lake_table).where(_is_waiting(self.now_ms())).order_by(since_ms).limit(limit)
            return rows_from(TableRow, session.execute(query))

    def list_missing(self, since_ms: int, limit: int = 100) -> list[TableRow]:
        """Return tables that no evaluation has found at their path since a time or longer, the longest first."""
        missing_ms = lake_table.c.missing_since_ms
        with self.transaction() as session:
            query = select(lake_table).where(missing_ms <= since_ms).order_by(missing_ms).limit(limit)
            return rows_from(TableRow, session.execute(query))


def _seen_by(audience: Audience) -> Select[Any]:
    clauses = audience_clauses(audience)
    query = select(lake_table)
    if not clauses:
        return query
    return query.join(lake_search, lake_search.c.table_id == lake_table.c.table_id).where(*clauses)


def _is_waiting(now_ms: int) -> ColumnElement[bool]:
    return or_(lake_table.c.dirty_since_ms.is_not(None), lake_table.c.retry_ms <= now_ms)


def policy_of(row: Named, tables: TablesConfig, open_table: Callable[[str], Storage]) -> TablePolicy:
    """Return the policy of a table of the registry, for callers that may delete something or release a hold.

    The manager's evaluation stores the name in the row. Before the first one this reads the properties, and raises what
    reading them raises.
    """
    name = row.table_name if row.is_identified else load_table_properties(open_table(row.base_path)).name
    return tables.policy_for(row.base_path, name)
