"""What the simulation found, each as its shortest story. One that ends well takes its entry in KNOWN with it."""

from __future__ import annotations

import os

import pytest

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import CompactionPolicy
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.runs.airflow_runs import RunState, ServiceRun
from airflow_lake_provider.manager.runs.run_ids import run_id_of
from airflow_lake_provider.manager.scheduling.scheduling import StartVerdict, decide_start
from airflow_lake_provider.planner.compaction import decide_compaction
from airflow_lake_provider.planner.facts import TableFacts
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.shared.actions import Action
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.snapshot import ANY_AGE
from tests.simulation.database import Database
from tests.simulation.faults import TICK_SAFE_JUMP_MS, Faults, Violated, known_mistake, with_slow_submits
from tests.simulation.mutations import a_task_that_is_cut_off_works_on, tables_share_a_lock
from tests.simulation.storage import Disk, SimTable, open_on
from tests.simulation.threads import SimThread, this_thread
from tests.simulation.world import BEGIN_MS, LOCK, World

SEEDS = 20 if "LAKE_SIMULATIONS" in os.environ else 6
"""Of stories that are played with several; more in the long form."""


def never(what: str) -> None:
    """Nothing happens to the store."""


def find_violation(seed: int, database: Database) -> str:
    try:
        World(seed, database, with_slow_submits).run()
    except Violated as violated:
        return str(violated)
    return ""


def commit(table: SimTable) -> str:
    time = table.request(Action.DELTACOMMIT)
    table.complete(time, Action.DELTACOMMIT)
    return time


def test_commits_during_the_execution_of_a_pending_plan_are_compacted_afterwards() -> None:
    """A run for plan P succeeds, its key is P. Three commits came meanwhile; P is the newest write: the key again."""
    table = SimTable(Disk(lambda: BEGIN_MS), "/lake/a")
    plan = table.request(Action.COMPACTION)
    for _ in range(3):
        commit(table)
    table.complete(plan, Action.COMPACTION)
    timelines = SharedTimelines(None, lambda path: open_on(table.disk, path, never), lambda: BEGIN_MS + 60_000)
    policy = TablePolicy(compaction=CompactionPolicy(delta_commits=3), hudi_options=LOCK)
    decision = decide_compaction(TableFacts(TableViewCache(timelines).refresh("/lake/a")), policy, BEGIN_MS)
    done = ServiceRun(run_id_of("a-1", Service.COMPACTION, plan), RunState.SUCCESS, BEGIN_MS)
    start = decide_start("a-1", decision, [done], now_ms=BEGIN_MS + 60_000, max_attempts=3, backoff_s=60)
    assert start.verdict is StartVerdict.START, start.reason


def test_a_plan_that_a_retry_left_is_found_although_the_table_was_not_due_when_it_was_evaluated(
    database: Database,
) -> None:
    """A try completes its plan and dies; an evaluation finds nothing due; the next try plans and dies in silence."""
    world = World(0, database, lambda faults: Faults(), is_idle=True)
    table, process = world.tables["/lake/a"], world.servers[0].process
    for _ in range(3):
        newest = commit(table)
    process.loop.notify(Notice("/lake/a", "a", Source.COMMIT_CALLBACK, (newest,)))
    process.loop.drain()
    run = next(iter(world.airflow.runs.values()))
    run.state = RunState.RUNNING
    table.complete(table.request(Action.COMPACTION), Action.COMPACTION)
    process.loop.notify(Notice("/lake/a", "a", Source.HINT))
    process.loop.drain()
    plan = table.request(Action.COMPACTION)
    run.state, run.ended_ms = RunState.FAILED, world.now_ms
    world.pass_time(6 * 3_600_000)
    assert any(f".{plan}" in run_id for run_id in world.airflow.runs)


def test_a_rollback_that_died_after_it_deleted_the_write_is_ended(database: Database) -> None:
    """Hudi deletes the write's instants first: no write is pending any more, and no other writer fails later."""
    worlds = (World(seed, database, lambda faults: Faults(), is_idle=True) for seed in range(20))
    world = next(world for world in worlds if world.policy.rollback.enabled)
    table, process = world.tables["/lake/a"], world.servers[0].process
    newest = commit(table)
    dead = table.request(Action.DELTACOMMIT)
    rollback = table.plan_rollback(dead)
    table.begin(rollback, Action.ROLLBACK)
    table.remove_instant(dead)
    process.loop.notify(Notice("/lake/a", "a", Source.COMMIT_CALLBACK, (newest,)))
    world.pass_time(3 * 3_600_000)
    assert not table.is_pending(rollback)
    assert world.invariants.completions["/lake/a", dead] == 1


def test_executors_never_meet_although_a_job_takes_longer_to_begin_than_its_lease_lasts(database: Database) -> None:
    stories = [find_violation(seed, database) for seed in range(SEEDS)]
    assert [story for story in stories if story and not known_mistake(story)] == []


def begin_a_plan(retries: int, database: Database) -> tuple[World, str]:
    """Return a world without faults, where the run of a pending compaction plan has just been created."""
    world = World(0, database, lambda faults: Faults(), is_idle=True)
    world.airflow.retries = retries
    table, process = world.tables["/lake/a"], world.servers[0].process
    plan = table.request(Action.COMPACTION)
    process.loop.notify(Notice("/lake/a", "a", Source.COMMIT_CALLBACK, (commit(table),)))
    process.loop.drain()
    assert len(world.airflow.runs) == 1
    return world, plan


@pytest.mark.parametrize("retries", [0, 4])
@pytest.mark.parametrize("outage_ms", [180_000, 3_600_000])
@pytest.mark.parametrize("what", ["store", "manager"])
def test_an_outage_of_infrastructure_uses_up_no_try_of_a_plan(
    retries: int, outage_ms: int, what: str, database: Database
) -> None:
    world, plan = begin_a_plan(retries, database)
    if what == "store":
        world.stores.fail("/lake/a", world.now_ms + outage_ms)
    else:
        world.cut_off_until_ms |= dict.fromkeys(world.hosts, world.now_ms + outage_ms)
    world.pass_time(outage_ms)
    assert world.tables["/lake/a"].is_pending(plan)
    world.pass_time(1_800_000)
    assert not world.tables["/lake/a"].is_pending(plan)
    (run,) = world.airflow.runs.values()
    assert (run.tries, run.failures) == (1, [])


def test_workers_that_are_killed_do_not_make_the_manager_give_a_plan_up(database: Database) -> None:
    """Each task is killed before its driver reports, 18 times: more than all tries of three runs."""
    world, plan = begin_a_plan(4, database)
    killed = 0
    while killed < 18 and world.now_ms < BEGIN_MS + 24 * 3_600_000:
        world.pass_time(1_000)
        for task in world.airflow.live_tasks():
            if task.is_alive:
                task.kill()
                killed += 1
    assert killed == 18
    world.pass_time(3_600_000)
    assert not world.tables["/lake/a"].is_pending(plan)


def cut_a_worker_off(seed: int, database: Database) -> int:
    """Cut a worker off while its driver executes, so that Airflow gives its task up; return how often the plan is done.

    Raises Violated when another executor begins meanwhile.
    """
    world = World(seed, database, lambda faults: Faults(work_ms=(600_000,)), is_idle=True)
    world.airflow.retries = 4
    table, process = world.tables["/lake/a"], world.servers[0].process
    for _ in range(3):
        newest = commit(table)
    process.loop.notify(Notice("/lake/a", "a", Source.COMMIT_CALLBACK, (newest,)))
    process.loop.drain()
    run = next(iter(world.airflow.runs.values()))
    while run.task is None or run.task.driver is None or not run.task.driver.is_executing:
        world.pass_time(500)
    world.cut_off_until_ms[run.task.host] = world.now_ms + 1_500_000
    world.airflow.lose_worker(run.task)
    world.pass_time(2 * 3_600_000)
    return max(world.invariants.completions.values(), default=0)


def test_a_worker_that_alone_is_cut_off_ends_its_job_before_another_one_begins(database: Database) -> None:
    assert [cut_a_worker_off(seed, database) for seed in range(SEEDS)] == [1] * SEEDS


def test_a_worker_that_works_on_while_it_is_cut_off_is_noticed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_task_that_is_cut_off_works_on(monkeypatch)
    noticed = False
    for seed in range(12):
        try:
            cut_a_worker_off(seed, database)
        except Violated as violated:
            noticed = "while driver of try" in str(violated)
        if noticed:
            break
    assert noticed


def test_a_mark_is_seen_although_the_folder_time_did_not_tick_and_the_clock_is_ahead() -> None:
    """Folder times tick in seconds, this server's clock is ahead of the store's, two commits in one tick."""
    now_ms = BEGIN_MS
    table = SimTable(Disk(lambda: now_ms, tick_ms=1000), "/lake/a")
    timelines = SharedTimelines(None, lambda path: open_on(table.disk, path, never), lambda: now_ms + TICK_SAFE_JUMP_MS)
    commit(table)
    timelines.snapshot("/lake/a", ANY_AGE, covering=1)
    now_ms += 100
    second = commit(table)
    now_ms += 100
    seen = timelines.snapshot("/lake/a", ANY_AGE, covering=2)
    assert second in {instant.requested_time for instant in seen.timeline.completed()}


def is_evaluated_next_to_a_store_that_hangs(database: Database) -> bool:
    """Let a store answer everything but reads of commits; say whether a table of another one is evaluated meanwhile."""
    worlds = (World(seed, database, lambda faults: Faults(), is_idle=True) for seed in range(20))
    world = next(world for world in worlds if len(world.tables) == 2)
    well, sick = world.tables["/lake/a"], world.tables["hdfs://two/lake/b"]
    world.pass_time(60_000)
    world.stores.hang(sick.base_path, world.now_ms + 3_600_000, frozenset({"read"}))
    process = world.servers[0].process
    for table in (sick, sick, well):
        process.loop.notify(Notice(table.base_path, table.name, Source.COMMIT_CALLBACK, (commit(table),)))
        world.pass_time(20_000)
    world.pass_time(1_200_000)
    rows = {row["base_path"]: row for row in world.database.rows()}
    for server in world.servers:
        server.check_health(600_000)
        server.end_threads()
    assert rows[sick.base_path]["problem"]
    return rows[well.base_path]["dirty_since_ms"] is None


def test_a_thread_that_is_ended_returns_to_the_one_that_ended_it(database: Database) -> None:
    """Not to the one that let it run: that one stands aside itself, and would go on as if its store had answered."""
    server = World(0, database, lambda faults: Faults(), is_idle=True).servers[0]
    happened: list[str] = []

    def begin_another() -> None:
        other.switch()
        this_thread().stand_aside("its store hangs")
        happened.append("the first one goes on")

    first = SimThread(server, begin_another)
    other = SimThread(server, lambda: this_thread().stand_aside("its store hangs"))
    first.switch()
    other.parent = first  # as when the first one let it go on
    other.end()
    happened.append("the process that ended it goes on")
    assert happened == ["the process that ended it goes on"]
    server.end_threads()


def test_a_store_that_hangs_holds_up_no_table_of_another_one(database: Database) -> None:
    assert is_evaluated_next_to_a_store_that_hangs(database)


def test_tables_that_share_a_lock_are_held_up_by_a_store_that_hangs(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables_share_a_lock(monkeypatch)
    assert not is_evaluated_next_to_a_store_that_hangs(database)
