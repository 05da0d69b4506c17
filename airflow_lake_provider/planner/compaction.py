"""Decide whether compaction of one table is due; pure, from the view and the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.hudi.instant import Action
from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.planner.backlog import (
    COMPACT_OPERATION,
    LOG_COMPACT_OPERATION,
    CompactionBacklog,
    measure_compaction_backlog,
)
from airflow_lake_provider.planner.plan_owner import find_executable, wait_for_owner
from airflow_lake_provider.planner.rules import (
    Decision,
    Rule,
    Verdict,
    block_without_lock,
    combine_rules,
    last_completed,
    not_due,
    rule_of_age,
    rule_of_count,
    stable_key,
    writes_after,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.config.policies import CompactionPolicy, TablePolicy
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.hudi.timeline import Timeline
    from airflow_lake_provider.planner.rules import Evidence
    from airflow_lake_provider.planner.table_view import TableView

# --- Decide whether log compaction of one table is due; pure, from the view, the policy and what is said of
# compaction
#
# Hudi executes no log compaction behind a newer compaction or commit, and leaves its plan pending for ever
# (`BaseHoodieTableServiceClient.logCompact`). So the two never have plans beside each other.

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


# --- Decide whether the metadata table's compaction was left behind; pure, from the view with its timeline and the
# policy
#
# Hudi's writers compact the metadata table themselves. Where that is delegated to nobody or fails without notice, the
# table's own archiving stops at the last such compaction (`TimelineArchiverV2`), and every reader merges more log
# files.


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
