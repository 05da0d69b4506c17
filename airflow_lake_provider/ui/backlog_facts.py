"""What the backlog's page shows: what waits in its order with its price, the budgets, and the backlog over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.manager.budgets import MOST_SHOWN, SHOWN, list_waiting, load_scopes
from airflow_lake_provider.manager.db.operations import OBSERVED
from airflow_lake_provider.planner.ranking import Pressure
from airflow_lake_provider.ui.table_facts import Wire

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.config.access import Audience
    from airflow_lake_provider.manager.api.services import ManagerServices

MINUTE_MS = 60_000


class LakeWaiting(Wire):
    """A service of a table that is due and waits; or that would run, of a table that is only observed."""

    rank: int
    """Its place among those of all tables."""
    table_id: str
    table: str
    database: str
    service: str
    rank_class: str
    """What waits for it: `unblocks`, `retains`, `behind`, `usual` or `mass`; empty: not known."""
    since_ms: int
    """Since when it has been due."""
    expected_ms: int | None
    """About when it starts, to the minute; null: not known, or never by this budget."""
    ahead: int
    """How many that rank before it wait for the same budget."""
    short_of: str
    """The budget that had no room for it, such as `all tables` or `queue spark`; empty: none."""
    why: str
    """Why it has not started."""
    due_because: str
    seconds: float | None
    """What its Spark jobs are expected to take; null when not known."""
    seconds_low: float | None
    """The interval holds about four of five outcomes."""
    seconds_high: float | None
    bytes: float | None
    """What it is expected to write."""
    bytes_low: float | None
    bytes_high: float | None
    points: float | None
    """What it is expected to bring: a point is 64 MiB of log, 10 files or instants, or 1 GiB of storage."""
    basis: str
    """What the prediction rests on."""


class LakeBudget(Wire):
    """A budget of 24 hours: what it has, what is used, waits and arrived, and what would hold the backlog."""

    name: str
    slots: int | None
    core_hours_per_day: float | None
    bytes_per_day: int | None
    spent_core_hours: float
    spent_bytes: int
    waiting: int
    """Services that wait for it."""
    waiting_core_hours: float
    waiting_bytes: int
    arrived_core_hours: float
    """What became due in the last 24 hours."""
    arrived_bytes: int
    pressure: Pressure
    """`ok`; `slow`: the backlog takes more than a quarter of a day's budget; `stop`: more than a whole day's."""
    needed_slots: int | None
    """The budget that would hold the backlog."""
    needed_core_hours_per_day: float | None
    needed_bytes_per_day: int | None
    text: str
    """The same in a sentence; empty while nothing waits too long."""


class LakeBacklog(Wire):
    """What is due and waits, in the order in which it starts."""

    waiting: list[LakeWaiting]
    observed: list[LakeWaiting]
    """What would run on tables that are only observed."""
    budgets: list[LakeBudget]
    problems: list[str]
    """A sentence for each budget that the backlog outgrows."""
    most: int
    """How many rows each list has at most."""
    is_limited: bool
    """Some tables are hidden from the user: so are the budgets, whose figures count all tables."""


class LakeBacklogMoment(Wire):
    """The backlog of all tables at one moment."""

    time_ms: int
    log_bytes: int
    """In log files that no compaction had merged."""
    waiting: int
    """Services that waited for a budget."""
    core_hours: float
    """What these were expected to cost."""


class LakeBacklogHistory(Wire):
    """The backlog over time, the oldest first."""

    rows: list[LakeBacklogMoment]
    is_limited: bool
    """Some tables are hidden from the user: so are figures over all tables."""


def load_backlog(services: ManagerServices, seen: Audience) -> LakeBacklog:
    """Return the backlog as an audience may see it; without budgets while the tables' settings are wrong."""
    registry = services.registry
    try:
        tables = services.tables.load()
    except LakeError:
        tables = TablesConfig()
    sees = seen.covers if seen.is_limited else None
    waiting = list_waiting(registry, tables, SHOWN, sees)
    states = load_scopes(registry, tables)
    pressed = [state for state in states if state.pressure is not Pressure.OK]
    if seen.is_limited:
        # Of the budgets only the names that its own rows have.
        mine = {row["short_of"] for row in waiting}
        problems = [state.name() for state in pressed if state.limit.scope in mine]
    else:
        problems = [state.explain() for state in pressed]
    return LakeBacklog(
        waiting=[_waiting(row) for row in waiting],
        observed=[_waiting(row) for row in list_waiting(registry, tables, OBSERVED, sees)],
        budgets=[] if seen.is_limited else [LakeBudget(**_budget(state.to_dict())) for state in states],
        problems=problems,
        most=MOST_SHOWN,
        is_limited=seen.is_limited,
    )


def _waiting(row: Mapping[str, Any]) -> LakeWaiting:
    price, expected_ms = row["price"], row["expected_ms"]
    names = ("rank", "table_id", "table", "database", "service", "since_ms", "ahead", "why", "due_because")
    seconds, size_bytes = price.get("seconds") or (None,) * 3, price.get("bytes") or (None,) * 3
    return LakeWaiting(
        **{name: row[name] for name in names},
        rank_class=row["class"],
        # A time to the second moves with the clock, and would make every answer a new one.
        expected_ms=None if expected_ms is None else -(-expected_ms // MINUTE_MS) * MINUTE_MS,
        short_of=_shown_scope(row["short_of"]),
        **dict(zip(("seconds", "seconds_low", "seconds_high"), seconds, strict=True)),
        **dict(zip(("bytes", "bytes_low", "bytes_high"), size_bytes, strict=True)),
        points=price.get("points"),
        basis=price.get("basis", ""),
    )


def _shown_scope(scope: str) -> str:
    kind, _, name = scope.partition(":")
    return "all tables" if kind == "all" else "" if scope == OBSERVED else f"{kind} {name}".strip()


def _budget(shown: Mapping[str, Any]) -> dict[str, Any]:
    return {"name" if key == "shown" else key: value for key, value in shown.items() if key != "scope"}
