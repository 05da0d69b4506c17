"""Instances of table services: what state each is in, who has to act next, and until when. Pure.

An instance is one service of one table for one state of it. It is requested (due, no run yet), scheduled (Airflow has a
run that has not begun), running, retrying (between two tries, or two runs), and ends as done, failed, or abandoned
(given up until the table changes). Nothing may stay in one state past its deadline (G4): the sweep in `deadlines` acts.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.manager.scheduling import RunState, StartVerdict, attempt_of
from airflow_lake_provider.planner.rules import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.monitoring import InstanceDoor
    from airflow_lake_provider.planner.table_view import TableViewCache

log = logging.getLogger(__name__)

MANAGER = "manager"
SCHEDULER = "Airflow's scheduler"
PEOPLE = "somebody has to look"
NOBODY = ""

LOOK_WITHIN_MS = 180_000
"""How late a look may be: the claim of a loop that died has to run out first, and lake_watch drains each minute."""
KILL_WITHIN_MS = 300_000
"""How long after its time-out a try may need to end."""
_BEGUN = frozenset({"running", "deferred", "restarting", "awaiting_input"})
_COUNTED_AHEAD = frozenset({"scheduled", "queued"})
"""States in which Airflow counts a try that has not begun."""


class InstanceState(StrEnum):
    """Where an instance stands."""

    REQUESTED = "requested"
    SCHEDULED = "scheduled"
    RUNNING = "running"
    RETRYING = "retrying"
    DONE = "done"
    FAILED = "failed"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True)
class TaskTry:
    """The task instance of a run, as Airflow has it. `state` is None before it is scheduled."""

    state: str | None = None
    try_number: int = 0
    max_tries: int = 0
    host: str = ""
    started_ms: int | None = None
    next_try_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One DAG run with its task, and the Params that it was created with."""

    run_id: str
    state: RunState
    created_ms: int
    ended_ms: int | None = None
    params: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    task: TaskTry = field(default_factory=TaskTry)
    note: str = ""

    @property
    def is_active(self) -> bool:
        """Whether the run may still do something."""
        return self.state in {RunState.QUEUED, RunState.RUNNING}

    @property
    def service(self) -> str:
        """The service that it runs."""
        return str(self.params.get("service", ""))

    @property
    def plans(self) -> tuple[str, ...]:
        """Requested times of the plans that it was created for."""
        return tuple(str(instant) for instant in self.params.get("instants") or ())

    def limit_ms(self, name: str) -> int:
        """Return a limit of the run in ms: `timeout_s`, `start_within_s` or `deadline_s`."""
        value = self.params.get(name)
        limit_s = value if isinstance(value, (int, float)) and value > 0 else getattr(TablePolicy(), name)
        return int(float(limit_s) * 1000)


@dataclass(frozen=True, slots=True)
class Plans:
    """What the timeline says of plans: requested times."""

    pending: frozenset[str] = frozenset()
    completed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance. `owner` has to act by `deadline_ms`; None when nothing more is to come."""

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
        """Whether it has stood in its state past its deadline."""
        return self.deadline_ms is not None and now_ms > self.deadline_ms


def instances_of(
    row: Mapping[Any, Any], runs: Sequence[RunFacts], plans: Plans, newest_ended: int = 20
) -> tuple[Instance, ...]:
    """Return a table's instances: what is requested, then active runs, then the newest ended ones.

    `row` is the table's row of the registry.
    """
    decisions = [decision for decision in json.loads(row["decisions"]) if decision["verdict"] == Verdict.DUE]
    of_runs = [instance_of_run(run, plans, decisions, row["retry_ms"]) for run in runs]
    active = [instance for instance, run in zip(of_runs, runs, strict=True) if run.is_active]
    ended = [instance for instance, run in zip(of_runs, runs, strict=True) if not run.is_active]
    requested = [found for decision in decisions if (found := _requested(decision, row)) is not None]
    look = _look(row)
    return (*((look,) if look is not None else ()), *requested, *active, *ended[:newest_ended])


def instance_of_run(
    run: RunFacts, plans: Plans, decisions: Sequence[Mapping[str, Any]] = (), retry_ms: int | None = None
) -> Instance:
    """Return the instance of a DAG run; `decisions` are the table's last ones, `retry_ms` its next look."""
    if run.is_active:
        return _active(run)
    if run.state is RunState.SUCCESS:
        return _succeeded(run, plans)
    if run.plans and plans.completed.issuperset(run.plans):
        reason = f"the run failed, but the timeline shows {', '.join(run.plans)} completed"
        return _of(run, InstanceState.DONE, NOBODY, reason, run.ended_ms)
    return _failed(run, decisions, retry_ms)


def _active(run: RunFacts) -> Instance:
    task, ends_ms = run.task, run.created_ms + run.limit_ms("deadline_s")
    if task.state in _BEGUN:
        since_ms = task.started_ms or run.created_ms
        deadline_ms = min(since_ms + run.limit_ms("timeout_s") + KILL_WITHIN_MS, ends_ms)
        where = f" on {task.host}" if task.host else ""
        reason = f"try {task.try_number} of {task.max_tries + 1} runs{where}"
        return _of(run, InstanceState.RUNNING, f"worker{where}", reason, since_ms, deadline_ms)
    start_ms = run.limit_ms("start_within_s")
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
    return _of(run, InstanceState.DONE, NOBODY, run.note or "the run succeeded", run.ended_ms)


def _failed(run: RunFacts, decisions: Sequence[Mapping[str, Any]], retry_ms: int | None) -> Instance:
    for decision in decisions:
        if decision.get("run_id") != run.run_id:
            continue
        said = str(decision.get("run_reason", ""))
        if decision.get("run") == StartVerdict.BACKING_OFF:
            deadline_ms = None if retry_ms is None else retry_ms + LOOK_WITHIN_MS
            return _of(run, InstanceState.RETRYING, MANAGER, said, run.ended_ms, deadline_ms)
        if decision.get("run") == StartVerdict.ABANDONED:
            return _of(run, InstanceState.ABANDONED, PEOPLE, said, run.ended_ms)
    return _of(run, InstanceState.FAILED, NOBODY, run.note or "the run failed; read its log", run.ended_ms)


def _of(
    run: RunFacts, state: InstanceState, owner: str, reason: str, since_ms: int | None, deadline_ms: int | None = None
) -> Instance:
    tries, attempt = run.task.try_number, attempt_of(run.run_id)
    if attempt is not None and attempt[1] > 1:
        reason = f"{reason} (run {attempt[1]} for this state of the table)"
    return Instance(run.service, state, owner, reason, run.run_id, run.plans, since_ms, deadline_ms, tries)


def _requested(decision: Mapping[str, Any], row: Mapping[Any, Any]) -> Instance | None:
    if decision.get("run") != StartVerdict.WAITING:
        return None  # a run tells the rest
    plans = str((decision.get("evidence") or {}).get("pending_plans") or "")
    return Instance(
        service=decision["service"],
        state=InstanceState.REQUESTED,
        owner=MANAGER,
        reason=f"{decision['reason']}; {decision.get('run_reason', '')}",
        plans=tuple(plan for plan in plans.split(", ") if plan),
        since_ms=row["looked_ms"],
        deadline_ms=None if row["retry_ms"] is None else row["retry_ms"] + LOOK_WITHIN_MS,
    )


def _look(row: Mapping[Any, Any]) -> Instance | None:
    """Return the look that a mark asks for; whether it leads to a service is not known yet."""
    since_ms = row["dirty_since_ms"]
    if since_ms is None:
        return None
    reason = f"a {row['last_notice_source'].replace('_', ' ')} asks for a look"
    if row["look_failures"]:
        since_ms = row["retry_ms"] or since_ms
        reason = f"{reason}; {row['look_failures']} failed, the last with: {row['problem']}"
    return Instance("look", InstanceState.REQUESTED, MANAGER, reason, "", (), since_ms, since_ms + LOOK_WITHIN_MS)


# --- Read what the instances of one table follow from: its row, its runs, its plans on the timeline


def load_instances(
    registry: Registry, door: InstanceDoor, views: TableViewCache, table_id: str, most_ended: int
) -> tuple[Instance, ...]:
    """Return a table's instances. Raises TableUnknownError; a table that cannot be read has instances all the same."""
    row = registry.get(table_id)
    with registry.transaction() as session:
        runs = door.list_runs(session, f"{table_id}.", most_ended)
    return instances_of(row, runs, _load_plans(views, row["base_path"]), most_ended)


def _load_plans(views: TableViewCache, base_path: str) -> Plans:
    try:
        timeline = views.refresh(base_path).timeline
    except LakeError as error:
        log.warning("the instances of %s are told without its timeline: %s", base_path, error)
        return Plans()
    return Plans(
        frozenset(instant.requested_time for instant in timeline.pending()),
        frozenset(instant.requested_time for instant in timeline.completed()),
    )


# --- The door through which people hear of instances that need them
#
# Called by the sweep (`deadlines.DeadlineSweep`), in the API server. What wants to be told of failed runs hooks into
# the
# DAG's own callbacks; what wants to be told of deadlines and of what is stuck implements `Notifier` and is given to
# `DeadlineSweep` in `plugins/lake_plugin.py`.


class Notifier(Protocol):
    """Tells people; must be quick, and must not raise."""

    def deadline(self, base_path: str, instance: Instance) -> None:
        """An instance was ended because its run passed `deadline_s`."""

    def stuck(self, base_path: str, instance: Instance, on_told: Callable[[], None]) -> None:
        """An instance has stood in its state past its deadline; said once for each state of each instance.

        `on_told` is called, from any thread, when people were told: until then another server may tell them.
        """


class NoNotifier:
    """Tells nobody."""

    def deadline(self, base_path: str, instance: Instance) -> None:
        """See Notifier."""

    def stuck(self, base_path: str, instance: Instance, on_told: Callable[[], None]) -> None:
        """See Notifier."""
        on_told()


# --- Times of the registry as people read them


def moment(time_ms: int | None) -> str:
    """Return a time as people read it, UTC; `-` for none."""
    return "-" if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def distance(time_ms: int | None, now_ms: int) -> str:
    """Return how far a time is from now, in one unit: `12 s ago`, `in 3 h`; `-` for none."""
    if time_ms is None:
        return "-"
    seconds = abs(now_ms - time_ms) // 1000
    units = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
    unit, length_s = next((unit for unit in units if seconds >= 2 * unit[1]), units[-1])
    amount = f"{seconds // length_s} {unit}"
    return f"in {amount}" if time_ms > now_ms else f"{amount} ago"


def next_look_ms(row: Mapping[Any, Any], now_ms: int) -> int | None:
    """Return when the manager looks at a table next, if nobody announces anything; now when a mark waits."""
    if row["dirty_since_ms"] is not None and not row["look_failures"]:
        return now_ms
    times = [time_ms for time_ms in (row["retry_ms"], row["next_look_ms"]) if time_ms is not None]
    return max(min(times), now_ms) if times else None
