"""Decide whether compaction of one table is due; pure, from the view and the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.planner.backlog import CompactionBacklog, measure_compaction_backlog
from airflow_lake_provider.planner.decision import Decision, Verdict, block_without_lock, not_due
from airflow_lake_provider.timeline.instant import Action

if TYPE_CHECKING:
    from airflow_lake_provider.planner.decision import Evidence
    from airflow_lake_provider.policies import CompactionPolicy, TablePolicy
    from airflow_lake_provider.view.table_view import TableView


def decide_compaction(view: TableView, policy: TablePolicy) -> Decision:
    """Say whether compaction is due, not due or blocked, and why."""
    rules = policy.compaction
    if not rules.enabled:
        return not_due(Service.COMPACTION, "compaction is switched off for this table (compaction.enabled: false)")
    if view.properties.table_type != "MERGE_ON_READ":
        return not_due(Service.COMPACTION, "the table is copy-on-write: it has no log files to compact")
    pending = tuple(instant.requested_time for instant in view.timeline.pending(Action.COMPACTION))
    backlog = measure_compaction_backlog(view)
    evidence = _evidence(backlog, pending)
    if pending:
        reason = f"compaction plan {', '.join(pending)} is pending on the timeline"
        due = Decision(Service.COMPACTION, Verdict.DUE, reason, Mode.EXECUTE, pending[0], pending, evidence)
    else:
        reasons = [text for text in (_commits_rule(backlog, rules), _bytes_rule(backlog, rules)) if text]
        if not reasons:
            return not_due(Service.COMPACTION, _why_not(backlog, rules), evidence)
        due = Decision(
            Service.COMPACTION,
            Verdict.DUE,
            " and ".join(reasons),
            Mode.SCHEDULE_AND_EXECUTE,
            backlog.newest_write or "",
            (),
            evidence,
        )
    return block_without_lock(due, policy.hudi_options)


def _commits_rule(backlog: CompactionBacklog, rules: CompactionPolicy) -> str | None:
    if rules.delta_commits is None or backlog.delta_commits < rules.delta_commits:
        return None
    return f"{backlog.delta_commits} delta commits {_since(backlog)} (rule: {rules.delta_commits})"


def _bytes_rule(backlog: CompactionBacklog, rules: CompactionPolicy) -> str | None:
    ratio = backlog.log_to_base_ratio
    if rules.log_to_base_ratio is None or ratio is None or backlog.log_bytes < max(rules.min_log_bytes, 1):
        return None
    if ratio < rules.log_to_base_ratio:
        return None
    return f"log files hold {_ratio_text(backlog, ratio)} (rule: {rules.log_to_base_ratio:.0%})"


def _why_not(backlog: CompactionBacklog, rules: CompactionPolicy) -> str:
    parts = [f"{backlog.delta_commits} delta commits {_since(backlog)} (rule: {_shown(rules.delta_commits)})"]
    ratio = backlog.log_to_base_ratio
    if ratio is not None and rules.log_to_base_ratio is not None:
        parts.append(f"log files hold {_ratio_text(backlog, ratio)} (rule: {rules.log_to_base_ratio:.0%})")
    return "; ".join(parts)


def _since(backlog: CompactionBacklog) -> str:
    return f"since compaction {backlog.last_compaction}" if backlog.last_compaction else "and no compaction yet"


def _ratio_text(backlog: CompactionBacklog, ratio: float) -> str:
    return f"{backlog.log_bytes:,} bytes, {ratio:.0%} of their base files"


def _shown(rule: int | None) -> str:
    return "off" if rule is None else str(rule)


def _evidence(backlog: CompactionBacklog, pending: tuple[str, ...]) -> Evidence:
    return {
        "delta_commits": backlog.delta_commits,
        "log_files": backlog.log_files,
        "log_bytes": backlog.log_bytes,
        "base_bytes": backlog.base_bytes,
        "unsized_file_groups": backlog.unsized_file_groups,
        "last_compaction": backlog.last_compaction,
        "newest_write": backlog.newest_write,
        "pending_plans": ", ".join(pending),
    }
