"""The rows of the provider's tables as values: one class for each table that others than this folder read.

A class has the columns of its table in `schema`, in any order; a test compares both.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from airflow_lake_provider.manager.db.schema import NEVER_MS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import ColumnElement, Result, Table


class Named(Protocol):
    """A row of `lake_table`, or the part of it that selects a policy."""

    @property
    def base_path(self) -> str:
        """The table's place."""

    @property
    def table_name(self) -> str:
        """The table's name."""

    @property
    def is_identified(self) -> bool:
        """Whether the name comes from hoodie.properties; otherwise it is only what a notice announced."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of `lake_table`."""

    table_id: str
    base_path: str
    table_name: str
    registered_ms: int
    database_name: str = ""
    owner: str = ""
    identified_ms: int | None = None
    has_database: bool = False
    is_only_discovered: bool = False
    dirty_seq: int = 0
    dirty_since_ms: int | None = None
    notices: int = 0
    last_notice_ms: int | None = None
    last_notice_source: str = ""
    last_notice_instant: str = ""
    claim_token: str | None = None
    claim_until_ms: int = 0
    evaluated_ms: int | None = None
    evaluation_failures: int = 0
    next_evaluation_ms: int | None = None
    retry_ms: int | None = None
    completed_time: str = ""
    changed_time: str = ""
    last_commit_ms: int | None = None
    view_version: str = ""
    decisions: str = "[]"
    problem: str = ""
    missing_since_ms: int | None = None
    holes: int = 0
    last_runs: str | None = None
    real_id: str | None = None
    examined_ms: int = 0
    announced: str = ""
    served: str = ""
    conformance: str | None = None
    health: str | None = None
    event_cursor: str | None = None

    @property
    def is_identified(self) -> bool:
        """Whether the name comes from hoodie.properties; otherwise it is only what a notice announced."""
        return self.identified_ms is not None


@dataclass(frozen=True, slots=True)
class TableNames:
    """What of a row of `lake_table` selects policies and shows progress."""

    table_id: str
    base_path: str
    table_name: str
    database_name: str
    identified_ms: int | None
    changed_time: str

    @property
    def is_identified(self) -> bool:
        """As that of `TableRow`."""
        return self.identified_ms is not None


@dataclass(frozen=True, slots=True)
class SearchRow:
    """A row of `lake_search` without the texts that only searches read."""

    table_id: str
    state: str
    severity: int
    table_name: str = ""
    database_name: str = ""
    owner: str = ""
    log_bytes: int = 0
    base_bytes: int = 0
    due_since_ms: int = 0
    last_commit_ms: int = NEVER_MS
    files: int = 0
    file_bytes: int = 0
    is_paused: bool = False
    is_observed: bool = False
    is_held: bool = False
    is_snoozed: bool = False


@dataclass(frozen=True, slots=True)
class ListedTable:
    """A table as lists show it."""

    table: TableRow
    summary: SearchRow


@dataclass(frozen=True, slots=True)
class SinkRow:
    """A row of `lake_sink`."""

    table_id: str
    sink: str
    is_configured: bool
    retire_ms: int | None
    hold: str
    ttl_s: int
    renewed_ms: int
    needs_snapshot: bool
    paused: bool
    checkpoint: str
    completed_time: str
    had_all_ms: int
    due_ms: int
    run_id: str
    running_until_ms: int
    failures: int
    retry_ms: int
    problem: str


@dataclass(frozen=True, slots=True)
class SinkOfTable:
    """A sink with what names its table."""

    sink: SinkRow
    table_name: str
    base_path: str
    owner: str


@dataclass(frozen=True, slots=True)
class HoldRow:
    """A row of `lake_hold`: what a reader holds."""

    hold_id: str
    table_id: str
    token: str
    reader: str
    reason: str
    hold: str
    at_instant: str
    created_ms: int
    known_ms: int
    is_firm: bool
    ttl_ms: int
    ends_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class HoldOfTable:
    """A reader's hold with what names its table."""

    hold: HoldRow
    table_name: str
    base_path: str


@dataclass(frozen=True, slots=True)
class ExecutorRow:
    """A row of `lake_executor`: the lease of a table's service."""

    table_id: str
    service: str
    token: str
    run_id: str
    try_number: int
    acquired_ms: int
    lease_until_ms: int


@dataclass(frozen=True, slots=True)
class SpentRow:
    """A row of `lake_spent`: a budget's hour."""

    scope: str
    hour_ms: int
    core_ms: int
    bytes: int
    arrived_core_ms: int
    arrived_bytes: int


AnyRow = TypeVar("AnyRow")


def row_from(kind: type[AnyRow], row: Mapping[Any, Any]) -> AnyRow:
    """Return the value of a class of this file from a row that has its columns, and may have others."""
    return kind(**{field.name: row[field.name] for field in fields(kind)})  # type: ignore[arg-type]


def rows_from(kind: type[AnyRow], result: Result[Any]) -> list[AnyRow]:
    """Return a query's rows, which have exactly the columns of a class of this file."""
    return [kind(**row) for row in result.mappings()]


def columns_of(kind: type[Any], table: Table) -> list[ColumnElement[Any]]:
    """Return the columns of a table that a class of this file has."""
    return [table.c[field.name] for field in fields(kind)]
