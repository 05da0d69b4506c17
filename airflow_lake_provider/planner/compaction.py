"""Decide whether compaction or clustering of one table is due; pure, from facts and policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.obstacles import find_emptied_logs
from airflow_lake_provider.planner.last_runs import NO_LAST_RUNS, RunEnd
from airflow_lake_provider.planner.left_behind import find_executable, is_ours, wait_for_owner
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
)
from airflow_lake_provider.planner.small_files import (
    MIN_FILES,
    clustering_options,
    count_small_files,
    layout_options,
    max_partitions,
    sorts,
)
from airflow_lake_provider.shared.actions import Action
from airflow_lake_provider.shared.hudi_settings import MERGE_ON_READ

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.config.service_policies import ClusteringPolicy, CompactionPolicy
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.hudi.timeline import Timeline
    from airflow_lake_provider.planner.facts import TableFacts
    from airflow_lake_provider.planner.last_runs import LastRuns
    from airflow_lake_provider.planner.rules import Evidence
    from airflow_lake_provider.planner.small_files import SmallFiles
    from airflow_lake_provider.planner.write_history import CompactionBacklog

# --- Decide whether log compaction of one table is due; pure, from facts, policy and the decision about compaction
#
# Hudi executes no log compaction behind a newer compaction or commit, and leaves its plan pending indefinitely
# (`BaseHoodieTableServiceClient.logCompact`). So the two never have plans at the same time.

LEAST_LOG_FILES = 2
"""One log file alone has nothing to be merged with."""


def executable_log_compactions(timeline: Timeline) -> tuple[Instant, ...]:
    """Return the pending log compactions that nothing has overtaken."""
    plans = timeline.pending(Action.LOGCOMPACTION)
    return tuple(plan for plan in plans if timeline.overtaking(plan) is None)


def decide_log_compaction(facts: TableFacts, policy: TablePolicy, compaction: Decision, now_ms: int) -> Decision:
    """Decide whether log compaction is due, not due or blocked; `compaction` is the decision about that."""
    rules = policy.logcompaction
    service = Service.LOGCOMPACTION
    if rules.enabled is False:
        return not_due(service, "log compaction is switched off for this table (logcompaction.enabled: false)")
    if facts.properties.table_type != MERGE_ON_READ:
        return not_due(service, "the table is copy-on-write: it has no log files to compact")
    backlog = facts.backlog
    last, since = _deltas_since(facts)
    pending = facts.timeline.pending(Action.LOGCOMPACTION)
    evidence = {
        "most_log_files": backlog.most_log_files,
        "log_files": backlog.log_files,
        "log_bytes": backlog.log_bytes,
        "merged_groups": backlog.merged_groups,
        "delta_commits_since": len(since),
        "last_merge": last or None,
        "pending_plans": ", ".join(plan.requested_time for plan in pending),
    }
    for plan in pending:
        newer = facts.timeline.overtaking(plan)
        if newer is not None:
            reason = f"plan {plan.requested_time} was overtaken by the newer {newer.action} {newer.requested_time}"
            return not_due(service, f"{reason}: Hudi will not execute it, see `airflow lake doctor`", evidence)
    times = find_executable(pending, facts, policy, now_ms)
    if pending and not times:
        return wait_for_owner(service, pending, facts, policy, now_ms, evidence)
    if times:
        reason = f"log compaction plan {', '.join(times)} is pending on the timeline"
        due = Decision(service, Verdict.DUE, reason, Mode.EXECUTE, times[0], times, evidence)
        return block_without_lock(due, policy.hudi_options)
    if rules.enabled is None:
        reason = "logcompaction.enabled requests no new plans; a plan that another process leaves is executed"
        return not_due(service, reason, evidence)
    age = rule_of_age(since, rules.max_age_s, now_ms, facts.zone(policy))
    text = f"at most {backlog.most_log_files} log files in a file slice"
    files = rule_of_count(text, backlog.most_log_files, rules.log_files)
    ruling = combine_rules((files, age), rules.combine)
    least = rules.log_files if files.holds and rules.log_files is not None else LEAST_LOG_FILES
    # Hudi requires as many delta commits as log files: with fewer it finds nothing to do.
    if not ruling.is_due or backlog.most_log_files < LEAST_LOG_FILES or len(since) < least:
        reason = f"{ruling.text}; {len(since)} delta commits since log files were merged last"
        return not_due(service, reason, evidence, ruling.evaluate_again_ms)
    obstacle = _find_obstacle(facts, compaction)
    if obstacle:
        return not_due(service, f"{ruling.text}; {obstacle}", evidence)
    key = stable_key(since, least)
    options = log_compaction_options(least)
    due = Decision(service, Verdict.DUE, ruling.text, Mode.SCHEDULE_AND_EXECUTE, key, (), evidence, options)
    return block_without_lock(due, policy.hudi_options)


def _find_obstacle(facts: TableFacts, compaction: Decision) -> str:
    """Return why no log compaction is planned now; empty when nothing keeps it."""
    if compaction.verdict is not Verdict.NOT_DUE or facts.timeline.pending(Action.COMPACTION):
        return "compaction comes first: it merges the same log files"
    rollback = facts.timeline.last_completed(Action.ROLLBACK)
    return find_emptied_logs(facts.properties.version, "" if rollback is None else rollback.requested_time)


def log_compaction_options(log_files: int) -> Mapping[str, str]:
    """Return from how many log files of a file slice on Hudi plans a log compaction, as its setting."""
    return {"hoodie.log.compaction.blocks.threshold": str(log_files)}


def _deltas_since(facts: TableFacts) -> tuple[str, tuple[Instant, ...]]:
    """Return the last compaction of either kind (requested time), and the delta commits that completed after it."""
    last = facts.history.last_merge
    writes = facts.writes_after(last)
    return last, tuple(w for w in writes if w.action is Action.DELTACOMMIT and w.requested_time != last)


def decide_compaction(
    facts: TableFacts, policy: TablePolicy, now_ms: int, last_runs: LastRuns = NO_LAST_RUNS
) -> Decision:
    """Decide whether compaction is due, not due or blocked, with the reason.

    Writes that only add base files are delta commits too: while no log file came there is nothing to merge.
    """
    rules = policy.compaction
    if not rules.enabled:
        return not_due(Service.COMPACTION, "compaction is switched off for this table (compaction.enabled: false)")
    if facts.properties.table_type != MERGE_ON_READ:
        return not_due(Service.COMPACTION, "the table is copy-on-write: it has no log files to compact")
    plans = facts.timeline.pending(Action.COMPACTION)
    pending = find_executable(plans, facts, policy, now_ms)
    backlog = facts.backlog
    evidence = _evidence(backlog, tuple(plan.requested_time for plan in plans))
    if plans and not pending:
        return wait_for_owner(Service.COMPACTION, plans, facts, policy, now_ms, evidence)
    if pending:
        reason = f"compaction plan {', '.join(pending)} is pending on the timeline"
        due = Decision(Service.COMPACTION, Verdict.DUE, reason, Mode.EXECUTE, pending[0], pending, evidence)
        return block_without_lock(due, policy.hudi_options)
    waiting = () if backlog.first_delta_commit is None else (backlog.first_delta_commit,)
    age = rule_of_age(waiting, rules.max_age_s, now_ms, facts.zone(policy))
    ruling = combine_rules((_commits_rule(backlog, rules), _bytes_rule(backlog, rules), age), rules.combine)
    if facts.is_nothing_to_merge(policy, last_runs.merged_until):
        reason = f"nothing to merge: no log file came since all were merged ({ruling.text})"
        return not_due(Service.COMPACTION, reason, evidence)
    if not ruling.is_due:
        return not_due(Service.COMPACTION, ruling.text, evidence, ruling.evaluate_again_ms)
    log_compactions = executable_log_compactions(facts.timeline) if policy.logcompaction.enabled is not False else ()
    if log_compactions:
        reason = f"log compaction {log_compactions[0].requested_time} comes first: after a newer plan it never runs"
        return not_due(Service.COMPACTION, f"{ruling.text}; {reason}", evidence)
    due = Decision(
        Service.COMPACTION,
        Verdict.DUE,
        ruling.text,
        Mode.SCHEDULE_AND_EXECUTE,
        backlog.newest_write or "",
        (),
        evidence,
    )
    return block_without_lock(due, policy.hudi_options)


def _commits_rule(backlog: CompactionBacklog, rules: CompactionPolicy) -> Rule:
    text = f"{backlog.delta_commits} delta commits {_since(backlog)}"
    return rule_of_count(text, backlog.delta_commits, rules.delta_commits)


def _bytes_rule(backlog: CompactionBacklog, rules: CompactionPolicy) -> Rule | None:
    if rules.log_to_base_ratio is None:
        return None
    ratio = backlog.log_to_base_ratio
    if ratio is None:
        return Rule("the size of no base file is known", holds=False)
    text = (
        f"log files hold {backlog.log_bytes:,} bytes, {ratio:.0%} of their base files "
        f"(rule: {rules.log_to_base_ratio:.0%})"
    )
    if backlog.log_bytes < max(rules.min_log_bytes, 1):
        return Rule(f"{text}, not counted below {rules.min_log_bytes:,} bytes", holds=False)
    return Rule(text, ratio >= rules.log_to_base_ratio)


def _since(backlog: CompactionBacklog) -> str:
    return f"since compaction {backlog.last_compaction}" if backlog.last_compaction else "and no compaction yet"


def _evidence(backlog: CompactionBacklog, pending: tuple[str, ...]) -> Evidence:
    return {
        "delta_commits": backlog.delta_commits,
        "log_files": backlog.log_files,
        "log_bytes": backlog.log_bytes,
        "base_bytes": backlog.base_bytes,
        "merged_groups": backlog.merged_groups,
        "merged_base_bytes": backlog.merged_base_bytes,
        "unsized_file_groups": backlog.unsized_file_groups,
        "last_compaction": backlog.last_compaction,
        "newest_write": backlog.newest_write,
        "pending_plans": ", ".join(pending),
    }


# --- Decide whether the metadata table's compaction was left behind; pure, from facts and
# policy
#
# Hudi's writers compact the metadata table themselves. Where they delegate that to a service that does not run, or it
# fails without a trace, the table's own archiving stops at the last such compaction (`TimelineArchiverV2`), and every
# reader merges more log files.


def may_be_behind(facts: TableFacts, policy: TablePolicy) -> bool:
    """Whether the active timeline is so long that the metadata table's timeline has to be read."""
    if not policy.metacompaction.enabled or not facts.properties.metadata_partitions:
        return False
    return len(facts.writes) > policy.metacompaction.commits


def decide_metadata_compaction(facts: TableFacts, policy: TablePolicy) -> Decision:
    """Decide whether the metadata table has to be compacted, with the reason."""
    rules = policy.metacompaction
    service = Service.METACOMPACTION
    if not rules.enabled:
        reason = "metadata compaction is switched off for this table (metacompaction.enabled: false)"
        return not_due(service, reason)
    if not facts.properties.metadata_partitions:
        return not_due(service, "the table has no metadata table")
    writes = facts.writes
    metadata = facts.view.metadata_timeline
    if not may_be_behind(facts, policy) or metadata is None:
        reason = f"{len(writes)} writes on the active timeline: Hudi's writers compact it themselves (rule: more than"
        return not_due(service, f"{reason} {rules.commits})", {"active_writes": len(writes)})
    last = facts.last_metadata_compaction
    behind = facts.writes_after("" if last is None else last.requested_time)
    pending = tuple(plan.requested_time for plan in metadata.pending(Action.COMPACTION))
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


# --- Clustering

_TRY_AGAIN_AFTER_WRITES = 5


def decide_clustering(
    facts: TableFacts, policy: TablePolicy, now_ms: int, last_runs: LastRuns = NO_LAST_RUNS
) -> Decision:
    """Decide whether clustering is due, not due or blocked, with the reason.

    A new plan takes the small files of the partitions for which the rule holds, the worst first. Plans that a failed
    run left are withdrawn: each try begins from scratch, so nothing is lost, and while they are pending every update
    of their file groups fails.
    """
    rules = policy.clustering
    if rules.enabled is False:
        return not_due(Service.CLUSTERING, "clustering is switched off for this table (clustering.enabled: false)")
    plans = facts.timeline.pending(Action.CLUSTERING)
    pending = find_executable(plans, facts, policy, now_ms)
    last = facts.history.last_clustering
    small = count_small_files(facts, policy, last_runs.small_files)
    evidence = _clustering_evidence(facts, small, plans)
    if plans and not pending:
        return wait_for_owner(Service.CLUSTERING, plans, facts, policy, now_ms, evidence)
    failed = _left_by_failed_run(plans, pending, facts, last_runs)
    if failed:
        run = last_runs.of[Service.CLUSTERING]
        reason = (
            f"run {run.run_id} failed in all its tries and left the clustering plan {', '.join(failed)}, which blocks "
            "updates of its files: it is withdrawn, and nothing is lost"
        )
        due = Decision(Service.CLUSTERING, Verdict.DUE, reason, Mode.WITHDRAW, failed[0], failed, evidence)
        return block_without_lock(due, policy.hudi_options)
    if pending:
        reason = f"clustering plan {', '.join(pending)} is pending on the timeline, and blocks updates of its files"
        # A plan names the columns, and its executor how they order the rows.
        options = layout_options(policy)
        due = Decision(Service.CLUSTERING, Verdict.DUE, reason, Mode.EXECUTE, pending[0], pending, evidence, options)
        return block_without_lock(due, policy.hudi_options)
    if rules.enabled is None:
        reason = "clustering.enabled requests no new plans; a plan that another process leaves is executed"
        return not_due(Service.CLUSTERING, reason, evidence)
    since = facts.writes_after(last)
    age = rule_of_age(since, rules.max_age_s, now_ms, facts.zone(policy))
    commits = rule_of_count(f"{len(since)} writes since the last clustering", len(since), rules.commits)
    files = _files_rule(*small.worst(), rules)
    ruling = combine_rules((commits, files, age), rules.combine)
    # A plan takes some partitions only: the others need no further write to be due.
    if not ruling.is_due or not (since or files.holds):
        return not_due(Service.CLUSTERING, ruling.text, evidence, ruling.evaluate_again_ms)
    min_files = (rules.small_files or MIN_FILES) if files.holds else MIN_FILES
    chosen = small.choose(min_files, max_partitions(policy.hudi_options))
    if not chosen and small.is_complete and not sorts(policy):
        reason = f"{ruling.text}; no partition has two small files, so there is nothing to merge"
        return not_due(Service.CLUSTERING, reason, evidence)
    due = Decision(
        Service.CLUSTERING,
        Verdict.DUE,
        _with_others(ruling.text, len(chosen)),
        Mode.SCHEDULE_AND_EXECUTE,
        stable_key(since, _TRY_AGAIN_AFTER_WRITES) or last,
        (),
        evidence | _chosen_evidence(small, chosen),
        clustering_options(policy, chosen),
    )
    return block_without_lock(due, policy.hudi_options)


def _left_by_failed_run(
    plans: Sequence[Instant], executable: Collection[str], facts: TableFacts, last_runs: LastRuns
) -> tuple[str, ...]:
    """Return the plans that the provider made or began, when its last run of clustering failed."""
    run = last_runs.of.get(Service.CLUSTERING)
    if run is None or run.end is not RunEnd.FAILED or not run.failures:
        return ()
    return tuple(plan.requested_time for plan in plans if plan.requested_time in executable and is_ours(plan, facts))


def _clustering_evidence(
    facts: TableFacts, small: SmallFiles, plans: Sequence[Instant]
) -> dict[str, int | float | str | None]:
    partition, small_files = small.worst()
    all_files, all_bytes = small.total()
    return {
        "writes_since_clustering": len(facts.writes_after(facts.history.last_clustering)),
        "last_clustering": facts.history.last_clustering or None,
        "small_files": small_files,
        "small_files_partition": partition,
        "all_small_files": all_files,
        "all_small_file_bytes": all_bytes,
        "pending_plans": ", ".join(plan.requested_time for plan in plans),
    }


def _chosen_evidence(small: SmallFiles, chosen: Sequence[str]) -> dict[str, int]:
    """Return what the plan will take; without names it may take all."""
    files, size_bytes = small.total(chosen or None)
    return {"partitions": len(chosen), "all_small_files": files, "all_small_file_bytes": size_bytes}


def _with_others(text: str, partitions: int) -> str:
    return (
        f"{text}; the plan takes {partitions} partitions, those with the most small files" if partitions > 1 else text
    )


def _files_rule(partition: str, small_files: int, rules: ClusteringPolicy) -> Rule:
    text = f"{small_files} files below {rules.small_file_bytes:,} bytes in partition {partition!r}"
    # One small file in a partition has nothing to be merged with.
    return rule_of_count(text, small_files if small_files >= MIN_FILES else 0, rules.small_files)
