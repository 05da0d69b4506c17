"""What happens to the world at some moment: outages, kills between two steps, clocks that jump."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.faults import MAX_JUMP_BACK_MS

if TYPE_CHECKING:
    from tests.simulation.world import World


def plan_disturbances(world: World) -> None:
    """Put the schedule's disturbances into the queue."""
    for _ in range(world.faults.disturbances):
        kind = world.rng.choice(_KINDS)
        world.after(world.rng.randrange(world.faulty_ms), _once(kind, world))
    for _ in range(world.faults.disturbances):
        world.after(world.worker_rng.randrange(world.faulty_ms), _once(_cut_off_a_worker, world))
    if world.rng.random() < world.faults.clear_run:
        world.after(world.rng.randrange(world.faulty_ms), _once(_clear_a_run, world))


def _once(kind: Callable[[World], None], world: World) -> Callable[[], None]:
    return lambda: kind(world)


def _stop_scheduler(world: World) -> None:
    pause_ms = world.rng.randrange(10_000, 240_000)
    world.say(f"the scheduler is down for {pause_ms} ms")
    world.airflow.down_until_ms = world.now_ms + pause_ms


def _stop_a_store(world: World) -> None:
    pause_ms = world.rng.randrange(2_000, 90_000)
    path = world.rng.choice(list(world.tables))
    world.say(f"the store of {path} is down for {pause_ms} ms")
    world.stores.fail(path, world.now_ms + pause_ms)


def _kill_a_server(world: World) -> None:
    server = world.pick_server()
    if server is not None:
        server.die()


def _kill_all_servers(world: World) -> None:
    for server in world.servers:
        server.die()


def _cut_off_a_worker(world: World) -> None:
    """Its tasks reach no server, all other processes do, and Airflow gives them up; only while things may go wrong."""
    at_work = [task for task in world.airflow.live_tasks() if task.is_alive and task.run.task is task]
    host = world.worker_rng.choice([task.host for task in at_work] or world.hosts)
    pause_ms = min(world.worker_rng.randrange(60_000, 600_000), max(0, world.faulty_until_ms - world.now_ms))
    world.say(f"{host} is cut off for {pause_ms} ms")
    world.counts["workers cut off"] += 1
    world.cut_off_until_ms[host] = world.now_ms + pause_ms
    for task in at_work:
        if task.host == host:
            world.airflow.lose_worker(task)


def _kill_a_task(world: World) -> None:
    tasks = world.airflow.live_tasks()
    if tasks:
        world.rng.choice(tasks).kill()


def _kill_a_driver(world: World) -> None:
    drivers = [task.driver for task in world.airflow.live_tasks() if task.driver is not None]
    if drivers:
        world.rng.choice(drivers).kill()


def _clear_a_run(world: World) -> None:
    if world.airflow.runs:
        world.airflow.clear(world.rng.choice(list(world.airflow.runs.values())))


def _move_a_clock(world: World) -> None:
    server = world.rng.choice(world.servers)
    ahead_ms = world.rng.randrange(-MAX_JUMP_BACK_MS, max(world.faults.most_jump_ms, 1))
    server.jump_clock(ahead_ms)


_KINDS: tuple[Callable[[World], None], ...] = (
    _stop_scheduler,
    _stop_a_store,
    _kill_a_server,
    _kill_all_servers,
    _kill_a_task,
    _kill_a_driver,
    _move_a_clock,
)
