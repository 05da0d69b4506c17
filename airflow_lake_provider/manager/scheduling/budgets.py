"""Budgets over all tables: their limits, what was charged to them, what waits for them, and whether they bear it.

A limit bounds the runs of a pool, a queue, an owner, a label or of all tables: how many are active at once, and what
they cost in 24 hours. `Backlog` decides by the limits and the charges which candidate may start. The rest is what
people see of that: how each budget bears what arrives, and the ranked order with its reasons.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, func, insert, select, update

from airflow_lake_provider.config.access import EVERYONE
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.instant_clock import DAY_MS, HOUR_MS
from airflow_lake_provider.manager.db.operations import Correction, parse_quote, read_price
from airflow_lake_provider.manager.db.schema import lake_search, lake_spent, lake_table, lake_waiting
from airflow_lake_provider.manager.db.search import audience_clauses
from airflow_lake_provider.manager.db.typed_rows import SpentRow, rows_from
from airflow_lake_provider.manager.read_model import ReportedBudget, WaitingService
from airflow_lake_provider.planner.ranking import (
    Load,
    Need,
    Pressure,
    Room,
    expected_wait_ms,
    find_exceeded,
    holding_budget,
    pressure_of,
    worst,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from decimal import Decimal

    from sqlalchemy.orm import Session
    from sqlalchemy.sql.selectable import Subquery

    from airflow_lake_provider.config.access import Audience
    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.config.tables_config import Budget, TablesConfig
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.db.typed_rows import TableRow
    from airflow_lake_provider.manager.runs.airflow_runs import ServiceRun

log = logging.getLogger(__name__)

SHOWN = ""
"""The scope of the rows that people see."""
MAX_WAITING = 20_000
KEEP_SPENT_MS = 3 * DAY_MS
MAX_SHOWN = 200


# --- Limits: what the tables' settings allow


@dataclass(frozen=True, slots=True)
class RunLimit:
    """What runs of one pool, queue, owner, label, or of all tables may have; None is without a bound."""

    kind: str
    """`pool`, `queue`, `owner`, `label` or `all`."""
    name: str
    most: int | None
    """Runs that may be active at once."""
    core_ms: int | None = None
    """Core milliseconds of 24 hours."""
    bytes: int | None = None
    """Bytes written in 24 hours."""
    is_budget: bool = False
    """`budgets` set it, not `limits` alone: then what brought little pauses, and clock times are spread."""

    @property
    def scope(self) -> str:
        """Its name in the database."""
        return f"{self.kind}:{self.name}"[:300]

    @property
    def shown(self) -> str:
        """Its name in a sentence."""
        return "all tables" if self.kind == "all" else f"{self.kind} {self.name}"

    @property
    def room(self) -> Room:
        """The whole budget."""
        return Room(self.most, self.core_ms, self.bytes)


def find_limits(policy: TablePolicy, tables: TablesConfig, owner: str = "") -> tuple[RunLimit, ...]:
    """Return the limits over all tables that hold for a table's runs, always in the same order."""
    budgets = tables.budgets
    counts = tables.limits
    wanted: tuple[tuple[str, str, Mapping[str, int], Budget | None], ...] = (
        ("all", "", {}, budgets.all),
        ("pool", policy.pool, counts.pools, budgets.pools.get(policy.pool)),
        ("queue", policy.queue, counts.queues, budgets.queues.get(policy.queue)),
        ("owner", owner, {}, budgets.owners.get(owner)),
        ("label", policy.label, {}, budgets.labels.get(policy.label)),
    )
    found = (_limit(kind, name, of.get(name), budget) for kind, name, of, budget in wanted)
    return tuple(limit for limit in found if limit is not None)


def list_limits(tables: TablesConfig) -> tuple[RunLimit, ...]:
    """Return all limits of the tables' settings."""
    budgets = tables.budgets
    counts = tables.limits
    kinds: tuple[tuple[str, Mapping[str, int], Mapping[str, Budget]], ...] = (
        ("pool", counts.pools, budgets.pools),
        ("queue", counts.queues, budgets.queues),
        ("owner", {}, budgets.owners),
        ("label", {}, budgets.labels),
    )
    found = [_limit("all", "", None, budgets.all)]
    for kind, most, of in kinds:
        found += [_limit(kind, name, most.get(name), of.get(name)) for name in sorted({*most, *of})]
    return tuple(limit for limit in found if limit is not None)


def _limit(kind: str, name: str, most: int | None, budget: Budget | None) -> RunLimit | None:
    if budget is None:
        return None if most is None else RunLimit(kind, name, most)
    slots = [count for count in (most, budget.slots) if count is not None]
    hours = budget.core_hours_per_day
    core_ms = None if hours is None else round(hours * HOUR_MS)
    limit = RunLimit(kind, name, min(slots, default=None), core_ms, budget.bytes_per_day, is_budget=True)
    return None if limit.room == Room() else limit


def count_inside(limit: RunLimit, active: Sequence[ServiceRun]) -> int:
    """Return how many active runs hold a place of a limit. `active` are all active runs.

    A run between two tries holds no place of a pool, whose slots bound the tasks that run at once. Nothing else bounds
    those of a queue, so there it does.
    """
    holding = [run for run in active if limit.kind == "queue" or not run.is_between_tries]
    if limit.kind == "all":
        return len(holding)
    if limit.kind in {"pool", "queue"}:
        return sum(getattr(run, limit.kind) == limit.name for run in holding)
    return sum(limit.scope in run.scopes for run in holding)


# --- What the budgets were charged, hour by hour


def add_spent(session: Session, scope: str, now_ms: int, **amounts: int) -> None:
    """Add amounts to the current hour of a budget; a new hour drops those that no figure needs any more."""
    spent = lake_spent.c
    hour_ms = now_ms - now_ms % HOUR_MS
    mine = spent.scope == scope, spent.hour_ms == hour_ms
    raised = {name: spent[name] + amount for name, amount in amounts.items()}
    changed: Any = session.execute(update(lake_spent).where(*mine).values(**raised))
    if changed.rowcount == 0:
        session.execute(delete(lake_spent).where(spent.hour_ms < now_ms - KEEP_SPENT_MS))
        none = dict.fromkeys(("core_ms", "bytes", "arrived_core_ms", "arrived_bytes"), 0)
        session.execute(insert(lake_spent).values(scope=scope, hour_ms=hour_ms, **(none | amounts)))


def correct(session: Session, found: Correction | None) -> None:
    """Charge the budgets of a run by what it cost instead of what was expected."""
    if found is None:
        return
    spent = lake_spent.c
    for scope in found.scopes:
        mine = spent.scope == scope, spent.hour_ms == found.hour_ms
        changes = {"core_ms": spent.core_ms + found.core_ms, "bytes": spent.bytes + found.bytes}
        session.execute(update(lake_spent).where(*mine).values(**changes))


def load_spent(session: Session, scopes: Sequence[str], now_ms: int) -> list[SpentRow]:
    """Return what the budgets were charged, and what arrived, in each hour of the last 24."""
    spent = lake_spent.c
    query = select(lake_spent).where(spent.scope.in_(scopes), spent.hour_ms > now_ms - DAY_MS)
    return rows_from(SpentRow, session.execute(query.order_by(spent.hour_ms)))


# --- What people see: the order with its reasons, and how each budget bears what arrives


@dataclass(frozen=True, slots=True)
class ScopeState:
    """One budget: what it has, what is used and waits, and what would hold the backlog."""

    limit: RunLimit
    load: Load
    spent_core_ms: int
    spent_bytes: int

    @property
    def pressure(self) -> Pressure:
        """The pressure on it."""
        return pressure_of(self.load, self.limit.room)

    def report(self) -> ReportedBudget:
        """Return what commands, pages and the sensor show of it."""
        needed = holding_budget(self.load, self.limit.room)
        return ReportedBudget(
            scope=self.limit.scope,
            shown=self.limit.shown,
            slots=self.limit.most,
            core_hours_per_day=_hours(self.limit.core_ms),
            bytes_per_day=self.limit.bytes,
            spent_core_hours=_to_hours(self.spent_core_ms),
            spent_bytes=self.spent_bytes,
            waiting=self.load.waiting,
            waiting_core_hours=_to_hours(self.load.waiting_core_ms),
            waiting_bytes=self.load.waiting_bytes,
            arrived_core_hours=_to_hours(self.load.arrived_core_ms),
            arrived_bytes=self.load.arrived_bytes,
            pressure=self.pressure.value,
            needed_slots=needed.slots,
            needed_core_hours_per_day=_hours(needed.core_ms),
            needed_bytes_per_day=needed.bytes,
            text=self.explain(),
        )

    def explain(self) -> str:
        """Return in a sentence what waits, and what budget would hold it; empty while nothing waits too long."""
        if self.pressure is Pressure.OK:
            return ""
        needed = holding_budget(self.load, self.limit.room)
        wants = [f"{needed.slots} slots"] if needed.slots is not None else []
        wants += [f"{needed.core_ms / HOUR_MS:,.2f} core hours a day"] if needed.core_ms is not None else []
        wants += [f"{needed.bytes:,} bytes a day"] if needed.bytes is not None else []
        raised = f"raise it to {' and '.join(wants)}, or " if wants else ""
        return (
            f"{self.load.waiting} services ({self.load.waiting_core_ms / HOUR_MS:,.2f} core hours) wait for the budget "
            f"of {self.limit.shown}, and {self.load.arrived_core_ms / HOUR_MS:,.2f} core hours became due in 24 hours: "
            f"{raised}relax the rules"
        )

    def name(self) -> str:
        """Return the sentence for people who may not see what other tables wait for; empty as in `explain`."""
        return "" if self.pressure is Pressure.OK else f"more waits for the budget of {self.limit.shown} than it bears"


def _hours(core_ms: int | None) -> float | None:
    return None if core_ms is None else _to_hours(core_ms)


def _to_hours(core_ms: int) -> float:
    return round(core_ms / HOUR_MS, 3)


def load_scopes(registry: Registry, tables: TablesConfig) -> list[ScopeState]:
    """Return every budget of the tables' settings with its load; no query without one."""
    limits = list_limits(tables)
    return _load_states(registry, limits)


def load_scopes_of(registry: Registry, tables: TablesConfig, row: TableRow) -> list[ScopeState]:
    """Return the budgets that bound the services of one table; `row` is the table's row of the registry."""
    policy = tables.policy_for(row.base_path, row.table_name)
    return _load_states(registry, find_limits(policy, tables, row.owner))


def _load_states(registry: Registry, limits: Sequence[RunLimit]) -> list[ScopeState]:
    if not limits:
        return []
    now_ms = registry.now_ms()
    waiting = lake_waiting.c
    scopes = [limit.scope for limit in limits]
    found: dict[str, Load] = {}
    with registry.transaction() as session:
        spent = load_spent(session, scopes, now_ms)
        for scope in scopes:
            some = select(waiting.core_ms, waiting.bytes).where(waiting.scope == scope).limit(MAX_WAITING).subquery()
            sums = (func.coalesce(func.sum(some.c.core_ms), 0), func.coalesce(func.sum(some.c.bytes), 0))
            core_ms, size_bytes, count = session.execute(select(*sums, func.count()).select_from(some)).one()
            found[scope] = Load(int(core_ms), 0, int(size_bytes), 0, int(count))
    states = []
    for limit in limits:
        mine = [row for row in spent if row.scope == limit.scope]
        load = replace(
            found[limit.scope],
            arrived_core_ms=sum(row.arrived_core_ms for row in mine),
            arrived_bytes=sum(row.arrived_bytes for row in mine),
        )
        states.append(ScopeState(limit, load, sum(r.core_ms for r in mine), sum(r.bytes for r in mine)))
    return states


def pressure_of_states(states: Sequence[ScopeState]) -> Pressure:
    """Return the most severe pressure of some budgets."""
    return worst(state.pressure for state in states)


def list_waiting(
    registry: Registry, tables: TablesConfig, scope: str = SHOWN, audience: Audience = EVERYONE
) -> list[WaitingService]:
    """Return what waits in its ranked order, at most MAX_SHOWN, with price, what stands before it, and when it starts.

    With scope `observed` it is what would run on tables that are observed. Only rows of the audience's tables are
    returned; their ranks and waits count the others as well.
    """
    now_ms = registry.now_ms()
    table = lake_table.c
    ranked = _rank(scope)
    named = (table.table_name, table.database_name, table.base_path)
    clauses = audience_clauses(audience)
    query = (
        select(ranked, *named)
        .join(lake_table, table.table_id == ranked.c.table_id)
        .order_by(ranked.c.place)
        .limit(MAX_SHOWN)
    )
    if clauses:
        query = query.join(lake_search, lake_search.c.table_id == ranked.c.table_id).where(*clauses)
    limits = {limit.scope: limit for limit in list_limits(tables)}
    shown: list[WaitingService] = []
    with registry.transaction() as session:
        spent = load_spent(session, sorted(limits), now_ms) if limits else ()
        for row in rows_from(_RankedRow, session.execute(query)):
            wait_ms = _find_wait_ms(row, limits.get(row.short_of), spent, now_ms)
            shown.append(_shown(row, None if wait_ms is None else now_ms + wait_ms))
    return shown


_WAITING = ("table_id", "service", "since_ms", "core_ms", "bytes", "short_of", "reason", "quote")


@dataclass(frozen=True, slots=True)
class _RankedRow:
    """What people see of a row of `lake_waiting`, with its place."""

    table_id: str
    service: str
    since_ms: int
    core_ms: int
    bytes: int
    short_of: str
    reason: str
    quote: str
    place: int
    """Among all that wait."""
    ahead: int
    """How many rank before it and wait for the same budget."""
    ahead_core_ms: Decimal | int | None
    """What these will cost; None: nothing is before it."""
    table_name: str
    database_name: str
    base_path: str


def _rank(scope: str) -> Subquery:
    """Return the backlog with each row's place among all, and what is ahead of it in the same budget."""
    waiting = lake_waiting.c
    order = (waiting.rank_ms, waiting.table_id, waiting.service)
    of_budget: Any = {"partition_by": waiting.short_of, "order_by": order}
    return (
        select(
            *(waiting[name] for name in _WAITING),
            func.row_number().over(order_by=order).label("place"),
            (func.row_number().over(**of_budget) - 1).label("ahead"),
            func.sum(waiting.core_ms).over(**of_budget, rows=(None, -1)).label("ahead_core_ms"),
        )
        .where(waiting.scope == scope)
        .subquery()
    )


def _find_wait_ms(row: _RankedRow, limit: RunLimit | None, spent: Sequence[SpentRow], now_ms: int) -> int | None:
    """Return about how long a row of the backlog still waits; None when it never starts, or when that is unknown."""
    need = Need(row.core_ms, row.bytes)
    if limit is None or find_exceeded(need, limit.room):
        return None
    mine = [(one.hour_ms, one.core_ms) for one in spent if one.scope == limit.scope]
    # PostgreSQL's sums are decimals.
    return expected_wait_ms(need, int(row.ahead_core_ms or 0), limit.room, mine, now_ms)


def _shown(row: _RankedRow, expected_ms: int | None) -> WaitingService:
    quote = parse_quote(row.quote)
    return WaitingService(
        rank=row.place,
        table_id=row.table_id,
        table=row.table_name,
        database=row.database_name,
        base_path=row.base_path,
        service=row.service,
        urgency="" if quote is None else quote.urgency,
        points_per_core_s=None if quote is None else quote.density,
        price=None if quote is None else read_price(quote.price),
        since_ms=row.since_ms,
        expected_ms=expected_ms,
        short_of=row.short_of,
        ahead=row.ahead,
        why=row.reason,
        due_because="" if quote is None else quote.reason,
    )


def find_pressure_problems(registry: Registry, tables: TablesConfig) -> list[str]:
    """Return a sentence for each budget that the backlog outgrows."""
    try:
        return [state.explain() for state in load_scopes(registry, tables) if state.pressure is not Pressure.OK]
    except LakeError as error:
        log.warning("the budgets were not examined: %s", error)
        return []
