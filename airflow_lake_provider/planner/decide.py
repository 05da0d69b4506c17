"""All services of one table, decided and ranked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.planner.archive import decide_archive
from airflow_lake_provider.planner.clean import decide_clean
from airflow_lake_provider.planner.clustering import decide_clustering
from airflow_lake_provider.planner.compaction import decide_compaction
from airflow_lake_provider.planner.decision import Decision, Verdict

if TYPE_CHECKING:
    from airflow_lake_provider.policies import TablePolicy
    from airflow_lake_provider.view.table_view import TableView


def decide(view: TableView, policy: TablePolicy) -> tuple[Decision, ...]:
    """Return one decision per service, most urgent first.

    Pending plans come before new ones: a clustering plan holds writers' updates back, a compaction plan readers. Then
    what readers feel (compaction), what rewrites (clustering), what removes (cleaning), and archiving last, because
    cleaning plans by what is on the active timeline.
    """
    clean = decide_clean(view, policy)
    decisions = (
        decide_compaction(view, policy),
        decide_clustering(view, policy),
        clean,
        decide_archive(view, policy, clean),
    )
    return tuple(sorted(decisions, key=_urgency))


def _urgency(decision: Decision) -> tuple[bool, bool]:
    # Python's sort is stable, so the order above decides the rest.
    is_due = decision.verdict is Verdict.DUE
    return (not is_due, not (is_due and bool(decision.plan_instants)))
