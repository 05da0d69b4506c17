"""All services of one table, decided and ranked."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.indexing.index_spec import parse_indexes
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.planner import plan_owner
from airflow_lake_provider.planner.archive import archive_options, decide_archive
from airflow_lake_provider.planner.clean import clean_options, decide_clean, kept_writes
from airflow_lake_provider.planner.clustering import decide_clustering
from airflow_lake_provider.planner.compaction import (
    decide_compaction,
    decide_log_compaction,
    decide_metadata_compaction,
    log_compaction_options,
    may_be_behind,
)
from airflow_lake_provider.planner.fruitless import find_kept_from, footing_of, is_nothing_replaced, wait_for_change
from airflow_lake_provider.planner.indexing import decide_indexing, index_job_options
from airflow_lake_provider.planner.plan_owner import find_begun_plans
from airflow_lake_provider.planner.rollback import (
    block_beside,
    decide_rollback,
    find_unguarded_writes,
    needs_heartbeats,
)
from airflow_lake_provider.planner.rules import Verdict, block_foreign_zone
from airflow_lake_provider.planner.ttl import decide_ttl, ttl_options
from airflow_lake_provider.planner.turns import NO_TURNS, in_fair_order

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.planner.rules import Decision, Hold
    from airflow_lake_provider.planner.table_view import TableView, TableViewCache
    from airflow_lake_provider.planner.turns import Turns

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


# --- The Hudi settings by which a table's policy travels to a service that nobody decided upon: a run by hand. Pure


def service_options(service: Service, policy: TablePolicy) -> Mapping[str, str]:
    """Return what the policy says of a service as settings of its job.

    Raises ConfigError for an unknown index, and ServiceRefusedError for a clean where cleaning is switched off: then
    others clean the table, by a retention that is not known here, and what is cleaned does not come back.
    """
    if service is Service.CLEAN:
        if not policy.clean.enabled:
            raise ServiceRefusedError(
                "clean.enabled: false says that others clean this table, by a retention that is not known here; where "
                "it is to be cleaned by hand alone, set clean: {enabled: true, commits: null, retained_commits: ...}"
            )
        return clean_options(policy.clean)
    if service is Service.ARCHIVE:
        # The archiver keeps what the cleaner retains, by the settings that it is given.
        return {**clean_options(policy.clean), **archive_options(policy.archive)}
    if service is Service.TTL and policy.ttl.retained_days is not None:
        return ttl_options(policy.ttl)
    if service is Service.LOGCOMPACTION and policy.logcompaction.log_files is not None:
        return log_compaction_options(policy.logcompaction.log_files)
    if service is Service.INDEXING:
        return index_job_options(parse_indexes(policy.indexing.indexes), policy.indexing)
    return MappingProxyType({})
