"""In which order the due services of one table get the place of a run, so that none waits for ever. Pure.

A fixed order would starve what comes later: on a busy merge-on-read table compaction is due again when its run ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.planner.decision import Decision, Verdict
from airflow_lake_provider.planner.turns import TurnEnd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_lake_provider.job_contract import Service
    from airflow_lake_provider.planner.turns import Turns

PATIENCE = 2
"""A service that so many runs of others have overtaken comes before pending plans."""
MOST_OVERTAKEN = PATIENCE + 8
"""How many runs of the table's eight other services a due one that can run waits for at most, one at a time."""


def in_fair_order(decisions: Sequence[Decision], turns: Turns) -> tuple[Decision, ...]:
    """Return the decisions, due ones first: pending plans, then the service whose last run is longest ago.

    Where none ran yet the given order counts. Pending plans hold writers and readers up, but whoever was overtaken by
    `PATIENCE` runs comes before them.
    """

    def urgency(decision: Decision) -> tuple[bool, bool, bool, int]:
        if decision.verdict is not Verdict.DUE:
            return True, False, False, 0
        is_patient = turns.overtaken(decision.service) < PATIENCE
        is_new = not decision.plan_instants
        return False, is_patient, is_patient and is_new, turns.number(decision.service)

    # Python's sort is stable.
    return tuple(sorted(decisions, key=urgency))


def has_had_its_turn(first: Service, then: Service, turns: Turns) -> bool:
    """Whether `first` ran since `then` ran last, or failed, so that `then` need not wait for it (again)."""
    turn = turns.of.get(first)
    return turn is not None and (turn.end is TurnEnd.FAILED or turn.number > turns.number(then))
