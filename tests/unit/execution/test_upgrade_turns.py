"""Whose turn it is: never more tables at once than the budget has, wave by wave, until too many fail."""

from __future__ import annotations

import random

import pytest

from airflow_lake_provider.execution.upgrade import UpgradeBudget, UpgradeTurn, find_turn

BUDGET = UpgradeBudget(at_once=2, wave=3, most_failed=1)


@pytest.mark.parametrize(
    ("at", "states", "turn"),
    [
        (0, {}, UpgradeTurn.BEGIN),
        (1, {0: "running"}, UpgradeTurn.BEGIN),
        (2, {0: "running", 1: "up_for_retry"}, UpgradeTurn.WAIT),
        (2, {0: "success", 1: "running"}, UpgradeTurn.BEGIN),
        (3, {0: "success", 1: "success", 2: "running"}, UpgradeTurn.WAIT),
        (3, {0: "success", 1: "failed", 2: "skipped"}, UpgradeTurn.BEGIN),
        (3, {0: "failed", 1: "failed", 2: "success"}, UpgradeTurn.STOP),
        (2, {0: None, 1: None}, UpgradeTurn.WAIT),
    ],
)
def test_turn_follows_from_the_tables_before(at: int, states: dict[int, str | None], turn: UpgradeTurn) -> None:
    assert find_turn(at, states, BUDGET) is turn


@pytest.mark.parametrize("seed", range(20))
def test_budget_holds_in_any_order_of_questions(seed: int) -> None:
    chance = random.Random(seed)
    budget = UpgradeBudget(chance.randint(1, 4), chance.randint(1, 5), chance.randint(0, 3))
    count = chance.randint(1, 20)
    states: dict[int, str | None] = dict.fromkeys(range(count))
    for _ in range(10_000):
        at = chance.choice([place for place, state in states.items() if state in {None, "running"}])
        if states[at] == "running":
            states[at] = chance.choice(["success", "success", "failed"])
        else:
            turn = find_turn(at, states, budget)
            states[at] = {UpgradeTurn.BEGIN: "running", UpgradeTurn.STOP: "skipped", UpgradeTurn.WAIT: None}[turn]
        running = [place for place, state in states.items() if state == "running"]
        assert len(running) <= budget.at_once
        assert len({place // budget.wave for place in running}) <= 1
        if all(state not in {None, "running"} for state in states.values()):
            break
    else:
        pytest.fail("some table never had its turn")
    failed = sum(state == "failed" for state in states.values())
    assert failed <= budget.most_failed + budget.at_once
    assert ("skipped" in states.values()) <= (failed > budget.most_failed)
