"""How a decision becomes a DAG run: the run's id, and the door through which Airflow is asked.

The run id is derived from table, action and instant, so that Airflow's own unique key refuses a second run (G2).
Airflow's side of the door is in `plugins/`; this module knows nothing of it.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import update
from sqlalchemy.exc import IntegrityError

from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.db.leases import find_leases
from airflow_lake_provider.manager.db.schema import lake_limit
from airflow_lake_provider.planner.turns import NO_TURNS, TurnEnd, turns_to_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy.orm import Session

    from airflow_lake_provider.config.policies import MaintenanceWindow, TablePolicy
    from airflow_lake_provider.config.tables_file import Limits, TablesConfig
    from airflow_lake_provider.manager.db.registry import Claim, Registry
    from airflow_lake_provider.planner.rules import Decision
    from airflow_lake_provider.planner.turns import Turns

SERVICE_DAG_ID = "lake_table_service"
WATCH_DAG_ID = "lake_watch"
GIVEN_UP_PAUSE_MS = 6 * 3_600_000
"""How often a pending plan is tried again after its last regular run: it blocks others until somebody executes it."""
ACTIVE_RUN_CHECK_MS = 30_000
"""How soon a table with an active run is looked at again, should the run end without telling us."""
RUN_SETTINGS = (
    "engine", "spark_conn_id", "pool", "queue", "timeout_s", "retries", "start_within_s", "deadline_s",
)  # fmt: skip
"""Settings of a policy that travel to the run as Params of the same name."""
_RUN_ID = re.compile(r"^(?P<table_id>[A-Za-z0-9_-]+)\.(?P<service>[a-z]+)\.(?P<instant>\d+)(\.r(?P<attempt>\d+))?$")


class RunState(StrEnum):
    """States of a DAG run, in Airflow's spelling."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ServiceRun:
    """One DAG run that exists for a table and service. `ended_ms` is None while it is active."""

    run_id: str
    state: RunState
    ended_ms: int | None = None
    pool: str = ""
    queue: str = ""
    """Told of active runs only, as they were created."""

    @property
    def active(self) -> bool:
        """Whether the run may still do something."""
        return self.state in {RunState.QUEUED, RunState.RUNNING}


class RunDoor(Protocol):
    """Airflow, as the loop sees it. All calls work in the caller's transaction."""

    def find_runs(self, session: Session, run_id_prefix: str) -> Sequence[ServiceRun]:
        """Return the runs of the service DAG whose id begins so: every active one, and of the ended the newest."""
        ...

    def find_active_runs(self, session: Session, run_id_prefix: str) -> Sequence[ServiceRun]:
        """Return the active ones of `find_runs`."""
        ...

    def find_runs_by_id(self, session: Session, run_ids: Sequence[str]) -> Sequence[ServiceRun]:
        """Return those of the runs that exist."""
        ...

    def find_net(self, session: Session) -> Net:
        """Return the state of the DAGs that the manager lives by."""
        ...

    def create_run(self, session: Session, run_id: str, conf: dict[str, Any], note: str) -> None:
        """Create a queued run; raises when the DAG is not there or the id exists."""
        ...


@dataclass(frozen=True, slots=True)
class RunLimit:
    """How many runs of one pool or queue may be active at once."""

    kind: str
    """`pool` or `queue`."""
    name: str
    most: int


class StartVerdict(StrEnum):
    """What became of a decision that says "due"."""

    START = "start"
    ALREADY_ACTIVE = "already_active"
    ALREADY_RAN = "already_ran"
    BACKING_OFF = "backing_off"
    ABANDONED = "abandoned"
    WAITING = "waiting"
    """As many services run as may at once, of the table, the pool or the queue; or the window is closed."""


@dataclass(frozen=True, slots=True)
class StartDecision:
    """Whether to start a run now. `look_again_ms` says when the answer may differ without any notice."""

    verdict: StartVerdict
    run_id: str
    reason: str
    look_again_ms: int | None = None


def run_id_prefix(table_id: str, service: Service) -> str:
    """Return what the ids of all runs of a table's service begin with."""
    return f"{table_id}.{service.value}."


def run_id_of(table_id: str, service: Service, key_instant: str, attempt: int = 1) -> str:
    """Return the id of the n-th run for an instant, n from 1; within Airflow's pattern and 250 characters."""
    suffix = "" if attempt == 1 else f".r{attempt}"
    return f"{run_id_prefix(table_id, service)}{key_instant}{suffix}"


def attempt_of(run_id: str) -> tuple[str, int] | None:
    """Return key instant and attempt of a run id of ours; None for others (a run started by hand)."""
    match = _RUN_ID.match(run_id)
    if match is None:
        return None
    return match["instant"], int(match["attempt"] or 1)


def is_manager_run(run_id: str) -> bool:
    """Whether the manager created the run, so that its conf holds all that the table's policy said then."""
    return attempt_of(run_id) is not None


def decide_start(
    table_id: str,
    decision: Decision,
    runs: Sequence[ServiceRun],
    *,
    now_ms: int,
    max_attempts: int,
    backoff_s: float,
) -> StartDecision:
    """Say whether a due decision shall get a run now, given the runs that exist for the table and service.

    A failed run is followed by another one for the same instant after `backoff_s`, doubled each time, until
    `max_attempts`; then the instant is given up until the table changes. A plan on the timeline does not change with
    the table, and everything behind it waits: it gets another run every `GIVEN_UP_PAUSE_MS`.
    """
    for run in runs:
        if run.active:
            reason = f"run {run.run_id} is {run.state.value}"
            return StartDecision(StartVerdict.ALREADY_ACTIVE, run.run_id, reason, now_ms + ACTIVE_RUN_CHECK_MS)
    past = [
        (attempt[1], run)
        for run in runs
        if (attempt := attempt_of(run.run_id)) is not None and attempt[0] == decision.key_instant
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
    is_given_up = attempt_number >= max_attempts
    pause_ms = GIVEN_UP_PAUSE_MS if is_given_up else int(backoff_s * 1000 * 2 ** (attempt_number - 1))
    ripe_ms = (last.ended_ms or 0) + pause_ms
    if is_given_up and (now_ms < ripe_ms or not decision.plan_instants):
        until = f"until {_utc(ripe_ms)} UTC" if decision.plan_instants else "until the table changes"
        return StartDecision(
            StartVerdict.ABANDONED,
            last.run_id,
            f"{attempt_number} runs for instant {decision.key_instant} ended without it, the last is {last.run_id}; "
            f"given up {until}. Read its log, mend the cause, and clear it to try again",
            ripe_ms if decision.plan_instants else None,
        )
    if now_ms < ripe_ms:
        wait_s = (ripe_ms - now_ms + 999) // 1000
        return StartDecision(
            StartVerdict.BACKING_OFF,
            last.run_id,
            f"run {last.run_id} failed; next try in {wait_s} s",
            ripe_ms,
        )
    run_id = run_id_of(table_id, decision.service, decision.key_instant, attempt_number + 1)
    reason = f"{decision.reason} (run {attempt_number + 1})"
    return StartDecision(StartVerdict.START, run_id, reason, now_ms + ACTIVE_RUN_CHECK_MS)


def wait_for_executor(
    decision: Decision, table_id: str, leases: Sequence[Mapping[Any, Any]], now_ms: int
) -> StartDecision | None:
    """Return why a due decision has to wait for the service's executor, such as a run by hand; None when it need not.

    `leases` are the table's that have not run out. A second run would find the executor busy, and use up its tries.
    """
    for lease in leases:
        if lease["service"] == decision.service.value and not lease["run_id"].startswith(f"{table_id}."):
            reason = f"run {lease['run_id']} (try {lease['try_number']}) executes it"
            look_again_ms = max(lease["lease_until_ms"], now_ms + 1000)
            return StartDecision(StartVerdict.WAITING, lease["run_id"], reason, look_again_ms)
    return None


def wait_for_others(
    decision: Decision, table_id: str, runs: Sequence[ServiceRun], most_active: int, now_ms: int
) -> StartDecision | None:
    """Return why a due decision has to wait for other services of the table; None when it need not.

    `runs` are those of all services of the table. A run of the service itself is not one of the others.
    """
    own = run_id_prefix(table_id, decision.service)
    others = [run for run in runs if run.active and not run.run_id.startswith(own)]
    if len(others) < most_active:
        return None
    names = ", ".join(run.run_id for run in others)
    reason = f"waits for {names}: at most {most_active} service{'' if most_active == 1 else 's'} of a table run at once"
    return StartDecision(StartVerdict.WAITING, "", reason, now_ms + ACTIVE_RUN_CHECK_MS)


def wait_for_clean(decision: Decision, table_id: str, runs: Sequence[ServiceRun], now_ms: int) -> StartDecision | None:
    """Return why archiving has to wait for a clean of the table that runs; None when it need not.

    Cleaning plans by what is on the active timeline. Where several services of a table may run at once, a clean that
    is due as well is created before, unless it is archiving's turn.
    """
    if decision.service is not Service.ARCHIVE:
        return None
    cleans = run_id_prefix(table_id, Service.CLEAN)
    names = ", ".join(run.run_id for run in runs if run.active and run.run_id.startswith(cleans))
    if not names:
        return None
    reason = f"waits for {names}: cleaning plans by what is on the active timeline"
    return StartDecision(StartVerdict.WAITING, "", reason, now_ms + ACTIVE_RUN_CHECK_MS)


def _utc(moment_ms: int) -> str:
    return f"{datetime.fromtimestamp(moment_ms / 1000, UTC):%Y-%m-%d %H:%M}"


def wait_for_dag(problem: str, now_ms: int) -> StartDecision | None:
    """Return that a due decision has to wait for the DAG that would run it; None when `problem` is empty."""
    if not problem:
        return None
    return StartDecision(StartVerdict.WAITING, "", f"waits: {problem}", now_ms + ACTIVE_RUN_CHECK_MS)


def wait_for_window(decision: Decision, window: MaintenanceWindow | None, now_ms: int) -> StartDecision | None:
    """Return why a due decision has to wait for the table's maintenance window; None when it need not."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    if window is None or decision.plan_instants or window.is_open(now):
        return None
    opens_ms = int(window.next_opening(now).timestamp() * 1000)
    reason = f"waits for the maintenance window ({window}), which opens at {_utc(opens_ms)} UTC"
    return StartDecision(StartVerdict.WAITING, "", reason, opens_ms)


def find_limits(policy: TablePolicy, limits: Limits) -> tuple[RunLimit, ...]:
    """Return the limits over all tables that hold for a table's runs, always in the same order."""
    wanted = (("pool", policy.pool, limits.pools), ("queue", policy.queue, limits.queues))
    return tuple(RunLimit(kind, name, of[name]) for kind, name, of in wanted if name in of)


def wait_for_limit(limits: Sequence[RunLimit], active: Sequence[ServiceRun], now_ms: int) -> StartDecision | None:
    """Return why a run has to wait for those of other tables; None when it need not. `active` are all that are."""
    for limit in limits:
        inside = sum(getattr(run, limit.kind) == limit.name for run in active)
        if inside >= limit.most:
            reason = f"waits: {inside} runs of {limit.kind} {limit.name} are active, at most {limit.most} may be"
            return StartDecision(StartVerdict.WAITING, "", reason, now_ms + ACTIVE_RUN_CHECK_MS)
    return None


def run_conf(claim: Claim, decision: Decision, policy: TablePolicy) -> dict[str, Any]:
    """Return the Params of the service DAG for a decision; what the policy says now holds for the whole run."""
    return {
        "base_path": claim.base_path,
        "table_name": claim.table_name,
        "service": decision.service.value,
        "mode": decision.mode.value,
        "instants": list(decision.plan_instants),
        "hudi_options": {**policy.hudi_options, **decision.options},
        **{key: getattr(policy, key) for key in RUN_SETTINGS},
        "spark_conf": dict(policy.spark_conf),
        "conflict": asdict(policy.conflict),
        "reason": decision.reason,
        "evidence": dict(decision.evidence),
    }


# --- The DAGs that the manager lives by, and what is wrong with them in words: paused, not there, or not run for long

STALE_MS = 300_000
"""`lake_watch` runs each minute; past this it counts as not running."""


class DagState(StrEnum):
    """Whether Airflow's scheduler works on a DAG."""

    ACTIVE = "active"
    PAUSED = "paused"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Net:
    """The DAGs as Airflow has them. `swept_ms` is when a run of `lake_watch` last succeeded; None: never."""

    states: Mapping[str, DagState] = field(default_factory=lambda: MappingProxyType({}))
    swept_ms: int | None = None

    def state(self, dag_id: str) -> DagState:
        """Return a DAG's state; one that Airflow does not know is missing."""
        return self.states.get(dag_id, DagState.MISSING)

    def sweep_age_s(self, now_ms: int) -> int | None:
        """Return how long ago the last sweep ended, seconds; None when there was none."""
        return None if self.swept_ms is None else max(0, now_ms - self.swept_ms) // 1000


def find_service_dag_problem(net: Net) -> str:
    """Say why no run of a service would begin; empty when it would. A missing DAG is said when a run is created."""
    if net.state(SERVICE_DAG_ID) is DagState.PAUSED:
        return f"DAG {SERVICE_DAG_ID} is paused, so no service runs: unpause it (airflow dags unpause {SERVICE_DAG_ID})"
    return ""


def find_net_problems(net: Net, now_ms: int) -> tuple[str, ...]:
    """Say what is wrong with the DAGs, the gravest first."""
    problems = [find_service_dag_problem(net)]
    missing = [dag_id for dag_id in (SERVICE_DAG_ID, WATCH_DAG_ID) if net.state(dag_id) is DagState.MISSING]
    if missing:
        problems.append(
            f"DAG {' and '.join(missing)} not in Airflow's database: add the shipped DAGs to the DAG bundles "
            "(`airflow lake dag-bundles` prints the setting)"
        )
    age_s = net.sweep_age_s(now_ms)
    if net.state(WATCH_DAG_ID) is DagState.PAUSED:
        problems.append(
            f"DAG {WATCH_DAG_ID} is paused, so lost notices, deadlines and stuck tables go unseen: unpause it "
            f"(airflow dags unpause {WATCH_DAG_ID}); {_last_sweep(age_s)}"
        )
    elif net.state(WATCH_DAG_ID) is DagState.ACTIVE and (age_s is None or age_s * 1000 > STALE_MS):
        problems.append(f"{_last_sweep(age_s)}, though it is due each minute: see its runs, and Airflow's scheduler")
    return tuple(problem for problem in problems if problem)


def _last_sweep(age_s: int | None) -> str:
    if age_s is None:
        return f"{WATCH_DAG_ID} has never swept"
    return (
        f"{WATCH_DAG_ID} swept last {age_s} s ago"
        if age_s < 120
        else f"{WATCH_DAG_ID} swept last {age_s // 60} min ago"
    )


# --- Whether a due decision gets a run now, asked and done in one transaction


class Starts:
    """Starts runs, within the limits of the table, the pool and the queue."""

    def __init__(self, registry: Registry, door: RunDoor, load_tables: Callable[[], TablesConfig]) -> None:
        self._registry = registry
        self._door = door
        self._load_tables = load_tables

    def follow_up(self, turns: Turns) -> Turns:
        """Return the turns with what became of the runs that were open."""
        run_ids = turns.open_run_ids()
        if not run_ids:
            return turns
        with self._registry.transaction() as session:
            runs = {run.run_id: run for run in self._door.find_runs_by_id(session, run_ids)}
        for run_id in run_ids:
            run = runs.get(run_id)
            if run is None or not run.active:
                is_success = run is not None and run.state is RunState.SUCCESS
                ended_ms = (run.ended_ms if run is not None else None) or self._registry.now_ms()
                turns = turns.ended(run_id, TurnEnd.SUCCESS if is_success else TurnEnd.FAILED, ended_ms)
        return turns

    def start(self, claim: Claim, policy: TablePolicy, decision: Decision, turns: Turns = NO_TURNS) -> StartDecision:
        """Create the run, and note it among the table's turns; or say why not now.

        Raises LeaseLostError when the claim has passed on.
        """
        limits = find_limits(policy, self._load_tables().limits)
        for limit in limits:
            self._make_row(limit)
        with self._registry.transaction() as session:
            # The row lock serialises "is there an active run" and "create one" per table across all processes.
            self._registry.hold(session, claim)
            start = self._ask(session, claim.table_id, policy, decision)
            if start.verdict is not StartVerdict.START:
                return start
            waiting = self._wait_for_limit(session, limits, is_locked=True)
            if waiting is not None:
                return waiting
            conf = run_conf(claim, decision, policy)
            self._door.create_run(session, start.run_id, conf, note=decision.reason)
            started = turns.started(decision, start.run_id)
            self._registry.keep_turns(session, claim, turns_to_text(started))
            return start

    def preview(self, table_id: str, policy: TablePolicy, decisions: Sequence[Decision]) -> list[StartDecision]:
        """Say what `start` would say now of each in turn, those before it being started; change nothing."""
        limits = find_limits(policy, self._load_tables().limits)
        runs: list[ServiceRun] = []
        said: list[StartDecision] = []
        for decision in decisions:
            with self._registry.transaction() as session:
                start = self._ask(session, table_id, policy, decision, runs)
                if start.verdict is StartVerdict.START:
                    start = self._wait_for_limit(session, limits, runs, is_locked=False) or start
            if start.verdict is StartVerdict.START:
                runs.append(ServiceRun(start.run_id, RunState.QUEUED, pool=policy.pool, queue=policy.queue))
            said.append(start)
        return said

    def _ask(
        self,
        session: Session,
        table_id: str,
        policy: TablePolicy,
        decision: Decision,
        more: Sequence[ServiceRun] = (),
    ) -> StartDecision:
        now_ms = self._registry.now_ms()
        waiting = wait_for_dag(find_service_dag_problem(self._door.find_net(session)), now_ms)
        waiting = waiting or wait_for_window(decision, policy.maintenance_window, now_ms)
        if waiting is None:
            active = [*self._door.find_active_runs(session, f"{table_id}."), *more]
            waiting = wait_for_others(decision, table_id, active, policy.max_active_runs, now_ms)
            waiting = waiting or wait_for_clean(decision, table_id, active, now_ms)
        if waiting is None:
            waiting = wait_for_executor(decision, table_id, find_leases(session, table_id, now_ms), now_ms)
        if waiting is not None:
            return waiting
        return decide_start(
            table_id,
            decision,
            self._door.find_runs(session, run_id_prefix(table_id, decision.service)),
            now_ms=now_ms,
            max_attempts=policy.max_runs_per_instant,
            backoff_s=policy.retry_backoff_s,
        )

    def _wait_for_limit(
        self,
        session: Session,
        limits: tuple[RunLimit, ...],
        more: Sequence[ServiceRun] = (),
        *,
        is_locked: bool,
    ) -> StartDecision | None:
        if not limits:
            return None
        if is_locked:
            # Two tables that count at the same time would both find the last place free.
            for limit in limits:
                session.execute(
                    update(lake_limit).where(lake_limit.c.name == _key(limit)).values(held_ms=self._registry.now_ms())
                )
        active = [*self._door.find_active_runs(session, ""), *more]
        return wait_for_limit(limits, active, self._registry.now_ms())

    def _make_row(self, limit: RunLimit) -> None:
        try:
            with self._registry.transaction() as session:
                found = session.execute(lake_limit.select().where(lake_limit.c.name == _key(limit))).first()
                if found is None:
                    session.execute(lake_limit.insert().values(name=_key(limit), held_ms=0))
        except IntegrityError:
            return  # somebody else has just made it


def _key(limit: RunLimit) -> str:
    return f"{limit.kind}:{limit.name}"[:300]
