"""Which service of a table ran last, and what became of it: behind a fair order, and against useless runs. Pure.

The timeline does not remember a run that found nothing to do, nor one of archiving, so the manager keeps one entry per
service in the registry. It does not grow with the table's history; without it services only run once more for nothing.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.planner.rules import Decision, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class TurnEnd(StrEnum):
    """What became of a run."""

    OPEN = "open"
    """It may still be active."""
    SUCCESS = "success"
    FAILED = "failed"
    """It failed, or is no longer known."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The last run of a service that the manager created for a table."""

    number: int
    """The table's n-th run, counted over all services."""
    run_id: str
    key_instant: str
    basis: str
    """What the decision rested on beside new writes (`Footing.basis`)."""
    newest_write: str
    """Completed time of the newest write when it was decided."""
    kept_from: str
    """`Footing.kept_from`."""
    is_certain: bool = True
    """`Footing.is_certain`."""
    fruitless: int = 0
    """How many runs in a row before it had found nothing to do, on the same basis."""
    end: TurnEnd = TurnEnd.OPEN
    ended_ms: int = 0


@dataclass(frozen=True, slots=True)
class Turns:
    """The last turns of one table's services."""

    of: Mapping[Service, Turn] = field(default_factory=lambda: MappingProxyType({}))
    cleaned_before: str = ""
    """Writes that completed before this moment replaced nothing that still can be cleaned; empty is not known."""

    @property
    def latest(self) -> int:
        """The number of the last run of any service; 0 when there was none."""
        return max((turn.number for turn in self.of.values()), default=0)

    def overtaken(self, service: Service) -> int:
        """Return how many runs of the table's other services were created since this service's last one."""
        return self.latest - self.number(service)

    def number(self, service: Service) -> int:
        """Return the number of a service's last run; 0 when there was none."""
        turn = self.of.get(service)
        return 0 if turn is None else turn.number

    def open_run_ids(self) -> tuple[str, ...]:
        """Return the runs whose end is not known yet."""
        return tuple(turn.run_id for turn in self.of.values() if turn.end is TurnEnd.OPEN)

    def started(self, decision: Decision, run_id: str) -> Turns:
        """Return the turns after a run was created for a decision."""
        last, footing = self.of.get(decision.service), decision.footing
        in_a_row = last is not None and last.basis == footing.basis
        turn = Turn(
            number=self.latest + 1,
            run_id=run_id,
            key_instant=decision.key_instant,
            basis=footing.basis,
            newest_write=footing.newest_write,
            kept_from=footing.kept_from,
            is_certain=footing.is_certain,
            # A run that failed in between answers nothing.
            fruitless=last.fruitless + found_nothing(last, footing.basis) if last is not None and in_a_row else 0,
        )
        return self._with(decision.service, turn)

    def ended(self, run_id: str, end: TurnEnd, ended_ms: int) -> Turns:
        """Return the turns after one of the open runs has ended."""
        turns = self
        for service, turn in self.of.items():
            if turn.run_id == run_id and turn.end is TurnEnd.OPEN:
                turns = turns._with(service, replace(turn, end=end, ended_ms=ended_ms))
                if service is Service.CLEAN and end is TurnEnd.SUCCESS:
                    turns = turns.cleaned(turn.kept_from)
        return turns

    def cleaned(self, before: str) -> Turns:
        """Return the turns knowing that nothing is left that writes before a moment replaced."""
        return replace(self, cleaned_before=max(self.cleaned_before, before))

    def _with(self, service: Service, turn: Turn) -> Turns:
        return replace(self, of=MappingProxyType({**self.of, service: turn}))


NO_TURNS = Turns()
"""Of a table of which nothing is remembered."""


def found_nothing(turn: Turn, basis: str) -> bool:
    """Whether a run succeeded and what it rested on is as it was."""
    return turn.end is TurnEnd.SUCCESS and turn.basis == basis


def turns_to_text(turns: Turns) -> str:
    """Return the turns as text, for the registry."""
    of = {service.value: asdict(turn) for service, turn in turns.of.items()}
    return json.dumps({"of": of, "cleaned_before": turns.cleaned_before}, separators=(",", ":"))


def parse_turns(text: str | None) -> Turns:
    """Return the turns of such a text. What is not understood (none, another release's) counts as no turns."""
    try:
        record = json.loads(text or "{}")
        of = {Service(service): _parse_turn(turn) for service, turn in record.get("of", {}).items()}
        return Turns(MappingProxyType(of), str(record.get("cleaned_before", "")))
    except (ValueError, TypeError, AttributeError):
        return Turns()


def _parse_turn(record: Mapping[str, object]) -> Turn:
    turn = Turn(**record)  # type: ignore[arg-type]
    return replace(turn, end=TurnEnd(turn.end))


# --- In which order the due services of one table get the place of a run, so that none waits for ever. Pure
#
# A fixed order would starve what comes later: on a busy merge-on-read table compaction is due again when its run
# ends.

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
