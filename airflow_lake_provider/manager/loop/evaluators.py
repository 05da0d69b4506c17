"""The threads of a process that evaluate waiting tables: of each store apart, then those that start what is due.

Waiting tables are evaluated in threads of their own, apart by store, so that one store never stops the others. A store
that does not answer costs at most its own threads. A call that never returns (a hard-mounted NFS, a client without
time-outs) cannot be ended from outside: it costs one thread of its store until the process ends, the table is recorded
as failed, and the manager names it in `/health` and by a gauge.

What an evaluation found due is started by other threads, few of them: to create a run is work of the processor and of
the database, not of the store, whose next table is decided meanwhile.

A table that changes all the time is evaluated at a steady pace (`manager.loop.pace`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from airflow_lake_provider.errors import StorageError
from airflow_lake_provider.hudi.base_path import store_of
from airflow_lake_provider.manager.loop.courtesy import Courtesy
from airflow_lake_provider.manager.loop.loop_status import StuckEvaluation
from airflow_lake_provider.manager.loop.pace import AT_ONCE, EVERY_S, EvaluationPace
from airflow_lake_provider.metrics import STUCK_EVALUATIONS, NoMetrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.db.rows import TableLease
    from airflow_lake_provider.metrics import Metrics

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EvaluatorLimits:
    """How many threads of a process evaluate tables."""

    per_store: int = 4
    all_stores: int = 64
    starting: int = 4
    """How many start what is due. To create a run is work of the processor: with more of them, each notice and each
    decision of a burst would wait for all of it."""
    waiting: int = 100
    """How many tables with something due may wait for these. Their leases run: beyond it, the thread that decided
    starts the runs itself, so that its store's next table waits."""
    at_once: int = AT_ONCE
    every_s: float = EVERY_S
    """How many evaluations of one table follow each other while nothing is due, and the rest after each further one."""


@dataclass(slots=True)
class _Evaluation:
    lease: TableLease
    store: str
    since_s: float
    is_reported: bool = False


Rest: TypeAlias = "Callable[[], None]"
"""What is left of an evaluation: starts what is due, then releases the lease."""


class Evaluators:
    """Acquires the leases of waiting tables and evaluates them. `start` and `wake` may be called from any thread; they
    never wait for a store.

    `evaluate` evaluates one leased table and releases it, or returns what does so when something is due; `give_up`
    records a leased table as failed.
    """

    def __init__(  # noqa: PLR0913 - the parts of one process, each used as it is
        self,
        registry: Registry,
        evaluate: Callable[[TableLease], Rest | None],
        give_up: Callable[[TableLease, Exception], None],
        lease_s: float,
        limits: EvaluatorLimits | None = None,
        metrics: Metrics | None = None,
        courtesy: Courtesy | None = None,
    ) -> None:
        self._registry = registry
        self._evaluate = evaluate
        self._give_up = give_up
        self._lease_s = lease_s
        self._limits = limits if limits is not None else EvaluatorLimits()
        self._metrics = metrics if metrics is not None else NoMetrics()
        self._courtesy = courtesy if courtesy is not None else Courtesy()
        self._lock = threading.Lock()
        self._acquiring = threading.Lock()
        self._running: dict[str, _Evaluation] = {}
        self._due: deque[tuple[_Evaluation, Rest]] = deque()
        self._starting: dict[str, _Evaluation] = {}
        """Those of `_due`, and those whose runs are being created."""
        self._starters = 0
        self._workers = 0
        """Threads that acquire leases and decide."""
        self._is_one_waiting = False
        self._may_be_more = False
        """Whether a table may wait that no wake names: each thread that ends an evaluation asks the registry then."""
        self._changes = 0
        self._pace = EvaluationPace(self._limits.at_once, self._limits.every_s)
        self._alarm: threading.Timer | None = None
        """Rings when the first table has rested: at `_alarm_s`."""
        self._alarm_s = 0.0
        self._alarms = 0

    def start(self) -> None:
        """Evaluate the waiting tables in threads, and report evaluations that do not return."""
        self._report_stuck()
        self.wake()

    def wake(self) -> None:
        """Have one thread more query the registry; costs no query and no wait."""
        with self._lock:
            is_needed = self._claim_thread()
        if is_needed:
            self._start_thread()

    def _claim_thread(self) -> bool:
        """Return whether a thread more is to query the registry; with the lock held."""
        # One thread that has not queried the registry yet sees all marks that are committed now.
        if self._is_one_waiting:
            return False
        if len(self._running) >= self._limits.all_stores:
            self._note_more()
            return False
        self._is_one_waiting = True
        self._workers += 1
        return True

    def _start_thread(self) -> None:
        # A daemon: a thread that a store holds indefinitely must not keep the process from ending.
        threading.Thread(target=self._work, name="lake-evaluator", daemon=True).start()

    def _set_alarm(self, at_s: float) -> None:
        """Have the registry queried again at a time, unless it is before; with the lock held."""
        if self._alarm is not None:
            if self._alarm_s <= at_s:
                return
            self._alarm.cancel()
        self._alarms += 1
        self._alarm = threading.Timer(max(0.0, at_s - time.monotonic()), partial(self._ring, self._alarms))
        self._alarm.daemon = True
        self._alarm_s = at_s
        self._alarm.start()

    def _ring(self, number: int) -> None:
        with self._lock:
            if number == self._alarms:  # not one that was cancelled too late
                self._alarm = None
            is_needed = self._claim_thread()
        if is_needed:
            self._start_thread()

    def expect_more(self) -> None:
        """Have the next thread that ends an evaluation query the registry: a table changed during its own one."""
        with self._lock:
            self._note_more()

    def _note_more(self) -> None:
        self._may_be_more = True
        self._changes += 1

    def find_stuck(self) -> tuple[StuckEvaluation, ...]:
        """Return the evaluations that should have returned."""
        return tuple(StuckEvaluation(e.lease.base_path, e.store, self._age_s(e)) for e in self._list_stuck())

    @property
    def per_store(self) -> int:
        """How many threads evaluate tables of one store."""
        return self._limits.per_store

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until no table is being evaluated, and none rests; false when that takes longer. For tests."""
        deadline_s = time.monotonic() + timeout_s
        while self._is_at_work():
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.01)
        return True

    def _is_at_work(self) -> bool:
        with self._lock:
            return bool(self._workers or self._starters or self._alarm is not None)

    def _work(self) -> None:
        try:
            while (evaluation := self._acquire()) is not None:
                if self._may_be_more:
                    self.wake()
                self._do(partial(self._decide, evaluation), evaluation, self._running)
                if not self._may_be_more:
                    return
        except Exception:  # the outermost call of this thread; the next pass queries the registry again
            log.exception("no lease could be acquired")
        finally:
            with self._lock:
                self._workers -= 1

    def _do(self, step: Callable[[], None], evaluation: _Evaluation, among: dict[str, _Evaluation]) -> None:
        """Do a step of an evaluation, which is no longer among the others of this step afterwards."""
        with self._courtesy.counting_use():
            try:
                step()
            except Exception:  # the registry does not answer: the lease ends, and a loop acquires it again
                log.exception("the evaluation of table %s was not recorded", evaluation.lease.base_path)
            finally:
                with self._lock:
                    # Between the end of its lease and here, another thread may have acquired the table's next one.
                    if among.get(evaluation.lease.table_id) is evaluation:
                        del among[evaluation.lease.table_id]

    def _decide(self, evaluation: _Evaluation) -> None:
        rest = self._evaluate(evaluation.lease)
        if rest is None:
            return
        with self._lock:
            self._pace.forget(evaluation.lease.table_id)
        if not self._hand_over(evaluation, rest):
            rest()

    def _hand_over(self, evaluation: _Evaluation, rest: Rest) -> bool:
        """Have other threads start what is due; false when too many tables wait for that already."""
        with self._lock:
            if len(self._due) >= self._limits.waiting:
                return False
            self._due.append((evaluation, rest))
            self._starting[evaluation.lease.table_id] = evaluation
            if self._starters >= self._limits.starting:
                return True
            self._starters += 1
        threading.Thread(target=self._start_runs, name="lake-starter", daemon=True).start()
        return True

    def _start_runs(self) -> None:
        while True:
            self._courtesy.pause()
            with self._lock:
                if not self._due:
                    self._starters -= 1
                    return
                evaluation, rest = self._due.popleft()
            self._do(rest, evaluation, self._starting)
            if self._may_be_more:
                self.wake()

    def _acquire(self) -> _Evaluation | None:
        # Before it counts as one that has a table: until then no pass starts another thread.
        self._courtesy.pause()
        with self._acquiring:
            with self._lock:
                self._is_one_waiting = False
                # Until the answer: what ends meanwhile may leave the way to tables that the query does not see.
                self._may_be_more = True
                changes = self._changes
                running = list(self._running.values())
                late = [one for one in (*running, *self._starting.values()) if self._is_late(one)]
                resting = self._pace.find_resting(time.monotonic())
                if resting:
                    self._set_alarm(min(resting.values()))
            if len(running) >= self._limits.all_stores:
                return None
            busy = Counter(evaluation.store for evaluation in running)
            full = [store for store, count in busy.items() if count >= self._limits.per_store]
            found = self._registry.acquire_first(
                self._lease_s,
                except_stores=full,
                # A table whose evaluation never returns would cost a second thread once its lease has ended. The others
                # are left out by their leases alone: a mark that follows the release of one must be seen.
                except_tables=[*(evaluation.lease.table_id for evaluation in late), *resting],
            )
            with self._lock:
                if not (found.are_more or full) and changes == self._changes:
                    self._may_be_more = False
                if found.lease is None:
                    return None
                evaluation = _Evaluation(found.lease, store_of(found.lease.base_path), time.monotonic())
                self._running[found.lease.table_id] = evaluation
                self._pace.count(found.lease.table_id, evaluation.since_s)
            return evaluation

    def _report_stuck(self) -> None:
        stuck = self._list_stuck()
        self._metrics.gauge(STUCK_EVALUATIONS, len(stuck))
        for evaluation in stuck:
            with self._lock:
                if evaluation.is_reported:
                    continue
                evaluation.is_reported = True
            error = StorageError(
                f"the evaluation has not returned for {self._age_s(evaluation):,.0f} s: "
                f"{evaluation.store or 'the file system'} does not answer"
            )
            # While the lease lasts: without a record, each process in turn would lose a thread to this table.
            self._give_up(evaluation.lease, error)

    def _list_stuck(self) -> list[_Evaluation]:
        with self._lock:
            running = list(self._running.values())
        return [evaluation for evaluation in running if self._is_late(evaluation)]

    def _is_late(self, evaluation: _Evaluation) -> bool:
        return self._age_s(evaluation) > 0.75 * self._lease_s

    @staticmethod
    def _age_s(evaluation: _Evaluation) -> float:
        return time.monotonic() - evaluation.since_s
