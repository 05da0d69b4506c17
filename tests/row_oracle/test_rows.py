"""No service changes what a reader finds, whatever the table's index, keys and codec."""

from __future__ import annotations

import os

import pytest

from tests.oracle.history import History
from tests.oracle.hudi_answers import Hudi
from tests.row_oracle.history import draw_history, parse_history
from tests.row_oracle.plants import PLANTS
from tests.row_oracle.run import RowOutcome, command_of, run_rows, run_seeds, shrink_rows

SECONDS = float(os.environ.get("LAKE_ROWS_S", "0"))
"""For how long random histories are drawn; 0: those of `SEEDS`, whole, so that a slow machine runs the same steps."""
FIRST_SEED = int(os.environ.get("LAKE_ROWS_SEED", "100"))
SEEDS = (1, 2)
HISTORIES = (
    pytest.param(
        parse_history(
            "9,MOR,off,at_commit,plain,gzip,named,simple_bloom",
            "write:4940 checkpoint:3678 write:9479 write:1255 write:2137 write:4665 archive:1225 compact:6972",
        ),
        id="the-writes-that-wrote-base-files-are-archived-before-a-compaction",
    ),
    pytest.param(
        parse_history(
            "6,MOR,1,at_commit,consistent_bucket,zstd",
            "write:4964 write_late:130 begin:4736 begin:8147 finish:2940 finish:9758 write:7730 write:4138 "
            "compact:3441 write:7710",
        ),
        id="a-write-names-the-log-file-of-one-that-failed-as-an-address",
    ),
)
"""Histories that showed a defect which is fixed since."""
SHRINK_S = float(os.environ.get("LAKE_ROWS_SHRINK_S", "90"))


def test_readers_find_what_was_written_after_each_service(hudi: Hudi) -> None:
    if SECONDS:
        outcomes = run_seeds(hudi, FIRST_SEED, SECONDS, print)
    else:
        outcomes = [run_rows(hudi, draw_history(seed), print) for seed in SEEDS]
    assert sum(outcome.services for outcome in outcomes) > 0, "no service completed anything, so nothing was compared"
    for outcome in outcomes:
        _require_equal(hudi, outcome)


def _require_equal(hudi: Hudi, outcome: RowOutcome) -> None:
    if not outcome.unexpected:
        return
    difference = outcome.unexpected[0]
    shrunk = shrink_rows(hudi, outcome.history, difference.kind, SHRINK_S)
    pytest.fail(f"{difference}\n{command_of(shrunk)}\nwhole: {command_of(outcome.history)}")


@pytest.mark.soak
@pytest.mark.parametrize("history", HISTORIES)
def test_history_that_once_differed(hudi: Hudi, history: History) -> None:
    outcome = run_rows(hudi, history, print)
    assert outcome.steps == len(history.steps)
    assert not outcome.unexpected


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(PLANTS))
def test_a_defect_that_costs_rows_is_found_when_it_is_brought_back(
    hudi: Hudi, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant = PLANTS[name]
    plant.put(monkeypatch.setattr)
    outcomes = run_seeds(hudi, plant.seed, 1200.0, print, until_found=True)
    assert any(outcome.unexpected for outcome in outcomes)
