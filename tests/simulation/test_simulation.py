"""Seeded crashes in virtual time: no commit request is lost, no plan runs twice, nothing stays stuck.

`LAKE_SIMULATIONS=10000` is the long form; `LAKE_SIMULATION_SEED=123` plays one schedule and prints its story.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.simulation.database import Database
from tests.simulation.faults import Faults, Violated, known_mistake, on_a_perfect_network
from tests.simulation.mutations import MUTATIONS, Patch
from tests.simulation.peer import lost_commits
from tests.simulation.world import World

SCHEDULES = int(os.environ.get("LAKE_SIMULATIONS", "15"))
ONE_SEED = os.environ.get("LAKE_SIMULATION_SEED", "")
MAX_SEEDS_PER_MUTATION = 200
STORY_LINES = 40
PEER_SCHEDULES = 30
"""11 in the short form."""
NOTICED_BY = {
    "release_always_cleans": 97,
    "leases_are_for_all": 80,
    "the_job_is_believed": 18,
    "there_are_no_dags": 15,
    "silent_tables_are_left_alone": 39,
    "requests_read_stores": 14,
    "pauses_are_ignored": 1,
    "deleted_runs_are_waited_for": 16,
    "drivers_outlive_their_task": 72,
}
"""The first schedules that noticed these when it was last recorded: played first. Any other one proves as much."""


def find_violation(seed: int, database: Database, change: Callable[[Faults], Faults] | None = None) -> Violated | None:
    try:
        World(seed, database, change).run()
    except Violated as violated:
        return violated
    return None


@pytest.mark.skipif(bool(ONE_SEED), reason="one seed is asked for")
def test_every_schedule_ends_with_every_commit_reflected_and_every_plan_executed_once(
    database: Database, record_property: Callable[[str, object], None]
) -> None:
    mistakes: Counter[str] = Counter()
    happened: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        world = World(seed, database)
        try:
            world.run()
        except Violated as violated:
            mistake = known_mistake(str(violated))
            if not mistake:
                fail_with_story(world, violated)
            mistakes[mistake] += 1
        happened += world.counts
        happened["instants given up"] += world.invariants.abandoned
    for name, count in (*happened.items(), *mistakes.items()):
        record_property(name, count)
    print(f"{SCHEDULES} schedules: {dict(sorted(happened.items()))}; known mistakes: {dict(mistakes)}")
    assert happened["commits"] > SCHEDULES
    assert happened["servers killed"] > SCHEDULES
    assert happened["instants given up"] < 0.1 * SCHEDULES + 3
    assert mistakes.total() <= 0.03 * SCHEDULES + 3


def test_the_one_schedule_that_is_asked_for(database: Database) -> None:
    """`LAKE_SIMULATION_SEED=123` plays that one; without it, the first."""
    world = World(int(ONE_SEED or 0), database)
    try:
        world.run()
    except Violated as violated:
        fail_with_story(world, violated)


def test_the_same_seed_plays_the_same_schedule(database: Database) -> None:
    stories = []
    for _ in range(2):
        world = World(11, database)
        world.run()
        stories.append(list(world.events))
    assert stories[0] == stories[1]


def test_an_asset_queue_loses_commits_in_most_of_the_same_schedules(database: Database) -> None:
    """Although every notice arrives, and nothing of that queue is ever killed."""
    lost = lost_or_late = 0
    for seed in range(PEER_SCHEDULES):
        world = World(seed, database, on_a_perfect_network)
        with suppress(Violated):
            world.run()
        lost += bool(lost_commits(world.delivered, seed))
        lost_or_late += bool(lost_commits(world.delivered, seed, within_ms=15_000))
    print(
        f"an asset queue loses commits for good in {lost} of {PEER_SCHEDULES} schedules, in {lost_or_late} for a while"
    )
    assert lost > 0.3 * PEER_SCHEDULES
    assert lost_or_late > 0.5 * PEER_SCHEDULES


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_guarantee_that_is_switched_off_is_noticed(
    mutation: Callable[[Patch], None], database: Database, monkeypatch: Patch
) -> None:
    mutation(monkeypatch)
    for seed in (NOTICED_BY.get(mutation.__name__, 0), *range(MAX_SEEDS_PER_MUTATION)):
        violated = find_violation(seed, database, MUTATIONS[mutation])
        if violated is not None and not known_mistake(str(violated)):
            print(f"noticed by schedule {seed}")
            return
    pytest.fail(f"{mutation.__name__}: {mutation.__doc__} Unnoticed in {MAX_SEEDS_PER_MUTATION} schedules")


def fail_with_story(world: World, violated: Violated) -> None:
    story = "\n".join(list(world.events)[-STORY_LINES:])
    pytest.fail(
        f"seed {world.seed}: {violated}\n{story}\n{world.drawn}\n"
        f"again: LAKE_SIMULATION_SEED={world.seed} pytest tests/simulation",
        pytrace=False,
    )
