"""Seeded crashes with real processes: no commit request is lost, no plan is executed twice, nothing stays where it is.

Real Airflow, real Hudi writers, real Spark drivers; kill -9 at steps from notice to history, notices lost, doubled and
held back, servers that come back with another clock. `LAKE_ROUNDS=50` is the long form, beginning with the seed
`LAKE_ROUND_SEED`; `LAKE_PATIENCE=4` multiplies all deadlines, for a busy machine. The same in virtual time, with many
more meetings: tests/simulation.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.system.crashes.faults import draw
from tests.system.crashes.round import Round
from tests.system.crashes.stage import Stage, can_move_clocks, open_stage

pytestmark = [pytest.mark.system, pytest.mark.soak(covered_by="tests/system/test_production_shape.py")]

ROUNDS = int(os.environ.get("LAKE_ROUNDS", "1"))
# This one kills a task's supervisor and then the API server, both while a plan is open.
FIRST_SEED = int(os.environ.get("LAKE_ROUND_SEED", "5"))
SEEDS = range(FIRST_SEED, FIRST_SEED + ROUNDS)


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    stage = open_stage("crashes")
    try:
        yield stage
    finally:
        stage.close()


@pytest.fixture(scope="module")
def counts() -> Iterator[Counter[str]]:
    """What happened in all rounds."""
    counts: Counter[str] = Counter()
    yield counts
    print(f"\n{len(SEEDS)} rounds: {dict(sorted(counts.items()))}")


@pytest.mark.parametrize("seed", SEEDS)
def test_commits_become_one_compaction_whatever_is_killed(stage: Stage, counts: Counter[str], seed: int) -> None:
    report = Round(stage, draw(seed, clocks=can_move_clocks())).play()
    counts.update(report.counts)
    print(report)
    if report.violations:
        pytest.fail(
            f"{report}\nagain: LAKE_ROUND_SEED={seed} LAKE_ROUNDS=1 pytest tests/system/test_crashes.py", pytrace=False
        )


def test_rounds_killed_a_process(counts: Counter[str]) -> None:
    """Rounds whose faults hit no process would prove nothing."""
    assert sum(count for what, count in counts.items() if what.startswith("kills of")) > 0, dict(counts)
