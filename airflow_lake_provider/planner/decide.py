"""All services of one table, decided and ranked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.planner.archive import decide_archive
from airflow_lake_provider.planner.clean import decide_clean
from airflow_lake_provider.planner.clustering import decide_clustering
from airflow_lake_provider.planner.compaction import decide_compaction
from airflow_lake_provider.planner.decision import Decision, Verdict
from airflow_lake_provider.planner.indexing import decide_indexing
from airflow_lake_provider.planner.log_compaction import decide_log_compaction
from airflow_lake_provider.planner.metadata_compaction import decide_metadata_compaction, may_be_behind
from airflow_lake_provider.planner.rollback import decide_rollback, find_overdue_writes
from airflow_lake_provider.planner.ttl import decide_ttl

if TYPE_CHECKING:
    from airflow_lake_provider.planner.hold import Hold
    from airflow_lake_provider.policies import TablePolicy
    from airflow_lake_provider.view.table_view import TableView
    from airflow_lake_provider.view.view_cache import TableViewCache

DECIDED = frozenset(Service)
"""The services that `decide` speaks of."""


def decide_now(
    views: TableViewCache, view: TableView, policy: TablePolicy, now_ms: int, hold: Hold | None = None
) -> tuple[Decision, ...]:
    """Decide with what the rules ask for beside the timeline, which is read here. Raises StorageError."""
    is_overdue = policy.rollback.enabled and bool(find_overdue_writes(view, policy, now_ms))
    complete = views.supplement(view, heartbeats=is_overdue, metadata_timeline=may_be_behind(view, policy))
    return decide(complete, policy, now_ms, hold)


def decide(view: TableView, policy: TablePolicy, now_ms: int, hold: Hold | None = None) -> tuple[Decision, ...]:
    """Return one decision per service, most urgent first. `now_ms` is the time of deciding, ms since the epoch.

    `hold` is what replication's slowest sink needs.

    Pending plans come before new ones, what failed writers left first: a clustering plan holds writers' updates back,
    a compaction plan readers. Then what readers feel (compaction), what rewrites (clustering), what removes (expired
    partitions, cleaning), and archiving last, because cleaning plans by what is on the active timeline.
    """
    rollback = decide_rollback(view, policy, now_ms)
    compaction = decide_compaction(view, policy, now_ms)
    clean = decide_clean(view, policy, rollback, now_ms, hold)
    decisions = (
        rollback,
        compaction,
        decide_log_compaction(view, policy, compaction, now_ms),
        decide_clustering(view, policy, now_ms),
        decide_ttl(view, policy, now_ms),
        clean,
        decide_metadata_compaction(view, policy),
        decide_indexing(view, policy),
        decide_archive(view, policy, clean, hold),
    )
    return tuple(sorted(decisions, key=_urgency))


def _urgency(decision: Decision) -> tuple[bool, bool]:
    # Python's sort is stable, so the order above decides the rest.
    is_due = decision.verdict is Verdict.DUE
    return (not is_due, not (is_due and bool(decision.plan_instants)))
