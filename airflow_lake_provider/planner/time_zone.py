"""Block every due service of a table on which another time zone than the jobs' named instants. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.instant_clock import describe_foreign, find_foreign
from airflow_lake_provider.planner.decision import Decision, Verdict
from airflow_lake_provider.timeline.job_zone import zone_of_jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_lake_provider.instant_clock import Stamp
    from airflow_lake_provider.policies import TablePolicy
    from airflow_lake_provider.view.table_view import TableView


def block_foreign_zone(
    decisions: Sequence[Decision], view: TableView, policy: TablePolicy, stamps: Sequence[Stamp], now_ms: int
) -> tuple[Decision, ...]:
    """Return the decisions, those that are due blocked when an instant was not named in the jobs' zone.

    Archiving names no instant, but archives by their order.
    """
    table_zone = view.properties.time_zone
    zone = zone_of_jobs(table_zone, policy.spark_conf)
    foreign = None if zone is None else find_foreign(stamps, zone.offset_ms, now_ms)
    if zone is None or foreign is None:
        return tuple(decisions)
    problem = describe_foreign(foreign, zone.name, table_zone)
    return tuple(_block(decision, problem) if decision.verdict is Verdict.DUE else decision for decision in decisions)


def _block(due: Decision, problem: str) -> Decision:
    return Decision(due.service, Verdict.BLOCKED, f"{due.reason}, but {problem}", evidence=due.evidence)
