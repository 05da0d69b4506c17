"""The backlog of all tables: what is due and waits for a budget, in its ranked order, and what each budget has left.

`RunScheduler` asks whose turn it is in the transaction that creates the run, with the rows of the budgets locked. Every
query has a bound: a budget's candidates are read in their order until its room is used up, a day's costs are 24 rows.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, func, insert, or_, select, update

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.db.operations import (
    OBSERVED,
    Correction,
    Quote,
    load_fleet,
    load_own,
    parse_quote,
    parse_scopes,
    record_observed,
)
from airflow_lake_provider.manager.db.rows import IDS_PER_QUERY, batched
from airflow_lake_provider.manager.db.schema import lake_run, lake_spent, lake_table, lake_waiting
from airflow_lake_provider.manager.scheduling import (
    StartDecision,
    StartVerdict,
    count_inside,
    find_limits,
    list_limits,
)
from airflow_lake_provider.planner.price import cooldown_until_ms, cores_of, predict, work_of
from airflow_lake_provider.planner.ranking import (
    DAY_MS,
    HOUR_MS,
    Ahead,
    Load,
    Need,
    Pressure,
    RankClass,
    Room,
    Turn,
    density_of,
    expected_wait_ms,
    find_exceeded,
    find_turn,
    holding_budget,
    jitter_ms,
    pressure_of,
    rank_class_of,
    rank_ms,
    worst,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sqlalchemy import RowMapping
    from sqlalchemy.orm import Session

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.config.tables_config import TablesConfig
    from airflow_lake_provider.manager.db.marks import TableLease
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.scheduling import RunLimit, ServiceRun
    from airflow_lake_provider.planner.price import Operation
    from airflow_lake_provider.planner.rules import Decision

log = logging.getLogger(__name__)

SHOWN = ""
"""The scope of the rows that people see."""
MOST_AHEAD = 256
"""A candidate behind so many others waits without reading further."""
FRESH_MS = 3_600_000
"""A row that no evaluation has confirmed for so long stands before no other one."""
MOST_WAITING = 20_000
SOON_MS, LATE_MS = 5_000, 300_000
"""How soon the first of those that wait is evaluated again, and the last ones."""
MOST_WOKEN = 8
FLEET_FOR_S = 60.0
KEEP_SPENT_MS = 3 * DAY_MS
MOST_SHOWN = 200


@dataclass(frozen=True, slots=True)
class CandidateStanding:
    """Where a candidate stands: whether it may start, and otherwise why not, and in which budget it is short."""

    waiting: StartDecision | None
    short_of: str = ""
    is_candidate: bool = True
    """Whether others have to wait for it; not for one that cannot start whatever becomes free."""


class Backlog:
    """Prices, ranks and records what is due; for any number of threads."""

    def __init__(self, registry: Registry, load_tables: Callable[[], TablesConfig]) -> None:
        self._registry = registry
        self._load_tables = load_tables
        self._lock = threading.Lock()
        self._fleet: dict[str, tuple[float, list[Operation]]] = {}

    # --- prices --------------------------------------------------------------------------------------------

    def quote(
        self, session: Session, table_id: str, policy: TablePolicy, decision: Decision, owner: str, since_ms: int | None
    ) -> Quote:
        """Price and rank a due decision. `since_ms` is since when it has been due; None: from now on."""
        own = load_own(session, table_id, decision.service.value)
        price = predict(decision, own, self._load_fleet(session, decision.service.value), cores_of(policy.spark_conf))
        rank_class = rank_class_of(decision, policy)
        density, since = density_of(price, rank_class), since_ms if since_ms is not None else self._registry.now_ms()
        is_urgent = rank_class in {RankClass.UNBLOCKS, RankClass.RETAINS} or bool(decision.plan_instants)
        return Quote(
            price=price.to_dict(),
            work=work_of(decision.service, decision.evidence),
            rank_class=rank_class.value,
            density=round(density, 6),
            since_ms=since,
            rank_ms=rank_ms(since, density),
            core_ms=round(price.core_s * 1000),
            bytes=round(price.bytes.value),
            mode=decision.mode.value,
            reason=decision.reason[:1000],
            evidence={name: value for name, value in decision.evidence.items() if value not in {None, ""}},
            queue=policy.queue,
            pool=policy.pool,
            owner=owner,
            label=policy.label,
            cooldown_ms=0 if is_urgent else cooldown_until_ms(own),
        )

    def _load_fleet(self, session: Session, service: str) -> list[Operation]:
        with self._lock:
            read_s, found = self._fleet.get(service, (0.0, []))
        if read_s and time.monotonic() - read_s < FLEET_FOR_S:
            return found
        found = load_fleet(session, service)
        with self._lock:
            self._fleet[service] = (time.monotonic(), found)
        return found

    # --- whose turn it is ----------------------------------------------------------------------------------

    def find_since(self, session: Session, table_id: str, service: str) -> int | None:
        """Return since when a service of a table has waited; None when it does not wait."""
        mine = _mine(SHOWN, table_id, service)
        return session.scalar(select(lake_waiting.c.since_ms).where(*mine))

    def find_standing(
        self,
        session: Session,
        key: tuple[str, str],
        quote: Quote,
        limits: Sequence[RunLimit],
        active: list[ServiceRun],
    ) -> CandidateStanding:
        """Return whether a candidate may start now. `key` is its table and service, `active` are all active runs."""
        if not limits:
            return CandidateStanding(None)
        now_ms, need = self._registry.now_ms(), Need(quote.core_ms, quote.bytes)
        active = self._with_scopes(session, limits, active)
        for limit in limits:
            found = self._wait_by_itself(key, quote, limit, now_ms)
            if found is not None:
                return found
        worst_found: CandidateStanding | None = None
        for limit in limits:
            turn, room = self._find_turn(session, key, quote, limit, active, now_ms)
            if turn.may_start:
                continue
            reason = _explain(limit, turn, room, need)
            place = min(turn.ahead + 1, MOST_AHEAD)
            again_ms = now_ms + min(max(SOON_MS, 1000 * place), LATE_MS)
            waiting = StartDecision(StartVerdict.WAITING, "", reason, again_ms, dict(quote.price))
            worst_found = worst_found or CandidateStanding(waiting, limit.scope)
        return worst_found or CandidateStanding(None)

    @staticmethod
    def _wait_by_itself(key: tuple[str, str], quote: Quote, limit: RunLimit, now_ms: int) -> CandidateStanding | None:
        """Return that a candidate waits for no other one: it costs more than the whole budget, or has a pause."""
        need = Need(quote.core_ms, quote.bytes)
        exceeded = find_exceeded(need, limit.room)
        reason, again_ms = "", now_ms + LATE_MS
        if exceeded:
            wanted = f"{quote.core_ms / HOUR_MS:,.2f}" if exceeded == "core hours" else f"{quote.bytes:,}"
            reason = (
                f"never starts: it needs {wanted} {exceeded} of {limit.shown}, more than a day's whole budget: raise it"
            )
        elif not limit.is_budget:
            return None
        elif quote.cooldown_ms > now_ms:
            rest_s = (quote.cooldown_ms - now_ms + 999) // 1000
            reason, again_ms = f"waits {rest_s} s: its last runs brought little", min(quote.cooldown_ms, again_ms)
        else:
            table_id, service = key
            ripe_ms = quote.since_ms + jitter_ms(table_id, Service(service))
            if ripe_ms > now_ms:
                rest_s = (ripe_ms - now_ms + 999) // 1000
                reason, again_ms = f"waits {rest_s} s: what is due at a clock time is spread over minutes", ripe_ms
        if not reason:
            return None
        waiting = StartDecision(StartVerdict.WAITING, "", reason, again_ms, dict(quote.price))
        return CandidateStanding(waiting, limit.scope, is_candidate=False)

    def _find_turn(
        self,
        session: Session,
        key: tuple[str, str],
        quote: Quote,
        limit: RunLimit,
        active: Sequence[ServiceRun],
        now_ms: int,
    ) -> tuple[Turn, Room]:
        room = self._find_room(session, limit, active, now_ms)
        ahead = _load_ahead(session, limit.scope, key, quote.rank_ms, now_ms)
        turn = find_turn(Need(quote.core_ms, quote.bytes), ahead, room, now_ms, limit.scope)
        if turn.may_start and len(ahead) >= MOST_AHEAD:
            # The others are not known.
            turn = replace(turn, may_start=False, short="places", held_by=ahead[0].service)
        return turn, room

    @staticmethod
    def _find_room(session: Session, limit: RunLimit, active: Sequence[ServiceRun], now_ms: int) -> Room:
        slots = None if limit.most is None else limit.most - count_inside(limit, active)
        if limit.core_ms is None and limit.bytes is None:
            return Room(slots)
        spent = load_spent(session, (limit.scope,), now_ms)
        core_ms, size_bytes = sum(row["core_ms"] for row in spent), sum(row["bytes"] for row in spent)
        return Room(
            slots,
            None if limit.core_ms is None else limit.core_ms - core_ms,
            None if limit.bytes is None else limit.bytes - size_bytes,
        )

    @staticmethod
    def _with_scopes(session: Session, limits: Sequence[RunLimit], active: list[ServiceRun]) -> list[ServiceRun]:
        if not any(limit.kind in {"owner", "label"} and limit.most is not None for limit in limits):
            return active
        scopes: dict[str, tuple[str, ...]] = {}
        for some in batched([run.run_id for run in active], IDS_PER_QUERY):
            rows = session.execute(select(lake_run.c.run_id, lake_run.c.scopes).where(lake_run.c.run_id.in_(some)))
            scopes |= {row.run_id: parse_scopes(row.scopes) for row in rows}
        return [replace(run, scopes=scopes.get(run.run_id, run.scopes)) for run in active]

    # --- records -------------------------------------------------------------------------------------------

    def enqueue(
        self,
        session: Session,
        key: tuple[str, str],
        quote: Quote,
        standing: CandidateStanding,
        limits: Sequence[RunLimit],
    ) -> None:
        """Record that a candidate waits. The budgets' rows are locked, so no two transactions insert the same row."""
        now_ms, (table_id, service) = self._registry.now_ms(), key
        is_new = self.find_since(session, table_id, service) is None
        values = {
            "rank_ms": quote.rank_ms,
            "since_ms": quote.since_ms,
            "seen_ms": now_ms,
            "core_ms": quote.core_ms,
            "bytes": quote.bytes,
            "short_of": standing.short_of,
        }
        reason = standing.waiting.reason if standing.waiting is not None else ""
        _write(session, _keyed(SHOWN, key), {**values, "reason": reason, "quote": quote.to_text()})
        for limit in limits:
            if standing.is_candidate:
                _write(session, _keyed(limit.scope, key), {**values, "reason": "", "quote": ""})
                if is_new:
                    _add(session, limit.scope, now_ms, arrived_core_ms=quote.core_ms, arrived_bytes=quote.bytes)
            else:
                session.execute(delete(lake_waiting).where(*_mine(limit.scope, table_id, service)))

    def charge(
        self, session: Session, key: tuple[str, str], quote: Quote, limits: Sequence[RunLimit], created_ms: int
    ) -> None:
        """Charge a run that is created to its budgets, and end its waiting."""
        was_waiting = self.find_since(session, *key) is not None
        for limit in limits:
            arrived = {} if was_waiting else {"arrived_core_ms": quote.core_ms, "arrived_bytes": quote.bytes}
            _add(session, limit.scope, created_ms, core_ms=quote.core_ms, bytes=quote.bytes, **arrived)
        mine = lake_waiting.c.table_id == key[0], lake_waiting.c.service == key[1]
        session.execute(delete(lake_waiting).where(*mine))

    def keep(self, table_id: str, waiting: Iterable[str], paused: Iterable[str], observed: Mapping[str, Quote]) -> None:
        """Forget what of a table no longer waits, and record what would run if the table were not observed.

        What is `paused` waits for something of its own table: it keeps its age, and no other table waits for it.
        """
        now_ms = self._registry.now_ms()
        with self._registry.transaction() as session:
            rows = session.execute(
                select(lake_waiting.c.scope, lake_waiting.c.service).where(lake_waiting.c.table_id == table_id)
            ).all()
            still, aged, listed = set(waiting), {*waiting, *paused}, set(observed)
            for scope, service in rows:
                if service not in {OBSERVED: listed, SHOWN: aged}.get(scope, still):
                    session.execute(delete(lake_waiting).where(*_mine(scope, table_id, service)))
            for service, quote in observed.items():
                values = {
                    "rank_ms": quote.rank_ms, "since_ms": quote.since_ms, "seen_ms": now_ms,
                    "core_ms": quote.core_ms, "bytes": quote.bytes, "short_of": OBSERVED,
                    "reason": quote.reason, "quote": quote.to_text(),
                }  # fmt: skip
                _write(session, _keyed(OBSERVED, (table_id, service)), values)
                record_observed(session, table_id, service, quote, now_ms)

    def price_observed(
        self, lease: TableLease, policy: TablePolicy, decisions: Sequence[Decision]
    ) -> Mapping[str, Quote]:
        """Return the quotes of due decisions about a table that is observed, by service."""
        with self._registry.transaction() as session:
            quotes = {}
            for decision in decisions:
                service = decision.service.value
                mine = _mine(OBSERVED, lease.table_id, service)
                since_ms = session.scalar(select(lake_waiting.c.since_ms).where(*mine))
                quotes[service] = self.quote(session, lease.table_id, policy, decision, lease.owner, since_ms)
        return quotes

    def touch(self, table_id: str) -> None:
        """Confirm that what of a table waits still waits."""
        now_ms, waiting = self._registry.now_ms(), lake_waiting.c
        mine = waiting.table_id == table_id, waiting.seen_ms < now_ms - FRESH_MS // 4
        with self._registry.transaction() as session:
            session.execute(update(lake_waiting).where(*mine).values(seen_ms=now_ms))

    def wake(self, limits: Sequence[RunLimit]) -> None:
        """Have the first candidates of budgets evaluated soon: a run was created, so those behind it moved up."""
        now_ms, waiting, table = self._registry.now_ms(), lake_waiting.c, lake_table.c
        soon_ms = now_ms + 1000
        with self._registry.transaction() as session:
            ids: set[str] = set()
            for limit in limits:
                first = select(waiting.table_id).where(waiting.scope == limit.scope).order_by(waiting.rank_ms)
                ids.update(session.scalars(first.limit(MOST_WOKEN)))
            if ids:
                late = table.table_id.in_(sorted(ids)), table.retry_ms > soon_ms, table.evaluation_failures == 0
                session.execute(update(lake_table).where(*late).values(retry_ms=soon_ms))


def _explain(limit: RunLimit, turn: Turn, room: Room, need: Need) -> str:
    if turn.short == "slots" and not turn.held_by:
        inside = (limit.most or 0) - (room.slots or 0)
        return f"waits: {inside} runs of {limit.shown} are active, at most {limit.most} may be"
    before = f"{turn.ahead} services rank" if turn.ahead > 1 else "one service ranks"
    if turn.held_by:
        first = f"the first that keeps it waiting is a {turn.held_by}"
        return f"waits for {turn.short} of {limit.shown}: {before} before it, {first}"
    if turn.short == "bytes":
        left, wanted = f"{room.bytes or 0:,}", f"{need.bytes:,}"
    else:
        left, wanted = f"{(room.core_ms or 0) / HOUR_MS:,.2f}", f"{need.core_ms / HOUR_MS:,.2f}"
    rest = f"; {before} before it" if turn.ahead else ""
    return f"waits for {turn.short} of {limit.shown}: it needs {wanted}, and {left} are left of the last 24 hours{rest}"


def _mine(scope: str, table_id: str, service: str) -> tuple[Any, ...]:
    waiting = lake_waiting.c
    return waiting.scope == scope, waiting.table_id == table_id, waiting.service == service


def _keyed(scope: str, key: tuple[str, str]) -> dict[str, str]:
    return {"scope": scope, "table_id": key[0], "service": key[1]}


def _write(session: Session, key: dict[str, str], values: dict[str, Any]) -> None:
    changed: Any = session.execute(update(lake_waiting).where(*_mine(**key)).values(**values))
    if changed.rowcount == 0:
        session.execute(insert(lake_waiting).values(**key, **values))


def _add(session: Session, scope: str, now_ms: int, **amounts: int) -> None:
    spent, hour_ms = lake_spent.c, now_ms - now_ms % HOUR_MS
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


def load_spent(session: Session, scopes: Sequence[str], now_ms: int) -> Sequence[RowMapping]:
    """Return what the budgets were charged, and what arrived, in each hour of the last 24."""
    spent = lake_spent.c
    query = select(lake_spent).where(spent.scope.in_(scopes), spent.hour_ms > now_ms - DAY_MS)
    return session.execute(query.order_by(spent.hour_ms)).mappings().all()


def _load_ahead(
    session: Session, scope: str, key: tuple[str, str], before_ms: int, now_ms: int, most: int = MOST_AHEAD
) -> list[Ahead]:
    """Return those that rank before a candidate and keep it waiting, at most MOST_AHEAD, in their order.

    One that waits for another budget does so only when its moment has come.
    """
    waiting = lake_waiting.c
    counts = or_(waiting.short_of.in_(("", scope)), waiting.rank_ms <= now_ms)
    query = (
        select(waiting.table_id, waiting.service, waiting.rank_ms, waiting.core_ms, waiting.bytes, waiting.short_of)
        .where(waiting.scope == scope, waiting.rank_ms <= before_ms, waiting.seen_ms > now_ms - FRESH_MS, counts)
        .order_by(waiting.rank_ms, waiting.table_id, waiting.service)
        .limit(most + 1)
    )
    found = [
        Ahead(row.table_id, row.service, row.rank_ms, Need(row.core_ms, row.bytes), row.short_of)
        for row in session.execute(query)
    ]
    mine = (before_ms, *key)
    return [one for one in found if (one.rank_ms, one.table_id, one.service) < mine][:most]


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

    def to_dict(self) -> dict[str, Any]:
        """Return the shape that commands, pages and the sensor get."""
        needed = holding_budget(self.load, self.limit.room)
        return {
            "scope": self.limit.scope,
            "shown": self.limit.shown,
            "slots": self.limit.most,
            "core_hours_per_day": _hours(self.limit.core_ms),
            "bytes_per_day": self.limit.bytes,
            "spent_core_hours": _hours(self.spent_core_ms),
            "spent_bytes": self.spent_bytes,
            "waiting": self.load.waiting,
            "waiting_core_hours": _hours(self.load.waiting_core_ms),
            "waiting_bytes": self.load.waiting_bytes,
            "arrived_core_hours": _hours(self.load.arrived_core_ms),
            "arrived_bytes": self.load.arrived_bytes,
            "pressure": self.pressure.value,
            "needed_slots": needed.slots,
            "needed_core_hours_per_day": _hours(needed.core_ms),
            "needed_bytes_per_day": needed.bytes,
            "text": self.explain(),
        }

    def explain(self) -> str:
        """Return in a sentence what waits, and what budget would hold it; empty while nothing waits too long."""
        if self.pressure is Pressure.OK:
            return ""
        needed = holding_budget(self.load, self.limit.room)
        wants = [f"{needed.slots} slots"] if needed.slots is not None else []
        wants += [f"{needed.core_ms / HOUR_MS:,.2f} core hours a day"] if needed.core_ms is not None else []
        wants += [f"{needed.bytes:,} bytes a day"] if needed.bytes is not None else []
        return (
            f"{self.load.waiting} services with {self.load.waiting_core_ms / HOUR_MS:,.2f} core hours wait for the "
            f"budget of {self.limit.shown}, and {self.load.arrived_core_ms / HOUR_MS:,.2f} arrived in 24 hours; "
            f"{' and '.join(wants)} would hold it"
        )

    def name(self) -> str:
        """Return the sentence for people who may not see what other tables wait for; empty as in `explain`."""
        return "" if self.pressure is Pressure.OK else f"more waits for the budget of {self.limit.shown} than it bears"


def _hours(core_ms: int | None) -> float | None:
    return None if core_ms is None else round(core_ms / HOUR_MS, 3)


def load_scopes(registry: Registry, tables: TablesConfig) -> list[ScopeState]:
    """Return every budget of the tables' settings with its load; no query without one."""
    limits = list_limits(tables)
    return _load_states(registry, limits)


def load_scopes_of(registry: Registry, tables: TablesConfig, row: Mapping[Any, Any]) -> list[ScopeState]:
    """Return the budgets that bound the services of one table; `row` is the table's row of the registry."""
    policy = tables.policy_for(row["base_path"], row["table_name"])
    return _load_states(registry, find_limits(policy, tables, row["owner"]))


def _load_states(registry: Registry, limits: Sequence[RunLimit]) -> list[ScopeState]:
    if not limits:
        return []
    now_ms, waiting = registry.now_ms(), lake_waiting.c
    scopes = [limit.scope for limit in limits]
    found: dict[str, Load] = {}
    with registry.transaction() as session:
        spent = load_spent(session, scopes, now_ms)
        for scope in scopes:
            some = select(waiting.core_ms, waiting.bytes).where(waiting.scope == scope).limit(MOST_WAITING).subquery()
            sums = (func.coalesce(func.sum(some.c.core_ms), 0), func.coalesce(func.sum(some.c.bytes), 0))
            core_ms, size_bytes, count = session.execute(select(*sums, func.count()).select_from(some)).one()
            found[scope] = Load(int(core_ms), 0, int(size_bytes), 0, int(count))
    states = []
    for limit in limits:
        mine = [row for row in spent if row["scope"] == limit.scope]
        load = replace(
            found[limit.scope],
            arrived_core_ms=sum(row["arrived_core_ms"] for row in mine),
            arrived_bytes=sum(row["arrived_bytes"] for row in mine),
        )
        states.append(ScopeState(limit, load, sum(r["core_ms"] for r in mine), sum(r["bytes"] for r in mine)))
    return states


def pressure_of_states(states: Sequence[ScopeState]) -> Pressure:
    """Return the most severe pressure of some budgets."""
    return worst(state.pressure for state in states)


def list_waiting(
    registry: Registry, tables: TablesConfig, scope: str = SHOWN, sees: Callable[[str], bool] | None = None
) -> list[dict[str, Any]]:
    """Return what waits in its ranked order, at most MOST_SHOWN, with price, what stands before it, and when it starts.

    With scope `observed` it is what would run on tables that are observed. `sees` says of a base path whether it is
    shown; ranks and waits count the others as well. Among MOST_WAITING rows.
    """
    now_ms, waiting, table = registry.now_ms(), lake_waiting.c, lake_table.c
    query = (
        select(lake_waiting, table.table_name, table.database_name, table.base_path, table.owner)
        .join(lake_table, table.table_id == waiting.table_id)
        .where(waiting.scope == scope)
        .order_by(waiting.rank_ms, waiting.table_id, waiting.service)
        .limit(MOST_SHOWN if sees is None else MOST_WAITING)
    )
    limits = {limit.scope: limit for limit in list_limits(tables)}
    before: dict[str, int] = {}
    counts: dict[str, int] = {}
    shown: list[dict[str, Any]] = []
    with registry.transaction() as session:
        spent = load_spent(session, sorted(limits), now_ms) if limits else ()
        # A part of the rows at a time: most callers need the first ones.
        for place, row in enumerate(session.execute(query.execution_options(yield_per=MOST_SHOWN)).mappings(), 1):
            short_of = row["short_of"]
            if sees is None or sees(row["base_path"]):
                wait_ms = _find_wait_ms(row, limits.get(short_of), spent, before.get(short_of, 0), now_ms)
                expected_ms = None if wait_ms is None else now_ms + wait_ms
                shown.append(_shown(row, place, counts.get(short_of, 0), expected_ms))
            before[short_of] = before.get(short_of, 0) + row["core_ms"]
            counts[short_of] = counts.get(short_of, 0) + 1
            if len(shown) == MOST_SHOWN:
                break
    return shown


def _find_wait_ms(
    row: RowMapping, limit: RunLimit | None, spent: Sequence[RowMapping], ahead_core_ms: int, now_ms: int
) -> int | None:
    """Return about how long it waits; None when it never starts, or when nothing says so."""
    need = Need(row["core_ms"], row["bytes"])
    if limit is None or find_exceeded(need, limit.room):
        return None
    mine = [(one["hour_ms"], one["core_ms"]) for one in spent if one["scope"] == limit.scope]
    return expected_wait_ms(need, ahead_core_ms, limit.room, mine, now_ms)


def _shown(row: RowMapping, place: int, ahead: int, expected_ms: int | None) -> dict[str, Any]:
    quote = parse_quote(row["quote"])
    return {
        "rank": place,
        "table_id": row["table_id"],
        "table": row["table_name"],
        "database": row["database_name"],
        "base_path": row["base_path"],
        "service": row["service"],
        "class": "" if quote is None else quote.rank_class,
        "points_per_core_s": None if quote is None else quote.density,
        "price": {} if quote is None else dict(quote.price),
        "since_ms": row["since_ms"],
        "expected_ms": expected_ms,
        "short_of": row["short_of"],
        # How many that rank before it wait for the same budget.
        "ahead": ahead,
        "why": row["reason"],
        "due_because": "" if quote is None else quote.reason,
    }


def find_pressure_problems(registry: Registry, tables: TablesConfig) -> list[str]:
    """Return a sentence for each budget that the backlog outgrows."""
    try:
        return [state.explain() for state in load_scopes(registry, tables) if state.pressure is not Pressure.OK]
    except LakeError as error:
        log.warning("the budgets were not examined: %s", error)
        return []
