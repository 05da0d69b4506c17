"""All services of one table, decided and ranked."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.hudi.archive import list_active
from airflow_lake_provider.hudi.inner_table import find_inner_table
from airflow_lake_provider.indexing.index_spec import parse_indexes
from airflow_lake_provider.job_contract import REWRITES, VERIFY, Service, Verify
from airflow_lake_provider.planner.archive_limits import trigger_options
from airflow_lake_provider.planner.catalog_sync import decide_sync, remember_synced, sync_options
from airflow_lake_provider.planner.compaction import (
    decide_clustering,
    decide_compaction,
    decide_log_compaction,
    decide_metadata_compaction,
    log_compaction_options,
    may_be_behind,
)
from airflow_lake_provider.planner.facts import TableFacts
from airflow_lake_provider.planner.last_runs import NO_LAST_RUNS, RunEnd, basis_of, in_fair_order, wait_for_change
from airflow_lake_provider.planner.left_behind import (
    block_while_unguarded,
    decide_rollback,
    find_begun_plans,
    find_unguarded_writes,
    needs_heartbeats,
    plans_need_heartbeats,
)
from airflow_lake_provider.planner.periodic import (
    decide_indexing,
    decide_integrity,
    decide_orphans,
    decide_savepoint,
    decide_ttl,
    index_job_options,
    integrity_options,
    orphan_options,
    savepoint_options,
    ttl_options,
)
from airflow_lake_provider.planner.retention import archive_options, clean_options, decide_archive, decide_clean
from airflow_lake_provider.planner.rules import (
    KeptBy,
    Verdict,
    block_archived_behind,
    block_by_layout,
    block_foreign_zone,
    block_outer_table,
    block_rewrites,
    block_stopped,
    hold_paused,
    is_due_rewrite,
    may_meet_inner,
)
from airflow_lake_provider.planner.small_files import clustering_options, remember_small_files
from airflow_lake_provider.table_layout import asks_buckets, find_buckets, read_layout
from airflow_lake_provider.timeline_head import needs_archive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.planner.last_runs import LastRuns
    from airflow_lake_provider.planner.rules import Decision, Hold
    from airflow_lake_provider.planner.table_view import TableView, TableViewCache

DECIDED = frozenset(Service)
"""The services that `decide` returns a decision for."""


def load_facts(
    views: TableViewCache, view: TableView, policy: TablePolicy, now_ms: int, hold: Hold | None = None
) -> TableFacts:
    """Return the facts of a table, with heartbeats, other timelines and plans where a rule needs them.

    Raises StorageError.
    """
    facts = TableFacts(view, hold)
    complete = views.supplement(
        view,
        heartbeats=needs_heartbeats(facts, policy, now_ms) or plans_need_heartbeats(facts),
        metadata_timeline=may_be_behind(facts, policy),
        plans=find_begun_plans(facts),
        archive=needs_archive(list_active(view.timeline), slices_by_completion=view.properties.slices_by_completion),
    )
    return replace(facts, view=complete)


def decide_now(
    views: TableViewCache,
    facts: TableFacts,
    policy: TablePolicy,
    now_ms: int,
    last_runs: LastRuns = NO_LAST_RUNS,
    list_below: Callable[[str], Sequence[str]] = lambda _base_path: (),
) -> tuple[Decision, ...]:
    """Decide; of a table with something due, read the timeline's files, the folder of its buckets, and the mark of
    a rewrite that went wrong, and search for the tables that `list_below` knows below a base path.

    What is due is blocked where it cannot succeed, where another time zone named instants, or where the layout of the
    table, one of these tables or that mark forbids it.

    Raises StorageError.
    """
    decisions = decide(facts, policy, now_ms, last_runs)
    if all(decision.verdict is not Verdict.DUE for decision in decisions):
        return decisions
    decisions = tuple(_block_lost_files(views, facts, decision, last_runs) for decision in decisions)
    files = views.load_timeline_files(facts.view)
    decisions = block_stopped(decisions, facts.view, files)
    decisions = block_foreign_zone(decisions, facts.view, policy, files.stamps, now_ms)
    if any(map(may_meet_inner, decisions)):
        base_path = facts.view.base_path
        inner = find_inner_table(views.storage(base_path), list_below(base_path))
        decisions = block_outer_table(decisions, inner, has_metadata=bool(facts.properties.metadata_partitions))
    if any(map(is_due_rewrite, decisions)):
        decisions = block_rewrites(decisions, views.load_rewrite_block(facts.view))
    if not any(_asks_buckets(decision) for decision in decisions):
        return decisions
    buckets = find_buckets(
        facts.newest_file_ids,
        has_hashing_metadata=views.has_hashing_metadata(facts.view),
        hudi_options=policy.hudi_options,
    )
    return block_by_layout(decisions, read_layout(facts.properties.raw, buckets), policy)


def _block_lost_files(views: TableViewCache, facts: TableFacts, decision: Decision, last_runs: LastRuns) -> Decision:
    """Return the decision, blocked when a run of a pending compaction failed and files of its plan are gone.

    A clustering's plan is withdrawn instead (`decide_clustering`).
    """
    run = last_runs.of.get(decision.service)
    has_failed = run is not None and run.end is RunEnd.FAILED
    is_plan = decision.service in {Service.COMPACTION, Service.LOGCOMPACTION} and decision.plan_instants
    if decision.verdict is not Verdict.DUE or not has_failed or not is_plan:
        return decision
    lost = views.find_lost_files(facts.view, decision.plan_instants)
    if not lost:
        return decision
    reason = f"{decision.reason}, but files that it reads are gone or cut short: {lost}; put them back from a copy"
    return replace(decision, verdict=Verdict.BLOCKED, reason=reason, kept_by=KeptBy.TABLE)


def _asks_buckets(decision: Decision) -> bool:
    return decision.verdict is Verdict.DUE and asks_buckets(decision.service, decision.mode)


def decide(
    facts: TableFacts, policy: TablePolicy, now_ms: int, last_runs: LastRuns = NO_LAST_RUNS
) -> tuple[Decision, ...]:
    """Return one decision per service, most urgent first. `now_ms` is the time of deciding, ms since the epoch.

    Pending plans come before new ones: a clustering plan blocks writers' updates, a compaction plan slows readers. The
    service whose last run is longest ago comes next. Without any runs the order is: rollback, compaction (it speeds up
    readers), clustering, expired partitions, cleaning, archiving (after cleaning, which plans by the active timeline),
    and last the services with a period of their own. `in_fair_order` bounds the wait of each of them. No other service
    waits for a paused one that is due.
    """
    rollback = hold_paused(decide_rollback(facts, policy, now_ms), policy, now_ms)
    compaction = hold_paused(decide_compaction(facts, policy, now_ms, last_runs), policy, now_ms)
    retained_from = facts.find_retained_from(facts.retained_writes(policy, now_ms))
    others = (
        decide_log_compaction(facts, policy, compaction, now_ms),
        decide_clustering(facts, policy, now_ms, last_runs),
        decide_ttl(facts, policy, now_ms),
        decide_clean(facts, policy, rollback, now_ms, last_runs),
        decide_metadata_compaction(facts, policy),
        decide_indexing(facts, policy, now_ms),
        decide_archive(facts, policy, now_ms),
        decide_savepoint(facts, policy, now_ms),
        decide_orphans(facts, policy, now_ms),
        decide_sync(facts, policy, last_runs.synced),
        decide_integrity(facts, policy, now_ms),
    )
    decisions = [
        replace(found, options={**found.options, **verify_options(found.service, policy)})
        for found in (rollback, compaction, *(hold_paused(found, policy, now_ms) for found in others))
    ]
    based = [replace(found, basis=basis_of(found, facts, retained_from)) for found in decisions]
    waiting = [wait_for_change(found, last_runs, facts, policy, now_ms) for found in based]
    unguarded = find_unguarded_writes(facts, policy, now_ms)
    blocked = [block_archived_behind(facts.view.archived_behind, found) for found in waiting]
    return in_fair_order([block_while_unguarded(unguarded, found, policy, now_ms) for found in blocked], last_runs)


def remember_shown(facts: TableFacts, policy: TablePolicy, last_runs: LastRuns, now_ms: int) -> LastRuns:
    """Return the last runs with what the active timeline shows of writes that left nothing to clean, or to merge.

    Each evaluation records it: the timeline no longer shows what was archived since.
    """
    retained_from = facts.find_retained_from(facts.retained_writes(policy, now_ms))
    if facts.is_nothing_replaced(last_runs.cleaned_before, retained_from):
        last_runs = last_runs.cleaned(retained_from)
    if facts.is_restored_after(last_runs.merged_until):
        last_runs = last_runs.restored()
    if facts.is_nothing_to_merge(policy, last_runs.merged_until):
        last_runs = last_runs.merged(facts.writes[-1].ordering_time)
    if policy.sync.enabled:
        last_runs = replace(last_runs, synced=remember_synced(facts, last_runs.synced))
    nothing = last_runs.found_nothing_to_cluster(facts.history.last_clustering)
    known = remember_small_files(facts, policy, last_runs.small_files, found_nothing_since=nothing)
    return replace(last_runs, small_files=known)


def verify_options(service: Service, policy: TablePolicy) -> Mapping[str, str]:
    """Return how many of the rewritten rows a job compares, as its option; empty where it is the default."""
    rules = {
        Service.COMPACTION: policy.compaction,
        Service.LOGCOMPACTION: policy.logcompaction,
        Service.CLUSTERING: policy.clustering,
    }.get(service)
    return {} if rules is None or rules.verify == Verify.SAMPLE.value else {VERIFY: rules.verify}


# --- The Hudi settings by which a table's policy reaches a run by hand, which no decision precedes. Pure


def service_options(service: Service, policy: TablePolicy) -> Mapping[str, str]:
    """Return the policy of a service as settings of its job.

    Raises ConfigError for an unknown index, and ServiceRefusedError for a clean where cleaning is switched off: then
    another process cleans the table, by a retention that is not known here, and what is cleaned does not come back.
    """
    if service in REWRITES:
        return {**_service_options(service, policy), **verify_options(service, policy)}
    return _service_options(service, policy)


def _service_options(service: Service, policy: TablePolicy) -> Mapping[str, str]:
    if service is Service.CLEAN:
        if not policy.clean.enabled:
            raise ServiceRefusedError(
                "clean.enabled: false means that another process cleans this table, by a retention that is not known "
                "here; to clean it by hand only, set clean: {enabled: true, commits: null, retained_commits: ...}"
            )
        return clean_options(policy.clean)
    if service is Service.ARCHIVE:
        # The archiver keeps what the cleaner retains, by the settings that it is given.
        return {**clean_options(policy.clean), **archive_options(policy.archive), **trigger_options(policy)}
    if service is Service.TTL and policy.ttl.is_on:
        return ttl_options(policy.ttl)
    if service is Service.SAVEPOINT and policy.savepoint.every_s is not None:
        return savepoint_options(policy.savepoint)
    if service in _ALWAYS:
        return _ALWAYS[service](policy)
    if service is Service.LOGCOMPACTION and policy.logcompaction.log_files is not None:
        return log_compaction_options(policy.logcompaction.log_files)
    if service is Service.INDEXING:
        return index_job_options(parse_indexes(policy.indexing.indexes), policy.indexing)
    return MappingProxyType({})


_ALWAYS: Mapping[Service, Callable[[TablePolicy], Mapping[str, str]]] = MappingProxyType(
    {
        Service.ORPHANS: lambda policy: orphan_options(policy.orphans),
        Service.CLUSTERING: clustering_options,
        Service.SYNC: lambda policy: sync_options(policy.sync),
        Service.INTEGRITY: lambda policy: integrity_options(policy.integrity),
    }
)
