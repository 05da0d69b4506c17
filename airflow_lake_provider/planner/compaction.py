"""Decide whether compaction of one table is due; pure, from the view and the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.planner.backlog import CompactionBacklog, measure_compaction_backlog
from airflow_lake_provider.planner.decision import Decision, Verdict, block_without_lock, not_due
from airflow_lake_provider.planner.log_compaction import executable_log_compactions
from airflow_lake_provider.planner.plan_owner import find_executable, wait_for_owner
from airflow_lake_provider.planner.rules import Rule, combine_rules, rule_of_age, rule_of_count
from airflow_lake_provider.timeline.instant import Action

if TYPE_CHECKING:
    from airflow_lake_provider.planner.decision import Evidence
    from airflow_lake_provider.policies import CompactionPolicy, TablePolicy
    from airflow_lake_provider.view.table_view import TableView


def decide_compaction(view: TableView, policy: TablePolicy, now_ms: int) -> Decision:
    """Say whether compaction is due, not due or blocked, and why."""
    rules = policy.compaction
    if not rules.enabled:
        return not_due(Service.COMPACTION, "compaction is switched off for this table (compaction.enabled: false)")
    if view.properties.table_type != "MERGE_ON_READ":
        return not_due(Service.COMPACTION, "the table is copy-on-write: it has no log files to compact")
    plans = view.timeline.pending(Action.COMPACTION)
    pending = find_executable(plans, view, policy.doctor, now_ms)
    backlog = measure_compaction_backlog(view)
    evidence = _evidence(backlog, tuple(plan.requested_time for plan in plans))
    if plans and not pending:
        return wait_for_owner(Service.COMPACTION, plans, view, policy, now_ms, evidence)
    if pending:
        reason = f"compaction plan {', '.join(pending)} is pending on the timeline"
        due = Decision(Service.COMPACTION, Verdict.DUE, reason, Mode.EXECUTE, pending[0], pending, evidence)
        return block_without_lock(due, policy.hudi_options)
    waiting = () if backlog.first_delta_commit is None else (backlog.first_delta_commit,)
    age = rule_of_age(waiting, rules.max_age_s, now_ms, view.properties.time_zone)
    ruling = combine_rules((_commits_rule(backlog, rules), _bytes_rule(backlog, rules), age), rules.combine)
    if not ruling.is_due:
        return not_due(Service.COMPACTION, ruling.says, evidence, ruling.look_again_ms)
    log_compactions = executable_log_compactions(view.timeline) if policy.logcompaction.enabled is not False else ()
    if log_compactions:
        reason = f"log compaction {log_compactions[0].requested_time} comes first: behind a newer plan it never runs"
        return not_due(Service.COMPACTION, f"{ruling.says}; {reason}", evidence)
    due = Decision(
        Service.COMPACTION,
        Verdict.DUE,
        ruling.says,
        Mode.SCHEDULE_AND_EXECUTE,
        backlog.newest_write or "",
        (),
        evidence,
    )
    return block_without_lock(due, policy.hudi_options)


def _commits_rule(backlog: CompactionBacklog, rules: CompactionPolicy) -> Rule:
    says = f"{backlog.delta_commits} delta commits {_since(backlog)}"
    return rule_of_count(says, backlog.delta_commits, rules.delta_commits)


def _bytes_rule(backlog: CompactionBacklog, rules: CompactionPolicy) -> Rule | None:
    if rules.log_to_base_ratio is None:
        return None
    ratio = backlog.log_to_base_ratio
    if ratio is None:
        return Rule("the size of no base file is known", holds=False)
    says = (
        f"log files hold {backlog.log_bytes:,} bytes, {ratio:.0%} of their base files "
        f"(rule: {rules.log_to_base_ratio:.0%})"
    )
    if backlog.log_bytes < max(rules.min_log_bytes, 1):
        return Rule(f"{says}, not counted below {rules.min_log_bytes:,} bytes", holds=False)
    return Rule(says, ratio >= rules.log_to_base_ratio)


def _since(backlog: CompactionBacklog) -> str:
    return f"since compaction {backlog.last_compaction}" if backlog.last_compaction else "and no compaction yet"


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
