"""What people and programs outside of the provider do to it: each schedule draws some of these."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.hudi.active_writes import load_heartbeats
from airflow_lake_provider.job_contract import DEFAULT_HEARTBEAT_INTERVAL_MS
from airflow_lake_provider.manager.runs.airflow_runs import SERVICE_DAG_ID, WATCH_DAG_ID
from airflow_lake_provider.shared.actions import Action
from tests.simulation.storage import SimTable, open_on
from tests.simulation.stores import ALL_CALLS

if TYPE_CHECKING:
    from tests.simulation.world import World

_PLANS = (Action.COMPACTION, Action.CLUSTERING)


def draw_outside(rng: random.Random) -> tuple[str, ...]:
    """Return which of them a schedule has: in most of them one or two, so that each meets the others' faults."""
    return tuple(rng.sample(sorted(OUTSIDE), rng.choice((0, 1, 1, 2, 3))))


def plan_outside(world: World) -> None:
    """Put what was drawn into the queue, each up to three times."""
    for name in world.faults.outside:
        for _ in range(world.outside_rng.randrange(1, 4)):
            at_ms = world.outside_rng.randrange(world.faulty_ms)
            world.after(at_ms, lambda happen=OUTSIDE[name]: happen(world))


def _hang_a_store(world: World) -> None:
    """Its calls never return, or late. It may go on when nothing else goes wrong any more."""
    rng = world.outside_rng
    path = rng.choice(list(world.tables))
    calls = rng.choice((ALL_CALLS, frozenset({"read"})))
    world.stores.hang(path, world.now_ms + rng.choice((20_000, 300_000, 1_800_000)), calls)


def _fail_a_store(world: World) -> None:
    path = world.outside_rng.choice(list(world.tables))
    world.counts["stores that failed for long"] += 1
    world.stores.fail(path, world.now_ms + world.outside_rng.choice((120_000, 600_000)))


def _pause_a_dag(world: World) -> None:
    dag_id = world.outside_rng.choice((SERVICE_DAG_ID, WATCH_DAG_ID))
    world.airflow.pause(dag_id, world.now_ms + world.outside_rng.randrange(10_000, 400_000))


def _act_on_a_run(world: World) -> None:
    """A person clears, fails or deletes a run, whatever its state."""
    runs = list(world.airflow.runs.values())
    if runs:
        act = world.outside_rng.choice((world.airflow.clear, world.airflow.fail, world.airflow.delete))
        act(world.outside_rng.choice(runs))


def _step_the_writers_clock(world: World) -> None:
    """The writers' next instants are named by it; heartbeats and files have the store's times."""
    world.counts["writers' clocks moved"] += 1
    writer = world.outside_rng.choice(world.writers)
    writer.offset_ms = world.outside_rng.choice((-600_000, -5_000, 3_000, 120_000, 600_000))
    world.say(f"the clock of the writer of {writer.table.name} is off by {writer.offset_ms} ms")


def _step_a_workers_clock(world: World) -> None:
    """A job on this host judges heartbeats by it."""
    world.counts["workers' clocks moved"] += 1
    host = world.outside_rng.choice(world.hosts)
    offset_ms = world.outside_rng.choice((-600_000, -60_000, 60_000, 600_000))
    # Hudi itself takes the living for dead by a clock that is so far ahead: a foreign executor has no other guard.
    has_others = any("foreign" in name for name in world.faults.outside)
    world.offset_of_host_ms[host] = min(offset_ms, 60_000) if has_others else offset_ms
    world.say(f"the clock of {host} is off by {world.offset_of_host_ms[host]} ms")


def _step_a_servers_clock(world: World) -> None:
    """Backwards further than the usual jumps."""
    server = world.outside_rng.choice(world.servers)
    server.jump_clock(-world.outside_rng.choice((10_000, 300_000, 3_600_000)))


def _begin_a_foreign_job(world: World) -> None:
    """A user's own job executes a pending plan, or removes it."""
    table = world.outside_rng.choice(list(world.tables.values()))
    plans = [(time, action) for action in _PLANS for time in table.find_pending(action)]
    if not plans:
        return
    time, action = world.outside_rng.choice(plans)
    if world.outside_rng.random() < 0.4:
        world.counts["plans rolled back by others"] += 1
        world.say(f"a foreign job removes the plan {time}")
        table.remove_instant(time)
    elif not world.invariants.executors_of(table.base_path, time) and not _has_beat(world, table, time):
        ForeignJob(world, table, time, action)


def _has_beat(world: World, table: SimTable, time: str) -> bool:
    return time in load_heartbeats(open_on(world.disk, table.base_path, lambda what: None))


class ForeignJob:
    """Executes one plan: a compaction with Hudi's heartbeat, a clustering without any.

    It takes no plan that has one: Hudi would refuse, or a person has made a mistake.
    """

    def __init__(self, world: World, table: SimTable, time: str, action: Action) -> None:
        self.world, self.table, self.time, self.action = world, table, time, action
        world.counts["plans executed by others"] += 1
        world.say(f"a foreign job executes {time}")
        table.begin(time, action)
        world.invariants.begins_outside(table.base_path, time)
        self.is_alive = True
        self._beat()
        takes_ms = world.outside_rng.randrange(5_000, 200_000)
        dies = world.outside_rng.random() < 0.3
        world.after(takes_ms, self._die if dies else self._complete)

    def _beat(self) -> None:
        if self.is_alive and self.action is Action.COMPACTION and self.table.is_pending(self.time):
            self.table.beat(self.time)
            self.world.after(DEFAULT_HEARTBEAT_INTERVAL_MS, self._beat)

    def _complete(self) -> None:
        self.is_alive = False
        self.world.invariants.ends_outside(self.table.base_path, self.time)
        if self.table.is_pending(self.time):
            self.world.say(f"a foreign job completes {self.time}")
            self.table.complete(self.time, self.action)
            self.world.invariants.completed_outside(self.table.base_path, self.time)

    def _die(self) -> None:
        self.is_alive = False
        self.world.say(f"the foreign job of {self.time} dies")
        self.world.invariants.ends_outside(self.table.base_path, self.time)


def _plan_without_executing(world: World) -> None:
    """Another program plans, and leaves the plan or executes it."""
    table = world.outside_rng.choice(list(world.tables.values()))
    action = world.outside_rng.choice(_PLANS)
    if not any(table.find_pending(other) for other in _PLANS):
        time = table.request(action)
        world.counts["plans left by others"] += 1
        world.say(f"a foreign job plans {time}")
        if world.outside_rng.random() < 0.5:  # the process that plans one usually goes on to execute it
            world.after(world.outside_rng.randrange(1_000, 20_000), lambda: _go_on(world, table, time, action))


def _go_on(world: World, table: SimTable, time: str, action: Action) -> None:
    if table.is_pending(time) and not _has_beat(world, table, time):
        ForeignJob(world, table, time, action)


def _edit_the_tables_file(world: World) -> None:
    if world.tables_file is not None:
        world.tables_file.edit()


OUTSIDE: Mapping[str, Callable[[World], None]] = MappingProxyType(
    {
        "a store hangs": _hang_a_store,
        "a store fails": _fail_a_store,
        "a DAG is paused": _pause_a_dag,
        "people act on runs": _act_on_a_run,
        "a writer's clock steps": _step_the_writers_clock,
        "a worker's clock steps": _step_a_workers_clock,
        "a server's clock steps back": _step_a_servers_clock,
        "foreign jobs": _begin_a_foreign_job,
        "foreign plans": _plan_without_executing,
        "the tables file is edited": _edit_the_tables_file,
        "single writers": lambda world: None,
    }
)
"""By name. Single writers are what the schedule's writers are (`writers.py`)."""
