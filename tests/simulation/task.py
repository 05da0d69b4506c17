"""One try of the service task: the steps of `HudiTableServiceOperator` and its lease, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from airflow_lake_provider.errors import (
    ExecutorBusyError,
    LakeError,
    LeaseHolder,
    LeaseLostError,
    ManagerUnreachableError,
    ServiceFailedError,
    ServiceRefusedError,
)
from airflow_lake_provider.execution.lease import MARGIN_S, LeaseTimes
from airflow_lake_provider.execution.retry import Pauses, find_wait_s
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.hudi.timeline import Timeline
from airflow_lake_provider.job_contract import FailureKind, Mode, ServiceRequest, ServiceResult
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.planner.verdict import TableReader, judge
from tests.simulation.job import Driver
from tests.simulation.storage import open_on
from tests.simulation.stores import Stalled

if TYPE_CHECKING:
    from tests.simulation.airflow import DagRun
    from tests.simulation.server import Server
    from tests.simulation.world import World


T = TypeVar("T")

_PATIENCE_MS = 600_000
_RETRY_DELAY_S = 15.0
_NOTICE_MS, _END_MS = 3_000, 12_000
"""Until a driver notices that its task is gone, and until it has ended: it waits for a moment without the lock."""


class TaskGone(Exception):
    """The task was killed while it waited; whatever it would have done next does not happen."""


class Task:
    """A process on a worker. It may be killed between any two steps."""

    def __init__(self, world: World, run: DagRun, try_number: int) -> None:
        self.world = world
        self.run = run
        self.try_number = try_number
        self.name = f"try {try_number} of {run.run_id}"
        self.started_ms = world.now_ms
        self.base_path = str(run.conf["base_path"])
        self.table_id = table_id_of(self.base_path)
        self.request = ServiceRequest(run.service, Mode(run.conf["mode"]), tuple(run.conf["instants"]))
        self.times = LeaseTimes(world.settings.executor_lease_s)
        self.lease_ms = int(self.times.lease_s * 1000)
        self.driver: Driver | None = None
        self.is_alive = True
        self._storage = open_on(
            world.disk, self.base_path, lambda what: world.before_storage_call(what, self.base_path)
        )
        self._reader = TableReader(self.base_path, lambda _: self._storage)
        self._before = Timeline()
        self.host = world.worker_rng.choice(world.hosts)
        self.token = ""
        self._ended_holder: LeaseHolder | None = None
        self._away_since_ms = 0
        self._waits_until_ms = 0
        self._held_from_ms = 0
        self._is_holding = False
        self._is_lost = False
        self._is_ending = False

    def start(self) -> None:
        self._then(self.world.rng.randrange(1_000, 10_000), self._open)

    def _then(self, delay_ms: int, step: Callable[[], None]) -> None:
        def go() -> None:
            world = self.world
            if not self.is_alive:
                return
            if world.faults.kill_task and world.rng.random() < world.faults.kill_task:
                self.kill()
            elif world.faults.lose_worker and self.run.task is self and world.rng.random() < world.faults.lose_worker:
                world.airflow.lose_worker(self)
                self._try(step)
            else:
                self._try(step)

        self.world.after(delay_ms, go)

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
        except TaskGone:
            return
        except Stalled as stalled:
            self._then(stalled.until_ms - self.world.now_ms, step)
        except LakeError as error:
            problem = f"{type(error).__name__}: {error}"
            wait_s = find_wait_s(error, self.run.waits, Pauses(_RETRY_DELAY_S, _RETRY_DELAY_S))
            if wait_s is None:
                self._end(problem, is_final=not error.retriable)
            elif self.is_alive:
                self.is_alive, self._is_ending = False, True
                self._release()
                self.world.airflow.try_waits(self, wait_s, problem)

    def _ask(self, work: Callable[[Server], T]) -> T:
        try:
            if self.world.now_ms < self.world.cut_off_until_ms[self.host]:
                raise ManagerUnreachableError(f"{self.host} is cut off")
            return self.world.ask_manager(work)
        finally:
            if not self.is_alive and not self._is_ending:  # killed while it waited for the answer
                raise TaskGone

    # --- the operator's steps ------------------------------------------------------------------------------

    def _open(self) -> None:
        self._before = self._reader.timeline()
        self._reader.require_guarded_writers(self.request)
        self._then(self.world.rng.randrange(100, 2_000), self._acquire)

    def _acquire(self) -> None:
        """One request of `LeaseRequest`."""
        asked_ms, me = self.world.now_ms, (self.run.run_id, self.try_number)
        try:
            lease = self._ask(
                lambda server: server.process.executors.acquire(
                    self.table_id, self.request.service, *me, self._ended_holder
                )
            )
        except ExecutorBusyError as error:
            self._settle(error)
            return
        except ManagerUnreachableError:
            self._ask_again()
            return
        self.world.say(f"{self.name} holds the lease")
        self.token, self._held_from_ms, self._is_holding = lease.token, asked_ms, True
        self._then(int(self.times.interval_s * 1000), self._renew)
        self._guard()
        self._then(self.world.rng.randrange(200, self.world.faults.slow_submit_ms), self._submit)

    def _ask_again(self) -> None:
        world = self.world
        self._away_since_ms = self._away_since_ms or world.now_ms
        if world.now_ms - self._away_since_ms >= _PATIENCE_MS:
            raise ManagerUnreachableError("no server answered for ten minutes")
        self._then(5_000, self._acquire)

    def _settle(self, busy: ExecutorBusyError) -> None:
        """What `LeaseRequest` does about a lease that is held."""
        holder, world = busy.holder, self.world
        assert holder is not None
        if holder != self._ended_holder and self._has_ended(holder):
            world.say(f"{self.name} takes over from try {holder.try_number} of {holder.run_id}")
            world.counts["leases taken over"] += 1
            self._ended_holder = holder
            self._then(50, self._acquire)
        elif not self._is_earlier_try(holder) or self.world.now_ms >= self._waits_until(holder):
            raise busy
        else:
            self._ended_holder = None
            self._then(min(10_000, max(100, int(holder.rest_s * 1000))), self._acquire)

    def _waits_until(self, holder: LeaseHolder) -> int:
        if not self._waits_until_ms:
            self._waits_until_ms = self.world.now_ms + int((holder.rest_s + MARGIN_S) * 1000)
        return self._waits_until_ms

    def _is_earlier_try(self, holder: LeaseHolder) -> bool:
        return holder.run_id == self.run.run_id and holder.try_number < self.try_number

    def _has_ended(self, holder: LeaseHolder) -> bool:
        if (holder.run_id, holder.try_number) == (self.run.run_id, self.try_number):
            return True
        task = self.world.airflow.find_task(holder.run_id, holder.try_number)
        if task is None or task.host != self.host:
            return False
        if self._is_earlier_try(holder):
            task.kill()
        return not task.is_alive

    def _end_what_was_left(self) -> None:
        """End, by the record that `JobRun` finds, what another executor left running on this host."""
        for task in self.world.airflow.live_tasks():
            is_same = (task.base_path, task.request.service) == (self.base_path, self.request.service)
            if is_same and task is not self and task.host == self.host and task.driver is not None:
                task.driver.kill()

    def _renew(self) -> None:
        """One renewal of `LeaseKeeper`'s renewing thread."""
        if not self._is_holding:
            return
        asked_ms = self.world.now_ms
        try:
            self._ask(lambda server: server.process.executors.renew(self.table_id, self.request.service, self.token))
            self._held_from_ms = asked_ms
        except LeaseLostError:
            self._lose()
            return
        except LakeError as error:
            self.world.say(f"{self.name} could not renew its lease: {error}")
        self._then(int(self.times.interval_s * 1000), self._renew)

    def _guard(self) -> None:
        """One round of `LeaseKeeper`'s guarding thread; it ends with its process."""
        if not self.is_alive or not self._is_holding:
            return
        rest_ms = self._held_from_ms + self.lease_ms - int(self.times.reserve_s * 1000) - self.world.now_ms
        if rest_ms <= 0:
            self._lose()
        else:
            self.world.after(rest_ms, self._guard)

    def _lose(self) -> None:
        self.world.say(f"{self.name} lost its lease")
        self._is_lost, self._is_holding = True, False
        self._on_kill()

    def _on_kill(self) -> None:
        if self.driver is not None:
            self.driver.end_within(_END_MS)

    def _submit(self) -> None:
        if self._is_lost or self.world.now_ms >= self._held_from_ms + self.lease_ms:
            self._release()
            self._notify_manager()
            raise LeaseLostError("the lease was lost before the job began")
        self._end_what_was_left()
        self.driver = Driver(self.world, self, self._driver_ended)
        self.driver.start()

    def _driver_ended(self) -> None:
        self._then(self.world.rng.randrange(50, 1_000), self._finish)

    def _finish(self) -> None:
        self._release()
        assert self.driver is not None
        try:
            if self._is_lost:
                raise LeaseLostError("the lease could not be kept")
            self._judge(self.driver.result)
        finally:
            self._notify_manager()
        self._end("")

    def _release(self) -> None:
        if self._is_holding:
            self._is_holding = False
            try:
                self._ask(
                    lambda server: server.process.executors.release(self.table_id, self.request.service, self.token)
                )
            except LakeError:
                self.world.say(f"{self.name} could not give the lease back")

    def _judge(self, said: ServiceResult | None) -> None:
        verdict = judge(self._before, self._reader.timeline(), self.request, said)
        self.world.say(f"{self.name} judged {verdict.outcome}: {verdict.reason[:100]}")
        if verdict.done:
            return
        if verdict.failure_kind in {FailureKind.PLAN_GONE, FailureKind.REFUSED}:
            raise ServiceRefusedError(verdict.reason)
        raise ServiceFailedError(verdict.reason)

    def _notify_manager(self) -> None:
        notice = Notice(self.base_path, str(self.run.conf["table_name"]), Source.HINT)
        try:
            self._ask(lambda server: server.process.loop.notify(notice))
        except LakeError:
            self.world.say(f"{self.name} could not notify the manager")

    # --- ends ----------------------------------------------------------------------------------------------

    def _end(self, problem: str, *, is_final: bool = False) -> None:
        if self.is_alive:
            self.is_alive, self._is_ending = False, True
            self._release()
            self.world.airflow.try_ended(self, problem, is_final=is_final)

    def kill(self) -> None:
        """Kill -9: nothing of ours runs any more; the driver ends itself when it notices."""
        if self.is_alive:
            self.is_alive = False
            self.world.say(f"{self.name} KILLED")
            self.world.counts["tasks killed"] += 1
            if self.driver is not None:
                self.driver.end_within(_NOTICE_MS + _END_MS)
            self.world.airflow.task_vanished(self)

    def end_by_order(self) -> None:
        """Airflow ends the process (SIGTERM): on_kill, then the lease is given back when the driver is gone."""
        if not self.is_alive:
            return
        self.world.say(f"{self.name} is ended by order")
        if self.driver is not None and self.driver.is_alive:
            self._on_kill()
            return
        self._end("ended by order")
