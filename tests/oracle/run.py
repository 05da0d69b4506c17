"""Runs histories: one alone, or many until the time is over; a difference is shrunk to a short history."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from tests.oracle.actions import NothingToDoError, World
from tests.oracle.history import History, Step, draw_history, shrink
from tests.oracle.hudi_answers import Hudi
from tests.oracle.judge import Difference, Judge

CREATED = Step("create", 0)
Say = Callable[[str], None]


@dataclass(slots=True)
class Outcome:
    """What one history showed."""

    history: History
    differences: list[tuple[int, Difference]] = field(default_factory=list)
    """Each with the number of the step after which it was seen first."""
    steps: int = 0
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)

    def kinds_of_difference(self) -> set[str]:
        return {difference.kind for _, difference in self.differences}


def run_history(
    hudi: Hudi, history: History, *, say: Say = lambda _: None, stop_at: Collection[str] = (), until_s: float = 1e18
) -> Outcome:
    """Run a history on a table of its own. It ends early at a difference of one of the kinds `stop_at`."""
    outcome, started = Outcome(history), time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="oracle-"))
    world = World(hudi, folder, history.setup)
    try:
        world.create()
        judge = Judge(hudi, world)
        found = [(-1, difference) for difference in judge.judge(CREATED)]
        for number, step in enumerate(history.steps):
            begun = time.monotonic()
            if begun > until_s:
                break
            try:
                complaint = world.do(step)
            except NothingToDoError:
                continue
            acted = time.monotonic()
            new = [(number, difference) for difference in judge.judge(step)]
            known = {difference for _, difference in found}
            found += [(number, difference) for _, difference in new if difference not in known]
            outcome.steps += 1
            outcome.kinds[step.kind] += 1
            if complaint:
                outcome.refused.append(f"{step}: {complaint}")
            ours = "" if world.result is None else f" [{world.result.outcome} {world.result.message[:160]}]"
            say(f"  {number:2} {step} {acted - begun:.1f}+{time.monotonic() - acted:.1f} s{ours} {complaint[:160]}")
            for _, difference in new:
                say(f"     DIFFERENCE {difference}")
            if {difference.kind for _, difference in new} & set(stop_at):
                break
        else:
            found += [(len(history.steps), difference) for difference in _end(world, judge)]
        outcome.differences = found
    finally:
        world.end()
        world.files.delete()
        shutil.rmtree(folder, ignore_errors=True)
    outcome.seconds = time.monotonic() - started
    return outcome


def _end(world: World, judge: Judge) -> list[Difference]:
    world.end()
    return [*judge.judge(CREATED), *judge.end()]


def shrink_difference(hudi: Hudi, history: History, kind: str, most_s: float) -> History:
    """Return a short history that shows a difference of this kind."""
    deadline_s = time.monotonic() + most_s

    def fails(candidate: History) -> bool:
        return kind in run_history(hudi, candidate, stop_at={kind}).kinds_of_difference()

    return shrink(history, fails, lambda: time.monotonic() > deadline_s)


@dataclass(slots=True)
class Campaign:
    """Many histories, one after the other."""

    hudi: Hudi
    say: Say
    stop_at: Collection[str] = ()
    """Kinds of differences that end it: those of a defect that was brought back to see it found."""
    outcomes: list[Outcome] = field(default_factory=list)

    def run(self, first_seed: int, most_s: float) -> None:
        """Run the histories of this seed and the next ones until the time is over, or one shows such a difference."""
        until_s, seed = time.monotonic() + most_s, first_seed
        while time.monotonic() < until_s:
            self.run_seed(seed, until_s)
            if self.outcomes[-1].kinds_of_difference() & set(self.stop_at):
                break
            seed += 1

    def run_seed(self, seed: int, until_s: float = 1e18) -> None:
        """Run the history of one seed."""
        history = draw_history(seed)
        self.say(f"seed {seed}: {history.setup}")
        outcome = run_history(self.hudi, history, say=self.say, stop_at=self.stop_at, until_s=until_s)
        self.outcomes.append(outcome)
        self.say(f"seed {seed}: {outcome.steps} steps in {outcome.seconds:.0f} s")

    @property
    def steps(self) -> int:
        return sum(outcome.steps for outcome in self.outcomes)
