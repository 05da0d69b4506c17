"""Watches the plans that a running service executes: whether a writer has come upon their file groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.conflict.active_instant import Role
from airflow_lake_provider.conflict.contention import Claim, ClashKind
from airflow_lake_provider.conflict.expected_write import instant_ms
from airflow_lake_provider.conflict.strategies import DetectionStrategy, StrategySettings, make_strategy

if TYPE_CHECKING:
    from airflow_lake_provider.conflict.conflict_table import ConflictTable
    from airflow_lake_provider.conflict.contention import Clash
    from airflow_lake_provider.policies import ConflictPolicy

_MS = 1000


@dataclass(frozen=True, slots=True)
class ServiceConflict:
    """A plan and who came upon its file groups. `writer_worked_ms` is how long the first of them that is still at work
    has been so, None when its instant does not tell.
    """

    plan: str
    clashes: tuple[Clash, ...]
    writer_worked_ms: int | None

    def describe(self, ran_s: float) -> str:
        """Say who, on what, and what it saves to stop now; `ran_s` is how long the service ran."""
        who = "; ".join(str(clash) for clash in self.clashes)
        return f"clustering {self.plan} is stopped after {ran_s:.0f} s: {who}. {self._describe_loss()}"

    def _describe_loss(self) -> str:
        if not any(_is_at_work(clash) for clash in self.clashes):
            return "That writer has committed, so that the clustering would fail at its own commit"
        lost = (
            "" if self.writer_worked_ms is None else f", where it would lose {self.writer_worked_ms // _MS} s of work"
        )
        return f"Hudi would reject that writer at its commit{lost}"


class ServiceWatch:
    """Checks all pending clustering plans of a table; its one executor is the service that is watched."""

    def __init__(self, table: ConflictTable, policy: ConflictPolicy) -> None:
        self._table = table
        self._policy = policy
        self._strategies: dict[str, DetectionStrategy] = {}
        # Made before anything is begun: a wrong name is found out here.
        make_strategy(policy.strategy, self._settings())

    def check(self, now_ms: int) -> ServiceConflict | None:
        """Return the first plan that a writer has come upon. Raises what looking at a table raises.

        What cannot be read is no reason to end a service that runs; the next check will tell.
        """
        activity = self._table.look(now_ms)
        for plan in activity.plans():
            if plan.role is not Role.CLUSTERING or not plan.planned:
                continue
            strategy = self._strategies.get(plan.instant)
            if strategy is None:
                strategy = self._strategies[plan.instant] = make_strategy(self._policy.strategy, self._settings())
            claim = Claim(plan.instant, plan.planned, Role.CLUSTERING, since=plan.instant)
            verdict = strategy.check(self._table, claim, now_ms)
            if verdict.clashes:
                worker = next((clash.instant for clash in verdict.clashes if _is_at_work(clash)), "")
                begun_ms = instant_ms(worker, activity.snapshot.properties.time_zone)
                worked_ms = None if begun_ms is None or begun_ms > now_ms else now_ms - begun_ms
                return ServiceConflict(plan.instant, verdict.clashes, worked_ms)
        return None

    def _settings(self) -> StrategySettings:
        # Whoever calls keeps the pauses.
        return StrategySettings(period_s=0, initial_delay_s=0)


def _is_at_work(clash: Clash) -> bool:
    return clash.kind is not ClashKind.COMMIT
