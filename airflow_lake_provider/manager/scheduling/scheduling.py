"""Whether a due decision may become a DAG run now: the rules, and the run's Params."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from zlib import crc32

from airflow_lake_provider.errors import backoff
from airflow_lake_provider.job_contract import ALONE, IN_TURN, Service, Standing
from airflow_lake_provider.manager.runs.airflow_runs import (
    RunGateway,
    RunState,
    ServiceRun,
)
from airflow_lake_provider.manager.runs.run_ids import is_run_of, parse_run_id, run_id_of
from airflow_lake_provider.planner.last_runs import RunEnd
from airflow_lake_provider.planner.ranking import MAX_JITTER_MS
from airflow_lake_provider.planner.rules import KeptBy, urgency_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlalchemy.orm import Session

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.config.service_policies import MaintenanceWindow
    from airflow_lake_provider.manager.db.rows import TableLease
    from airflow_lake_provider.manager.db.typed_rows import ExecutorRow
    from airflow_lake_provider.planner.last_runs import LastRun
    from airflow_lake_provider.planner.rules import Decision

GIVEN_UP_PAUSE_MS = 6 * 3_600_000
"""How often what was given up gets another run: its cause may be gone although no commit comes."""
MAX_HELD_BACK_MS = 7 * 86_400_000
"""The longest pause before a service whose failed plan was withdrawn is tried again."""
ACTIVE_RUN_CHECK_MS = 30_000
"""How soon a table with an active run is evaluated again, in case the run ends without a hint."""
ENDED_RUN_CHECK_MS = 1_500
"""The same after a task's hint: a task reports its work shortly before Airflow records that its run has ended."""
RUN_SETTINGS = (
    "engine", "spark_conn_id", "pool", "queue", "timeout_s", "retries", "start_within_s", "deadline_s",
)  # fmt: skip
"""Settings of a policy that travel to the run as Params of the same name."""


class StartVerdict(StrEnum):
    """What happens to a due decision."""

    START = "start"
    ALREADY_ACTIVE = "already_active"
    ALREADY_RAN = "already_ran"
    BACKING_OFF = "backing_off"
    ABANDONED = "abandoned"
    WAITING = "waiting"
    """A limit of the table, the pool or the queue is reached, or the maintenance window is closed."""


@dataclass(frozen=True, slots=True)
class StartDecision:
    """Whether to start a run now. `evaluate_again_ms` is when the answer may differ without any notice."""

    verdict: StartVerdict
    run_id: str
    reason: str
    evaluate_again_ms: int | None = None
    price: Mapping[str, Any] | None = None
    """What the run is expected to cost and bring (`Price.to_dict`); None where nothing would start."""
    never_starts: bool = False
    """Whether waiting does not help: a person has to act."""
    kept_by: KeptBy = KeptBy.NOTHING
    """Of one that waits."""


def active_run_check_ms(since_hint_ms: int | None) -> int:
    """Return in how many ms a table with an active run is evaluated again; None: its last notice is no task's hint.

    After a hint the pauses double, from `ENDED_RUN_CHECK_MS` to `ACTIVE_RUN_CHECK_MS`: the hint's run may end only
    when a worker is free, and the hint may be about another run.
    """
    if since_hint_ms is None:
        return ACTIVE_RUN_CHECK_MS
    return min(max(since_hint_ms, ENDED_RUN_CHECK_MS), ACTIVE_RUN_CHECK_MS)


_ATTEMPTS_PER_QUERY = 8


def find_runs_of(
    gateway: RunGateway, session: Session, table_id: str, decision: Decision, active: Sequence[ServiceRun]
) -> tuple[ServiceRun, ...]:
    """Return the table's active runs of the service, and every run for the decision's instant.

    `active` are the table's active runs of all services.
    The ids of the latter follow from the instant, so each is one step in the unique key of Airflow's table. A search by
    prefix would read the history of all tables, since all runs have the same DAG.
    """
    found = {run.run_id: run for run in active if is_run_of(run.run_id, table_id, decision.service)}
    first = 1
    while True:
        attempts = range(first, first + _ATTEMPTS_PER_QUERY)
        ids = [run_id_of(table_id, decision.service, decision.key_instant, attempt) for attempt in attempts]
        known = {run.run_id: run for run in gateway.find_runs_by_id(session, ids)}
        found = known | found
        if ids[-1] not in known:
            return tuple(found.values())
        first += _ATTEMPTS_PER_QUERY


def decide_start(
    table_id: str,
    decision: Decision,
    runs: Sequence[ServiceRun],
    *,
    now_ms: int,
    max_attempts: int,
    backoff_s: float,
) -> StartDecision:
    """Decide whether a due decision gets a run now, given the runs that exist for the table and service.

    Another run for the same instant follows a failed one after `backoff_s`, doubled each time, until `max_attempts`;
    then the instant is given up, and gets another run every `GIVEN_UP_PAUSE_MS`: a table without new writes would
    otherwise never get one after its cause is fixed. A void run is no attempt: it says nothing about the table, so only
    the pause grows, up to the same bound.
    """
    for run in runs:
        if run.active:
            reason = f"run {run.run_id} is {run.state.value}"
            return StartDecision(StartVerdict.ALREADY_ACTIVE, run.run_id, reason, now_ms + ACTIVE_RUN_CHECK_MS)
    past = [
        (found.attempt, run)
        for run in runs
        if (found := parse_run_id(run.run_id)) is not None and found.instant == decision.key_instant
    ]
    if not past:
        run_id = run_id_of(table_id, decision.service, decision.key_instant)
        return StartDecision(StartVerdict.START, run_id, decision.reason, now_ms + ACTIVE_RUN_CHECK_MS)
    attempt_number, last = max(past, key=lambda pair: pair[0])
    if last.state is RunState.SUCCESS and not decision.plan_instants:
        return StartDecision(
            StartVerdict.ALREADY_RAN,
            last.run_id,
            f"run {last.run_id} succeeded for this state of the table; Hudi found nothing more to do",
        )
    counted = attempt_number - sum(run.is_void for _, run in past)
    is_given_up = counted >= max_attempts
    most_ms = GIVEN_UP_PAUSE_MS if last.is_void else math.inf
    pause_ms = GIVEN_UP_PAUSE_MS if is_given_up else int(backoff(backoff_s * 1000, attempt_number, most_ms))
    ripe_ms = (last.ended_ms or 0) + pause_ms
    if is_given_up and now_ms < ripe_ms:
        return StartDecision(
            StartVerdict.ABANDONED,
            last.run_id,
            f"{counted} runs for instant {decision.key_instant} ended without it, the last is {last.run_id}; "
            f"given up until {_utc(ripe_ms)} UTC. Read its log, fix the cause, and clear it to try again at once",
            ripe_ms,
        )
    if now_ms < ripe_ms:
        wait_s = (ripe_ms - now_ms + 999) // 1000
        what = "failed because its workers ended without a verdict: see the workers" if last.is_void else "failed"
        return StartDecision(
            StartVerdict.BACKING_OFF,
            last.run_id,
            f"run {last.run_id} {what}; next try in {wait_s} s",
            ripe_ms,
        )
    run_id = run_id_of(table_id, decision.service, decision.key_instant, attempt_number + 1)
    reason = f"{decision.reason} (run {attempt_number + 1})"
    return StartDecision(StartVerdict.START, run_id, reason, now_ms + ACTIVE_RUN_CHECK_MS)


def wait_after_failures(
    decision: Decision, run: LastRun | None, policy: TablePolicy, now_ms: int
) -> StartDecision | None:
    """Return why a decision without a plan waits after failed runs in a row; None when it need not.

    Each commit gives such a decision a new instant, so failed runs of all instants count until one succeeds. A service
    whose failed plan was withdrawn waits longer each time: its next failure would stop writers again.
    """
    if decision.plan_instants or run is None or not run.failures:
        return None
    if run.is_withdrawal and run.end is RunEnd.SUCCESS:
        return _wait_after_withdrawal(decision, run, now_ms)
    if run.end is not RunEnd.FAILED:
        return None
    is_given_up = run.failures >= policy.max_runs_per_instant
    pause_ms = GIVEN_UP_PAUSE_MS if is_given_up else int(backoff(policy.retry_backoff_s * 1000, run.failures))
    ripe_ms = run.ended_ms + pause_ms
    if now_ms >= ripe_ms:
        return None
    failed = f"{run.failures} runs of {decision.service} failed in a row, the last is {run.run_id}"
    if is_given_up:
        until = f"{failed}; given up until {_utc(ripe_ms)} UTC"
        reason = f"{until}. Read its log, fix the cause, and clear it to try again at once"
        return StartDecision(StartVerdict.ABANDONED, run.run_id, reason, ripe_ms)
    reason = f"{failed}; next try in {(ripe_ms - now_ms + 999) // 1000} s"
    return StartDecision(StartVerdict.BACKING_OFF, run.run_id, reason, ripe_ms)


def _wait_after_withdrawal(decision: Decision, run: LastRun, now_ms: int) -> StartDecision | None:
    if str(decision.evidence.get("last_clustering") or "") > run.key_instant:
        return None  # one has succeeded since, started by a person
    ripe_ms = run.ended_ms + int(backoff(GIVEN_UP_PAUSE_MS, run.failures, MAX_HELD_BACK_MS))
    if now_ms >= ripe_ms:
        return None
    reason = (
        f"plan {run.key_instant} of {decision.service} failed and was withdrawn, because it blocked writers; held back "
        f"until {_utc(ripe_ms)} UTC. Read the log of the failed run before {run.run_id}, fix the cause, and start "
        f"{decision.service} by hand to try again"
    )
    return StartDecision(StartVerdict.ABANDONED, run.run_id, reason, ripe_ms)


DOES_ALONE: Mapping[Standing, str] = MappingProxyType(
    {
        Standing.RESTORE: "restores the table",
        Standing.UPGRADE: "changes the table's version",
        Standing.ERASURE: "erases keys of the table",
    }
)


def wait_for_executor(
    decision: Decision, table_id: str, leases: Sequence[ExecutorRow], now_ms: int
) -> StartDecision | None:
    """Return why a due decision has to wait for the service's executor, such as a run by hand; None when it need not.

    `leases` are the table's executor leases that have not ended. A second run would find the executor busy, and use up
    its tries.
    """
    for lease in leases:
        is_alone = lease.service in ALONE
        if is_alone or (lease.service == decision.service.value and not is_run_of(lease.run_id, table_id)):
            does = DOES_ALONE[Standing(lease.service)] if is_alone else "executes it"
            reason = f"run {lease.run_id} (try {lease.try_number}) {does}"
            evaluate_again_ms = max(lease.lease_until_ms, now_ms + 1000)
            return StartDecision(StartVerdict.WAITING, lease.run_id, reason, evaluate_again_ms, kept_by=KeptBy.RUN)
    return None


def wait_for_others(
    decision: Decision,
    table_id: str,
    runs: Sequence[ServiceRun],
    most_active: int,
    now_ms: int,
    together: Collection[Service] = (),
) -> StartDecision | None:
    """Return why a due decision has to wait for other services of the table; None when it need not.

    `runs` are those of all services of the table. A run of the service itself is not one of the others, nor are those
    of the services with which it goes to a standing application (`services_together`): that runs one after another.
    """
    same = (decision.service, *(together if decision.service in together else ()))
    others = [run for run in runs if run.active and not is_run_of(run.run_id, table_id, *same)]
    if len(others) < most_active:
        return None
    names = " and ".join(_name_of(run) for run in others)
    runs_now = "runs" if len(others) == 1 else "run"
    at_most = "1 service" if most_active == 1 else f"{most_active} services"
    reason = f"waits for {names}, which {runs_now}: a table runs at most {at_most} at a time"
    again_ms = now_ms + ACTIVE_RUN_CHECK_MS
    return StartDecision(StartVerdict.WAITING, others[0].run_id, reason, again_ms, kept_by=KeptBy.RUN)


def _name_of(run: ServiceRun) -> str:
    """Return the service of a run that the manager created, and the id of another one."""
    found = parse_run_id(run.run_id)
    return run.run_id if found is None else found.service


def services_together(engine: str) -> frozenset[Service]:
    """Return the services of a table whose runs one standing application serves in turn, by the table's engine.

    With engine `auto` a compaction may be large, and gets a spark-submit of its own.
    """
    small = frozenset(service for service in IN_TURN if service is not Service.COMPACTION)
    return {"warm": frozenset(IN_TURN), "auto": small}.get(engine, frozenset())


def wait_for_clean(
    decision: Decision, table_id: str, runs: Sequence[ServiceRun], now_ms: int, together: Collection[Service] = ()
) -> StartDecision | None:
    """Return why archiving has to wait for a running clean of the table; None when it need not.

    A clean plans with what is on the active timeline. Where several services of a table may run together, a clean that
    is due as well is created first, unless it is archiving's turn. One standing application runs both in turn.
    """
    if decision.service is not Service.ARCHIVE or Service.ARCHIVE in together:
        return None
    ids = [run.run_id for run in runs if run.active and is_run_of(run.run_id, table_id, Service.CLEAN)]
    if not ids:
        return None
    reason = "waits for the clean that runs: it plans with what is on the active timeline"
    return StartDecision(StartVerdict.WAITING, ids[0], reason, now_ms + ACTIVE_RUN_CHECK_MS, kept_by=KeptBy.RUN)


def _utc(moment_ms: int) -> str:
    return f"{datetime.fromtimestamp(moment_ms / 1000, UTC):%Y-%m-%d %H:%M}"


def wait_for_dag(problem: str, now_ms: int) -> StartDecision | None:
    """Return that a due decision has to wait for the DAG that would run it; None when `problem` is empty."""
    if not problem:
        return None
    again_ms = now_ms + ACTIVE_RUN_CHECK_MS
    return StartDecision(StartVerdict.WAITING, "", f"waits: {problem}", again_ms, kept_by=KeptBy.DAG)


def wait_for_window(
    decision: Decision, window: MaintenanceWindow | None, now_ms: int, table_id: str = ""
) -> StartDecision | None:
    """Return why a due decision has to wait for the table's maintenance window; None when it need not.

    All tables of a window are due as it opens: each begins at a moment of its own within the first five minutes, or the
    first tenth of a short window. All services of a table begin together.
    """
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    if window is None or decision.plan_instants:
        return None
    most_s = min(MAX_JITTER_MS // 1000, window.least_open_s // 10)
    spread = timedelta(seconds=crc32(table_id.encode()) % most_s if table_id and most_s else 0)
    is_open = window.is_open(now)
    # Open for so long already, also in the window before, where one follows another.
    if is_open and window.is_open(now - spread):
        return None
    opens = window.next_opening(now - spread if is_open else now)
    begins_ms = int((opens + spread).timestamp() * 1000)
    state = f"opened at {_utc(int(opens.timestamp() * 1000))} UTC; tables begin one after another" if is_open else ""
    state = state or f"opens at {_utc(int(opens.timestamp() * 1000))} UTC"
    reason = f"waits for the maintenance window ({window}), which {state}"
    return StartDecision(StartVerdict.WAITING, "", reason, begins_ms, kept_by=KeptBy.WINDOW)


def run_conf(lease: TableLease, decision: Decision, policy: TablePolicy) -> dict[str, Any]:
    """Return the Params of the service DAG for a decision; the policy of now holds for the whole run."""
    return {
        "base_path": lease.base_path,
        "table_name": lease.table_name,
        "table_owner": lease.owner,
        "service": decision.service.value,
        "mode": decision.mode.value,
        "instants": list(decision.plan_instants),
        "hudi_options": {**policy.hudi_options, **decision.options},
        **{key: getattr(policy, key) for key in RUN_SETTINGS},
        "priority_weight": int(urgency_of(decision, policy)),
        "spark_conf": dict(policy.spark_conf),
        "conflict": policy.conflict.model_dump(),
        "reason": decision.reason,
        "evidence": dict(decision.evidence),
        "asset_events": policy.asset_events,
    }
