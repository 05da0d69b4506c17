"""Search the registry as people do: tables by name, path, state and database, worst first.

A search reads the short rows of `lake_search`, then the registry's rows of one page. Pages of the API follow a key, not
a number: a row that does not change meanwhile is on exactly one page.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, case, false, func, not_, or_, select

from airflow_lake_provider.config.access import Audience
from airflow_lake_provider.errors import MalformedRequestError
from airflow_lake_provider.hudi.base_path import identity_of, normalise_root
from airflow_lake_provider.manager.db.schema import NEVER_MS, lake_search, lake_table
from airflow_lake_provider.manager.db.typed_rows import ListedTable, SearchRow, TableRow, columns_of, rows_from
from airflow_lake_provider.manager.health.health import (
    LEAST_ATTENTION,
    OWED,
    SEVERITY,
    MarkKind,
    TableState,
    parse_decisions,
    state_of_decision,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import ColumnElement
    from sqlalchemy.orm import Session

    from airflow_lake_provider.manager.db.database import Database
    from airflow_lake_provider.planner.write_history import BaseFiles

PAGE_SIZE = 100
ROWS_PER_QUERY = 20
"""With a longer list PostgreSQL reads all of a registry of a few thousand tables."""


def _load_rows(session: Session, table_ids: Sequence[str], audience: Audience) -> Mapping[str, TableRow]:
    """Return the registry's rows of one page by table id: those that exist and that the audience may see."""
    parts = (table_ids[begin : begin + ROWS_PER_QUERY] for begin in range(0, len(table_ids), ROWS_PER_QUERY))
    queries = (select(lake_table).where(lake_table.c.table_id.in_(part)) for part in parts)
    rows = (row for query in queries for row in rows_from(TableRow, session.execute(query)))
    # Some databases compare without case.
    return {row.table_id: row for row in rows if audience.covers(row.base_path)}


def search_names(table_name: str, database: str, base_path: str, owner: str = "") -> Mapping[str, Any]:
    """Return what `lake_search` has of a table's name, place and owner."""
    text = "\n".join((table_name, database, base_path)).lower()
    identity = f"{identity_of(base_path)}/"
    names = {"table_name": table_name, "database_name": database, "owner": owner}
    return {**names, "identity": identity, "search_text": text}


def search_clauses(text: str, owner: str) -> list[ColumnElement[bool]]:
    """Return the conditions of a row of `lake_search` to have a text in its name, database or path, and an owner."""
    wanted = text.strip().lower()
    clauses = [lake_search.c.search_text.contains(wanted, autoescape=True)] if wanted else []
    return [*clauses, lake_search.c.owner == owner] if owner else clauses


def audience_clauses(audience: Audience) -> list[ColumnElement[bool]]:
    """Return the conditions of a row of `lake_search` to be of a table that the audience may see."""
    is_hidden = or_(false(), *map(_is_below, audience.hidden))
    is_shown = or_(false(), *map(_is_below, audience.shown))
    clauses = [or_(not_(is_hidden), is_shown)] if audience.hidden else []
    return clauses if audience.only is None else [*clauses, or_(false(), *map(_is_below, audience.only))]


def _is_below(root: str) -> ColumnElement[bool]:
    prefix = f"{identity_of(normalise_root(root)).rstrip('/')}/"
    # Not LIKE, which ignores case on SQLite.
    return func.substr(lake_search.c.identity, 1, len(prefix)) == prefix


# --- What a list sorts by besides the state, in short columns


def search_sizes(decisions_json: str) -> dict[str, int]:
    """Return what `lake_search` has of an evaluation's decisions besides the state.

    Bytes are those of the backlog of compaction. `due_since_ms` is since when the service has been due that has waited
    longest and does not run; 0: none waits.
    """
    decisions = parse_decisions(decisions_json)
    sizes = next((d.get("evidence") or {} for d in decisions if d.get("service") == "compaction"), {})
    since_ms = [_whole(d.get("since_ms")) for d in decisions if state_of_decision(d) in OWED]
    return {
        "log_bytes": _whole(sizes.get("log_bytes")),
        "base_bytes": _whole(sizes.get("base_bytes")),
        "due_since_ms": min((since for since in since_ms if since > 0), default=0),
    }


def search_files(base_files: BaseFiles, last_commit_ms: int | None) -> dict[str, int]:
    """Return what `lake_search` has of an evaluation's base files and of its newest commit."""
    commit_ms = NEVER_MS if last_commit_ms is None else last_commit_ms
    return {"files": base_files.files, "file_bytes": base_files.size_bytes, "last_commit_ms": commit_ms}


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


# --- Pages of tables


def _column_of(mark: MarkKind) -> ColumnElement[bool]:
    """Return the column that says whether a table has a mark (`health.search_health`)."""
    return lake_search.c[f"is_{mark.value}"]


class Sort(StrEnum):
    """The order of a list of tables."""

    WORST = "worst"
    """By state, the worst first; the largest backlog first within one."""
    BACKLOG = "backlog"
    """The most bytes in log files first."""
    NAME = "name"
    COMMIT = "commit"
    """The longest without a commit first; tables without one come last."""
    SIZE = "size"
    """The most bytes in base files first."""


@dataclass(frozen=True, slots=True)
class TableSearch:
    """Which tables, in what order, after which key (exclusive; empty: from the beginning)."""

    text: str = ""
    states: tuple[TableState, ...] = ()
    database: str = ""
    sort: Sort = Sort.WORST
    after: tuple[Any, ...] = ()
    limit: int = PAGE_SIZE
    audience: Audience = field(default_factory=Audience)
    owner: str = ""
    mark: MarkKind | None = None
    """Only those with such a mark."""
    is_reverse: bool = False
    """The order turned around."""


@dataclass(frozen=True, slots=True)
class TablePageFound:
    """One page, how many tables match on all pages, and the key of the next page; `()` on the last one."""

    rows: tuple[ListedTable, ...]
    total: int
    after: tuple[Any, ...]


_KEYS: Mapping[Sort, tuple[tuple[str, bool], ...]] = MappingProxyType(
    {
        Sort.WORST: (("severity", True), ("log_bytes", True), ("table_id", True)),
        Sort.BACKLOG: (("log_bytes", True), ("table_id", True)),
        Sort.NAME: (("table_name", False), ("table_id", False)),
        Sort.COMMIT: (("last_commit_ms", False), ("table_id", False)),
        Sort.SIZE: (("file_bytes", True), ("table_id", True)),
    }
)
"""The columns of each order, with whether it descends; each is an index."""
MAX_NUMBER = (1 << 63) - 1
"""Limit of a database's integers."""
KEY_TYPES: Mapping[Sort, tuple[type, ...]] = MappingProxyType(
    {
        Sort.WORST: (int, int, str),
        Sort.BACKLOG: (int, str),
        Sort.NAME: (str, str),
        Sort.COMMIT: (int, str),
        Sort.SIZE: (int, str),
    }
)


def read_key(text: str | bytes, types: Sequence[type]) -> tuple[Any, ...]:
    """Return the place in an order that a caller sends as JSON; nothing for an empty list.

    Raises MalformedRequestError for what no page of that order ended with, and what no database takes.
    """
    try:
        key = json.loads(text)
        is_key = isinstance(key, list) and (not key or [type(part) for part in key] == list(types))
        if is_key and all(_is_storable(part) for part in key):
            return tuple(key)
    except (ValueError, RecursionError):
        pass
    raise MalformedRequestError("after: not the `next` of a page in this order; begin again without it")


def _is_storable(part: int | str) -> bool:
    if isinstance(part, int):
        return abs(part) <= MAX_NUMBER
    part.encode()  # half of a surrogate pair is a ValueError
    return "\0" not in part


def page_of_tables(database: Database, search: TableSearch) -> TablePageFound:
    """Return a page of the tables that match."""
    short = lake_search.c
    matches = [*search_clauses(search.text, search.owner), *audience_clauses(search.audience)]
    if search.states:
        matches.append(short.severity.in_([SEVERITY[state] for state in search.states]))
    if search.database:
        matches.append(short.database_name == search.database)
    if search.mark is not None:
        matches.append(_column_of(search.mark))
    keys = [(short[name], is_down is not search.is_reverse) for name, is_down in _KEYS[search.sort]]
    page = (
        select(*columns_of(SearchRow, lake_search))
        .where(*matches)
        .order_by(*(c.desc() if down else c for c, down in keys))
    )
    if search.after:
        page = page.where(_behind(keys, search.after))
    with database.transaction() as session:
        total = session.execute(select(func.count()).select_from(lake_search).where(*matches)).scalar_one()
        found = rows_from(SearchRow, session.execute(page.limit(search.limit + 1)))
        shown = found[: search.limit]
        rows = _load_rows(session, [row.table_id for row in shown], search.audience)
    more = len(found) > search.limit
    return TablePageFound(
        tuple(ListedTable(rows[one.table_id], one) for one in shown if one.table_id in rows),
        total,
        tuple(getattr(shown[-1], c.name) for c, _ in keys) if more else (),
    )


def find_summary(database: Database, table_id: str) -> SearchRow:
    """Return one table's row of `lake_search`; that of a new one when it has none."""
    with database.transaction() as session:
        query = select(*columns_of(SearchRow, lake_search)).where(lake_search.c.table_id == table_id)
        found = rows_from(SearchRow, session.execute(query))
    return found[0] if found else SearchRow(table_id, TableState.NEW.value, SEVERITY[TableState.NEW])


def _behind(keys: Sequence[tuple[ColumnElement[Any], bool]], after: tuple[Any, ...]) -> ColumnElement[bool]:
    """Return the condition of a row to come after a key. The first column bounds the search in its index."""
    clauses = []
    for number, (column, is_down) in enumerate(keys):
        same = [earlier == value for (earlier, _), value in zip(keys[:number], after, strict=False)]
        clauses.append(and_(*same, column < after[number] if is_down else column > after[number]))
    first, is_down = keys[0]
    return and_(first <= after[0] if is_down else first >= after[0], or_(*clauses))


@dataclass(frozen=True, slots=True)
class LakeNumbers:
    """All tables in numbers."""

    by_state: Mapping[TableState, int]
    marked: Mapping[MarkKind, int]
    log_bytes: int
    databases: tuple[tuple[str, int], ...]
    """The databases with the most tables."""
    owners: tuple[tuple[str, int], ...]
    """The owners with the most tables."""
    oldest_dirty_ms: int | None
    oldest_due_ms: int | None
    """Since when the service has been due that has waited longest and does not run."""
    holes: int


def count_attention(database: Database) -> int:
    """Return how many tables are in a state that a person has to act on; it reads an index alone."""
    query = select(func.count()).select_from(lake_search).where(lake_search.c.severity >= LEAST_ATTENTION)
    with database.transaction() as session:
        return int(session.execute(query).scalar_one())


def count_states(database: Database) -> Mapping[TableState, int]:
    """Return how many tables are in each state; it reads an index alone."""
    query = select(lake_search.c.severity, func.count()).group_by(lake_search.c.severity)
    with database.transaction() as session:
        return _by_state({row[0]: row[1] for row in session.execute(query)})


def _by_state(counts: Mapping[int, int]) -> Mapping[TableState, int]:
    return MappingProxyType({state: counts.get(SEVERITY[state], 0) for state in TableState})


MAX_IN_FACET = 50
"""Databases, and owners, that people choose from."""
MAX_PAIRS = 2_000
"""Pairs of a database and an owner that are counted."""


def _facet(counts: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    tables: Counter[str] = Counter()
    for name, count in counts:
        tables[name] += count
    return tuple((name, count) for name, count in tables.most_common(MAX_IN_FACET + 1) if name)[:MAX_IN_FACET]


def load_numbers(database: Database, audience: Audience) -> LakeNumbers:
    """Count the tables that the audience may see, in the short rows."""
    short = lake_search.c
    table = lake_table.c
    mine = audience_clauses(audience)
    marks = [func.sum(case((_column_of(mark), 1), else_=0)).label(mark.value) for mark in MarkKind]
    sums = (func.count().label("tables"), func.sum(short.log_bytes).label("log_bytes"), *marks)
    by_state = select(short.severity, *sums).where(*mine).group_by(short.severity)
    tables = func.count().label("tables")
    # One scan for both facets; of a lake with more pairs than that, the small ones are not offered.
    pairs = select(short.database_name, short.owner, tables).where(*mine).group_by(short.database_name, short.owner)
    oldest_due = select(func.min(short.due_since_ms)).where(short.due_since_ms > 0, *mine)
    oldest_of = select(func.min(table.dirty_since_ms))
    holes_of = select(func.sum(table.holes)).where(table.holes > 0)
    if mine:
        same = short.table_id == table.table_id
        oldest_of = oldest_of.join(lake_search, same).where(table.dirty_since_ms.is_not(None), *mine)
        holes_of = holes_of.join(lake_search, same).where(*mine)
    with database.transaction() as session:
        states = session.execute(by_state).mappings().all()
        found = session.execute(pairs.order_by(tables.desc()).limit(MAX_PAIRS)).all()
        oldest = session.execute(oldest_of).scalar_one()
        due_ms = session.execute(oldest_due).scalar_one()
        holes = session.execute(holes_of).scalar_one()
    return LakeNumbers(
        by_state=_by_state({row["severity"]: row["tables"] for row in states}),
        marked=MappingProxyType({mark: int(sum(row[mark.value] or 0 for row in states)) for mark in MarkKind}),
        log_bytes=int(sum(row["log_bytes"] or 0 for row in states)),
        databases=_facet((database, count) for database, _, count in found),
        owners=_facet((owner, count) for _, owner, count in found),
        oldest_dirty_ms=oldest,
        oldest_due_ms=due_ms,
        holes=int(holes or 0),
    )


@dataclass(frozen=True, slots=True)
class OwnerNumbers:
    """The tables of one owner in numbers; an empty owner is that of tables without one."""

    owner: str
    tables: int
    need_attention: int
    log_bytes: int
    oldest_due_ms: int | None


def load_worst_owners(database: Database, audience: Audience, limit: int) -> list[OwnerNumbers]:
    """Return the owners with the most tables that need a person, then those with the most tables."""
    short = lake_search.c
    attention = func.sum(case((short.severity >= LEAST_ATTENTION, 1), else_=0))
    due_ms = func.min(case((short.due_since_ms > 0, short.due_since_ms)))
    figures = (short.owner, func.count(), attention, func.sum(short.log_bytes), due_ms)
    query = select(*figures).where(*audience_clauses(audience)).group_by(short.owner)
    with database.transaction() as session:
        rows = session.execute(query.order_by(attention.desc(), func.count().desc(), short.owner).limit(limit)).all()
    return [OwnerNumbers(row[0], row[1], int(row[2] or 0), int(row[3] or 0), row[4]) for row in rows]
