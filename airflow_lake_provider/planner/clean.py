"""Decide whether cleaning of one table is due; pure, from the view and the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.hudi.instant import Action
from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.planner.fruitless import (
    find_kept_from,
    find_replacing,
    is_nothing_replaced,
    may_have_replaced,
)
from airflow_lake_provider.planner.plan_owner import find_executable, wait_for_owner
from airflow_lake_provider.planner.rules import (
    Decision,
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
from airflow_lake_provider.planner.turns import NO_TURNS, has_had_its_turn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_lake_provider.config.policies import CleanPolicy, TablePolicy
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.planner.rules import Hold
    from airflow_lake_provider.planner.table_view import TableView
    from airflow_lake_provider.planner.turns import Turns

_TRY_AGAIN_AFTER_WRITES = 5


def decide_clean(
    view: TableView,
    policy: TablePolicy,
    rollback: Decision,
    now_ms: int,
    hold: Hold | None = None,
    turns: Turns = NO_TURNS,
) -> Decision:
    """Say whether cleaning is due, and why; `rollback` is the decision about failed writes, which comes first, once.

    While `hold` leaves nothing to delete it is not due, or its job would run again and again for nothing.
    """
    rules = policy.clean
    if not rules.enabled:
        return not_due(Service.CLEAN, "cleaning is switched off for this table (clean.enabled: false)")
    plans = view.timeline.pending(Action.CLEAN)
    pending = tuple(instant.requested_time for instant in plans)
    clustering = view.timeline.pending(Action.CLUSTERING)
    last = last_completed(view.timeline, Action.CLEAN)
    since = writes_after(view.timeline, last.requested_time if last is not None else "")
    evidence: dict[str, int | float | str | None] = {
        "writes_since_clean": len(since),
        "active_writes": len(view.timeline.completed_writes_by_completion()),
        "last_clean": last.requested_time if last is not None else None,
        "pending_plans": ", ".join(pending),
    }
    if clustering:
        # A clean that overtakes it may remove files that the clustering still reads (Hudi issues 8232, 11440).
        return not_due(
            Service.CLEAN, f"cleaning waits for the pending clustering {clustering[0].requested_time}", evidence
        )
    if rollback.verdict is Verdict.DUE and not has_had_its_turn(Service.ROLLBACK, Service.CLEAN, turns):
        # Files that a failed write holds back may go afterwards.
        return not_due(Service.CLEAN, "what failed writers left is rolled back first", evidence)
    if len(find_executable(plans, view, policy.doctor, now_ms)) < len(plans):
        # Hudi executes all of them in one call.
        return wait_for_owner(Service.CLEAN, plans, view, policy, now_ms, evidence)
    if pending:
        reason = f"clean plan {', '.join(pending)} is pending on the timeline"
        due = Decision(Service.CLEAN, Verdict.DUE, reason, Mode.EXECUTE, pending[0], pending, evidence)
    else:
        age = rule_of_age(since, rules.max_age_s, now_ms, view.properties.time_zone)
        commits = rule_of_count(f"{_counted(since)} {_after(last)}", len(since), rules.commits)
        ruling = combine_rules((commits, age), rules.combine)
        if not ruling.is_due:
            return not_due(Service.CLEAN, ruling.says, evidence, ruling.look_again_ms)
        kept = kept_writes(view, rules, hold)
        kept_from = find_kept_from(view, kept)
        why_not = _why_not(view, rules, since)
        if not why_not and is_nothing_replaced(view, turns.cleaned_before, kept_from):
            why_not = f"nothing to clean: no write before the last {kept} replaced a file since all was cleaned"
        if why_not:
            return not_due(Service.CLEAN, why_not, evidence)
        is_replaced = find_replacing(view, turns.cleaned_before, kept_from) is not None
        evidence |= {"replaced_files": "yes" if is_replaced else "not known"}
        if hold is not None and _leaves_nothing(hold, view, rules, last):
            reason = f"{ruling.says}, but held back: {hold.describe()}"
            return not_due(Service.CLEAN, reason, {**evidence, **hold.evidence()}, hold.ends_ms)
        reason = ruling.says
        key = stable_key(since, rules.commits or _TRY_AGAIN_AFTER_WRITES)
        mode = Mode.SCHEDULE_AND_EXECUTE
        due = Decision(Service.CLEAN, Verdict.DUE, reason, mode, key, (), evidence, clean_options(rules))
    return block_without_lock(due, policy.hudi_options)


def clean_options(rules: CleanPolicy) -> Mapping[str, str]:
    """Return the policy's retention as Hudi's settings."""
    return {
        "hoodie.clean.policy": "KEEP_LATEST_COMMITS",
        "hoodie.clean.commits.retained": str(rules.retained_commits),
    }


def _why_not(view: TableView, rules: CleanPolicy, since: Sequence[Instant]) -> str:
    active = len(view.timeline.completed_writes_by_completion())
    if active <= rules.retained_commits:
        return f"{active} writes on the active timeline, the last {rules.retained_commits} are kept"
    # Delta commits add to file slices; only what replaces a base file leaves something to clean.
    if view.properties.table_type == "MERGE_ON_READ" and all(_only_adds(view, write) for write in since):
        return "only delta commits since the last clean: no file slice was replaced"
    return ""


def _only_adds(view: TableView, write: Instant) -> bool:
    return write.action is Action.DELTACOMMIT and not may_have_replaced(view.commits.get(write.requested_time))


def kept_writes(view: TableView, rules: CleanPolicy, hold: Hold | None) -> int:
    """Return of how many of the newest writes a clean leaves what they replaced."""
    # The job keeps more than is held (spark_jobs/retention.py).
    return rules.retained_commits if hold is None else max(rules.retained_commits, hold.commits(view.timeline) + 2)


def _leaves_nothing(hold: Hold, view: TableView, rules: CleanPolicy, last: Instant | None) -> bool:
    kept = hold.commits(view.timeline)
    if kept <= rules.retained_commits:
        return False
    if len(view.timeline.completed_writes_by_completion()) <= kept:
        return True
    # The clean before was held by the same, and has deleted what may go; a later one waits until the sink is past it.
    return last is not None and hold.instant <= last.requested_time


def _counted(writes: Sequence[Instant]) -> str:
    return f"{len(writes)} write{'' if len(writes) == 1 else 's'}"


def _after(last: Instant | None) -> str:
    return f"since clean {last.requested_time}" if last is not None else "and no clean yet"
