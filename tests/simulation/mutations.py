"""Product guarantees switched off, one at a time: the harness must notice each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_lake_provider.job_contract import Outcome
from airflow_lake_provider.manager import scheduling as starts_module
from airflow_lake_provider.manager.db.leases import ExecutorLease, Executors
from airflow_lake_provider.manager.db.registry import Claim, LookResult, Registry
from airflow_lake_provider.manager.db.schema import lake_executor
from airflow_lake_provider.manager.reconciler import ManagerLoop
from airflow_lake_provider.manager.scheduling import decide_start
from airflow_lake_provider.planner.verdict import Judgement, judge
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from tests.simulation import task as task_module

Patch = pytest.MonkeyPatch


def settle_always_cleans(patch: Patch) -> None:
    """A look wipes the marks that arrived while it looked."""
    honest = Registry.settle

    def settle(self: Registry, claim: Claim, result: LookResult) -> bool:
        row = self.find(claim.table_id)
        return honest(self, replace(claim, dirty_seq=row["dirty_seq"] if row else 0), result)

    patch.setattr(Registry, "settle", settle)


def active_runs_are_ignored(patch: Patch) -> None:
    """A run is started beside one that is active."""

    def start(table_id: str, decision: Any, runs: Any, **limits: Any) -> Any:
        return decide_start(table_id, decision, [run for run in runs if not run.active], **limits)

    patch.setattr(starts_module, "decide_start", start)


def leases_are_for_everybody(patch: Patch) -> None:
    """Whoever asks gets the lease, and renews it."""

    def acquire(self: Executors, *claim: Any) -> ExecutorLease:
        with self._registry.transaction() as session:
            session.execute(lake_executor.delete())
        return honest(self, *claim)

    honest = Executors.acquire
    patch.setattr(Executors, "acquire", acquire)
    patch.setattr(Executors, "renew", lambda self, *key: 0)


def marks_cover_nothing(patch: Patch) -> None:
    """A look is content with what its process knows, whatever mark another process took."""
    honest = SharedTimelines.snapshot

    def snapshot(self: SharedTimelines, base_path: str, freshness: Any = None, covering: int = 0) -> Any:
        return honest(self, base_path) if freshness is None else honest(self, base_path, freshness)

    patch.setattr(SharedTimelines, "snapshot", snapshot)


def the_job_is_believed(patch: Patch) -> None:
    """A driver that died counts as done."""

    def believe(*evidence: Any) -> Judgement:
        return replace(judge(*evidence), outcome=Outcome.COMPLETED)

    patch.setattr(task_module, "judge", believe)


def there_is_no_net(patch: Patch) -> None:
    """Neither the heartbeats nor lake_watch speak of what nobody announced."""
    patch.setattr(Registry, "list_silent", lambda self, limit=1000: [])
    patch.setattr("tests.simulation.server.Server._mark_unannounced", lambda *found: None)


def claims_never_end(patch: Patch) -> None:
    """The claim of a loop that died is never taken over."""
    honest = Registry.claim
    patch.setattr(Registry, "claim", lambda self, most, lease_s: honest(self, most, 1e7))


def drivers_outlive_their_task(patch: Patch) -> None:
    """Nobody ends the job of a task that is gone or has lost its lease."""
    patch.setattr("tests.simulation.job.Driver.end_within", lambda driver, most_ms: None)
    patch.setattr("tests.simulation.task.Task._end_what_was_left", lambda task: None)


def the_living_are_taken_for_dead(patch: Patch) -> None:
    """A try takes over a lease whose holder it cannot see."""
    patch.setattr("tests.simulation.task.Task._has_ended", lambda task, holder: True)


def a_task_that_is_cut_off_works_on(patch: Patch) -> None:
    """A job goes on although its lease could not be renewed until its end."""
    patch.setattr("tests.simulation.task.Task._guard", lambda task: None)


def silent_tables_are_left_alone(patch: Patch) -> None:
    """Nobody looks at a table on which a write was begun and nothing was committed."""
    patch.setattr(ManagerLoop, "_may_have_pending", lambda self, base_path, dirty_seq: False)


MUTATIONS: tuple[Callable[[Patch], None], ...] = (
    settle_always_cleans,
    active_runs_are_ignored,
    leases_are_for_everybody,
    marks_cover_nothing,
    the_job_is_believed,
    there_is_no_net,
    claims_never_end,
    drivers_outlive_their_task,
    the_living_are_taken_for_dead,
    silent_tables_are_left_alone,
)
