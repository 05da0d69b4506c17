"""Real Hudi agrees with every answer of ours, after every step of random histories."""

from __future__ import annotations

import os

import pytest

from tests.oracle.cases import CASES, Case
from tests.oracle.hudi_answers import Hudi
from tests.oracle.known import KNOWN, Known, is_known
from tests.oracle.plants import PLANTS
from tests.oracle.run import Campaign, run_history, shrink_difference

SECONDS = float(os.environ.get("LAKE_ORACLE_S", "0"))
"""For how long random histories are drawn; 0: the first one, whole, so that a slow machine runs the same steps."""
FIRST_SEED = int(os.environ.get("LAKE_ORACLE_SEED", "30"))
SHRINK_S = float(os.environ.get("LAKE_ORACLE_SHRINK_S", "90"))
MIN_STEPS = 10
"""A history that ends before has tried nothing; how long a step takes depends on the machine alone."""


def test_random_histories_show_no_difference(hudi: Hudi) -> None:
    campaign = Campaign(hudi, print)
    if SECONDS:
        campaign.run(FIRST_SEED, SECONDS)
    else:
        campaign.run_seed(FIRST_SEED)
    assert campaign.steps >= MIN_STEPS
    for outcome in campaign.outcomes:
        unexpected = [(number, found) for number, found in outcome.differences if not is_known(found)]
        if unexpected:
            number, difference = unexpected[0]
            shrunk = shrink_difference(hudi, outcome.history, difference.kind, SHRINK_S)
            pytest.fail(
                f"after step {number}: {difference}\n{hudi.command(shrunk)}\nwhole: {hudi.command(outcome.history)}"
            )


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name, marks=[pytest.mark.soak] if case.is_long else []) for case in CASES]
)
def test_history_that_once_showed_a_difference(hudi: Hudi, case: Case) -> None:
    outcome = run_history(hudi, case.history, say=print)
    assert [str(difference) for _, difference in outcome.differences] == []


@pytest.mark.soak
@pytest.mark.parametrize("case", [case for case in CASES if case.plant], ids=lambda case: case.name)
def test_the_defect_is_noticed_when_it_is_brought_back(hudi: Hudi, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTS[case.plant](monkeypatch.setattr)
    assert case.kind in run_history(hudi, case.history, say=print).kinds_of_difference()


@pytest.mark.soak
@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.kind)
def test_expected_difference_is_still_there(hudi: Hudi, known: Known) -> None:
    outcome = run_history(hudi, known.history, say=print)
    assert any(known.covers(found) for _, found in outcome.differences), f"remove it from known.py: {known.why}"
