"""Decide whether cleaning of one table, and archiving of its timeline, is due; pure, from facts and policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.instant_clock import DAY_MS, instant_time_ms
from airflow_lake_provider.job_contract import CHECKPOINT_DAYS, CHECKPOINT_KEYS, RETAINED_HOURS, Mode, Service
from airflow_lake_provider.planner.archive_limits import find_boundary, trigger_options
from airflow_lake_provider.planner.last_runs import NO_LAST_RUNS, need_not_wait
from airflow_lake_provider.planner.left_behind import find_executable, wait_for_owner
from airflow_lake_provider.planner.rules import (
    Decision,
    Verdict,
    block_without_lock,
    combine_rules,
    not_due,
    rule_of_age,
    rule_of_count,
    stable_key,
)
from airflow_lake_provider.shared.actions import Action
from airflow_lake_provider.shared.hudi_settings import (
    CLEAN_COMMITS_RETAINED,
    CLEAN_POLICY,
    CLEAN_VERSIONS_RETAINED,
    KEEP_MAX_COMMITS,
    KEEP_MIN_COMMITS,
    MERGE_ON_READ,
)
from airflow_lake_provider.timeline_head import COMPLETED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.config.service_policies import ArchivePolicy, CleanPolicy
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.planner.facts import TableFacts
    from airflow_lake_provider.planner.last_runs import LastRuns
    from airflow_lake_provider.planner.rules import Hold

_CLEAN_AGAIN_AFTER_WRITES = 5


def decide_clean(
    facts: TableFacts, policy: TablePolicy, rollback: Decision, now_ms: int, last_runs: LastRuns = NO_LAST_RUNS
) -> Decision:
    """Decide whether cleaning is due, with the reason; `rollback` is the decision about failed writes.

    While replication's hold leaves nothing to delete it is not due: its job would run repeatedly without effect.
    """
    rules = policy.clean
    if not rules.enabled:
        return not_due(Service.CLEAN, "cleaning is switched off for this table (clean.enabled: false)")
    plans = facts.timeline.pending(Action.CLEAN)
    hold = facts.hold
    pending = tuple(instant.requested_time for instant in plans)
    clustering = facts.timeline.pending(Action.CLUSTERING)
    last = facts.last_clean
    since = facts.writes_after(last.requested_time if last is not None else "")
    evidence: dict[str, int | float | str | None] = {
        "writes_since_clean": len(since),
        "active_writes": len(facts.writes),
        "last_clean": last.requested_time if last is not None else None,
        "pending_plans": ", ".join(pending),
    }
    if clustering:
        # A clean that overtakes it may remove files that the clustering still reads (Hudi issues 8232, 11440).
        return not_due(
            Service.CLEAN, f"cleaning waits for the pending clustering {clustering[0].requested_time}", evidence
        )
    if rollback.verdict is Verdict.DUE and not need_not_wait(Service.CLEAN, Service.ROLLBACK, last_runs):
        # Files that a failed write retains become removable afterwards.
        return not_due(Service.CLEAN, "the rollback of failed writes comes first", evidence)
    if len(find_executable(plans, facts, policy, now_ms)) < len(plans):
        # Hudi executes all of them in one call.
        return wait_for_owner(Service.CLEAN, plans, facts, policy, now_ms, evidence)
    if pending:
        reason = f"clean plan {', '.join(pending)} is pending on the timeline"
        due = Decision(Service.CLEAN, Verdict.DUE, reason, Mode.EXECUTE, pending[0], pending, evidence)
    else:
        age = rule_of_age(since, rules.max_age_s, now_ms, facts.zone(policy))
        commits = rule_of_count(f"{_counted(since)} {_after(last)}", len(since), rules.commits)
        ruling = combine_rules((commits, age), rules.combine)
        if not ruling.is_due:
            return not_due(Service.CLEAN, ruling.text, evidence, ruling.evaluate_again_ms)
        kept = facts.retained_writes(policy, now_ms)
        retained_from = facts.find_retained_from(kept)
        why_not = _why_not(facts, policy, since, now_ms)
        if not why_not and facts.is_nothing_replaced(last_runs.cleaned_before, retained_from):
            before = f" before the last {kept}" if kept else ""
            why_not = f"nothing to clean: no write{before} replaced a file since all was cleaned"
        if why_not:
            return not_due(Service.CLEAN, why_not, evidence)
        is_replaced = facts.find_replacing(last_runs.cleaned_before, retained_from) is not None
        freed_files, freed_bytes = facts.count_replaced(last_runs.cleaned_before, retained_from)
        evidence |= {
            "replaced_files": "yes" if is_replaced else "not known",
            "freed_files": freed_files,
            "freed_bytes": freed_bytes,
        }
        if hold is not None and _leaves_nothing(hold, facts, facts.retained_by_policy(policy, now_ms)):
            reason = f"{ruling.text}, but held back: {hold.describe()}"
            return not_due(Service.CLEAN, reason, {**evidence, **hold.evidence()}, hold.ends_ms)
        reason = ruling.text
        key = stable_key(since, rules.commits or _CLEAN_AGAIN_AFTER_WRITES)
        mode = Mode.SCHEDULE_AND_EXECUTE
        due = Decision(Service.CLEAN, Verdict.DUE, reason, mode, key, (), evidence, clean_options(rules))
    return block_without_lock(due, policy.hudi_options)


def clean_options(rules: CleanPolicy) -> Mapping[str, str]:
    """Return the policy's retention as settings of the job.

    The job counts the commits of the last hours, and retains so many and some more: so replication's hold and archiving
    apply to them as to `policy: commits`. Hudi's own KEEP_LATEST_BY_HOURS knows no hold, and cleans nothing of a table
    that had no commit within the hours (`CleanerUtils.getEarliestCommitToRetain`, 1.2.0).
    """
    if rules.policy == "versions":
        return {
            CLEAN_POLICY: "KEEP_LATEST_FILE_VERSIONS",
            CLEAN_VERSIONS_RETAINED: str(rules.retained_versions),
            # Unused, but less than the archiver keeps, or Hudi refuses the settings.
            CLEAN_COMMITS_RETAINED: "1",
        }
    counted = {CLEAN_POLICY: "KEEP_LATEST_COMMITS"}
    if rules.policy == "hours":
        return {**counted, CLEAN_COMMITS_RETAINED: "1", RETAINED_HOURS: str(rules.retained_hours)}
    return {**counted, CLEAN_COMMITS_RETAINED: str(rules.retained_commits)}


def _why_not(facts: TableFacts, policy: TablePolicy, since: Sequence[Instant], now_ms: int) -> str:
    rules = policy.clean
    active = len(facts.writes)
    retained = facts.retained_by_policy(policy, now_ms)
    if active <= retained:
        what = f"the last {retained}" if rules.policy == "commits" else f"those of the last {rules.retained_hours} h"
        return f"{active} writes on the active timeline, {what} are kept"
    # Delta commits add to file slices; only what replaces a base file leaves something to clean.
    if facts.properties.table_type == MERGE_ON_READ and _only_add(since, facts):
        return "only delta commits since the last clean: no file slice was replaced"
    return ""


def _only_add(since: Sequence[Instant], facts: TableFacts) -> bool:
    """Whether the newest writes are delta commits that replaced no file."""
    if not all(write.action is Action.DELTACOMMIT for write in since):
        return False
    last = facts.replacing_writes[-1].ordering_time if facts.replacing_writes else ""
    return not since or last < since[0].ordering_time


def _leaves_nothing(hold: Hold, facts: TableFacts, retained: int) -> bool:
    kept = facts.held_commits
    if kept <= retained:
        return False
    if len(facts.writes) <= kept:
        return True
    # The same hold limited the last clean, which deleted what it could; a later one waits until the sink has passed it.
    return facts.last_clean is not None and hold.instant <= facts.last_clean.requested_time


def _counted(writes: Sequence[Instant]) -> str:
    return f"{len(writes)} write{'' if len(writes) == 1 else 's'}"


def _after(last: Instant | None) -> str:
    return f"since clean {last.requested_time}" if last is not None else "and no clean yet"


# --- Archiving: what the timeline itself retains


_ARCHIVE_AGAIN_AFTER_WRITES = 10


def decide_archive(facts: TableFacts, policy: TablePolicy, now_ms: int) -> Decision:
    """Decide whether archiving is due, with the reason. It is not due while replication's hold leaves nothing.

    Whether cleaning is due, blocked or given up does not matter here: Hudi still finds what to clean of archived writes
    (it lists the partitions then), and it archives no replaced file group that is not cleaned.
    """
    rules = policy.archive
    if not rules.enabled:
        return not_due(Service.ARCHIVE, "archiving is switched off for this table (archive.enabled: false)")
    writes = facts.writes
    hold = facts.hold
    if facts.view.metadata_timeline is not None and facts.last_metadata_compaction is None:
        return not_due(
            Service.ARCHIVE, "archiving never passes the metadata table's last compaction, and there is none yet"
        )
    boundary, what = find_boundary(facts, policy, now_ms)
    old = [write for write in writes if not boundary or write.requested_time < boundary]
    evidence = {
        "active_writes": len(writes),
        "archivable_writes": len(old),
        "surplus_writes": max(0, len(writes) - rules.min_commits),
        "first_write": writes[0].requested_time if writes else None,
        "last_clean": facts.last_clean.requested_time if facts.last_clean is not None else None,
        "boundary": boundary or None,
    }
    behind = facts.view.archived_behind
    if behind is not None and not behind.is_savepoint and behind.head.state == COMPLETED:
        key = behind.head.requested_time
        reason = f"{behind.describe()}: archiving takes that instant away"
        options = {**clean_options(policy.clean), **archive_options(rules), **trigger_options(policy)}
        repair = Decision(Service.ARCHIVE, Verdict.DUE, reason, Mode.EXECUTE, key, (), evidence, options)
        return block_without_lock(repair, policy.hudi_options)
    if len(writes) <= rules.max_commits:
        return not_due(
            Service.ARCHIVE,
            f"{len(writes)} writes on the active timeline (rule: more than {rules.max_commits})",
            evidence,
        )
    if not old:
        reason = f"nothing is older than {what}, which archiving never passes"
        return not_due(Service.ARCHIVE, f"{reason}{_savepoint_advice(facts, policy, boundary, now_ms)}", evidence)
    reason = f"{len(writes)} writes on the active timeline (rule: more than {rules.max_commits})"
    reason = f"{reason}{_savepoint_advice(facts, policy, boundary, now_ms)}"
    if policy.clean.policy == "hours" and len(writes) <= facts.retained_by_policy(policy, now_ms) + 2:
        reason = f"{reason}, but the clean keeps those of the last {policy.clean.retained_hours} h"
        return not_due(Service.ARCHIVE, reason, evidence)
    # The job keeps more than is held (lake_jobs/hudi/settings.py), and Hudi archives what is above its upper bound.
    if hold is not None and len(writes) <= facts.held_commits + 2:
        reason = f"{reason}, but held back: {hold.describe()}"
        return not_due(Service.ARCHIVE, reason, {**evidence, **hold.evidence()}, hold.ends_ms)
    due = Decision(
        Service.ARCHIVE,
        Verdict.DUE,
        reason,
        Mode.EXECUTE,
        stable_key(writes[rules.max_commits :], _ARCHIVE_AGAIN_AFTER_WRITES),
        (),
        evidence,
        # The archiver keeps what the cleaner retains, by the settings that it is given.
        {**clean_options(policy.clean), **archive_options(rules), **trigger_options(policy)},
    )
    return block_without_lock(due, policy.hudi_options)


def archive_options(rules: ArchivePolicy) -> Mapping[str, str]:
    """Return the policy as Hudi's settings."""
    return {
        KEEP_MIN_COMMITS: str(rules.min_commits),
        KEEP_MAX_COMMITS: str(rules.max_commits),
        # Readers take the files of what is archived behind a savepoint for uncommitted ones (Hudi 1.2.0).
        "hoodie.archive.beyond.savepoint": "false",
        CHECKPOINT_DAYS: str(rules.checkpoint_days),
        **({CHECKPOINT_KEYS: ",".join(rules.checkpoint_keys)} if rules.checkpoint_keys else {}),
    }


_OLD_SAVEPOINT_MS = DAY_MS


def _savepoint_advice(facts: TableFacts, policy: TablePolicy, boundary: str, now_ms: int) -> str:
    """Return what to do about a savepoint of more than a day that keeps instants active; empty for any other limit."""
    savepoint = facts.first_savepoint
    if savepoint is None or savepoint.requested_time != boundary:
        return ""
    since_ms = instant_time_ms(savepoint.requested_time, facts.zone(policy))
    if since_ms is None or now_ms - since_ms < _OLD_SAVEPOINT_MS:
        return ""
    return (
        f"; the savepoint {boundary} is {(now_ms - since_ms) // DAY_MS} days old and keeps every later instant active: "
        "remove it when it is no longer needed (CALL delete_savepoint), or lower savepoint.keep if the service made it"
    )
