"""Watch the plans that a running service executes: whether a writer touches the same file groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.conflict.contention import (
    ClashKind,
    WriteIntent,
)
from airflow_lake_provider.conflict.marker_reader import Role
from airflow_lake_provider.conflict.strategies import StrategySettings, make_strategy
from airflow_lake_provider.instant_clock import instant_time_ms

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow_lake_provider.config.service_policies import ConflictPolicy
    from airflow_lake_provider.conflict.activity import ConflictTable
    from airflow_lake_provider.conflict.contention import Clash
    from airflow_lake_provider.conflict.strategies import DetectionStrategy

_MS = 1000


@dataclass(frozen=True, slots=True)
class ServiceConflict:
    """A plan and the instants that touch its file groups.

    `writer_worked_ms` is how long the first active one has worked, None when its instant does not show it.
    """

    plan: str
    clashes: tuple[Clash, ...]
    writer_worked_ms: int | None

    def describe(self, ran_s: float) -> str:
        """Describe the conflict, and what it saves to stop now; `ran_s` is how long the service ran."""
        clashes = "; ".join(str(clash) for clash in self.clashes)
        return f"clustering {self.plan} is stopped after {ran_s:.0f} s: {clashes}. {self._describe_loss()}"

    def _describe_loss(self) -> str:
        if not any(_is_at_work(clash) for clash in self.clashes):
            return "That writer has committed, so that the clustering would fail at its own commit"
        lost = (
            "" if self.writer_worked_ms is None else f", where it would lose {self.writer_worked_ms // _MS} s of work"
        )
        return f"Hudi would reject that writer at its commit{lost}"


class ServiceWatch:
    """Checks the clustering plans that the watched service executes.

    `plans` are the requested times that its request names; one that names none executes each pending plan.
    """

    def __init__(self, table: ConflictTable, policy: ConflictPolicy, plans: Collection[str] = ()) -> None:
        self._table = table
        self._policy = policy
        self._plans = frozenset(plans)
        self._strategies: dict[str, DetectionStrategy] = {}
        # Made before the service begins, so that a wrong name fails here.
        make_strategy(policy.strategy, self._settings())

    def check(self, now_ms: int) -> ServiceConflict | None:
        """Return the first plan whose file groups a writer touches. Raises what reading a table raises.

        What cannot be read is no reason to end a running service; the next check reads it again.
        """
        activity = self._table.read_activity(now_ms)
        for plan in activity.plans():
            is_foreign = self._plans and plan.instant not in self._plans
            if plan.role is not Role.CLUSTERING or not plan.planned or is_foreign:
                continue
            strategy = self._strategies.get(plan.instant)
            if strategy is None:
                strategy = self._strategies[plan.instant] = make_strategy(self._policy.strategy, self._settings())
            intent = WriteIntent(plan.instant, plan.planned, Role.CLUSTERING, since=plan.instant)
            verdict = strategy.check(self._table, intent, now_ms)
            if verdict.clashes:
                worker = next((clash.instant for clash in verdict.clashes if _is_at_work(clash)), "")
                begun_ms = instant_time_ms(worker, self._table.find_zone(activity.snapshot))
                worked_ms = None if begun_ms is None or begun_ms > now_ms else now_ms - begun_ms
                return ServiceConflict(plan.instant, verdict.clashes, worked_ms)
        return None

    def _settings(self) -> StrategySettings:
        # The caller keeps the pauses.
        return StrategySettings(period_s=0, initial_delay_s=0)


def _is_at_work(clash: Clash) -> bool:
    return clash.kind is not ClashKind.COMMIT
