"""Where the time of a run went: one phase after the other, without a gap, so that they add up to all of it. Pure.

All moments are Airflow's: it has when the run was queued, and when each try began and ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class PhaseKind(StrEnum):
    """What a run did, or waited for."""

    WAITING = "waiting"
    """For a slot, from its creation to the begin of its first try."""
    TRY = "try"
    PAUSE = "pause"
    """Between two tries."""
    CLOSING = "closing"
    """From the end of the last try to that of the run: Airflow records it."""


@dataclass(frozen=True, slots=True)
class Try:
    """One try of a run's task, by Airflow."""

    number: int
    began_ms: int
    ended_ms: int | None
    """None while it runs."""
    state: str
    """Airflow's."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One part of a run's time. `ended_ms` of the last one is None while the run goes on."""

    kind: PhaseKind
    began_ms: int
    ended_ms: int | None
    try_number: int = 0
    """Of a try; 0 of others."""
    state: str = ""
    """Of a try: Airflow's."""


def phases_of(created_ms: int, tries: Sequence[Try], ended_ms: int | None) -> tuple[Phase, ...]:
    """Return the phases of a run, in their order; each begins where the one before it ended.

    Clocks of machines may differ: a moment that lies before the one before it counts as that one.
    """
    phases: list[Phase] = []
    at_ms = created_ms

    def add(kind: PhaseKind, until_ms: int | None, try_number: int = 0, state: str = "") -> None:
        nonlocal at_ms
        if until_ms is not None:
            until_ms = max(at_ms, until_ms if ended_ms is None else min(until_ms, ended_ms))
        if until_ms is None or until_ms > at_ms or kind is PhaseKind.TRY:
            phases.append(Phase(kind, at_ms, until_ms, try_number, state))
        at_ms = at_ms if until_ms is None else until_ms

    ordered = sorted(tries, key=lambda one: one.number)
    for place, one in enumerate(ordered):
        add(PhaseKind.PAUSE if place else PhaseKind.WAITING, one.began_ms)
        is_last = place == len(ordered) - 1
        # A killed try has an end when Airflow missed it; one that has none had ended when the next one began.
        until_ms = one.ended_ms or (ended_ms if is_last else ordered[place + 1].began_ms)
        add(PhaseKind.TRY, until_ms, one.number, one.state)
        if is_last and one.ended_ms is None and ended_ms is None:
            return tuple(phases)
    if ended_ms is None:
        add(PhaseKind.PAUSE if ordered else PhaseKind.WAITING, None)
    else:
        add(PhaseKind.CLOSING if ordered else PhaseKind.WAITING, ended_ms)
    return tuple(phases)
