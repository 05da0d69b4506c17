"""Runs histories of rows: one alone, or many until the time is over.

python -m tests.row_oracle.run 17                   the history of a seed
python -m tests.row_oracle.run 17 --for-s 600       this seed and the next ones
python -m tests.row_oracle.run --setup 9,MOR,1,at_commit,plain,gzip --steps 'write:3 compact:1'
python -m tests.row_oracle.run 17 --for-s 1200 --plant head     until a defect that is brought back is found
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "spark_jobs"), str(ROOT)]

from lake_jobs.driver.java_names import prepare_java_names  # noqa: E402
from tests.oracle.actions import NothingToDoError  # noqa: E402
from tests.oracle.history import History, shrink  # noqa: E402
from tests.oracle.hudi_answers import Hudi  # noqa: E402
from tests.oracle.judge import Difference  # noqa: E402
from tests.oracle.places import Place  # noqa: E402
from tests.row_oracle.history import RowSetup, draw_history, parse_history  # noqa: E402
from tests.row_oracle.judge import judge_integrity, judge_rows  # noqa: E402
from tests.row_oracle.known import is_known  # noqa: E402
from tests.row_oracle.meanwhile import BusyWorld  # noqa: E402
from tests.row_oracle.plants import PLANTS  # noqa: E402
from tests.support.spark_session import open_test_session  # noqa: E402

Say = Callable[[str], None]


@dataclass(slots=True)
class RowOutcome:
    """What one history showed. It ends at its first difference: what follows would be judged by wrong rows."""

    history: History
    differences: list[Difference] = field(default_factory=list)
    steps: int = 0
    services: int = 0
    """Services that completed something."""
    refused: list[str] = field(default_factory=list)

    @property
    def unexpected(self) -> list[Difference]:
        return [difference for difference in self.differences if not is_known(self.history, difference)]

    def command(self) -> str:
        return command_of(self.history)


def command_of(history: History) -> str:
    """Return how to run a history alone."""
    return f"python -m tests.row_oracle.run --setup {history.setup} --steps '{' '.join(map(str, history.steps))}'"


def run_rows(hudi: Hudi, history: History, say: Say = lambda _: None) -> RowOutcome:
    """Run a history on a table of its own, up to its first difference."""
    outcome = RowOutcome(history)
    folder = Path(tempfile.mkdtemp(prefix="rows-"))
    assert isinstance(history.setup, RowSetup)
    world = BusyWorld(hudi, folder, history.setup)
    try:
        world.create()
        world.now = hudi.ask(world.path)
        for number, step in enumerate(history.steps):
            begun = time.monotonic()
            try:
                complaint = world.do(step)
            except NothingToDoError:
                continue
            world.now = hudi.ask(world.path)
            outcome.differences = judge_rows(world, step)
            if outcome.differences and world.settle():
                outcome.differences = judge_rows(world, step)
            outcome.steps += 1
            outcome.services += world.result is not None and world.result.outcome == "completed"
            ours = "" if world.result is None else f" [{world.result.outcome} {world.result.message[:200]}]"
            say(f"  {number:2} {step} {time.monotonic() - begun:.1f} s{ours} {complaint[:200]}")
            if complaint or (world.result is not None and world.result.outcome == "failed"):
                outcome.refused.append(f"{step}{ours} {complaint}")
            if outcome.differences:
                break
        else:
            outcome.differences = judge_integrity(world)
    finally:
        world.end()
        shutil.rmtree(folder, ignore_errors=True)
    for difference in outcome.differences:
        say(f"     DIFFERENCE {difference}")
    return outcome


def run_seeds(hudi: Hudi, first_seed: int, most_s: float, say: Say, *, until_found: bool = False) -> list[RowOutcome]:
    """Run the histories of this seed and the next ones until the time is over, or until one differs."""
    outcomes, until_s, seed = [], time.monotonic() + most_s, first_seed
    while time.monotonic() < until_s:
        history = draw_history(seed)
        say(f"seed {seed}: {history.setup}")
        outcomes.append(run_rows(hudi, history, say))
        if until_found and outcomes[-1].unexpected:
            break
        seed += 1
    return outcomes


def shrink_rows(hudi: Hudi, history: History, kind: str, most_s: float) -> History:
    """Return a short history that shows a difference of this kind."""
    deadline_s = time.monotonic() + most_s

    def fails(candidate: History) -> bool:
        return any(difference.kind == kind for difference in run_rows(hudi, candidate).differences)

    return shrink(history, fails, lambda: time.monotonic() > deadline_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", nargs="?", type=int, default=0)
    parser.add_argument(
        "--setup", help="version, type, metadata table, streaming or not, index, codec[, virtual, traits]"
    )
    parser.add_argument("--steps", default="", help="the steps themselves")
    parser.add_argument("--for-s", type=float, default=0.0, help="go on with the next seeds for so long")
    parser.add_argument("--shrink-s", type=float, default=0.0, help="shrink each difference for so long")
    parser.add_argument("--plant", choices=sorted(PLANTS), help="bring a defect back first; ends when it is found")
    given = parser.parse_args()
    if given.plant:
        PLANTS[given.plant].put(setattr)
    prepare_java_names()
    folder = Path(tempfile.mkdtemp(prefix="rows-session-"))
    spark = open_test_session(folder)
    hudi = Hudi(spark, Place("local", folder))
    started = time.monotonic()

    def say(line: str) -> None:
        print(line, flush=True)

    try:
        if given.setup:
            outcomes = [run_rows(hudi, parse_history(given.setup, given.steps), say)]
        else:
            outcomes = run_seeds(hudi, given.seed, given.for_s or 0.1, say, until_found=bool(given.plant))
        for outcome in outcomes:
            for difference in outcome.unexpected:
                say(f"DIFFERENCE {difference}\n  {outcome.command()}")
                if given.shrink_s:
                    say(f"  shrunk: {command_of(shrink_rows(hudi, outcome.history, difference.kind, given.shrink_s))}")
        steps, services = sum(o.steps for o in outcomes), sum(o.services for o in outcomes)
        say(f"{len(outcomes)} histories, {steps} steps, {services} services, {time.monotonic() - started:.0f} s")
        return int(any(outcome.unexpected for outcome in outcomes))
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
