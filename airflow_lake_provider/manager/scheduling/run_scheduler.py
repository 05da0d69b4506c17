"""Whether a due decision gets a run now: decided by the rules of `scheduling`, and done in the same transaction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError

from airflow_lake_provider.manager.db.leases import find_leases
from airflow_lake_provider.manager.db.operations import quote_columns, record_run
from airflow_lake_provider.manager.db.schema import lake_limit, lake_table
from airflow_lake_provider.manager.runs.airflow_runs import RunState, ServiceRun
from airflow_lake_provider.manager.runs.dag_problems import find_service_dag_problem
from airflow_lake_provider.manager.scheduling.backlog import Backlog
from airflow_lake_provider.manager.scheduling.budgets import find_limits
from airflow_lake_provider.manager.scheduling.scheduling import (
    StartVerdict,
    decide_start,
    find_runs_of,
    run_conf,
    services_together,
    wait_after_failures,
    wait_for_clean,
    wait_for_dag,
    wait_for_executor,
    wait_for_others,
    wait_for_window,
)
from airflow_lake_provider.planner.decide import service_options
from airflow_lake_provider.planner.last_runs import NO_LAST_RUNS, RunEnd, last_runs_to_text
from airflow_lake_provider.planner.rules import Decision, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy.orm import Session

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.config.tables_config import TablesConfig
    from airflow_lake_provider.doctor.repairs import ServiceCall
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.db.rows import TableLease
    from airflow_lake_provider.manager.runs.airflow_runs import RunGateway
    from airflow_lake_provider.manager.scheduling.budgets import RunLimit
    from airflow_lake_provider.manager.scheduling.scheduling import StartDecision
    from airflow_lake_provider.planner.last_runs import LastRuns


_ANY_NUMBER = 1_000_000


@dataclass(frozen=True, slots=True)
class ByHand:
    """The person that starts a run, and why."""

    user: str
    reason: str


def decide_by_hand(call: ServiceCall, policy: TablePolicy, now_ms: int, reason: str) -> Decision:
    """Return the decision that a person has made."""
    return Decision(
        call.service,
        Verdict.DUE,
        reason,
        call.mode,
        key_instant=call.instants[0] if call.instants else f"{now_ms}",
        plan_instants=call.instants,
        # An existing plan itself names what it removes.
        options=service_options(call.service, policy) if not call.instants else {},
    )


class RunScheduler:
    """Starts runs, within the limits of the table and the budgets of its pool, queue, owner and label."""

    def __init__(
        self, registry: Registry, gateway: RunGateway, load_tables: Callable[[], TablesConfig], engine: str = ""
    ) -> None:
        """`engine` is what runs the services of a table whose policy names none."""
        self._registry = registry
        self._gateway = gateway
        self._load_tables = load_tables
        self._engine = engine
        self.backlog = Backlog(registry, load_tables)

    def follow_up(self, last_runs: LastRuns) -> LastRuns:
        """Return the last runs with the results of the runs that were open."""
        run_ids = (*last_runs.open_run_ids(), *(failed := last_runs.failed_run_ids()))
        if not run_ids:
            return last_runs
        with self._registry.transaction() as session:
            runs = {run.run_id: run for run in self._gateway.find_runs_by_id(session, run_ids)}
        for run_id in failed:
            if run_id in runs and runs[run_id].state is not RunState.FAILED:
                last_runs = last_runs.cleared(run_id)
        for run_id in last_runs.open_run_ids():
            run = runs.get(run_id)
            if run is None or not run.active:
                is_success = run is not None and run.state is RunState.SUCCESS
                ended_ms = (run.ended_ms if run is not None else None) or self._registry.now_ms()
                end = RunEnd.SUCCESS if is_success else RunEnd.FAILED
                is_void = run is None or run.is_void
                last_runs = last_runs.ended(run_id, end, ended_ms, is_void=is_void)
        return last_runs

    def start(
        self, lease: TableLease, policy: TablePolicy, decision: Decision, last_runs: LastRuns = NO_LAST_RUNS
    ) -> StartDecision:
        """Create the run, and record it among the table's last runs; or return why not now.

        Raises LeaseLostError when another loop has acquired the lease.
        """
        limits = find_limits(policy, self._load_tables(), lease.owner)
        for limit in limits:
            self._make_row(limit)
        key = (lease.table_id, decision.service.value)
        with self._registry.transaction() as session:
            # The row lock serialises "is there an active run" and "create one" per table across all processes.
            self._registry.hold(session, lease)
            start = self._decide(session, lease.table_id, policy, decision, last_runs)
            if start.verdict is not StartVerdict.START:
                return start
            self._lock(session, limits)
            since_ms = self.backlog.find_since(session, *key)
            quote = self.backlog.quote(session, lease.table_id, policy, decision, lease.owner, since_ms)
            active = [*self._gateway.find_active_runs(session)] if limits else []
            standing = self.backlog.find_standing(session, key, quote, limits, active)
            if standing.waiting is not None:
                self.backlog.enqueue(session, key, quote, standing, limits)
                return standing.waiting
            created_ms = self._registry.now_ms()
            caused_by = "retry" if lease.is_retry else lease.source
            columns = quote_columns(quote, caused_by, [limit.scope for limit in limits])
            conf = run_conf(lease, decision, policy)
            # Before the first write of ours: what Airflow reads for it would keep SQLite's one writer from all notices.
            self._gateway.create_run(session, start.run_id, conf, note=decision.reason)
            record_run(session, lease.table_id, start.run_id, decision.service.value, created_ms, columns)
            self.backlog.charge(session, key, quote, limits, created_ms, was_waiting=since_ms is not None)
            started = last_runs.started(decision, start.run_id)
            self._registry.keep_last_runs(session, lease, last_runs_to_text(started))
        if limits:
            self.backlog.wake(limits)
        return replace(start, price=quote.price)

    def start_by_hand(
        self, lease: TableLease, policy: TablePolicy, call: ServiceCall, by: ByHand, *, is_dry: bool = False
    ) -> StartDecision:
        """Create a run for a person, due or not, outside limits and budgets, unless one of the service is active.

        Its id is the one that the manager would use, so that both together start one.
        """
        decision = decide_by_hand(call, policy, self._registry.now_ms(), by.reason)
        with self._registry.transaction() as session:
            active = self._gateway.find_active_runs(session, lease.table_id)
            start = decide_start(
                lease.table_id,
                decision,
                find_runs_of(self._gateway, session, lease.table_id, decision, active),
                now_ms=self._registry.now_ms(),
                max_attempts=_ANY_NUMBER,
                backoff_s=0,
            )
            if start.verdict is StartVerdict.START and not is_dry:
                conf = run_conf(lease, decision, policy)
                self._gateway.create_run(session, start.run_id, conf, note=decision.reason, user=by.user)
        return start

    def preview(
        self, table_id: str, policy: TablePolicy, decisions: Sequence[Decision], last_runs: LastRuns = NO_LAST_RUNS
    ) -> list[StartDecision]:
        """Return what `start` would decide now for each in turn, with those before it started; change nothing."""
        limits = find_limits(policy, self._load_tables(), self._owner_of(table_id))
        runs: list[ServiceRun] = []
        starts: list[StartDecision] = []
        for decision in decisions:
            with self._registry.transaction() as session:
                start = self._decide(session, table_id, policy, decision, last_runs, runs)
                if start.verdict is StartVerdict.START and limits:
                    start = self._preview_one(session, table_id, policy, decision, start, limits, runs)
            if start.verdict is StartVerdict.START:
                scopes = tuple(limit.scope for limit in limits)
                run = ServiceRun(start.run_id, RunState.QUEUED, pool=policy.pool, queue=policy.queue, scopes=scopes)
                runs.append(run)
            starts.append(start)
        return starts

    def _preview_one(  # noqa: PLR0913 - as `start`, without a lease
        self,
        session: Session,
        table_id: str,
        policy: TablePolicy,
        decision: Decision,
        start: StartDecision,
        limits: tuple[RunLimit, ...],
        more: Sequence[ServiceRun],
    ) -> StartDecision:
        key = (table_id, decision.service.value)
        since_ms = self.backlog.find_since(session, *key)
        quote = self.backlog.quote(session, table_id, policy, decision, self._owner_of(table_id), since_ms)
        active = [*self._gateway.find_active_runs(session), *more]
        standing = self.backlog.find_standing(session, key, quote, limits, active)
        return standing.waiting or replace(start, price=quote.price)

    def _owner_of(self, table_id: str) -> str:
        if not self._load_tables().budgets.owners:
            return ""
        with self._registry.transaction() as session:
            return session.scalar(select(lake_table.c.owner).where(lake_table.c.table_id == table_id)) or ""

    def _decide(
        self,
        session: Session,
        table_id: str,
        policy: TablePolicy,
        decision: Decision,
        last_runs: LastRuns,
        more: Sequence[ServiceRun] = (),
    ) -> StartDecision:
        now_ms = self._registry.now_ms()
        waiting = wait_for_dag(find_service_dag_problem(self._gateway.find_lake_dags(session)), now_ms)
        waiting = waiting or wait_for_window(decision, policy.maintenance_window, now_ms, table_id)
        found: Sequence[ServiceRun] = ()
        if waiting is None:
            found = self._gateway.find_active_runs(session, table_id)
            active = [*found, *more]
            together = services_together(policy.engine or self._engine)
            waiting = wait_for_others(decision, table_id, active, policy.max_active_runs, now_ms, together)
            waiting = waiting or wait_for_clean(decision, table_id, active, now_ms, together)
        if waiting is None:
            waiting = wait_for_executor(decision, table_id, find_leases(session, table_id, now_ms), now_ms)
        if waiting is not None:
            return waiting
        start = decide_start(
            table_id,
            decision,
            find_runs_of(self._gateway, session, table_id, decision, found),
            now_ms=now_ms,
            max_attempts=policy.max_runs_per_instant,
            backoff_s=policy.retry_backoff_s,
        )
        if start.verdict is not StartVerdict.START:
            return start
        return wait_after_failures(decision, last_runs.of.get(decision.service), policy, now_ms) or start

    def _lock(self, session: Session, limits: Sequence[RunLimit]) -> None:
        """Lock the rows of limits, in their order: two tables that count at once would both find the last slot free."""
        for limit in limits:
            mine = lake_limit.c.name == limit.scope
            session.execute(update(lake_limit).where(mine).values(held_ms=self._registry.now_ms()))

    def _make_row(self, limit: RunLimit) -> None:
        try:
            with self._registry.transaction() as session:
                found = session.execute(lake_limit.select().where(lake_limit.c.name == limit.scope)).first()
                if found is None:
                    session.execute(lake_limit.insert().values(name=limit.scope, held_ms=0))
        except IntegrityError:
            return  # another server inserted it just now
