"""The ranked order: benefit per cost with ageing. Nothing starves, and no budget is exceeded, whatever arrives."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.instant_clock import DAY_MS, HOUR_MS
from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.planner.price import Benefit, Price, Range
from airflow_lake_provider.planner.ranking import (
    MAX_DELAY_MS,
    MAX_DENSITY,
    MAX_JITTER_MS,
    MIN_DENSITY,
    Ahead,
    Load,
    Need,
    Pressure,
    Room,
    capacity_of,
    delay_ms,
    density_of,
    expected_wait_ms,
    find_exceeded,
    find_turn,
    holding_budget,
    jitter_ms,
    pressure_of,
    rank_ms,
)
from airflow_lake_provider.planner.rules import Decision, Urgency, Verdict, urgency_of

DENSITIES = st.floats(MIN_DENSITY / 10, MAX_DENSITY * 10)


def due(service: Service, **evidence: int) -> Decision:
    return Decision(service, Verdict.DUE, "due", key_instant="1", evidence=evidence)


@pytest.mark.parametrize(
    ("decision", "urgency"),
    [
        pytest.param(due(Service.ROLLBACK), Urgency.UNBLOCKS, id="rollback"),
        pytest.param(due(Service.COMPACTION, delta_commits=5), Urgency.USUAL, id="compaction"),
        pytest.param(due(Service.COMPACTION, delta_commits=10), Urgency.OVERDUE, id="compaction-twice-over"),
        pytest.param(due(Service.CLEAN, writes_since_clean=10), Urgency.GROWING, id="clean-twice-over"),
        pytest.param(due(Service.ARCHIVE, active_writes=60), Urgency.GROWING, id="archive-twice-over"),
        pytest.param(due(Service.CLUSTERING), Urgency.MASS, id="clustering"),
        pytest.param(due(Service.TTL), Urgency.MASS, id="expired-partitions"),
        pytest.param(due(Service.SAVEPOINT), Urgency.MASS, id="savepoint"),
        pytest.param(due(Service.ORPHANS), Urgency.MASS, id="orphan-files"),
        pytest.param(
            Decision(Service.CLUSTERING, Verdict.DUE, "", Mode.EXECUTE, "1", ("1",)), Urgency.UNBLOCKS, id="its-plan"
        ),
    ],
)
def test_class_says_what_waits_for_it(decision: Decision, urgency: Urgency) -> None:
    assert urgency_of(decision, TablePolicy()) is urgency


@given(one=DENSITIES, other=DENSITIES)
def test_more_benefit_per_cost_is_never_later(one: float, other: float) -> None:
    assert 0 <= delay_ms(one) <= MAX_DELAY_MS
    if one > other:
        assert rank_ms(0, one) <= rank_ms(0, other)


@given(since=st.integers(0, 10**13), later=st.integers(MAX_DELAY_MS + 1, 10**12), mine=DENSITIES, its=DENSITIES)
def test_what_becomes_due_three_days_later_never_overtakes(since: int, later: int, mine: float, its: float) -> None:
    assert rank_ms(since, mine) < rank_ms(since + later, its)


def test_what_unblocks_writers_comes_before_all_usual_work_of_its_age() -> None:
    def price(points: float, seconds: float) -> Price:
        return Price(Range(seconds, seconds, seconds), Range(0, 0, 0), Benefit(files=10 * points))

    unblocks = density_of(price(0.2, 600), Urgency.UNBLOCKS)
    best = density_of(price(30, 20), Urgency.USUAL)
    assert rank_ms(0, unblocks) < rank_ms(0, best)


@pytest.mark.parametrize(("weight", "hours"), [(10.0, -12), (0.1, 12), (1.0, 0)])
def test_weight_of_a_table_moves_it_half_a_day_for_each_factor_of_ten(weight: float, hours: int) -> None:
    price = Price(Range(10, 10, 10), Range(0, 0, 0), Benefit(files=10))
    plain, weighted = (density_of(price, Urgency.USUAL, one) for one in (1.0, weight))
    assert rank_ms(0, weighted) - rank_ms(0, plain) == pytest.approx(hours * HOUR_MS, abs=1)
    # Writers that wait do so on a table without readers as well.
    assert density_of(price, Urgency.UNBLOCKS, weight) == density_of(price, Urgency.UNBLOCKS)


def test_jitter_spreads_what_is_due_at_a_clock_time_and_nothing_else() -> None:
    spread = sorted(jitter_ms(f"table-{number}", Service.SAVEPOINT) for number in range(200))
    assert spread[0] >= 0
    assert spread[-1] < MAX_JITTER_MS
    assert max(b - a for a, b in pairwise(spread)) < MAX_JITTER_MS / 10
    assert jitter_ms("table-1", Service.COMPACTION) == 0


# --- One budget, with everything that may happen to it


@dataclass(order=True)
class Item:
    rank_ms: int
    name: str
    since_ms: int = field(compare=False)
    need: Need = field(compare=False)
    runs_ms: int = field(compare=False)
    actual_core_ms: int = field(compare=False)


@dataclass
class Fleet:
    """A manager in virtual time: it evaluates all candidates every two hours, in an order that an adversary chooses."""

    slots: int
    core_ms: int
    waiting: list[Item] = field(default_factory=list)
    running: list[tuple[int, Item]] = field(default_factory=list)
    charged: list[tuple[int, int]] = field(default_factory=list)
    started: list[tuple[int, Item]] = field(default_factory=list)

    def room(self, now_ms: int) -> Room:
        spent = sum(core_ms for at_ms, core_ms in self.charged if at_ms > now_ms - DAY_MS)
        return Room(self.slots - len(self.running), self.core_ms - spent)

    def evaluate(self, now_ms: int, order: list[Item]) -> None:
        self.running = [(ends_ms, item) for ends_ms, item in self.running if ends_ms > now_ms]
        for item in order:
            ahead = [Ahead(one.name, "", one.rank_ms, one.need) for one in sorted(self.waiting) if one < item]
            if find_turn(item.need, ahead, self.room(now_ms), now_ms).may_start:
                self.waiting.remove(item)
                self.running.append((now_ms + item.runs_ms, item))
                self.charged.append((now_ms, item.need.core_ms))
                self.started.append((now_ms, item))
                assert self.room(now_ms).slots is not None
                assert (self.room(now_ms).slots or 0) >= 0, "more runs than slots"
                assert (self.room(now_ms).core_ms or 0) >= 0, "more core hours than the budget"


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_every_candidate_starts_within_the_bound_and_no_budget_is_exceeded(data: st.DataObject) -> None:
    budget_ms = 10 * HOUR_MS
    fleet = Fleet(data.draw(st.integers(1, 3)), budget_ms)
    large = Need(budget_ms - HOUR_MS // 2)
    victim = Item(rank_ms(0, MIN_DENSITY), "victim", 0, large, HOUR_MS, 0)
    fleet.waiting.append(victim)
    rng = data.draw(st.randoms(use_true_random=False))
    now_ms, arrived = 0, 0
    deadline_ms = MAX_DELAY_MS + 8 * DAY_MS
    while victim in fleet.waiting and now_ms < deadline_ms:
        # Small work of the highest value arrives without end, twice as much as the budget bears.
        while arrived * HOUR_MS // 4 <= 2 * budget_ms * now_ms // DAY_MS and len(fleet.waiting) < 25:
            need = Need(rng.randrange(HOUR_MS // 8, HOUR_MS // 2))
            density = rng.choice([MAX_DENSITY, 1.0, MIN_DENSITY])
            fleet.waiting.append(Item(rank_ms(now_ms, density), f"i{arrived}", now_ms, need, HOUR_MS // 4, 0))
            arrived += 1
        fleet.evaluate(now_ms, rng.sample(fleet.waiting, len(fleet.waiting)))
        now_ms += 2 * HOUR_MS
    assert victim not in fleet.waiting, "starved"
    # docs/services.md: MAX_DELAY_MS, then a day for each time that what ranks before it fills half of the budget.
    started_ms = next(at_ms for at_ms, item in fleet.started if item is victim)
    before = [item for at_ms, item in fleet.started if at_ms >= MAX_DELAY_MS and at_ms < started_ms]
    ahead_ms = sum(item.need.core_ms for item in before) + large.core_ms
    assert started_ms <= MAX_DELAY_MS + DAY_MS * (1 + -(-2 * ahead_ms // budget_ms))
    # From its moment on, nothing that ranks behind it starts in its place.
    assert all(item < victim for at_ms, item in fleet.started if MAX_DELAY_MS < at_ms < started_ms)


@pytest.mark.parametrize(
    ("ahead", "may_start", "held_by"),
    [
        pytest.param([], True, "", id="nothing-before-it"),
        pytest.param([Ahead("a", "clean", 900, Need(50))], False, "clean", id="one-that-fits-takes-the-room"),
        pytest.param([Ahead("a", "clean", 1100, Need(500))], True, "", id="a-large-one-may-be-overtaken"),
        pytest.param([Ahead("a", "clean", 900, Need(500))], False, "clean", id="until-its-moment-has-come"),
        pytest.param(
            [Ahead("a", "clean", 1100, Need(50), "owner:x")], True, "", id="one-that-waits-elsewhere-is-overtaken"
        ),
        pytest.param([Ahead("a", "clean", 900, Need(50), "owner:x")], False, "clean", id="until-its-moment-as-well"),
    ],
)
def test_turn_of_a_candidate_by_those_before_it(ahead: list[Ahead], may_start: bool, held_by: str) -> None:
    turn = find_turn(Need(60), ahead, Room(slots=5, core_ms=100), now_ms=1000, scope="queue:q")
    assert (turn.may_start, turn.held_by) == (may_start, held_by)
    assert turn.ahead == len(ahead)


def test_candidate_above_the_whole_budget_is_named_with_what_it_exceeds() -> None:
    whole = Room(slots=1, core_ms=100, bytes=10)
    assert find_exceeded(Need(101), whole) == "core hours"
    assert find_exceeded(Need(1, 11), whole) == "bytes"
    assert find_exceeded(Need(100, 10, slots=9), whole) == ""


def test_expected_wait_follows_the_hours_that_cease_to_count() -> None:
    now_ms, whole = 10 * DAY_MS, Room(core_ms=100)
    spent = [(now_ms - 20 * HOUR_MS, 60), (now_ms - 10 * HOUR_MS, 40)]
    assert expected_wait_ms(Need(10), 0, whole, spent, now_ms) == 4 * HOUR_MS
    assert expected_wait_ms(Need(10), 60, whole, spent, now_ms) == 14 * HOUR_MS
    assert expected_wait_ms(Need(10), 0, whole, [], now_ms) == 0
    assert expected_wait_ms(Need(10), 110, whole, spent, now_ms) >= DAY_MS
    assert expected_wait_ms(Need(10), 100, Room(slots=2), [], now_ms) == 50


@pytest.mark.parametrize(
    ("load", "pressure"),
    [
        pytest.param(Load(0, 50), Pressure.OK, id="all-is-done"),
        pytest.param(Load(20, 90), Pressure.OK, id="a-few-hours-of-work"),
        pytest.param(Load(30, 90), Pressure.SLOW, id="a-quarter-of-a-day"),
        pytest.param(Load(10, 101), Pressure.SLOW, id="more-arrives-than-the-budget-bears"),
        pytest.param(Load(100, 90), Pressure.STOP, id="a-whole-day-waits"),
        pytest.param(Load(0, 0, 1000, 0), Pressure.STOP, id="bytes"),
    ],
)
def test_pressure_by_what_waits_and_arrives(load: Load, pressure: Pressure) -> None:
    assert pressure_of(load, Room(core_ms=100, bytes=1000)) is pressure


@given(waiting=st.integers(0, 10**12), arrived=st.integers(0, 10**12), core_ms=st.integers(1, 10**12))
def test_budget_that_is_named_would_hold_the_backlog(waiting: int, arrived: int, core_ms: int) -> None:
    load, whole = Load(waiting, arrived), Room(core_ms=core_ms)
    needed = holding_budget(load, whole)
    assert needed.core_ms is not None
    assert needed.core_ms >= max(arrived, core_ms)
    if pressure_of(load, whole) is Pressure.OK:
        assert needed.core_ms <= max(core_ms, load.waiting_core_ms, load.arrived_core_ms)
    # A day with it works off what waits.
    assert needed.core_ms >= waiting


def test_slots_bear_a_day_each() -> None:
    assert capacity_of(Room(slots=2)).core_ms == 2 * DAY_MS
    assert capacity_of(Room(slots=2, core_ms=5)).core_ms == 5
    assert capacity_of(Room()).core_ms is None
