"""Product guarantees switched off, one at a time: the harness must notice each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from airflow_lake_provider.config.tables_source import Settle
from airflow_lake_provider.errors import StorageError
from airflow_lake_provider.hudi.active_writes import HeartbeatRule
from airflow_lake_provider.job_contract import Outcome
from airflow_lake_provider.manager.db.leases import ExecutorLease, Executors
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import EvaluationResult, TableLease
from airflow_lake_provider.manager.db.schema import lake_executor
from airflow_lake_provider.manager.db.typed_rows import TableRow
from airflow_lake_provider.manager.loop.evaluators import Evaluators
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from airflow_lake_provider.manager.scheduling import run_scheduler as starts_module
from airflow_lake_provider.manager.scheduling.run_scheduler import RunScheduler
from airflow_lake_provider.manager.scheduling.scheduling import decide_start
from airflow_lake_provider.planner.verdict import RunVerdict, TableReader, judge
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from tests.simulation import task as task_module
from tests.simulation.faults import Faults, hot, hot_with, only, workers_are_lost
from tests.simulation.threads import SimLocks, ThreadLock

Patch = pytest.MonkeyPatch


def release_always_cleans(patch: Patch) -> None:
    """An evaluation wipes the marks that arrived while it ran."""
    honest = Registry.conclude

    def conclude(self: Registry, lease: TableLease, find_result: Any) -> tuple[EvaluationResult, bool]:
        row = self.find(lease.table_id)
        return honest(self, replace(lease, dirty_seq=row.dirty_seq if row else 0), find_result)

    patch.setattr(Registry, "conclude", conclude)


def active_runs_are_ignored(patch: Patch) -> None:
    """A run is started next to one that is active."""

    def start(table_id: str, decision: Any, runs: Any, **limits: Any) -> Any:
        return decide_start(table_id, decision, [run for run in runs if not run.active], **limits)

    patch.setattr(starts_module, "decide_start", start)


def leases_are_for_all(patch: Patch) -> None:
    """Every caller gets the lease, and renews it."""

    def acquire(self: Executors, *claim: Any) -> ExecutorLease:
        with self._database.transaction() as session:
            session.execute(lake_executor.delete())
        return honest(self, *claim)

    honest = Executors.acquire
    patch.setattr(Executors, "acquire", acquire)
    patch.setattr(Executors, "renew", lambda self, *key: 0)


def marks_cover_nothing(patch: Patch) -> None:
    """An evaluation is content with what its process knows, whatever mark another process took."""
    honest = SharedTimelines.snapshot

    def snapshot(self: SharedTimelines, base_path: str, freshness: Any = None, covering: int = 0) -> Any:
        return honest(self, base_path) if freshness is None else honest(self, base_path, freshness)

    patch.setattr(SharedTimelines, "snapshot", snapshot)


def the_job_is_believed(patch: Patch) -> None:
    """A driver that died counts as done."""

    def believe(*evidence: Any) -> RunVerdict:
        return replace(judge(*evidence), outcome=Outcome.COMPLETED)

    patch.setattr(task_module, "judge", believe)


def there_are_no_dags(patch: Patch) -> None:
    """Neither the heartbeats nor lake_watch report what was not announced."""
    patch.setattr(Registry, "list_silent", lambda self, limit=1000: [])
    patch.setattr("tests.simulation.server.Server._mark_unannounced", lambda *found: None)


def leases_never_end(patch: Patch) -> None:
    """The lease of a loop that died is never taken over."""
    honest = Registry.acquire_first
    patch.setattr(Registry, "acquire_first", lambda self, lease_s, **others: honest(self, 1e7, **others))


def drivers_outlive_their_task(patch: Patch) -> None:
    """No process ends the job of a task that is gone or has lost its lease."""
    patch.setattr("tests.simulation.job.Driver.end_within", lambda driver, most_ms: None)
    patch.setattr("tests.simulation.task.Task._end_what_was_left", lambda task: None)


def the_living_are_taken_for_dead(patch: Patch) -> None:
    """A try takes over a lease whose holder it cannot see."""
    patch.setattr("tests.simulation.task.Task._has_ended", lambda task, holder: True)


def a_task_that_is_cut_off_works_on(patch: Patch) -> None:
    """A job goes on although its lease could not be renewed until its end."""
    patch.setattr("tests.simulation.task.Task._guard", lambda task: None)


def silent_tables_are_left_alone(patch: Patch) -> None:
    """No server evaluates a table on which a write was begun and nothing was committed."""
    patch.setattr(ManagerLoop, "_may_have_pending", lambda self, row: False)


# --- what outsiders do, and the guarantees that each of them tries


def evaluations_that_hang_are_not_reported(patch: Patch) -> None:
    """An evaluation that never returns is on no record."""
    patch.setattr(Evaluators, "_list_stuck", lambda self: [])


def requests_read_stores(patch: Patch) -> None:
    """A request of `lake_watch` refreshes the tables that it postpones."""

    def may_have_pending(self: ManagerLoop, row: TableRow) -> bool:
        return bool(self._views.refresh(row.base_path).timeline.pending())

    patch.setattr(ManagerLoop, "_may_have_pending", may_have_pending)


def pauses_are_ignored(patch: Patch) -> None:
    """Runs are created for a DAG that is paused."""
    patch.setattr(starts_module, "wait_for_dag", lambda problem, now_ms: None)


def plans_of_others_are_taken(patch: Patch) -> None:
    """A plan is executed whatever process may be executing it."""

    def find_all(plans: Any, *facts: Any) -> tuple[str, ...]:
        return tuple(plan.requested_time for plan in plans)

    for name, module in list(sys.modules.items()):
        if name.startswith("airflow_lake_provider.planner.") and hasattr(module, "find_executable"):
            patch.setattr(module, "find_executable", find_all)


def silence_is_death(patch: Patch) -> None:
    """A write without heartbeat counts as dead."""
    patch.setattr(HeartbeatRule, "has_expired", lambda self, beat_ms, now_ms: not self.is_live(beat_ms, now_ms))


def unguarded_writers_are_ignored(patch: Patch) -> None:
    """A write without heartbeat counts as dead, and jobs begin next to it."""
    silence_is_death(patch)
    patch.setattr("airflow_lake_provider.planner.decide.block_while_unguarded", lambda unguarded, found, *rest: found)
    patch.setattr(TableReader, "require_guarded_writers", lambda self, wanted: None)


def tables_files_count_at_once(patch: Patch) -> None:
    """A tables file takes effect while it is being written."""
    patch.setattr("tests.simulation.tables_file._SETTLE_OF_SERVERS", Settle(0.0, 0.0))


def deleted_runs_are_waited_for(patch: Patch) -> None:
    """A run that a person deleted counts as one that still runs."""
    honest = RunScheduler.follow_up

    def follow_up(self: RunScheduler, last_runs: Any) -> Any:
        with self._registry.transaction() as session:
            known = {run.run_id for run in self._gateway.find_runs_by_id(session, last_runs.open_run_ids())}
        if known.issuperset(last_runs.open_run_ids()):
            return honest(self, last_runs)
        raise StorageError("injected: a run is not there")

    patch.setattr(RunScheduler, "follow_up", follow_up)


def tables_share_a_lock(patch: Patch) -> None:
    """The commits of all tables are read under one lock, so that a store that hangs holds up all others."""
    lock = ThreadLock()
    patch.setattr(SimLocks, "make_lock", staticmethod(lambda what: lock if what == "commits" else ThreadLock()))


Mutation = Callable[[Patch], None]
MUTATIONS: Mapping[Mutation, Callable[[Faults], Faults]] = MappingProxyType(
    {
        release_always_cleans: hot,
        active_runs_are_ignored: hot,
        leases_are_for_all: hot,
        marks_cover_nothing: hot,
        the_job_is_believed: hot,
        there_are_no_dags: hot,
        leases_never_end: hot,
        drivers_outlive_their_task: hot,
        the_living_are_taken_for_dead: workers_are_lost,
        silent_tables_are_left_alone: hot,
        evaluations_that_hang_are_not_reported: only("a store hangs"),
        requests_read_stores: only("a store hangs"),
        pauses_are_ignored: only("a DAG is paused"),
        plans_of_others_are_taken: only("foreign plans", "foreign jobs"),
        unguarded_writers_are_ignored: only("single writers"),
        tables_files_count_at_once: only("the tables file is edited"),
        deleted_runs_are_waited_for: hot_with("people act on runs"),
    }
)
"""Each with the faults among which it is searched for."""
