"""Decide whether expired partitions of one table have to be looked for; pure, from the view, the policy and the clock.

The active timeline does not say when an old partition was written last, so the job finds that out: a run is due once
in each period, and most runs find nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.hudi.instant import Action
from airflow_lake_provider.hudi.timeline import format_instant_time
from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.planner.rules import Decision, Verdict, block_without_lock, not_due

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.config.policies import TablePolicy, TtlPolicy
    from airflow_lake_provider.planner.rules import Evidence
    from airflow_lake_provider.planner.table_view import TableView


def decide_ttl(view: TableView, policy: TablePolicy, now_ms: int) -> Decision:
    """Say whether expired partitions have to be looked for, and why."""
    rules, service = policy.ttl, Service.TTL
    if rules.retained_days is None:
        return not_due(service, "no partition of this table expires (ttl.retained_days is not set)")
    if not view.properties.partition_fields:
        return not_due(service, "the table is not partitioned")
    if view.properties.table_type == "MERGE_ON_READ" and view.properties.version < 8:
        reason = f"the table has version {view.properties.version}: its log files do not say when they were written"
        return not_due(service, reason)
    plans = view.timeline.pending(Action.COMPACTION, Action.LOGCOMPACTION, Action.CLUSTERING)
    period_ms = int(rules.check_every_s * 1000)
    begin_ms = now_ms // period_ms * period_ms
    evidence: Evidence = {
        "retained_days": rules.retained_days,
        "pending_plans": ", ".join(plan.requested_time for plan in plans),
    }
    if plans:
        # A file group that is rewritten and deleted at once would be replaced twice (Hudi, DeletePartitionUtils).
        reason = f"waits for the pending {plans[0].action} {plans[0].requested_time}, whose files must stay"
        return not_due(service, reason, evidence)
    reason = f"partitions older than {rules.retained_days} days are looked for every {rules.check_every_s:,.0f} s"
    due = Decision(
        service,
        Verdict.DUE,
        reason,
        Mode.EXECUTE,
        # Of the period, not of the table: most runs leave nothing on the timeline.
        format_instant_time(begin_ms, "UTC"),
        (),
        evidence,
        ttl_options(rules),
        begin_ms + period_ms,
    )
    return block_without_lock(due, policy.hudi_options)


def ttl_options(rules: TtlPolicy) -> Mapping[str, str]:
    """Return the policy as Hudi's settings, which the job reads."""
    return {
        "hoodie.partition.ttl.strategy.days.retain": str(rules.retained_days),
        "hoodie.partition.ttl.strategy.max.delete.partitions": str(rules.max_partitions),
    }
