"""Instances of table services: the state of each, what has to act next, and until when. Pure.

An instance is one service of one table for one state of it. It is requested (due, no run yet), scheduled (Airflow has a
run that has not begun), running, retrying (between two tries, or two runs), and ends as done, failed, or abandoned
(given up: another run every six hours). No instance may stay in one state past its deadline (G4): `DeadlineSweep` acts.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.manager.runs.airflow_runs import RunFacts, RunState
from airflow_lake_provider.manager.runs.run_ids import parse_run_id
from airflow_lake_provider.manager.scheduling.scheduling import StartVerdict
from airflow_lake_provider.planner.rules import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.db.typed_rows import TableRow
    from airflow_lake_provider.manager.runs.airflow_runs import InstanceGateway
    from airflow_lake_provider.planner.table_view import TableViewCache

log = logging.getLogger(__name__)

MANAGER = "manager"
SCHEDULER = "Airflow's scheduler"
PEOPLE = "a person"
NO_OWNER = ""

EVALUATE_WITHIN_MS = 180_000
"""How late an evaluation may be: the lease of a dead loop has to end first, and lake_watch drains each minute."""
READABLE_WITHIN_MS = 1_800_000
"""How long a table's evaluations may fail before people are notified."""
KILL_WITHIN_MS = 300_000
"""How long after its time-out a try may need to end."""
_BEGUN = frozenset({"running", "deferred", "restarting", "awaiting_input"})
_WAITS = "up_for_reschedule"
"""The state of a try that waits for infrastructure (`execution.retry.find_wait_s`)."""
_COUNTED_AHEAD = frozenset({"scheduled", "queued"})
"""States in which Airflow counts a try that has not begun."""


class InstanceState(StrEnum):
    """The state of an instance."""

    REQUESTED = "requested"
    SCHEDULED = "scheduled"
    RUNNING = "running"
    RETRYING = "retrying"
    DONE = "done"
    FAILED = "failed"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True)
class Plans:
    """The plans on the timeline: requested times."""

    pending: frozenset[str] = frozenset()
    completed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance. `owner` has to act by `deadline_ms`; None when the instance has ended."""

    service: str
    state: InstanceState
    owner: str
    reason: str
    run_id: str = ""
    plans: tuple[str, ...] = ()
    since_ms: int | None = None
    deadline_ms: int | None = None
    tries: int = 0

    def is_overdue(self, now_ms: int) -> bool:
        """Whether it is past the deadline of its state."""
        return self.deadline_ms is not None and now_ms > self.deadline_ms


def instances_of(row: TableRow, runs: Sequence[RunFacts], plans: Plans, newest_ended: int = 20) -> tuple[Instance, ...]:
    """Return a table's instances: what is requested, then active runs, then the newest ended ones.

    `row` is the table's row of the registry.
    """
    decisions = [decision for decision in json.loads(row.decisions) if decision["verdict"] == Verdict.DUE]
    of_runs = [instance_of_run(run, plans, decisions, row.retry_ms) for run in runs]
    active = [instance for instance, run in zip(of_runs, runs, strict=True) if run.is_active]
    ended = [instance for instance, run in zip(of_runs, runs, strict=True) if not run.is_active]
    requested = [found for decision in decisions if (found := _requested(decision, row)) is not None]
    evaluation = _evaluation(row)
    return (*((evaluation,) if evaluation is not None else ()), *requested, *active, *ended[:newest_ended])


def instance_of_run(
    run: RunFacts, plans: Plans, decisions: Sequence[Mapping[str, Any]] = (), retry_ms: int | None = None
) -> Instance:
    """Return the instance of a DAG run; `decisions` are the table's last ones, `retry_ms` its next evaluation."""
    if run.is_active:
        return _active(run)
    if run.state is RunState.SUCCESS:
        return _succeeded(run, plans)
    if run.plans and plans.completed.issuperset(run.plans):
        reason = f"the run failed, but the timeline shows {', '.join(run.plans)} completed"
        return _of(run, InstanceState.DONE, NO_OWNER, reason, run.ended_ms)
    return _failed(run, decisions, retry_ms)


def _active(run: RunFacts) -> Instance:
    task = run.task
    ends_ms = run.created_ms + run.limit_ms("deadline_s")
    if task.state in _BEGUN:
        since_ms = task.started_ms or run.created_ms
        deadline_ms = min(since_ms + run.limit_ms("timeout_s") + KILL_WITHIN_MS, ends_ms)
        where = f" on {task.host}" if task.host else ""
        reason = f"try {task.try_number} of {task.max_tries + 1} runs{where}"
        return _of(run, InstanceState.RUNNING, f"worker{where}", reason, since_ms, deadline_ms)
    start_ms = run.limit_ms("start_within_s")
    if task.state == _WAITS:
        reason = (
            f"try {task.try_number} waits: the store, work_dir, the manager or a lease fails it; its log says which"
        )
        deadline_ms = min(run.created_ms + start_ms, ends_ms)
        return _of(run, InstanceState.RETRYING, SCHEDULER, reason, run.created_ms, deadline_ms)
    failed = task.try_number - (task.state in _COUNTED_AHEAD)
    if failed > 0:
        since_ms = task.next_try_ms or run.created_ms
        reason = f"try {failed} of {task.max_tries + 1} failed; the next one waits for its time or a slot"
        return _of(run, InstanceState.RETRYING, SCHEDULER, reason, since_ms, min(since_ms + start_ms, ends_ms))
    reason = "the run waits for Airflow's scheduler, or for a free slot of its pool"
    return _of(run, InstanceState.SCHEDULED, SCHEDULER, reason, run.created_ms, min(run.created_ms + start_ms, ends_ms))


def _succeeded(run: RunFacts, plans: Plans) -> Instance:
    left = [plan for plan in run.plans if plan in plans.pending]
    if left:
        reason = f"the run succeeded, but the timeline still shows {', '.join(left)} pending"
        return _of(run, InstanceState.FAILED, MANAGER, reason, run.ended_ms)
    return _of(run, InstanceState.DONE, NO_OWNER, run.note or "the run succeeded", run.ended_ms)


def _failed(run: RunFacts, decisions: Sequence[Mapping[str, Any]], retry_ms: int | None) -> Instance:
    for decision in decisions:
        if decision.get("run_id") != run.run_id:
            continue
        run_reason = str(decision.get("run_reason", ""))
        if decision.get("run") == StartVerdict.BACKING_OFF:
            deadline_ms = None if retry_ms is None else retry_ms + EVALUATE_WITHIN_MS
            return _of(run, InstanceState.RETRYING, MANAGER, run_reason, run.ended_ms, deadline_ms)
        if decision.get("run") == StartVerdict.ABANDONED:
            return _of(run, InstanceState.ABANDONED, PEOPLE, run_reason, run.ended_ms)
    return _of(run, InstanceState.FAILED, NO_OWNER, run.note or "the run failed; read its log", run.ended_ms)


def _of(
    run: RunFacts, state: InstanceState, owner: str, reason: str, since_ms: int | None, deadline_ms: int | None = None
) -> Instance:
    tries = run.task.try_number
    found = parse_run_id(run.run_id)
    if found is not None and found.attempt > 1:
        reason = f"{reason} (run {found.attempt} for this state of the table)"
    return Instance(run.service, state, owner, reason, run.run_id, run.plans, since_ms, deadline_ms, tries)


def _requested(decision: Mapping[str, Any], row: TableRow) -> Instance | None:
    if decision.get("run") != StartVerdict.WAITING:
        return None  # the instance of the run covers it
    plans = str((decision.get("evidence") or {}).get("pending_plans") or "")
    return Instance(
        service=decision["service"],
        state=InstanceState.REQUESTED,
        owner=MANAGER,
        reason=f"{decision['reason']}; {decision.get('run_reason', '')}",
        plans=tuple(plan for plan in plans.split(", ") if plan),
        since_ms=row.evaluated_ms,
        deadline_ms=None if row.retry_ms is None else row.retry_ms + EVALUATE_WITHIN_MS,
    )


def _evaluation(row: TableRow) -> Instance | None:
    """Return the evaluation that a mark requests; whether it leads to a service is not known yet."""
    since_ms = row.dirty_since_ms
    if since_ms is None:
        return None
    reason = f"a {row.last_notice_source.replace('_', ' ')} requests an evaluation"
    within_ms = EVALUATE_WITHIN_MS
    if row.evaluation_failures:
        # Each retry has its own time, but the table waits since the first failure.
        within_ms = READABLE_WITHIN_MS
        reason = f"{reason}; {row.evaluation_failures} failed, the last with: {row.problem}"
    return Instance("evaluation", InstanceState.REQUESTED, MANAGER, reason, "", (), since_ms, since_ms + within_ms)


# --- Read the sources of a table's instances: its row, its runs, its plans on the timeline


def load_instances(
    registry: Registry, gateway: InstanceGateway, views: TableViewCache, table_id: str, most_ended: int
) -> tuple[Instance, ...]:
    """Return a table's instances. Raises TableUnknownError; a table that cannot be read still has instances."""
    row = registry.get(table_id)
    with registry.transaction() as session:
        runs = gateway.list_runs(session, table_id, most_ended)
    return instances_of(row, runs, _load_plans(views, row.base_path), most_ended)


def _load_plans(views: TableViewCache, base_path: str) -> Plans:
    try:
        timeline = views.refresh(base_path).timeline
    except LakeError as error:
        log.warning("the instances of %s are listed without its timeline: %s", base_path, error)
        return Plans()
    return Plans(
        frozenset(instant.requested_time for instant in timeline.pending()),
        frozenset(instant.requested_time for instant in timeline.completed()),
    )


def next_evaluation_ms(row: TableRow, now_ms: int) -> int | None:
    """Return when the manager evaluates a table next if no notice arrives; now when a mark waits."""
    if row.dirty_since_ms is not None and not row.evaluation_failures:
        return now_ms
    times = [time_ms for time_ms in (row.retry_ms, row.next_evaluation_ms) if time_ms is not None]
    return max(min(times), now_ms) if times else None
