"""All services of one table, decided and ranked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.planner.compaction import decide_compaction

if TYPE_CHECKING:
    from airflow_lake_provider.config import TablePolicy
    from airflow_lake_provider.planner.decision import Decision
    from airflow_lake_provider.view.table_view import TableView


def decide(view: TableView, policy: TablePolicy) -> tuple[Decision, ...]:
    """Return one decision per service, most urgent first."""
    return (decide_compaction(view, policy),)
