"""What would have happened under other budgets and policies: recorded decisions and outcomes, replayed in virtual time.

The replay takes each decision at the moment when its service became due, at the cost that its run had (or, where none
has ended, at the predicted one), and lets the ranked order spend the other budgets. It does not foresee what the tables
would have been like then: a service that starts later is replayed with the work that it had. All but `load_decisions`
is pure.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sqlalchemy import select

from airflow_lake_provider.config.tables_config import Budget, Budgets
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.instant_clock import DAY_MS, HOUR_MS
from airflow_lake_provider.manager.db.operations import DONE, OBSERVED, Quote, parse_quote
from airflow_lake_provider.manager.db.schema import lake_run, lake_table, lake_waiting
from airflow_lake_provider.manager.db.typed_rows import rows_from
from airflow_lake_provider.manager.scheduling.budgets import find_limits
from airflow_lake_provider.planner.ranking import Need, Room, find_exceeded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.config.tables_config import TablesConfig
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.scheduling.budgets import RunLimit

MAX_DECISIONS = 10_000
"""The newest so many are replayed."""
_COUNTS = {"compaction": ("delta_commits", "delta_commits"), "clean": ("writes_since_clean", "commits")}
"""Services whose rule counts commits: the name in the evidence, and the setting of the policy."""


@dataclass(frozen=True, slots=True)
class PastDecision:
    """One recorded decision. `seconds` and `bytes` are those of its run, or the predicted ones."""

    table_id: str
    base_path: str
    table_name: str
    owner: str
    service: str
    due_ms: int
    delay_ms: int
    """By how much its rank lies behind the moment when it became due."""
    seconds: float
    cores: int
    bytes: int
    points: float
    is_observed: bool = False
    count: int = 0
    """Commits that its rule counted; 0: its rule counts none."""

    @property
    def need(self) -> Need:
        """What it takes of a budget."""
        return Need(round(max(1.0, self.seconds) * self.cores * 1000), self.bytes)


@dataclass(frozen=True, slots=True)
class _DecidedRow:
    """A run with its table, or a service that still waits."""

    table_id: str
    service: str
    quote: str | None
    base_path: str
    table_name: str
    owner: str
    outcome: str = ""
    job_ms: int = 0
    bytes_out: int | None = None


def load_decisions(registry: Registry, since_ms: int) -> list[PastDecision]:
    """Return the decisions recorded since a time, with the outcomes of their runs, and those that still wait."""
    run = lake_run.c
    waiting = lake_waiting.c
    table = lake_table.c
    named = (table.base_path, table.table_name, table.owner)
    runs = select(run.table_id, run.service, run.quote, run.outcome, run.job_ms, run.bytes_out, *named).join(
        lake_table, table.table_id == run.table_id
    )
    runs = runs.where(run.created_ms >= since_ms, run.quote.is_not(None)).order_by(run.created_ms.desc())
    queued = select(waiting.table_id, waiting.service, waiting.quote, *named).join(
        lake_table, table.table_id == waiting.table_id
    )
    with registry.transaction() as session:
        rows = rows_from(_DecidedRow, session.execute(runs.limit(MAX_DECISIONS)))
        rows += rows_from(_DecidedRow, session.execute(queued.where(waiting.scope == "").limit(MAX_DECISIONS)))
    found = [_decision_of(row, quote) for row in rows if (quote := parse_quote(row.quote)) is not None]
    return sorted(found, key=lambda one: (one.due_ms, one.table_id, one.service))


def _decision_of(row: _DecidedRow, quote: Quote) -> PastDecision:
    has_ended = row.outcome in DONE
    cores = int(quote.price.get("cores", 1))
    name = _COUNTS.get(row.service, ("", ""))[0]
    counted = quote.evidence.get(name, 0)
    return PastDecision(
        table_id=row.table_id,
        base_path=row.base_path,
        table_name=row.table_name,
        owner=row.owner,
        service=row.service,
        due_ms=quote.since_ms,
        delay_ms=quote.rank_ms - quote.since_ms,
        seconds=row.job_ms / 1000 if has_ended else quote.core_ms / 1000 / cores,
        cores=cores,
        bytes=(row.bytes_out or 0) if has_ended else quote.bytes,
        points=float(quote.price.get("points", 0.0)),
        is_observed=row.outcome == OBSERVED,
        count=counted if isinstance(counted, int) else 0,
    )


# --- What a person asks for


MAX_DIGITS = 6
"""Of a span's number: a time that far away is one of the database's still."""


def parse_span_ms(text: str, option: str) -> int:
    """Return a span such as `12h` or `7d` in ms. Raises ConfigError, which names the option."""
    units = {"h": HOUR_MS, "d": DAY_MS}
    number = text[:-1]
    unit = text[-1:]
    if unit not in units or not number.isdecimal() or len(number) > MAX_DIGITS or int(number) == 0:
        raise ConfigError(f"{option} {text[:100]!r}, allowed: a number of hours or days, such as 12h or 7d")
    return int(number) * units[unit]


def with_budgets(tables: TablesConfig, wanted: Sequence[str]) -> TablesConfig:
    """Return the settings with other core hours a day: `HOURS`, or `queue:NAME=HOURS`. Raises ConfigError."""
    budgets = tables.budgets
    for text in wanted:
        scope, _, hours = text.rpartition("=")
        kind, _, name = scope.partition(":")
        field_name = {"": "all", "all": "all"}.get(kind, f"{kind}s")
        try:
            amount = float(hours)
        except ValueError:
            amount = 0.0
        if field_name not in Budgets.model_fields or not amount > 0 or not math.isfinite(amount):
            allowed = "core hours a day, such as 200, or queue:spark=40 (queue, pool, owner, label)"
            raise ConfigError(f"--budget {text!r}, allowed: {allowed}")
        if field_name == "all":
            whole = budgets.all if budgets.all is not None else Budget()
            budgets = budgets.replace(all=whole.replace(core_hours_per_day=amount))
        else:
            of = dict(getattr(budgets, field_name))
            of[name] = of.get(name, Budget()).replace(core_hours_per_day=amount)
            budgets = budgets.model_copy(update={field_name: of})
    return replace(tables, budgets=budgets)


# --- Which of them would be made under other policies


def under_policy(decisions: Iterable[PastDecision], tables: TablesConfig) -> list[tuple[PastDecision, TablePolicy]]:
    """Return the decisions that would be due, each with its table's policy.

    A rule of counting that asks for more commits than the recorded one makes one decision of several; one that asks for
    fewer cannot be replayed, and leaves them as they were.
    """
    carried: dict[tuple[str, str], PastDecision] = {}
    found = []
    for one in decisions:
        policy = tables.policy_for(one.base_path, one.table_name)
        section = getattr(policy, one.service, None)
        is_off = getattr(section, "enabled", True) is False or policy.find_pause(one.service, one.due_ms) != ""
        if is_off or policy.mode == "observe" or (one.is_observed and policy.mode != "manage"):
            continue
        key = (one.table_id, one.service)
        wanted = getattr(section, _COUNTS.get(one.service, ("", ""))[1], None)
        before = carried.pop(key, None)
        if before is not None:
            one = replace(one, count=one.count + before.count, points=one.points + before.points)
        if isinstance(wanted, int) and 0 < one.count < wanted:
            carried[key] = one
            continue
        found.append((one, policy))
    return found


# --- The replay


@dataclass(frozen=True, slots=True)
class ReplayFigures:
    """What people compare of two replays."""

    decided: int
    started: int
    waiting: int
    never_start: int
    core_hours: float
    bytes: int
    benefit: float
    wait_p50_s: float
    wait_p95_s: float
    wait_most_s: float
    most_core_hours_waiting: float


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay ended with. `backlog` are moments in ms with the core hours and services that waited then."""

    decided: int
    started: int
    over_budget: int
    waiting: int
    core_hours: float
    bytes: int
    points: float
    waits_s: tuple[float, ...]
    backlog: tuple[tuple[int, float, int], ...]
    checks: int = 0
    """How often it was decided whether a service starts: what the replay cost."""

    def wait_s(self, share: float) -> float:
        """Return the wait that this share of the started services did not exceed, in seconds."""
        ordered = sorted(self.waits_s)
        return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0

    def figures(self) -> ReplayFigures:
        """Return the figures that the command prints."""
        return ReplayFigures(
            decided=self.decided,
            started=self.started,
            waiting=self.waiting,
            never_start=self.over_budget,
            core_hours=round(self.core_hours, 2),
            bytes=self.bytes,
            benefit=round(self.points, 1),
            wait_p50_s=round(self.wait_s(0.5), 1),
            wait_p95_s=round(self.wait_s(0.95), 1),
            wait_most_s=round(max(self.waits_s, default=0.0), 1),
            most_core_hours_waiting=round(max((hours for _, hours, _ in self.backlog), default=0.0), 2),
        )


@dataclass(slots=True)
class _Budget:
    """One budget while it is replayed; what was spent a day ago is taken off once."""

    limit: RunLimit
    active: int = 0
    spent: deque[tuple[int, Need]] = field(default_factory=deque)
    core_ms: int = 0
    bytes: int = 0

    def room(self, now_ms: int) -> Room:
        while self.spent and self.spent[0][0] <= now_ms - DAY_MS:
            _, need = self.spent.popleft()
            self.core_ms, self.bytes = self.core_ms - need.core_ms, self.bytes - need.bytes
        most = self.limit.most
        core_ms = self.limit.core_ms
        size = self.limit.bytes
        return Room(
            None if most is None else most - self.active,
            None if core_ms is None else core_ms - self.core_ms,
            None if size is None else size - self.bytes,
        )

    def spend(self, now_ms: int, need: Need) -> None:
        self.active += 1
        self.spent.append((now_ms, need))
        self.core_ms, self.bytes = self.core_ms + need.core_ms, self.bytes + need.bytes


@dataclass(order=True, slots=True)
class _Candidate:
    rank_ms: int
    number: int
    decision: PastDecision = field(compare=False)
    scopes: tuple[str, ...] = field(compare=False)


def _take(rooms: dict[str, Room], one: _Candidate, *, is_old: bool) -> bool:
    """Take from the rooms what a candidate takes or keeps for itself; return whether it may start."""
    need = one.decision.need
    short = {scope for scope in one.scopes if rooms[scope].find_short(need)}
    for scope in one.scopes:
        left = rooms[scope].behind(need, is_old=is_old, waits_elsewhere=bool(short - {scope}))
        rooms[scope] = rooms[scope] if left is None else left
    return not short


class _Fleet:
    """The budgets, what waits, and what runs, in virtual time.

    What waits stands in one queue for each set of budgets. A queue is left as soon as none behind can start or take
    anything from a budget that others need, so most that wait are not checked: `checks` counts those that are.
    """

    def __init__(self, until_ms: int, least: Need) -> None:
        self.until_ms = until_ms
        self.least = least
        self.budgets: dict[str, _Budget] = {}
        self.queues: dict[tuple[str, ...], list[_Candidate]] = {}
        self.ends: list[tuple[int, int, tuple[str, ...]]] = []
        self.waits_s: list[float] = []
        self.started: list[PastDecision] = []
        self.backlog: list[tuple[int, float, int]] = []
        self.waiting = self.waiting_core_ms = self.checks = 0

    def wait(self, one: _Candidate) -> None:
        bisect.insort(self.queues.setdefault(one.scopes, []), one)
        self.waiting += 1
        self.waiting_core_ms += one.decision.need.core_ms

    def end(self, now_ms: int) -> None:
        while self.ends and self.ends[0][0] <= now_ms:
            for scope in heapq.heappop(self.ends)[2]:
                self.budgets[scope].active -= 1

    def start(self, now_ms: int) -> None:
        """Start what may start, in the ranked order and by the rules of `find_turn`."""
        rooms = {scope: budget.room(now_ms) for scope, budget in self.budgets.items()}
        begun: dict[tuple[str, ...], list[int]] = {}
        heads = [(queue[0], 0) for queue in self.queues.values()]
        heapq.heapify(heads)
        while heads:
            one, at = heapq.heappop(heads)
            full = [rooms[scope].find_short(self.least) != "" for scope in one.scopes]
            if full and (all(full) if one.rank_ms <= now_ms else any(full)):
                continue
            self.checks += 1
            if _take(rooms, one, is_old=one.rank_ms <= now_ms):
                self._begin(one, now_ms)
                begun.setdefault(one.scopes, []).append(at)
            if at + 1 < len(self.queues[one.scopes]):
                heapq.heappush(heads, (self.queues[one.scopes][at + 1], at + 1))
        for scopes, places in begun.items():
            for at in reversed(places):
                del self.queues[scopes][at]
            if not self.queues[scopes]:
                del self.queues[scopes]
        self.backlog.append((now_ms, self.waiting_core_ms / HOUR_MS, self.waiting))

    def _begin(self, one: _Candidate, now_ms: int) -> None:
        need = one.decision.need
        for scope in one.scopes:
            self.budgets[scope].spend(now_ms, need)
        self.waiting -= 1
        self.waiting_core_ms -= need.core_ms
        heapq.heappush(self.ends, (now_ms + round(one.decision.seconds * 1000), one.number, one.scopes))
        self.waits_s.append((now_ms - one.decision.due_ms) / 1000)
        self.started.append(one.decision)

    def next_ms(self, now_ms: int) -> int:
        """Return when something may start next without a new decision: a run ends, or an hour of a day's costs does."""
        times = [self.ends[0][0]] if self.ends else []
        times += [b.spent[0][0] + DAY_MS for b in self.budgets.values() if b.spent and self.waiting]
        return max(now_ms + 1, min(times, default=self.until_ms + 1))


def replay(decisions: Sequence[PastDecision], tables: TablesConfig, until_ms: int) -> Replay:
    """Replay decisions, by when they became due, up to a time under the policies and budgets of some settings."""
    wanted = under_policy(decisions, tables)
    needs = [one.need for one, _ in wanted]
    least = Need(min((need.core_ms for need in needs), default=0), min((need.bytes for need in needs), default=0))
    fleet = _Fleet(until_ms, least)
    over_budget = 0
    at = 0
    now_ms = wanted[0][0].due_ms if wanted else until_ms
    while at < len(wanted) or fleet.waiting or fleet.ends:
        due_ms = wanted[at][0].due_ms if at < len(wanted) else until_ms + 1
        now_ms = max(now_ms, min(due_ms, fleet.next_ms(now_ms)) if at or fleet.waiting else due_ms)
        if now_ms > until_ms:
            break
        fleet.end(now_ms)
        while at < len(wanted) and wanted[at][0].due_ms <= now_ms:
            decision, policy = wanted[at]
            limits = find_limits(policy, tables, decision.owner)
            for limit in limits:
                fleet.budgets.setdefault(limit.scope, _Budget(limit))
            if any(find_exceeded(decision.need, limit.room) for limit in limits):
                over_budget += 1
            else:
                scopes = tuple(limit.scope for limit in limits)
                fleet.wait(_Candidate(decision.due_ms + decision.delay_ms, at, decision, scopes))
            at += 1
        fleet.start(now_ms)
    return Replay(
        decided=len(wanted),
        started=len(fleet.started),
        over_budget=over_budget,
        waiting=fleet.waiting,
        checks=fleet.checks,
        core_hours=sum(one.need.core_ms for one in fleet.started) / HOUR_MS,
        bytes=sum(one.bytes for one in fleet.started),
        points=sum(one.points for one in fleet.started),
        waits_s=tuple(fleet.waits_s),
        backlog=tuple(fleet.backlog),
    )


# --- The plot

WIDTH = 800
HEIGHT = 320
EDGE = 50
_COLOURS = ("#3572b0", "#c0504d", "#4f8f46", "#8064a2")


def to_svg(replays: Sequence[tuple[str, Replay]]) -> str:
    """Return the core hours that waited over time, one line for each replay, as an SVG document."""
    times = [at_ms for _, found in replays for at_ms, _, _ in found.backlog]
    begin_ms = min(times, default=0)
    end_ms = max(times, default=1)
    most = max((hours for _, found in replays for _, hours, _ in found.backlog), default=0.0) or 1.0
    inner_w = WIDTH - 2 * EDGE
    inner_h = HEIGHT - 2 * EDGE
    span_ms = max(1, end_ms - begin_ms)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<path d="M{EDGE} {EDGE}V{HEIGHT - EDGE}H{WIDTH - EDGE}" fill="none" stroke="#444"/>',
        f'<text x="{EDGE}" y="{EDGE - 12}">core hours that wait (at most {most:,.2f})</text>',
        f'<text x="{WIDTH - EDGE}" y="{HEIGHT - EDGE + 20}" text-anchor="end">{span_ms / HOUR_MS:,.1f} hours</text>',
    ]
    for number, (name, found) in enumerate(replays):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join(
            f"{EDGE + inner_w * (at_ms - begin_ms) / span_ms:.1f},{HEIGHT - EDGE - inner_h * hours / most:.1f}"
            for at_ms, hours, _ in found.backlog
        )
        safe = name.replace("&", "&amp;").replace("<", "&lt;")
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(
            f'<text x="{WIDTH - EDGE}" y="{EDGE + 16 * number}" text-anchor="end" fill="{colour}">{safe}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"
