"""Decide whether clustering of one table is due; pure, from the view and the policy."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from airflow_lake_provider.hudi.instant import Action
from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.planner.plan_owner import find_executable, wait_for_owner
from airflow_lake_provider.planner.rules import (
    Decision,
    Rule,
    Verdict,
    block_without_lock,
    combine_rules,
    not_due,
    rule_of_age,
    rule_of_count,
    stable_key,
    writes_after,
)

if TYPE_CHECKING:
    from airflow_lake_provider.config.policies import ClusteringPolicy, TablePolicy
    from airflow_lake_provider.planner.table_view import TableView

CLUSTER_OPERATION = "CLUSTER"
_TRY_AGAIN_AFTER_WRITES = 5


def decide_clustering(view: TableView, policy: TablePolicy, now_ms: int) -> Decision:
    """Say whether clustering is due, not due or blocked, and why."""
    rules = policy.clustering
    if rules.enabled is False:
        return not_due(Service.CLUSTERING, "clustering is switched off for this table (clustering.enabled: false)")
    plans = view.timeline.pending(Action.CLUSTERING)
    pending = find_executable(plans, view, policy.doctor, now_ms)
    last = _last_clustering(view)
    since = writes_after(view.timeline, last)
    partition, small_files = _most_small_files(view, rules.small_file_bytes)
    evidence = {
        "writes_since_clustering": len(since),
        "last_clustering": last or None,
        "small_files": small_files,
        "small_files_partition": partition,
        "pending_plans": ", ".join(plan.requested_time for plan in plans),
    }
    if plans and not pending:
        return wait_for_owner(Service.CLUSTERING, plans, view, policy, now_ms, evidence)
    if pending:
        reason = f"clustering plan {', '.join(pending)} is pending on the timeline, and holds updates of its files back"
        due = Decision(Service.CLUSTERING, Verdict.DUE, reason, Mode.EXECUTE, pending[0], pending, evidence)
    elif rules.enabled is None:
        reason = "no clustering is asked for (clustering.enabled); a plan that others left would be executed"
        return not_due(Service.CLUSTERING, reason, evidence)
    else:
        age = rule_of_age(since, rules.max_age_s, now_ms, view.properties.time_zone)
        commits = rule_of_count(f"{len(since)} writes since the last clustering", len(since), rules.commits)
        found = (commits, _files_rule(small_files, partition, rules), age)
        ruling = combine_rules(found, rules.combine)
        if not since or not ruling.is_due:
            return not_due(Service.CLUSTERING, ruling.says, evidence, ruling.look_again_ms)
        key = stable_key(since, _TRY_AGAIN_AFTER_WRITES)
        due = Decision(Service.CLUSTERING, Verdict.DUE, ruling.says, Mode.SCHEDULE_AND_EXECUTE, key, (), evidence)
    return block_without_lock(due, policy.hudi_options)


def _last_clustering(view: TableView) -> str:
    """Return the completed time of the last clustering; empty when the active timeline shows none."""
    found = ""
    for instant in view.timeline.completed_writes_by_completion():
        metadata = view.commits.get(instant.requested_time)
        if metadata is not None and metadata.operation == CLUSTER_OPERATION:
            found = instant.completed_time or instant.requested_time
    return found


def _most_small_files(view: TableView, small_file_bytes: int) -> tuple[str, int]:
    """Return the partition with the most small base files, and how many; as far as the active timeline tells."""
    sizes: dict[tuple[str, str], int] = {}
    for instant in view.timeline.completed_writes_by_completion():
        metadata = view.commits.get(instant.requested_time)
        if metadata is None:
            continue
        for file_group in metadata.replaced_file_groups:
            sizes.pop(file_group, None)
        for stat in metadata.stats:
            if not stat.is_log:
                sizes[stat.partition, stat.file_id] = stat.file_size_bytes
    small = Counter(partition for (partition, _), size in sizes.items() if 0 < size < small_file_bytes)
    # One small file in a partition has nothing to be merged with.
    return max(small.items(), key=lambda item: (item[1], item[0]), default=("", 0))


def _files_rule(small_files: int, partition: str, rules: ClusteringPolicy) -> Rule:
    says = f"{small_files} files below {rules.small_file_bytes:,} bytes in partition {partition!r}"
    # One small file in a partition has nothing to be merged with.
    return rule_of_count(says, small_files if small_files > 1 else 0, rules.small_files)
