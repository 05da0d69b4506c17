"""What goes wrong, how often, and where; everything is drawn from the schedule's seed."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from sqlalchemy.exc import OperationalError


class ServerKilled(BaseException):
    """kill -9 of an API server, in the middle of whatever it does."""


class Violated(BaseException):
    """The provider broke a promise; ends the schedule at once."""


class InjectedStoreError(OSError):
    """The store does not answer."""


@dataclass(frozen=True, slots=True)
class Faults:
    """Chances per step (of a server, a task, a driver, a notice), and the world's disturbances."""

    kill_server: float = 0.0
    pause_server: float = 0.0
    storage_error: float = 0.0
    database_error: float = 0.0
    kill_task: float = 0.0
    kill_driver: float = 0.0
    kill_writer: float = 0.0
    slow_writer: float = 0.0
    drop_notice: float = 0.0
    double_notice: float = 0.0
    late_notice: float = 0.0
    lose_worker: float = 0.0
    clear_run: float = 0.0
    has_heartbeat_guard: bool = False
    """Whether the heartbeat of a plan's executor keeps others away; without, the lease alone has to."""
    outside: tuple[str, ...] = ()
    """What people and other programs do (`outsiders.py`)."""
    disturbances: int = 0
    """Outages of the scheduler or the storage, kills at any moment, jumps of a clock."""
    most_jump_ms: int = 0
    """How far a clock may jump ahead."""
    slow_submit_ms: int = 2_000
    """How long it takes at most until the job's driver is there."""
    slow_answer_ms: int = 5_000
    """For how long at most a server stands still while a task waits for its answer."""
    work_ms: tuple[int, ...] = (5_000, 30_000, 150_000)
    """How long executing a plan takes at most; one of these."""

    def over(self) -> Faults:
        """Nothing goes wrong any more."""
        return Faults()


LITTLE_JUMP_MS = 8_000
MAX_JUMP_BACK_MS = 3_000
MAX_JUMP_MS = 300_000
TICK_SAFE_JUMP_MS = 50_000
"""Leases go by the database's clock, so the lease alone keeps two executors apart, whatever the servers' clocks say.
But a folder of a remote store that changed less than a minute ago is not trusted: a clock further ahead undoes that."""


def draw(rng: random.Random) -> Faults:
    """Return one schedule's faults: some are switched off, so that rare meetings of others are seen as well."""

    def chance(*values: float) -> float:
        return rng.choice(values)

    return Faults(
        kill_server=chance(0, 0.003, 0.02),
        pause_server=chance(0, 0.01, 0.05),
        storage_error=chance(0, 0, 0.02, 0.1),
        database_error=chance(0, 0, 0.01),
        kill_task=chance(0, 0.03, 0.15),
        kill_driver=chance(0, 0.03, 0.15),
        kill_writer=chance(0, 0.1, 0.3),
        slow_writer=chance(0, 0.1),
        drop_notice=chance(0, 0.1, 0.5),
        double_notice=chance(0, 0.2),
        late_notice=chance(0, 0.3),
        lose_worker=chance(0, 0.05),
        clear_run=chance(0, 0.2),
        disturbances=rng.randrange(7),
        most_jump_ms=rng.choice((LITTLE_JUMP_MS, LITTLE_JUMP_MS, MAX_JUMP_MS)),
    )


def database_error() -> OperationalError:
    """What SQLAlchemy raises when the connection breaks."""
    return OperationalError("injected", {}, Exception("injected: the server closed the connection"))


def with_slow_submits(faults: Faults) -> Faults:
    """Let a job's start take longer than a lease, while managers come and go."""
    return replace(faults, has_heartbeat_guard=False, slow_submit_ms=120_000, kill_server=0.05, disturbances=10)


def hot(faults: Faults) -> Faults:
    """More of what makes executors meet."""
    return replace(
        faults,
        has_heartbeat_guard=False,
        kill_task=0.15,
        lose_worker=0.05,
        kill_driver=0.05,
        disturbances=6,
        work_ms=(240_000,),
    )


def only(*outside: str) -> Callable[[Faults], Faults]:
    """Let outsiders do these things, and little else go wrong."""
    return lambda faults: replace(Faults(), kill_server=0.003, disturbances=1, outside=outside)


def workers_are_lost(faults: Faults) -> Faults:
    """Let Airflow give up tasks whose jobs go on for minutes, and little else go wrong."""
    return replace(Faults(), lose_worker=0.02, disturbances=6, work_ms=(240_000,))


def hot_with(*outside: str) -> Callable[[Faults], Faults]:
    """Let outsiders do these things while executors meet."""
    return lambda faults: replace(hot(faults), lose_worker=0.2, outside=outside)


def on_a_perfect_network(faults: Faults) -> Faults:
    """Let every notice arrive at once."""
    return replace(faults, drop_notice=0.0, late_notice=0.0, double_notice=0.0, outside=())


KNOWN: dict[str, re.Pattern[str]] = {}
"""What the provider still does wrong. Tolerated, counted, and to be taken out with the mistake."""


def known_mistake(violation: str) -> str:
    """Return which known mistake a violation is; empty: a new one."""
    return next((name for name, pattern in KNOWN.items() if pattern.match(violation)), "")
