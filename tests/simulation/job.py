"""The Spark driver as a process: reads, plans, executes, completes; `lake_jobs/services/planned.py` in steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hudi.active_writes import HeartbeatRule, load_heartbeats
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.hudi.timeline import Timeline, load_timeline
from airflow_lake_provider.job_contract import (
    DEFAULT_HEARTBEAT_INTERVAL_MS,
    PLANNED_BEAT_MS,
    FailureKind,
    Mode,
    Outcome,
    Service,
    ServiceResult,
)
from airflow_lake_provider.planner.verdict import PLANNED_AS
from airflow_lake_provider.shared.actions import WRITE_ACTIONS, Action, State
from tests.simulation.storage import open_on
from tests.simulation.stores import Stalled

if TYPE_CHECKING:
    from tests.simulation.task import Task
    from tests.simulation.world import World


class Driver:
    """Works on while its task is dead, until it notices. `result` is None when it died."""

    def __init__(self, world: World, task: Task, on_end: Callable[[], None]) -> None:
        self.world = world
        self.name = f"driver of {task.name}"
        self.run_id = task.run.run_id
        self.request = task.request
        self.table = world.tables[task.base_path]
        self.is_alive = False
        self.result: ServiceResult | None = None
        self._on_end = on_end
        self._storage = open_on(
            world.disk, task.base_path, lambda what: world.before_storage_call(what, task.base_path)
        )
        self._todo: list[str] = []
        self._done: list[str] = []
        self.host = task.host
        self._begun: frozenset[str] = frozenset()
        self._scheduled: tuple[str, ...] = ()
        self._plan = ""

    def start(self) -> None:
        self.is_alive = True
        self.world.say(f"{self.name} starts")
        self._then(self.world.rng.randrange(2_000, 15_000), self._begin)

    def _then(self, delay_ms: int, step: Callable[[], None]) -> None:
        def go() -> None:
            world = self.world
            if not self.is_alive:
                return
            if world.faults.kill_driver and world.rng.random() < world.faults.kill_driver:
                self.kill()
                return
            try:
                step()
            except Stalled as stalled:
                self._then(stalled.until_ms - world.now_ms, step)
            except LakeError as error:
                self._fail(FailureKind.OTHER, str(error))

        self.world.after(delay_ms, go)

    def _timeline(self) -> Timeline:
        return load_timeline(self._storage, load_table_properties(self._storage))

    # --- planned services ----------------------------------------------------------------------------------

    @property
    def _action(self) -> Action:
        return PLANNED_AS[self.request.service]

    def _begin(self) -> None:
        timeline = self._timeline()
        if self.request.service is Service.ARCHIVE:
            self._begin_archive(timeline)
            return
        if self.request.service is Service.ROLLBACK:
            self._begin_rollback(timeline)
            return
        plans = timeline.pending(self._action)
        self._begun = frozenset(plan.requested_time for plan in plans if plan.state is State.INFLIGHT)
        pending = [plan.requested_time for plan in plans]
        self._todo = list(self.request.instants) or pending
        is_apart = self._action is Action.COMPACTION  # Hudi itself keeps executors apart
        others = [plan for plan in pending if not is_apart and not self.request.instants and not self._is_ours(plan)]
        if others and (self.request.mode is not Mode.EXECUTE or self._begun.intersection(others)):
            self._fail(FailureKind.BUSY, f"plans {others} belong to an executor without a heartbeat")
        elif self._todo or self.request.mode is Mode.EXECUTE:
            self._next_plan()
        else:
            self._then(self.world.rng.randrange(100, 3_000), self._schedule)

    def _schedule(self) -> None:
        if not self._has_something_new(self._timeline()):
            self._next_plan()
            return
        time = self.table.request(self._action)
        self.table.beat(time, PLANNED_BEAT_MS)
        self.world.say(f"{self.name} planned {time}")
        self._scheduled, self._todo = (time,), [time]
        self._next_plan()

    def _has_something_new(self, timeline: Timeline) -> bool:
        """Hudi plans nothing when nothing was written since the service's last plan."""
        mine = [plan for plan in self._plans_completed() if plan in {i.requested_time for i in timeline.completed()}]
        last = max(mine, default="")
        return any((i.completed_time or "") > last for i in timeline.completed() if i.action is Action.DELTACOMMIT)

    def _plans_completed(self) -> list[str]:
        return [
            plan
            for path, plan in self.world.invariants.completed_by(self.request.service)
            if path == self.table.base_path
        ]

    def _next_plan(self) -> None:
        if not self._todo:
            outcome = Outcome.COMPLETED if self._done else Outcome.NOTHING_TO_DO
            self._end(ServiceResult(self.request.service, outcome, self._scheduled, tuple(self._done)))
            return
        self._then(self.world.rng.randrange(100, 2_000), self._execute)

    def _execute(self) -> None:
        plan, timeline = self._todo[0], self._timeline()
        if plan in {instant.requested_time for instant in timeline.completed()}:
            self._done.append(self._todo.pop(0))
            self._next_plan()
        elif plan not in {instant.requested_time for instant in timeline.pending(self._action)}:
            self._fail(FailureKind.PLAN_GONE, f"the plan {plan} is neither pending nor completed")
        elif self._may_have_other_executor(plan):
            self._fail(FailureKind.BUSY, f"the heartbeat of {plan} is alive, or another executor began it")
        else:
            # Under the table's lock, as the timeline was read.
            self._plan = plan
            self.world.invariants.begins(self, self.table.base_path, plan)
            self._beat(plan)
            self._then(self.world.rng.randrange(50, 500), self._inflight)

    def _is_ours(self, plan: str) -> bool:
        """`planned.is_ours`: it has a heartbeat, and one of an executor where it is begun."""
        beat_ms = load_heartbeats(self._storage).get(plan)
        return beat_ms is not None and (beat_ms > PLANNED_BEAT_MS or not self.table.is_begun(plan))

    def _may_have_other_executor(self, plan: str) -> bool:
        """`be_sole_executor` and `_require_due`."""
        now_ms = self.world.now_ms + self.world.offset_of_host_ms[self.host]
        is_outside = self.world.invariants.is_executed_outside(self.table.base_path, plan)
        if self.world.drawn.has_heartbeat_guard or is_outside:
            beat_ms = load_heartbeats(self._storage).get(plan)
            if HeartbeatRule().is_live(beat_ms, now_ms):
                return True
        is_begun_since = self.table.is_begun(plan) and plan not in self._begun
        return is_begun_since and self._action is not Action.COMPACTION and not self._is_ours(plan)

    def _beat(self, plan: str) -> None:
        """Hudi's heartbeat thread; it ends with the execution."""
        if self.is_alive and self._plan == plan and self.table.is_pending(plan):
            self.table.beat(plan)
            self.world.after(DEFAULT_HEARTBEAT_INTERVAL_MS, lambda: self._beat(plan))

    def _inflight(self) -> None:
        if not self.table.is_pending(self._plan):
            self._fail(FailureKind.PLAN_GONE, f"the plan {self._plan} was removed")
            return
        self.table.begin(self._plan, self._action)
        most_ms = self.world.rng.choice(self.world.faults.work_ms)
        self._then(self.world.rng.randrange(1_000, most_ms), self._complete)

    def _complete(self) -> None:
        if not self.table.is_pending(self._plan):
            self._fail(FailureKind.PLAN_GONE, f"the plan {self._plan} was removed while it was executed")
            return
        self.table.complete(self._plan, self._action)
        self.world.invariants.completes(self, self.table.base_path, self._plan)
        self._stop_executing()
        self._done.append(self._todo.pop(0))
        self._next_plan()

    @property
    def is_executing(self) -> bool:
        """Whether a plan is being executed."""
        return self.is_alive and bool(self._plan)

    def _stop_executing(self) -> None:
        if self._plan:
            self.world.invariants.stops(self, self.table.base_path, self._plan)
            self._plan = ""

    # --- archiving -----------------------------------------------------------------------------------------

    def _begin_archive(self, timeline: Timeline) -> None:
        keep = self.world.policy.archive.min_commits
        pending = timeline.pending(*WRITE_ACTIONS)
        boundary = pending[0].requested_time if pending else "9"
        writes = sorted(i.requested_time for i in timeline.completed_writes)
        self._todo = [time for time in writes[: max(len(writes) - keep, 0)] if time < boundary]
        self._then(self.world.rng.randrange(1_000, 20_000), self._remove)

    def _remove(self) -> None:
        for _ in range(min(3, len(self._todo))):
            self._done.append(self._todo.pop(0))
            self.table.remove_instant(self._done[-1])
        if self._todo:
            self._then(500, self._remove)
        else:
            self._end(ServiceResult(Service.ARCHIVE, Outcome.COMPLETED if self._done else Outcome.NOTHING_TO_DO))

    # --- rolling back: what was named, else what is proven dead, planned rollbacks first ---------------------

    def _begin_rollback(self, timeline: Timeline) -> None:
        rule, beats = HeartbeatRule(), load_heartbeats(self._storage)
        named = self.request.instants
        begun = [plan.requested_time for plan in timeline.pending(Action.ROLLBACK)]
        planned = [self.table.rollbacks[time] for time in begun if not named or time in named]
        writes = [write.requested_time for write in timeline.pending_writes()]
        now_ms = self.world.now_ms + self.world.offset_of_host_ms[self.host]
        dead = [
            time
            for time in writes
            if (time in named and not rule.is_live(beats.get(time), now_ms))
            or (not named and rule.has_expired(beats.get(time), now_ms))
        ]
        self._todo = list(dict.fromkeys((*planned, *dead)))
        self._next_rollback()

    def _next_rollback(self) -> None:
        if self._todo:
            self._then(self.world.rng.randrange(100, 2_000), self._plan_rollback)
            return
        left = [time for time in self.request.instants if self.table.is_pending(time)]
        if left:
            self._fail(FailureKind.BUSY, f"Hudi did not roll back {', '.join(left)}")
        else:
            outcome = Outcome.COMPLETED if self._done else Outcome.NOTHING_TO_DO
            self._end(ServiceResult(Service.ROLLBACK, outcome, (), tuple(self._done)))

    def _plan_rollback(self) -> None:
        self._plan = self._todo[0]
        self.world.invariants.begins(self, self.table.base_path, self._plan)
        rollback = self.table.plan_rollback(self._plan)
        self._then(self.world.rng.randrange(50, 500), lambda: self._remove_write(rollback))

    def _remove_write(self, rollback: str) -> None:
        self.table.begin(rollback, Action.ROLLBACK)
        self.table.remove_instant(self._plan)
        # Hudi completes the rollback only after it deleted the write's own instants.
        self._then(self.world.rng.randrange(1_000, 20_000), lambda: self._complete_rollback(rollback))

    def _complete_rollback(self, rollback: str) -> None:
        self.table.complete(rollback, Action.ROLLBACK)
        self.world.counts["writes rolled back"] += 1
        self.world.invariants.completes(self, self.table.base_path, self._plan)
        self._stop_executing()
        self._done.append(self._todo.pop(0))
        self._next_rollback()

    # --- ends ----------------------------------------------------------------------------------------------

    def _fail(self, kind: FailureKind, message: str) -> None:
        self._stop_executing()
        self._end(
            ServiceResult(
                self.request.service,
                Outcome.FAILED,
                self._scheduled,
                tuple(self._done),
                failure_kind=kind,
                message=message,
            )
        )

    def _end(self, result: ServiceResult | None) -> None:
        self.is_alive = False
        self.result = result
        if result is not None:
            key = (self.table.base_path, self.request.service)
            self.world.invariants.last_outcomes[key] = result.outcome
        self._on_end()

    def kill(self) -> None:
        """Kill -9: what is inflight stays inflight."""
        if self.is_alive:
            self.world.say(f"{self.name} KILLED")
            self.world.counts["drivers killed"] += 1
            self._stop_executing()
            self._end(None)

    def end_within(self, most_ms: int) -> None:
        """The submitter is gone, or wants it gone; it works on for a moment."""
        self.world.after(self.world.rng.randrange(most_ms), self.kill)
