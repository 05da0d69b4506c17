"""The backlog of all tables: what is due and waits for a budget, in its ranked order, and which of it may start.

`RunScheduler` asks for a candidate's standing in the transaction that creates the run, with the rows of the budgets
locked. Every query has a bound: a budget's candidates are read in their order until its room is used up, a day's costs
are 24 rows. `budgets.py` has the limits, the charges and what people see of both.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, func, insert, or_, select, update

from airflow_lake_provider.instant_clock import HOUR_MS
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.db.database import IDS_PER_QUERY, batched
from airflow_lake_provider.manager.db.operations import (
    AGED,
    OBSERVED,
    Quote,
    load_fleet,
    load_own,
    parse_scopes,
    record_observed,
)
from airflow_lake_provider.manager.db.schema import lake_run, lake_table, lake_waiting
from airflow_lake_provider.manager.scheduling.budgets import SHOWN, add_spent, count_inside, load_spent
from airflow_lake_provider.manager.scheduling.scheduling import StartDecision, StartVerdict
from airflow_lake_provider.planner.price import cooldown_until_ms, cores_of, predict, work_of
from airflow_lake_provider.planner.ranking import (
    Ahead,
    Need,
    Room,
    Turn,
    density_of,
    find_exceeded,
    find_turn,
    jitter_ms,
    rank_ms,
)
from airflow_lake_provider.planner.rules import KeptBy, Urgency, urgency_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from sqlalchemy.orm import Session

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.config.tables_config import TablesConfig
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.db.rows import TableLease
    from airflow_lake_provider.manager.runs.airflow_runs import ServiceRun
    from airflow_lake_provider.manager.scheduling.budgets import RunLimit
    from airflow_lake_provider.planner.price import Operation
    from airflow_lake_provider.planner.rules import Decision

MAX_AHEAD = 256
"""A candidate behind so many others waits without reading further."""
FRESH_MS = 3_600_000
"""A row that no evaluation has confirmed for so long stands before no other one."""
AGED_FOR_MS = 24 * HOUR_MS
"""So long a service that waited, and is not due any more, keeps its age: it may be due again in a minute."""
SOON_MS = 5_000
LATE_MS = 300_000
"""How soon the first of those that wait is evaluated again, and the last ones."""
MAX_WOKEN = 8
FLEET_FOR_S = 60.0


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
        urgency = urgency_of(decision, policy)
        density = density_of(price, urgency, policy.weight)
        of_table = {} if policy.weight == 1 else {"weight": policy.weight}
        since = since_ms if since_ms is not None else self._registry.now_ms()
        is_urgent = urgency in {Urgency.UNBLOCKS, Urgency.GROWING} or bool(decision.plan_instants)
        return Quote(
            price=price.to_dict() | of_table,
            work=work_of(decision.service, decision.evidence),
            urgency=urgency.word,
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
            is_proven=price.is_proven,
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

    # --- which candidate may start ----------------------------------------------------------------------------------

    def find_since(self, session: Session, table_id: str, service: str) -> int | None:
        """Return since when a service of a table has waited; None when it does not wait."""
        waiting = lake_waiting.c
        mine = waiting.scope.in_((SHOWN, AGED)), waiting.table_id == table_id, waiting.service == service
        since_ms: int | None = session.scalar(select(func.min(waiting.since_ms)).where(*mine))
        return since_ms

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
        now_ms = self._registry.now_ms()
        need = Need(quote.core_ms, quote.bytes)
        active = self._with_scopes(session, limits, active)
        exceeded = [limit for limit in limits if find_exceeded(need, limit.room)]
        for limit in limits:
            if limit in exceeded and self._is_first_try(session, quote, limit, active, now_ms):
                continue
            found = self._wait_by_itself(key, quote, limit, now_ms)
            if found is not None:
                return found
        worst_found: CandidateStanding | None = None
        for limit in limits:
            turn, room = self._find_turn(session, key, quote, limit, active, now_ms)
            if turn.may_start or (limit in exceeded and not turn.ahead):
                continue
            reason = _explain(limit, turn, room, need) + explain_weight(quote.price)
            place = min(turn.ahead + 1, MAX_AHEAD)
            again_ms = now_ms + min(max(SOON_MS, 1000 * place), LATE_MS)
            price = dict(quote.price)
            waiting = StartDecision(StartVerdict.WAITING, "", reason, again_ms, price, kept_by=KeptBy.BUDGET)
            # The first try of one above a whole budget keeps no other one waiting.
            worst_found = worst_found or CandidateStanding(waiting, limit.scope, is_candidate=not exceeded)
        return worst_found or CandidateStanding(None)

    def _is_first_try(
        self, session: Session, quote: Quote, limit: RunLimit, active: Sequence[ServiceRun], now_ms: int
    ) -> bool:
        """Whether a candidate above its whole budget may start: the budget is idle, and its price was never tried.

        The run corrects the price. When it was right, a person decides.
        """
        if quote.is_proven or limit.most == 0 or count_inside(limit, active):
            return False
        room = self._find_room(session, limit, active, now_ms)
        return (room.core_ms, room.bytes) == (limit.core_ms, limit.bytes)

    @staticmethod
    def _wait_by_itself(key: tuple[str, str], quote: Quote, limit: RunLimit, now_ms: int) -> CandidateStanding | None:
        """Return that a candidate waits for no other one: it costs more than the whole budget, or has a pause."""
        need = Need(quote.core_ms, quote.bytes)
        exceeded = find_exceeded(need, limit.room)
        reason = ""
        again_ms = now_ms + LATE_MS
        if exceeded:
            wanted = f"{quote.core_ms / HOUR_MS:,.2f}" if exceeded == "core hours" else f"{quote.bytes:,}"
            unless = "raise it" if quote.is_proven else "raise it, or it is tried when nothing of the budget is spent"
            reason = (
                f"never starts: it needs {wanted} {exceeded} of {limit.shown}, more than a day's whole budget: {unless}"
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
                reason = f"waits {rest_s} s: what is due at a clock time is spread over minutes"
                again_ms = ripe_ms
        if not reason:
            return None
        price = dict(quote.price)
        parts = StartVerdict.WAITING, "", reason, again_ms, price
        kept_by = KeptBy.BUDGET if exceeded else KeptBy.SPREAD
        waiting = StartDecision(*parts, never_starts=bool(exceeded), kept_by=kept_by)
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
        if turn.may_start and len(ahead) >= MAX_AHEAD:
            # How many more rank before it is unknown.
            turn = replace(turn, may_start=False, short="places", held_by=ahead[0].service)
        return turn, room

    @staticmethod
    def _find_room(session: Session, limit: RunLimit, active: Sequence[ServiceRun], now_ms: int) -> Room:
        slots = None if limit.most is None else limit.most - count_inside(limit, active)
        if limit.core_ms is None and limit.bytes is None:
            return Room(slots)
        spent = load_spent(session, (limit.scope,), now_ms)
        core_ms = sum(row.core_ms for row in spent)
        size_bytes = sum(row.bytes for row in spent)
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
        now_ms = self._registry.now_ms()
        (table_id, service) = key
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
        if not is_new:
            session.execute(delete(lake_waiting).where(*_mine(AGED, table_id, service)))
        for limit in limits:
            if standing.is_candidate:
                _write(session, _keyed(limit.scope, key), {**values, "reason": "", "quote": ""})
                if is_new:
                    add_spent(session, limit.scope, now_ms, arrived_core_ms=quote.core_ms, arrived_bytes=quote.bytes)
            else:
                session.execute(delete(lake_waiting).where(*_mine(limit.scope, table_id, service)))

    def charge(
        self,
        session: Session,
        key: tuple[str, str],
        quote: Quote,
        limits: Sequence[RunLimit],
        created_ms: int,
        *,
        was_waiting: bool,
    ) -> None:
        """Charge a run that is created to its budgets, and end its waiting, if it was (`find_since`)."""
        for limit in limits:
            arrived = {} if was_waiting else {"arrived_core_ms": quote.core_ms, "arrived_bytes": quote.bytes}
            add_spent(session, limit.scope, created_ms, core_ms=quote.core_ms, bytes=quote.bytes, **arrived)
        if was_waiting:
            mine = lake_waiting.c.table_id == key[0], lake_waiting.c.service == key[1]
            session.execute(delete(lake_waiting).where(*mine))

    def keep(
        self,
        session: Session,
        table_id: str,
        waiting: Iterable[str],
        paused: Iterable[str],
        observed: Mapping[str, Quote],
        kept_by: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Mark what of a table is no candidate now, and record what would run if the table were not observed.

        What is `paused` waits for something of its own table, and `kept_by` says what else keeps a service that is to
        run: both keep their age as long as that lasts, and no other table waits for them. What is not due any more
        keeps it for a day, out of sight: most is due again when what it left the way to has ended.
        """
        now_ms = self._registry.now_ms()
        rows = session.execute(
            select(lake_waiting.c.scope, lake_waiting.c.service, lake_waiting.c.seen_ms).where(
                lake_waiting.c.table_id == table_id
            )
        ).all()
        still = set(waiting)
        aged = {*waiting, *paused}
        for scope, service, seen_ms in rows:
            mine = _mine(scope, table_id, service)
            if scope == SHOWN and service not in aged:
                marked: dict[str, Any] = {"short_of": "", "seen_ms": now_ms}
                marked |= {"reason": kept_by[service][:1000]} if service in kept_by else {"scope": AGED}
                session.execute(update(lake_waiting).where(*mine).values(**marked))
            elif scope == AGED and service in {*aged, *kept_by}:
                session.execute(update(lake_waiting).where(*mine).values(seen_ms=now_ms))
            elif scope == AGED:
                if seen_ms < now_ms - AGED_FOR_MS:
                    session.execute(delete(lake_waiting).where(*mine))
            elif scope != SHOWN and service not in (observed if scope == OBSERVED else still):
                session.execute(delete(lake_waiting).where(*mine))
        for service, quote in observed.items():
            values = {
                "rank_ms": quote.rank_ms, "since_ms": quote.since_ms, "seen_ms": now_ms,
                "core_ms": quote.core_ms, "bytes": quote.bytes, "short_of": OBSERVED,
                "reason": quote.reason, "quote": quote.to_text(),
            }  # fmt: skip
            _write(session, _keyed(OBSERVED, (table_id, service)), values)
            record_observed(session, table_id, service, quote, now_ms)

    def is_recorded(self, table_id: str, waiting: Collection[str], paused: Collection[str]) -> bool:
        """Return whether the backlog shows what of a table waits for budgets, and nothing that does not wait."""
        mine = lake_waiting.c.table_id == table_id, lake_waiting.c.scope == SHOWN
        with self._registry.transaction() as session:
            shown = set(session.scalars(select(lake_waiting.c.service).where(*mine)))
        return shown >= set(waiting) and shown <= {*waiting, *paused}

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
        now_ms = self._registry.now_ms()
        waiting = lake_waiting.c
        mine = waiting.table_id == table_id, waiting.seen_ms < now_ms - FRESH_MS // 4
        with self._registry.transaction() as session:
            session.execute(update(lake_waiting).where(*mine).values(seen_ms=now_ms))

    def wake(self, limits: Sequence[RunLimit]) -> None:
        """Have the first candidates of budgets evaluated soon: a run was created, so those behind it moved up."""
        now_ms = self._registry.now_ms()
        waiting = lake_waiting.c
        table = lake_table.c
        soon_ms = now_ms + 1000
        with self._registry.transaction() as session:
            ids: set[str] = set()
            for limit in limits:
                first = select(waiting.table_id).where(waiting.scope == limit.scope).order_by(waiting.rank_ms)
                ids.update(session.scalars(first.limit(MAX_WOKEN)))
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
        left = f"{room.bytes or 0:,}"
        wanted = f"{need.bytes:,}"
    else:
        left = f"{(room.core_ms or 0) / HOUR_MS:,.2f}"
        wanted = f"{need.core_ms / HOUR_MS:,.2f}"
    rest = f"; {before} before it" if turn.ahead else ""
    return f"waits for {turn.short} of {limit.shown}: it needs {wanted}, and {left} are left of the last 24 hours{rest}"


def explain_weight(price: Mapping[str, Any]) -> str:
    """Return what the table's weight does to the rank, to add to a sentence; empty without one."""
    weight = price.get("weight")
    return f"; what it brings counts {weight:g} times (the table's weight)" if weight else ""


def _mine(scope: str, table_id: str, service: str) -> tuple[Any, ...]:
    waiting = lake_waiting.c
    return waiting.scope == scope, waiting.table_id == table_id, waiting.service == service


def _keyed(scope: str, key: tuple[str, str]) -> dict[str, str]:
    return {"scope": scope, "table_id": key[0], "service": key[1]}


def _write(session: Session, key: dict[str, str], values: dict[str, Any]) -> None:
    changed: Any = session.execute(update(lake_waiting).where(*_mine(**key)).values(**values))
    if changed.rowcount == 0:
        session.execute(insert(lake_waiting).values(**key, **values))


def _load_ahead(
    session: Session, scope: str, key: tuple[str, str], before_ms: int, now_ms: int, most: int = MAX_AHEAD
) -> list[Ahead]:
    """Return those that rank before a candidate and keep it waiting, at most MAX_AHEAD, in their order.

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
