"""Airflow without Airflow: DAG runs in the gateway's transactions, a scheduler that may be down, tries and retries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.runs.airflow_runs import (
    SERVICE_DAG_ID,
    WATCH_DAG_ID,
    DagState,
    LakeDags,
    RunState,
    ServiceRun,
)
from airflow_lake_provider.manager.runs.run_ids import is_run_of, parse_run_id
from tests.simulation.database import Transaction
from tests.simulation.task import Task

if TYPE_CHECKING:
    from tests.simulation.world import World

RETRIES = (0, 4, 4, 4)
RETRY_DELAY_S = 15
MAX_RETRY_DELAY_S = 1800
ZOMBIE_AFTER_MS = 150_000
KILLED, LOST = "the task was killed", "the worker was lost"


@dataclass
class DagRun:
    """One run of the service DAG, with how its tries ended."""

    run_id: str
    conf: dict[str, Any]
    created_ms: int
    state: RunState = RunState.QUEUED
    since_ms: int = 0
    ended_ms: int | None = None
    tries: int = 0
    tries_left: int = 1
    failures: list[str] = field(default_factory=list)
    waits: int = 0
    """Of the try that is under way."""
    vanished: int = 0
    """Tries whose task said nothing at its end."""
    task: Task | None = None

    @property
    def service(self) -> Service:
        return Service(self.conf["service"])

    @property
    def group(self) -> str:
        """Table and service."""
        found = parse_run_id(self.run_id)
        assert found is not None, self.run_id
        return f"{found.table_id} {found.service}"

    @property
    def is_active(self) -> bool:
        return self.state in {RunState.QUEUED, RunState.RUNNING}


class Airflow:
    """Implements the provider's RunGateway, and runs what was created."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.runs: dict[str, DagRun] = {}
        self.tasks: list[Task] = []
        self._tries: dict[tuple[str, int], Task] = {}
        self.down_until_ms = 0
        self._paused_until_ms = dict.fromkeys((SERVICE_DAG_ID, WATCH_DAG_ID), 0)
        self.deleted: list[DagRun] = []
        self.retries = world.rng.choice(RETRIES)

    # --- the gateway ------------------------------------------------------------------------------------------

    def find_runs(self, table_id: str, *services: Service) -> Sequence[ServiceRun]:
        return [
            ServiceRun(run.run_id, run.state, run.ended_ms, is_void=self.is_void(run))
            for run in self.runs.values()
            if not table_id or is_run_of(run.run_id, table_id, *services)
        ]

    def find_active_runs(self, session: Any, table_id: str = "") -> Sequence[ServiceRun]:
        return [run for run in self.find_runs(table_id) if run.active]

    def find_lake_dags(self, session: Any) -> LakeDags:
        states = {
            dag_id: DagState.PAUSED if self.world.now_ms < until_ms else DagState.ACTIVE
            for dag_id, until_ms in self._paused_until_ms.items()
        }
        return LakeDags(states)

    def find_runs_by_id(self, session: Any, run_ids: Sequence[str]) -> Sequence[ServiceRun]:
        found = [self.runs[run_id] for run_id in run_ids if run_id in self.runs]
        return [ServiceRun(run.run_id, run.state, run.ended_ms, is_void=self.is_void(run)) for run in found]

    def is_void(self, run: DagRun) -> bool:
        # As in Airflow's tables: of the last try nothing is recorded.
        used_up = run.state is RunState.FAILED and run.tries_left <= 0 and self.retries > 0
        return used_up and 2 * (run.tries - 1 - run.vanished) < run.tries - 1

    def create_run(self, session: Any, run_id: str, conf: dict[str, Any], note: str) -> None:
        assert isinstance(session, Transaction)
        world = self.world
        run = DagRun(run_id, conf, world.now_ms, since_ms=world.now_ms, tries_left=1 + self.retries)
        if world.now_ms < self._paused_until_ms[SERVICE_DAG_ID]:
            world.violate(f"run {run_id} is created although {SERVICE_DAG_ID} is paused")
        if run_id in self.runs:
            world.violate(f"run {run_id} is created a second time")
        active = [other.run_id for other in self.runs.values() if other.is_active and other.group == run.group]
        if active:
            world.violate(f"run {run_id} is created while {', '.join(active)} is active")
        self.runs[run_id] = run
        session.undo.append(lambda: self._undo(run_id))
        world.say(f"run {run_id} created, {conf['mode']} {','.join(conf['instants'])}: {note}")
        self.later(world.rng.randrange(100, 5_000), lambda: self._begin(run))

    def _undo(self, run_id: str) -> None:
        self.world.say(f"run {run_id} was rolled back")
        del self.runs[run_id]

    # --- the scheduler -------------------------------------------------------------------------------------

    @property
    def sweeps(self) -> bool:
        """Whether `lake_watch` runs now."""
        return self.world.now_ms >= max(self.down_until_ms, self._paused_until_ms[WATCH_DAG_ID])

    def recover(self) -> None:
        """The scheduler is up, and no DAG is paused."""
        self.down_until_ms = 0
        self._paused_until_ms = dict.fromkeys(self._paused_until_ms, 0)

    def later(self, delay_ms: int, work: Callable[[], None]) -> None:
        """Do it after a while, when the scheduler is up."""

        def when_up() -> None:
            wait_ms = max(self.down_until_ms, self._paused_until_ms[SERVICE_DAG_ID]) - self.world.now_ms
            if wait_ms > 0:
                self.later(wait_ms + self.world.rng.randrange(1_000), work)
            else:
                work()

        self.world.after(delay_ms, when_up)

    def _begin(self, run: DagRun) -> None:
        if self.runs.get(run.run_id) is run and run.state is RunState.QUEUED:
            run.state, run.since_ms = RunState.RUNNING, self.world.now_ms
            self._start_try(run)

    def _start_try(self, run: DagRun) -> None:
        if run.state is not RunState.RUNNING:
            return
        run.tries += 1
        run.tries_left -= 1
        run.waits = 0
        self._start_task(run)

    def try_waits(self, task: Task, wait_s: float, problem: str) -> None:
        """A try waits for infrastructure: no other one is counted."""
        run = task.run
        if run.task is not task:
            return
        self.world.counts["waits for infrastructure"] += 1
        self.world.say(f"{task.name} waits {wait_s:.0f} s: {problem[:150]}")
        run.task, run.waits, tries = None, run.waits + 1, run.tries
        self.later(int(wait_s * 1000), lambda: self._start_task(run) if run.tries == tries else None)

    def _start_task(self, run: DagRun) -> None:
        if run.state is not RunState.RUNNING or run.task is not None:
            return
        run.task = Task(self.world, run, run.tries)
        self.tasks.append(run.task)
        self._tries[run.run_id, run.tries] = run.task
        run.task.start()

    def try_ended(self, task: Task, problem: str, *, is_final: bool = False) -> None:
        """A try succeeded (no problem) or failed; what a try says that is no longer awaited counts nothing."""
        run = task.run
        if run.task is not task:
            return
        world = self.world
        run.task = None
        if not problem:
            self._end(run, RunState.SUCCESS)
            world.invariants.after_success(task)
            return
        run.failures.append(problem)
        run.vanished += problem in {KILLED, LOST}
        world.counts[f"try failed: {problem.split(':')[0]}"] += 1
        world.say(f"{task.name} failed: {problem[:150]}")
        world.invariants.after_failed_try(task, problem)
        if is_final or run.tries_left <= 0:
            self._end(run, RunState.FAILED)
            return
        delay_s = min(RETRY_DELAY_S * 2 ** (self.retries - run.tries_left), MAX_RETRY_DELAY_S)
        self.later(delay_s * 1000, lambda: self._start_try(run))

    def _end(self, run: DagRun, state: RunState) -> None:
        run.state, run.ended_ms, run.since_ms = state, self.world.now_ms, self.world.now_ms
        self.world.counts[f"runs ended {state}"] += 1
        self.world.say(f"run {run.run_id} ended: {state}")

    # --- faults --------------------------------------------------------------------------------------------

    def task_vanished(self, task: Task) -> None:
        """The worker sees its process die at once, or none does before the heartbeat is missed."""
        delay_ms = self.world.rng.choice((1_000, 3_000, ZOMBIE_AFTER_MS))
        self.later(delay_ms, lambda: self.try_ended(task, KILLED))

    def lose_worker(self, task: Task) -> None:
        """A living task is given up; it hears of it some seconds later, and ends itself."""
        self.world.say(f"{task.name} is given up while it lives")
        self.later(0, lambda: self.try_ended(task, LOST))
        self.world.after(self.world.rng.randrange(1_000, 120_000), lambda: self._order_end(task))

    def _order_end(self, task: Task) -> None:
        """The order to end finds the task when its worker is no longer cut off."""
        rest_ms = self.world.cut_off_until_ms[task.host] - self.world.now_ms
        if rest_ms > 0:
            self.world.after(rest_ms + 1_000, lambda: self._order_end(task))
        else:
            task.end_by_order()

    def clear(self, run: DagRun) -> None:
        """A person clears the run in the UI: a task that runs is ended, and tried afresh."""
        self.world.counts["runs cleared"] += 1
        self.world.say(f"run {run.run_id} is cleared, it was {run.state}")
        if run.task is not None:
            self.world.after(self.world.rng.randrange(500, 10_000), run.task.end_by_order)
        run.task, run.tries_left, run.ended_ms = None, 1 + self.retries, None
        run.state, run.since_ms = RunState.QUEUED, self.world.now_ms
        self.later(self.world.rng.randrange(100, 5_000), lambda: self._begin(run))

    def pause(self, dag_id: str, until_ms: int) -> None:
        """A person pauses a DAG: what runs goes on, and nothing begins."""
        self.world.say(f"{dag_id} is paused for {until_ms - self.world.now_ms} ms")
        self.world.counts["DAGs paused"] += 1
        self._paused_until_ms[dag_id] = until_ms

    def fail(self, run: DagRun) -> None:
        """A person marks a run as failed: its task is ended."""
        if run.is_active:
            self.world.counts["runs failed by a person"] += 1
            self.world.say(f"run {run.run_id} is marked as failed")
            if run.task is not None:
                self.world.after(self.world.rng.randrange(500, 10_000), run.task.end_by_order)
            run.task = None
            self._end(run, RunState.FAILED)

    def delete(self, run: DagRun) -> None:
        """A person deletes a run; Airflow refuses that while it runs."""
        if run.state is not RunState.RUNNING:
            self.world.counts["runs deleted"] += 1
            self.world.say(f"run {run.run_id} is deleted, it was {run.state}")
            self.deleted.append(self.runs.pop(run.run_id))

    def find_task(self, run_id: str, try_number: int) -> Task | None:
        """Return a try, dead or alive."""
        return self._tries.get((run_id, try_number))

    def live_tasks(self) -> list[Task]:
        self.tasks = [task for task in self.tasks if task.is_alive or (task.driver and task.driver.is_alive)]
        return self.tasks
