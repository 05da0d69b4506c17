"""Whether a due decision gets a run now, asked and done in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import update
from sqlalchemy.exc import IntegrityError

from airflow_lake_provider.manager.executors import find_leases
from airflow_lake_provider.manager.net import find_service_dag_problem
from airflow_lake_provider.manager.runs import (
    RunState,
    ServiceRun,
    StartVerdict,
    decide_start,
    find_limits,
    run_conf,
    run_id_prefix,
    wait_for_clean,
    wait_for_dag,
    wait_for_executor,
    wait_for_limit,
    wait_for_others,
    wait_for_window,
)
from airflow_lake_provider.manager.schema import lake_limit
from airflow_lake_provider.planner.turns import NO_TURNS, TurnEnd, turns_to_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy.orm import Session

    from airflow_lake_provider.manager.claim import Claim
    from airflow_lake_provider.manager.registry import Registry
    from airflow_lake_provider.manager.runs import RunDoor, RunLimit, StartDecision
    from airflow_lake_provider.planner.decision import Decision
    from airflow_lake_provider.planner.turns import Turns
    from airflow_lake_provider.policies import TablePolicy
    from airflow_lake_provider.tables_config import TablesConfig


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
