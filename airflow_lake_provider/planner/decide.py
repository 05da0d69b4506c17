"""All services of one table, decided and ranked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.planner import plan_owner
from airflow_lake_provider.planner.archive import decide_archive
from airflow_lake_provider.planner.clean import decide_clean, kept_writes
from airflow_lake_provider.planner.clustering import decide_clustering
from airflow_lake_provider.planner.compaction import decide_compaction
from airflow_lake_provider.planner.decision import Verdict
from airflow_lake_provider.planner.fair_order import in_fair_order
from airflow_lake_provider.planner.fruitless import footing_of, wait_for_change
from airflow_lake_provider.planner.indexing import decide_indexing
from airflow_lake_provider.planner.log_compaction import decide_log_compaction
from airflow_lake_provider.planner.metadata_compaction import decide_metadata_compaction, may_be_behind
from airflow_lake_provider.planner.plan_owner import find_begun_plans
from airflow_lake_provider.planner.replaced import find_kept_from, is_nothing_replaced
from airflow_lake_provider.planner.rollback import (
    block_beside,
    decide_rollback,
    find_unguarded_writes,
    needs_heartbeats,
)
from airflow_lake_provider.planner.time_zone import block_foreign_zone
from airflow_lake_provider.planner.ttl import decide_ttl
from airflow_lake_provider.planner.turns import NO_TURNS

if TYPE_CHECKING:
    from airflow_lake_provider.planner.decision import Decision
    from airflow_lake_provider.planner.hold import Hold
    from airflow_lake_provider.planner.turns import Turns
    from airflow_lake_provider.policies import TablePolicy
    from airflow_lake_provider.view.table_view import TableView
    from airflow_lake_provider.view.view_cache import TableViewCache

DECIDED = frozenset(Service)
"""The services that `decide` speaks of."""


def decide_now(
    views: TableViewCache,
    view: TableView,
    policy: TablePolicy,
    now_ms: int,
    hold: Hold | None = None,
    turns: Turns = NO_TURNS,
) -> tuple[Decision, ...]:
    """Decide with what the rules ask for beside the timeline, which is read here. Raises StorageError."""
    complete = views.supplement(
        view,
        heartbeats=needs_heartbeats(view, policy, now_ms) or plan_owner.needs_heartbeats(view),
        metadata_timeline=may_be_behind(view, policy),
        plans=find_begun_plans(view),
    )
    decisions = decide(complete, policy, now_ms, hold, turns)
    if all(decision.verdict is not Verdict.DUE for decision in decisions):
        return decisions
    return block_foreign_zone(decisions, view, policy, views.load_stamps(view), now_ms)


def decide(
    view: TableView, policy: TablePolicy, now_ms: int, hold: Hold | None = None, turns: Turns = NO_TURNS
) -> tuple[Decision, ...]:
    """Return one decision per service, most urgent first. `now_ms` is the time of deciding, ms since the epoch.

    `hold` is what replication's slowest sink needs, `turns` what became of the services' last runs.

    Pending plans come before new ones: a clustering plan holds writers' updates back, a compaction plan readers. The
    service whose last run is longest ago comes next. Where none ran yet: what failed writers left, then what readers
    feel (compaction), what rewrites (clustering), what removes (expired partitions, cleaning), and archiving last,
    because cleaning plans by what is on the active timeline. `in_fair_order` lets none of them wait for ever.
    """
    rollback = decide_rollback(view, policy, now_ms)
    compaction = decide_compaction(view, policy, now_ms)
    kept_from = find_kept_from(view, kept_writes(view, policy.clean, hold))
    decisions = (
        rollback,
        compaction,
        decide_log_compaction(view, policy, compaction, now_ms),
        decide_clustering(view, policy, now_ms),
        decide_ttl(view, policy, now_ms),
        decide_clean(view, policy, rollback, now_ms, hold, turns),
        decide_metadata_compaction(view, policy),
        decide_indexing(view, policy),
        decide_archive(view, policy, hold),
    )
    timeline = view.timeline
    footed = [replace(found, footing=footing_of(found, timeline, kept_from)) for found in decisions]
    asked = [wait_for_change(found, turns, timeline, policy, now_ms) for found in footed]
    unguarded = find_unguarded_writes(view, policy, now_ms)
    return in_fair_order([block_beside(unguarded, found, policy, now_ms) for found in asked], turns)


def remember_cleaned(view: TableView, policy: TablePolicy, hold: Hold | None, turns: Turns) -> Turns:
    """Return the turns with what the active timeline shows of writes that left nothing to clean.

    Each look notes it: what was archived since cannot be asked any more.
    """
    kept_from = find_kept_from(view, kept_writes(view, policy.clean, hold))
    return turns.cleaned(kept_from) if is_nothing_replaced(view, turns.cleaned_before, kept_from) else turns
