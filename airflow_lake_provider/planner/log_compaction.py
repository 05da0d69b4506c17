"""Decide whether log compaction of one table is due; pure, from the view, the policy and what is said of compaction.

Hudi executes no log compaction behind a newer compaction or commit, and leaves its plan pending for ever
(`BaseHoodieTableServiceClient.logCompact`). So the two never have plans beside each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.planner.backlog import (
    COMPACT_OPERATION,
    LOG_COMPACT_OPERATION,
    measure_compaction_backlog,
)
from airflow_lake_provider.planner.decision import Decision, Verdict, block_without_lock, not_due
from airflow_lake_provider.planner.plan_owner import find_executable, wait_for_owner
from airflow_lake_provider.planner.rules import combine_rules, rule_of_age, rule_of_count
from airflow_lake_provider.planner.writes import stable_key, writes_after
from airflow_lake_provider.timeline.instant import Action

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.policies import TablePolicy
    from airflow_lake_provider.timeline.instant import Instant
    from airflow_lake_provider.timeline.timeline import Timeline
    from airflow_lake_provider.view.table_view import TableView

LEAST_LOG_FILES = 2
"""One log file alone has nothing to be merged with."""


def executable_log_compactions(timeline: Timeline) -> tuple[Instant, ...]:
    """Return the pending log compactions that nothing has overtaken."""
    plans = timeline.pending(Action.LOGCOMPACTION)
    return tuple(plan for plan in plans if timeline.overtaking(plan) is None)


def decide_log_compaction(view: TableView, policy: TablePolicy, compaction: Decision, now_ms: int) -> Decision:
    """Say whether log compaction is due, not due or blocked, and why; `compaction` is the decision about that."""
    rules, service = policy.logcompaction, Service.LOGCOMPACTION
    if rules.enabled is False:
        return not_due(service, "log compaction is switched off for this table (logcompaction.enabled: false)")
    if view.properties.table_type != "MERGE_ON_READ":
        return not_due(service, "the table is copy-on-write: it has no log files to compact")
    backlog = measure_compaction_backlog(view)
    last, since = _deltas_since(view)
    pending = view.timeline.pending(Action.LOGCOMPACTION)
    evidence = {
        "most_log_files": backlog.most_log_files,
        "delta_commits_since": len(since),
        "last_merge": last or None,
        "pending_plans": ", ".join(plan.requested_time for plan in pending),
    }
    for plan in pending:
        newer = view.timeline.overtaking(plan)
        if newer is not None:
            reason = f"plan {plan.requested_time} is behind the newer {newer.action} {newer.requested_time}"
            return not_due(service, f"{reason}: Hudi will not execute it, see `airflow lake doctor`", evidence)
    times = find_executable(pending, view, policy.doctor, now_ms)
    if pending and not times:
        return wait_for_owner(service, pending, view, policy, now_ms, evidence)
    if times:
        reason = f"log compaction plan {', '.join(times)} is pending on the timeline"
        due = Decision(service, Verdict.DUE, reason, Mode.EXECUTE, times[0], times, evidence)
        return block_without_lock(due, policy.hudi_options)
    if rules.enabled is None:
        reason = "no log compaction is asked for (logcompaction.enabled); a plan that others left would be executed"
        return not_due(service, reason, evidence)
    age = rule_of_age(since, rules.max_age_s, now_ms, view.properties.time_zone)
    says = f"at most {backlog.most_log_files} log files in a file slice"
    files = rule_of_count(says, backlog.most_log_files, rules.log_files)
    ruling = combine_rules((files, age), rules.combine)
    least = rules.log_files if files.holds and rules.log_files is not None else LEAST_LOG_FILES
    # Hudi asks for as many delta commits as log files, so that fewer of them leave it nothing to do.
    if not ruling.is_due or backlog.most_log_files < LEAST_LOG_FILES or len(since) < least:
        reason = f"{ruling.says}; {len(since)} delta commits since log files were merged last"
        return not_due(service, reason, evidence, ruling.look_again_ms)
    if compaction.verdict is not Verdict.NOT_DUE or view.timeline.pending(Action.COMPACTION):
        return not_due(service, f"{ruling.says}; compaction comes first: it merges the same log files", evidence)
    key, options = stable_key(since, least), log_compaction_options(least)
    due = Decision(service, Verdict.DUE, ruling.says, Mode.SCHEDULE_AND_EXECUTE, key, (), evidence, options)
    return block_without_lock(due, policy.hudi_options)


def log_compaction_options(log_files: int) -> Mapping[str, str]:
    """Return from how many log files of a file slice on Hudi plans a log compaction, as its setting."""
    return {"hoodie.log.compaction.blocks.threshold": str(log_files)}


def _deltas_since(view: TableView) -> tuple[str, tuple[Instant, ...]]:
    """Return the last compaction of either kind (requested time), and the delta commits that completed after it."""
    last = ""
    for instant in view.timeline.completed_writes_by_completion():
        metadata = view.commits.get(instant.requested_time)
        if metadata is not None and metadata.operation in {COMPACT_OPERATION, LOG_COMPACT_OPERATION}:
            last = max(last, instant.requested_time)
    writes = writes_after(view.timeline, last)
    return last, tuple(w for w in writes if w.action is Action.DELTACOMMIT and w.requested_time != last)
