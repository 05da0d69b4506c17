"""What goes wrong in a round, and when; everything is drawn from the round's seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum


class Victim(StrEnum):
    """What is killed with -9."""

    API_SERVER = "API server"
    SCHEDULER = "scheduler"
    """The scheduler's process alone: its workers go on as orphans."""
    MACHINE = "scheduler's machine"
    """The scheduler and everything that it started: workers, tasks, Spark drivers."""
    TRIGGERER = "triggerer"
    DAG_PROCESSOR = "DAG processor"
    TASK = "task"
    """The task's own process; its driver becomes an orphan."""
    SUPERVISOR = "task's supervisor"
    """The worker's process above the task: no process reports to Airflow how the task ended."""
    DRIVER = "Spark driver"


class Step(StrEnum):
    """How far a table's first compaction has come, from notice to history."""

    COMMITTING = "the first commit was announced"
    NOTICED = "the last commit was announced"
    STARTED = "the run exists"
    SUBMITTED = "the driver's JVM runs"
    PLANNED = "the plan is requested"
    INFLIGHT = "the plan is inflight"
    WRITING = "files are being written"
    COMPLETED = "the plan is completed"
    JUDGED = "the run has succeeded"


STEPS = tuple(Step)
SERVERS = (Victim.API_SERVER, Victim.SCHEDULER, Victim.MACHINE, Victim.TRIGGERER, Victim.DAG_PROCESSOR)
EXECUTORS = (Victim.TASK, Victim.SUPERVISOR, Victim.DRIVER)
# The more often drawn, the more there is to lose.
WEIGHTS = {Victim.API_SERVER: 3, Victim.TRIGGERER: 1, Victim.DAG_PROCESSOR: 1, Victim.DRIVER: 3, Victim.TASK: 3}

# Airflow's own tokens bear 10 s between the clocks of its parts, our leases keep 13 s back.
MAX_AHEAD_S = 8.0
MAX_BEHIND_S = 3.0


@dataclass(frozen=True, slots=True)
class Fault:
    """Kill the victim so long after the step; a server comes back after `down_s`, its clock moved by `clock_s`."""

    step: Step
    victim: Victim
    delay_s: float
    down_s: float
    clock_s: float

    def __str__(self) -> str:
        clock = f", back with its clock moved by {self.clock_s:+.1f} s" if self.clock_s else ""
        return f"kill -9 of the {self.victim} {self.delay_s:.1f} s after {self.step}{clock}"


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """One round. The three chances are those of a notice."""

    seed: int
    faults: tuple[Fault, ...]
    drop: float
    double: float
    hold: float
    """Held back for some seconds, so that a later one overtakes it."""


def draw(seed: int, *, clocks: bool) -> RoundPlan:
    """Return the plan of a round; the same seed gives the same. Without `clocks` none is moved."""
    rng = random.Random(seed)
    steps = sorted(rng.sample(STEPS, rng.choice((1, 1, 2))), key=STEPS.index)
    return RoundPlan(
        seed=seed,
        faults=tuple(_draw_fault(rng, step, clocks) for step in steps),
        drop=rng.choice((0.0, 0.3, 0.5)),
        double=rng.choice((0.0, 0.3)),
        hold=rng.choice((0.0, 0.4)),
    )


def _draw_fault(rng: random.Random, step: Step, clocks: bool) -> Fault:
    has_executor = STEPS.index(Step.SUBMITTED) <= STEPS.index(step) < STEPS.index(Step.JUDGED)
    victims = SERVERS + (EXECUTORS if has_executor else ())
    victim = rng.choices(victims, [WEIGHTS.get(victim, 2) for victim in victims])[0]
    clock_s = rng.choice((0.0, round(rng.uniform(-MAX_BEHIND_S, MAX_AHEAD_S), 1)))
    return Fault(
        step=step,
        victim=victim,
        delay_s=round(rng.choice((0.0, rng.uniform(0, 1), rng.uniform(0, 4))), 2),
        down_s=round(rng.choice((0.0, rng.uniform(0, 6))), 2),
        clock_s=clock_s if clocks and victim in SERVERS else 0.0,
    )
