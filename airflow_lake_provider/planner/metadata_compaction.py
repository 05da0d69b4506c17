"""Decide whether the metadata table's compaction was left behind; pure, from the view with its timeline and the policy.

Hudi's writers compact the metadata table themselves. Where that is delegated to nobody or fails without notice, the
table's own archiving stops at the last such compaction (`TimelineArchiverV2`), and every reader merges more log files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.planner.decision import Decision, Verdict, block_without_lock, not_due
from airflow_lake_provider.planner.writes import last_completed, stable_key, writes_after
from airflow_lake_provider.timeline.instant import Action

if TYPE_CHECKING:
    from airflow_lake_provider.policies import TablePolicy
    from airflow_lake_provider.timeline.instant import Instant
    from airflow_lake_provider.timeline.timeline import Timeline
    from airflow_lake_provider.view.table_view import TableView


def may_be_behind(view: TableView, policy: TablePolicy) -> bool:
    """Whether the active timeline is so long that the metadata table has to be asked."""
    if not policy.metacompaction.enabled or not view.properties.metadata_partitions:
        return False
    return len(view.timeline.completed_writes_by_completion()) > policy.metacompaction.commits


def last_metadata_compaction(metadata: Timeline) -> Instant | None:
    """Return the metadata table's last completed compaction; None when there is none."""
    return last_completed(metadata, Action.COMMIT)


def decide_metadata_compaction(view: TableView, policy: TablePolicy) -> Decision:
    """Say whether the metadata table has to be compacted, and why."""
    rules, service = policy.metacompaction, Service.METACOMPACTION
    if not rules.enabled:
        reason = "metadata compaction is switched off for this table (metacompaction.enabled: false)"
        return not_due(service, reason)
    if not view.properties.metadata_partitions:
        return not_due(service, "the table has no metadata table")
    writes = view.timeline.completed_writes_by_completion()
    if not may_be_behind(view, policy) or view.metadata_timeline is None:
        reason = f"{len(writes)} writes on the active timeline: Hudi's writers see to it (rule: more than"
        return not_due(service, f"{reason} {rules.commits})", {"active_writes": len(writes)})
    last = last_metadata_compaction(view.metadata_timeline)
    behind = writes_after(view.timeline, "" if last is None else last.requested_time)
    pending = tuple(plan.requested_time for plan in view.metadata_timeline.pending(Action.COMPACTION))
    evidence = {
        "active_writes": len(writes),
        "writes_since": len(behind),
        "last_metadata_compaction": None if last is None else last.requested_time,
        "pending_metadata_plans": ", ".join(pending),
    }
    since = "and the metadata table was never compacted" if last is None else f"since it, {last.requested_time}"
    reason = f"{len(behind)} writes {since} (rule: more than {rules.commits})"
    if len(behind) <= rules.commits:
        return not_due(service, reason, evidence)
    if pending:
        reason = f"{reason}, its plan {', '.join(pending)} is pending"
    key = stable_key(behind[rules.commits :], rules.commits)
    due = Decision(service, Verdict.DUE, reason, Mode.EXECUTE, key, (), evidence)
    return block_without_lock(due, policy.hudi_options)
