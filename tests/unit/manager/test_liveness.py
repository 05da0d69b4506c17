"""Whatever arrives under a budget, every due service starts within the bound that docs/services.md states.

Three views of it: 2,000 services that are due at midnight, by the rules of the order alone, over days; such a night by
the manager's own scheduler and rows; and the adversary of one table, next to a rival that always has richer work.
"""

from __future__ import annotations

import heapq
import random
from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, func, select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import StaticPool

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.config.tables_file import parse_tables_file
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.db.database import ProcessClock
from airflow_lake_provider.manager.db.operations import RunReport, report_run
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import EvaluationResult, Notice, Source, TableLease
from airflow_lake_provider.manager.db.schema import lake_table, metadata
from airflow_lake_provider.manager.runs.airflow_runs import RunState, ServiceRun
from airflow_lake_provider.manager.scheduling.budgets import correct
from airflow_lake_provider.manager.scheduling.run_scheduler import RunScheduler
from airflow_lake_provider.manager.scheduling.scheduling import StartDecision, StartVerdict
from airflow_lake_provider.planner.decide import decide, remember_shown
from airflow_lake_provider.planner.facts import TableFacts
from airflow_lake_provider.planner.last_runs import last_runs_to_text, parse_last_runs
from airflow_lake_provider.planner.ranking import Ahead, Need, Room, find_turn, jitter_ms, rank_ms
from airflow_lake_provider.planner.rules import Decision, Verdict
from tests.support.adversary_game import Game
from tests.unit.manager.adversary import OUTCOMES, Manager
from tests.unit.manager.conftest import FakeRunGateway, is_of
from tests.unit.manager.hudi_model import Kind

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
DAY_MS = 24 * HOUR_MS
MIDNIGHT_MS = 1_795_305_600_000


def bound_ms(ahead_core_ms: int, budget_ms: int) -> int:
    """What docs/services.md states, in its own numbers. `ahead_core_ms` with the candidate's own cost."""
    return round(72 * HOUR_MS + 24 * HOUR_MS * (1 + 2 * ahead_core_ms / budget_ms))


# --- The order alone, over days: a budget that is too small, and rich work that never ceases to arrive


@dataclass(order=True)
class Candidate:
    rank_ms: int
    name: str
    since_ms: int = field(compare=False)
    need: Need = field(compare=False)
    first_asks_ms: int = field(compare=False)


class Night:
    """A manager in virtual time; each run costs up to three times what was predicted, and no failure ends early."""

    STEP_MS = 20 * MINUTE_MS

    def __init__(self, seed: int, slots: int, budget_ms: int) -> None:
        self.rng = random.Random(seed)
        self.slots, self.budget_ms = slots, budget_ms
        self.waiting: list[Candidate] = []
        self.running: list[int] = []
        self.charged: list[tuple[int, int]] = []
        """When a run was created, and what it cost in the end."""
        self.started: dict[str, int] = {}

    def arrive(self, name: str, since_ms: int, density: float, need: Need, first_asks_ms: int = 0) -> Candidate:
        candidate = Candidate(rank_ms(since_ms, density), name, since_ms, need, max(since_ms, first_asks_ms))
        insort(self.waiting, candidate)
        return candidate

    def pass_step(self, now_ms: int) -> None:
        while self.running and self.running[0] <= now_ms:
            heapq.heappop(self.running)
        asking = [one for one in self.waiting[:400] if one.first_asks_ms <= now_ms][:24]
        # Whichever asks first: that gives it no better place.
        for candidate in self.rng.sample(asking, len(asking)):
            ahead = [Ahead(one.name, "", one.rank_ms, one.need) for one in asking if one < candidate]
            ahead = [one for one in ahead if one.table_id not in self.started]
            spent = sum(core_ms for at_ms, core_ms in self.charged if at_ms > now_ms - DAY_MS)
            room = Room(self.slots - len(self.running), self.budget_ms - spent)
            if not find_turn(candidate.need, ahead, room, now_ms).may_start:
                continue
            assert len(self.running) < self.slots, "more runs than slots"
            assert spent + candidate.need.core_ms <= self.budget_ms, "more core hours than the budget"
            self.waiting.remove(candidate)
            self.started[candidate.name] = now_ms
            heapq.heappush(self.running, now_ms + self.rng.randrange(MINUTE_MS, 3 * HOUR_MS))
            # At least what was predicted, so that the sum above bounds what was known when it began.
            self.charged.append((now_ms, round(candidate.need.core_ms * self.rng.uniform(1.0, 3.0))))


def test_two_thousand_services_that_are_due_at_midnight_start_within_the_bound_under_a_budget_too_small() -> None:
    budget_ms = 6 * HOUR_MS
    night = Night(20261124, slots=16, budget_ms=budget_ms)
    for number in range(2000):
        name = f"expire-{number}"
        need, jitter = Need(night.rng.randrange(15_000, 45_000)), jitter_ms(name, Service.TTL)
        night.arrive(name, MIDNIGHT_MS, night.rng.choice([1e-3, 0.01, 1.0]), need, MIDNIGHT_MS + jitter)
    victims = {one.name: one for one in night.waiting}
    asks = [one.first_asks_ms // 10_000 for one in night.waiting]
    assert max(asks.count(moment) for moment in set(asks)) <= 3 * 2000 / 30, "they ask all at once"
    now_ms, arrived = MIDNIGHT_MS, 0
    while any(name not in night.started for name in victims):
        # Work of the highest value, half of the budget a day, and more than that by what it costs in the end.
        while arrived * 120_000 < (now_ms - MIDNIGHT_MS) / DAY_MS * budget_ms / 2:
            night.arrive(f"rich-{arrived}", now_ms, 1e3, Need(120_000))
            arrived += 1
        night.pass_step(now_ms)
        now_ms += Night.STEP_MS
        assert now_ms < MIDNIGHT_MS + 60 * DAY_MS, f"{len(victims.keys() - night.started.keys())} never start"
    for name, victim in victims.items():
        started_ms = night.started[name]
        before = sum(cost_ms for at_ms, cost_ms in night.charged if MIDNIGHT_MS + 72 * HOUR_MS <= at_ms < started_ms)
        limit_ms = bound_ms(before + victim.need.core_ms, budget_ms)
        assert started_ms - MIDNIGHT_MS <= limit_ms, (name, started_ms, limit_ms)


# --- The same night by the manager's own scheduler, rows and wake-ups


@pytest.fixture
def database() -> Iterator[Engine]:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.mark.parametrize(
    ("tables", "slots"), [pytest.param(12, 2), pytest.param(2000, 16, marks=pytest.mark.soak)], ids=["12", "2000"]
)
def test_night_of_expired_partitions_ends_as_soon_as_its_slots_allow(database: Engine, tables: int, slots: int) -> None:
    moment = [datetime.fromtimestamp(MIDNIGHT_MS / 1000, UTC)]
    registry = Registry(sessionmaker(database), ProcessClock(lambda: moment[0]))
    config = parse_tables_file(f"budgets: {{all: {{slots: {slots}}}}}", "tables.yaml")
    gateway, rng, policy = FakeRunGateway(), random.Random(tables), TablePolicy()
    scheduler = RunScheduler(registry, gateway, lambda: config)
    for number in range(tables):
        registry.mark_dirty(Notice(f"/lake/t{number}", f"t{number}", Source.HINT))
    found = Decision(Service.TTL, Verdict.DUE, "a day has passed", key_instant="20261124")
    started: dict[str, int] = {}
    ends: list[tuple[int, str]] = []
    busy_ms = idle_ms = 0
    while len(started) < tables or ends:
        now_ms = registry.now_ms()
        while ends and ends[0][0] <= now_ms:
            gateway.end(heapq.heappop(ends)[1], RunState.SUCCESS, now_ms)
        for lease in registry.acquire(tables, 60):
            again_ms = None
            if lease.table_id not in started:
                start = scheduler.start(lease, policy, found)
                again_ms = start.evaluate_again_ms
                if start.verdict is StartVerdict.START:
                    started[lease.table_id] = now_ms
                    heapq.heappush(ends, (now_ms + rng.randrange(60_000, 120_000), start.run_id))
            registry.release(lease, EvaluationResult(next_evaluation_ms=now_ms + DAY_MS, retry_ms=again_ms))
        active = [run for run in gateway.runs if run.active]
        assert len(active) <= slots
        with registry.transaction() as session:
            retry_ms = session.scalar(select(func.min(lake_table.c.retry_ms)))
        times = [at_ms for at_ms, _ in ends[:1]] + [at_ms for at_ms in [retry_ms] if at_ms is not None]
        step_ms = max(min(times, default=0) - now_ms, 100)
        if now_ms > MIDNIGHT_MS + 300_000 and tables - len(started) > slots:
            busy_ms, idle_ms = busy_ms + step_ms * len(active), idle_ms + step_ms * (slots - len(active))
        moment[0] += timedelta(milliseconds=step_ms)
    first = sorted(started.values())
    assert first[0] < MIDNIGHT_MS + 300_000, "nothing began in the minutes over which they are spread"
    assert idle_ms < 0.2 * (busy_ms + idle_ms), "places stay free although services wait"


# --- The adversary of one table, and a rival whose richer work is always due, under one budget


BUDGET_MS = HOUR_MS // 10


class BudgetedManager(Manager):
    """The adversary's manager with its real rows, and a rival that asks first whenever anything is evaluated."""

    def __post_init__(self) -> None:
        engine = create_engine("sqlite://", poolclass=StaticPool)
        metadata.create_all(engine)
        clock = ProcessClock(lambda: datetime.fromtimestamp(self.now_ms() / 1000, UTC))
        self.registry = Registry(sessionmaker(engine), clock)
        self.tables: TablesConfig = parse_tables_file(
            "budgets: {all: {slots: 1, core_hours_per_day: 0.1}}", "tables.yaml"
        )
        self._scheduler = RunScheduler(self.registry, self, lambda: self.tables)
        self.lease, self.rival = self._lease("/lake/orders"), self._lease("/lake/rival")
        self.rival_runs: list[ServiceRun] = []
        self.charged: list[tuple[int, int, int]] = []
        """When a run was created, what it cost, and since when it had been due."""
        self.rival_since_ms: int | None = None
        self.since_ms: dict[Service, int] = {}
        """When a service first waited for the budget."""
        self.waits: list[tuple[Service, int, int]] = []
        """A service that waited for it, from when to when."""
        self._asked = 0

    def _lease(self, base_path: str) -> TableLease:
        self.registry.mark_dirty(Notice(base_path, base_path[6:], Source.COMMIT_CALLBACK))
        (lease,) = self.registry.acquire(1, 10**9)
        return lease

    def find_active_runs(self, session: Any, table_id: str = "") -> Sequence[ServiceRun]:
        runs = [*self.runs, *self.rival_runs]
        return [run for run in runs if run.active and is_of(run.run_id, table_id)]

    def create_run(self, session: Any, run_id: str, conf: dict[str, Any], note: str) -> None:
        assert not self.find_active_runs(session, ""), "two runs with one slot"

    def evaluate(self) -> None:
        self._let_the_rival_ask()
        last_runs = self._scheduler.follow_up(parse_last_runs(self._text))
        facts, now_ms = TableFacts(self.hudi.view(), self.hold), self.now_ms()
        last_runs = remember_shown(facts, self.policy, last_runs, now_ms)
        self.decisions = decide(facts, self.policy, now_ms, last_runs)
        due = [decision for decision in self.decisions if decision.verdict is Verdict.DUE]
        waiting, paused, starts = [], [], []
        for decision in due:
            start = self._scheduler.start(self.lease, self.policy, decision, last_runs)
            starts.append(start)
            if start.verdict is StartVerdict.START:
                last_runs = last_runs.started(decision, start.run_id)
                self._note_start(decision, start.run_id, set())
                self._charge(start, self.since_ms.get(decision.service, now_ms))
            if start.verdict is StartVerdict.WAITING:
                (waiting if start.price is not None else paused).append(decision.service.value)
            self._note_wait(decision.service, start)
        for service in [one for one in self.since_ms if one not in {decision.service for decision in due}]:
            del self.since_ms[service]
        with self.registry.transaction() as session:
            self._scheduler.backlog.keep(session, self.lease.table_id, waiting, paused, {})
        times = [start.evaluate_again_ms for start in starts] + [d.evaluate_again_ms for d in self.decisions]
        self.again_ms = min((time for time in times if time is not None), default=None)
        self._text = last_runs_to_text(last_runs)

    def _note_wait(self, service: Service, start: StartDecision) -> None:
        if start.verdict is StartVerdict.WAITING and start.price is not None:
            self.since_ms.setdefault(service, self.now_ms())
        elif (since_ms := self.since_ms.pop(service, None)) is not None and start.verdict is StartVerdict.START:
            self.waits.append((service, since_ms, self.now_ms()))

    def _charge(self, start: StartDecision, since_ms: int) -> None:
        assert start.price is not None
        core_ms = round(max(start.price["seconds"][0], 1.0) * start.price["cores"] * 1000)
        spent = sum(cost_ms for at_ms, cost_ms, _ in self.charged if at_ms > self.now_ms() - 23 * HOUR_MS)
        assert spent + core_ms <= BUDGET_MS, "more core hours than the budget"
        self.charged.append((self.now_ms(), core_ms, since_ms))

    def _let_the_rival_ask(self) -> None:
        for run in [run for run in self.rival_runs if run.active]:
            self.rival_runs.remove(run)
            with self.registry.transaction() as session:
                report = RunReport(1, "completed", 20_000)
                correct(session, report_run(session, self.rival.table_id, run.run_id, "rollback", report, 0))
            at_ms, _, since_ms = self.charged.pop()
            self.charged.append((at_ms, 20_000, since_ms))
        self._asked += 1
        since_ms = self.rival_since_ms = self.rival_since_ms or self.now_ms()
        # What unblocks writers ranks first.
        found = Decision(Service.ROLLBACK, Verdict.DUE, "always due", key_instant=f"20261121{self._asked:09}")
        start = self._scheduler.start(self.rival, TablePolicy(), found)
        if start.verdict is StartVerdict.START:
            self.rival_runs.append(ServiceRun(start.run_id, RunState.RUNNING))
            self.rival_since_ms = None
            self._charge(start, since_ms)


class BudgetedGame(Game):
    """Time passes with few evaluations, which the adversary delays, but by less than the hour that a place is kept."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        kind = self.rng.choice([Kind.DELTA, Kind.UPSERT])
        super().__init__(kind, 9, most_active=1, features=frozenset(self.rng.sample(["clusters", "expires"], 1)))
        self.manager = BudgetedManager(self.hudi, self.policy)

    def _pass(self, seconds: float) -> None:
        end_ms = self.hudi.now_ms + int(seconds * 1000)
        for part in range(3 if seconds < 7200 else int(seconds / 2400), 0, -1):
            self.hudi.now_ms += (end_ms - self.hudi.now_ms) // part
            self._beat()
            self.manager.evaluate()


@pytest.mark.parametrize("seed", [5, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(6, 60))])
def test_adversary_and_a_rival_with_richer_work_delay_no_service_beyond_the_bound(seed: int) -> None:
    game = BudgetedGame(seed)
    manager = game.manager
    assert isinstance(manager, BudgetedManager)
    moves = ("commit", "commit", "wait", "end", "begin_write", "end_write", "kill_writer", "savepoint", "expire")
    for _ in range(30):
        game.play(game.rng.choice(moves), game.rng.randrange(60))
    # Nothing of the table is in the way any more; the rival goes on.
    game.hudi.savepoint = None
    for _ in range(7 * 6):
        game._pass(4 * 3600)
        for run in manager.active:
            manager.end(run, game.rng.choice(["done", "done", *OUTCOMES]))
        if game.rng.random() < 0.3:
            game.hudi.write()
    assert sum(manager.started.values()) >= 3
    still = [(service, since_ms, manager.now_ms()) for service, since_ms in manager.since_ms.items()]
    for service, since_ms, until_ms in (*manager.waits, *still):
        ripe_ms = since_ms + 72 * HOUR_MS
        # What became due later does not rank before it.
        ahead_ms = sum(
            cost_ms for at, cost_ms, since in manager.charged if ripe_ms <= at < until_ms and since < ripe_ms
        )
        own_ms = max(cost_ms for _, cost_ms, _ in manager.charged)
        assert until_ms - since_ms <= bound_ms(ahead_ms + own_ms, BUDGET_MS), (service, since_ms, until_ms)
    assert manager.waits, "nothing ever waited for the budget: the game shows nothing"
