"""Whatever happens to a table: its timeline stays bounded, each service gets its turn, none runs for nothing.

Hypothesis plays the adversary and shortens what it finds. What must hold at each step is in `adversary.py`; when the
adversary has ended, the bounds that docs/services.md states must be reached.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_lake_provider.hudi.active_writes import HeartbeatRule
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.scheduling import run_scheduler, scheduling
from airflow_lake_provider.planner import decide as decide_module
from airflow_lake_provider.planner.rules import Verdict
from tests.support.adversary_game import Game
from tests.unit.manager import adversary
from tests.unit.manager.adversary import OUTCOMES
from tests.unit.manager.hudi_model import Kind

GAMES = int(os.environ.get("LAKE_GAMES", "3"))
"""`LAKE_GAMES=2000` is the long form, with other games in each run; the short form plays the same ones."""
MAX_GAMES = 60
COVERING = (1, 14, 18, 21, 24)
"""Games that make every move among them, each a short one."""
SERVICES = (Service.ROLLBACK, Service.COMPACTION, Service.CLUSTERING, Service.TTL, Service.CLEAN, Service.ARCHIVE)


MOVES = (
    "commit", "commit", "commit", "end", "end", "wait", "begin_write", "end_write", "kill_writer", "savepoint", "hold",
    "observe", "rush", "ruin", "foreign_plan", "foreign_end", "expire",
)  # fmt: skip
FEATURES = ("clusters", "expires", "no clean", "observed", "single")
HISTORIES = st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 60)), min_size=5, max_size=60)


def play(kind: Kind, version: int, most_active: int, features: frozenset[str], history: list[tuple[str, int]]) -> Game:
    game = Game(kind, version, most_active=most_active, features=features)
    for _ in range(6):
        game.hudi.write()
    for move, number in history:
        game.play(move, number)
    game.make_peace()
    game.check_peace()
    return game


def play_at_random(seed: int) -> Game:
    """Play a history that a seed chooses: a rule that is switched off must be noticed without a long search."""
    rng = random.Random(seed)
    return play(
        rng.choice(list(Kind)),
        rng.choice((6, 8, 9)),
        rng.choice((1, 1, 2)),
        frozenset(rng.sample(FEATURES, rng.randrange(3))),
        [(rng.choice(MOVES), rng.randrange(60)) for _ in range(rng.randrange(5, 60))],
    )


@settings(
    max_examples=GAMES,
    deadline=None,
    derandomize="LAKE_GAMES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
@given(
    kind=st.sampled_from(Kind),
    version=st.sampled_from([6, 8, 9]),
    most_active=st.sampled_from([1, 1, 2]),
    features=st.frozensets(st.sampled_from(FEATURES)),
    history=HISTORIES,
)
def test_no_adversary_starves_a_service_or_lets_a_timeline_grow(
    kind: Kind, version: int, most_active: int, features: frozenset[str], history: list[tuple[str, int]]
) -> None:
    play(kind, version, most_active, features, history)


def test_the_adversary_uses_every_move_and_every_outcome() -> None:
    """And finds every service done, and with nothing to do."""
    happened: Counter[str] = Counter()
    for seed in COVERING:
        game = play_at_random(seed)
        happened += game.moves + game.manager.happened
    print(dict(sorted(happened.items())))
    wanted = {*MOVES, *OUTCOMES, *(f"{service}: done" for service in SERVICES)}
    assert wanted - happened.keys() == set()


# --- each rule of liveness switched off: some game must notice it


def order_is_fixed(patch: pytest.MonkeyPatch) -> None:
    """Due services always get their run in the same order."""

    def in_fixed_order(decisions: Any, last_runs: Any) -> tuple[Any, ...]:
        return tuple(sorted(decisions, key=lambda decision: decision.verdict is not Verdict.DUE))

    patch.setattr(decide_module, "in_fair_order", in_fixed_order)


def nothing_is_remembered(patch: pytest.MonkeyPatch) -> None:
    """A run that found nothing does not count for the next decision."""
    patch.setattr(decide_module, "wait_for_change", lambda decision, *facts: decision)


def plans_are_given_up_for_ever(patch: pytest.MonkeyPatch) -> None:
    """What was given up is never tried again."""
    patch.setattr(scheduling, "GIVEN_UP_PAUSE_MS", 10**12)


def plans_of_others_are_taken(patch: pytest.MonkeyPatch) -> None:
    """A plan is executed whatever process may be executing it."""

    def find_all(plans: Any, *facts: Any) -> tuple[str, ...]:
        return tuple(plan.requested_time for plan in plans)

    for name, module in list(sys.modules.items()):
        if name.startswith("airflow_lake_provider.planner.") and hasattr(module, "find_executable"):
            patch.setattr(module, "find_executable", find_all)


def unguarded_writers_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """Services begin next to a writer that takes no lock."""
    patch.setattr(decide_module, "block_while_unguarded", lambda unguarded, found, *rest: found)


def services_run_side_by_side(patch: pytest.MonkeyPatch) -> None:
    """A table's limit of active runs does not hold."""
    patch.setattr(run_scheduler, "wait_for_others", lambda *evidence: None)


def the_observed_are_managed(patch: pytest.MonkeyPatch) -> None:
    """Runs are started on a table that is only observed."""
    patch.setattr(adversary, "only_observe", lambda decisions, why: decisions)


def silent_writers_are_dead(patch: pytest.MonkeyPatch) -> None:
    """A write without heartbeat is rolled back."""
    unguarded_writers_are_ignored(patch)
    patch.setattr(HeartbeatRule, "has_expired", lambda self, beat_ms, now_ms: not self.is_live(beat_ms, now_ms))


NOTICED_BY: Mapping[Callable[[pytest.MonkeyPatch], None], int] = MappingProxyType(
    {
        order_is_fixed: 8,
        nothing_is_remembered: 2,
        plans_are_given_up_for_ever: 1,
        plans_of_others_are_taken: 1,
        unguarded_writers_are_ignored: 5,
        services_run_side_by_side: 0,
        the_observed_are_managed: 0,
        silent_writers_are_dead: 5,
    }
)
"""Each with a game that noticed it when it was last recorded: searched from there on."""


@pytest.mark.parametrize("mutation", NOTICED_BY, ids=lambda mutation: mutation.__name__)
def test_a_rule_that_is_switched_off_is_noticed(
    mutation: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    for seed in range(NOTICED_BY[mutation], NOTICED_BY[mutation] + MAX_GAMES):
        try:
            play_at_random(seed)
        except AssertionError:
            return
    pytest.fail(f"{mutation.__name__}: {mutation.__doc__} Not noticed in {MAX_GAMES} games")
