"""What other processes left behind: plans that the provider may execute, and failed writes to roll back. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_lake_provider.hudi.active_writes import heartbeat_rule
from airflow_lake_provider.instant_clock import instant_time_ms
from airflow_lake_provider.job_contract import PLANNED_BEAT_MS, TRAITS, Mode, Service
from airflow_lake_provider.planner.rules import (
    Decision,
    KeptBy,
    Verdict,
    block_without_lock,
    explain_unguarded,
    not_due,
)
from airflow_lake_provider.shared.actions import Action, State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.planner.facts import TableFacts
    from airflow_lake_provider.planner.rules import Evidence

# --- Whether a pending plan may be executed now, or may have an executor elsewhere
#
# The provider's executors keep a heartbeat for each plan that they execute, whatever it is, and leave one for each
# that they make. So a plan with a heartbeat needs no patience: a living one makes the job refuse, and an expired one
# proves that its executor is dead. For a plan that was begun, the heartbeat that its planner left proves nothing
# (`PLANNED_BEAT_MS`): a writer's own service executes what it finds. A plan without a heartbeat comes from another
# process. Hudi gives clustering and clean no heartbeat, and compactions only from 1.2 on in multi-writer mode, so
# nothing proves an executor dead, and two executors of one plan destroy each other's files. Writers leave a
# compaction that is only requested for a table service to execute (RFC-43); a process that plans a clustering or a
# clean executes it itself.

PLANNED = (Action.COMPACTION, Action.LOGCOMPACTION, Action.CLUSTERING, Action.CLEAN)
_EXECUTED_BY_THEIR_PLANNER = frozenset({Action.CLUSTERING, Action.CLEAN})


def find_begun_plans(facts: TableFacts) -> tuple[Instant, ...]:
    """Return the pending plans that a process has begun to execute; their last change has to be read."""
    return tuple(plan for plan in facts.timeline.pending(*PLANNED) if plan.state is State.INFLIGHT)


def plans_need_heartbeats(facts: TableFacts) -> bool:
    """Whether a pending plan may have an executor elsewhere."""
    return any(_may_have_executor(plan) for plan in facts.timeline.pending(*PLANNED))


def find_executable(plans: Sequence[Instant], facts: TableFacts, policy: TablePolicy, now_ms: int) -> tuple[str, ...]:
    """Return the requested times of those plans that may be executed now."""
    return tuple(plan.requested_time for plan in plans if _ripe_ms(plan, facts, policy) <= now_ms)


def wait_for_owner(
    service: Service, plans: Sequence[Instant], facts: TableFacts, policy: TablePolicy, now_ms: int, evidence: Evidence
) -> Decision:
    """Return the decision that plans are left to the process that made or began them, and until when.

    At least one of them may not be executed now.
    """
    ages = policy.doctor
    waiting = [plan for plan in plans if _ripe_ms(plan, facts, policy) > now_ms]
    plan = min(waiting, key=lambda plan: _ripe_ms(plan, facts, policy))
    if plan.state is State.INFLIGHT:
        what = "has an executor without a heartbeat, whose files a second executor would destroy"
        until = f"the provider executes it {ages.unguarded_after_s:,.0f} s after its last sign of life"
        setting = "doctor.unguarded_after_s"
    else:
        what = "belongs to another process, which executes it itself"
        until = f"the provider executes it {ages.stuck_after_s:,.0f} s after it was made"
        setting = "doctor.stuck_after_s"
    reason = f"{service} plan {plan.requested_time} {what}: {until} ({setting})"
    return not_due(service, reason, evidence, _ripe_ms(plan, facts, policy))


def is_ours(plan: Instant, facts: TableFacts) -> bool:
    """Whether a heartbeat proves that the provider made a plan, or began it where it is begun."""
    beat_ms = (facts.view.heartbeats_ms or {}).get(plan.requested_time)
    return beat_ms is not None and (plan.state is State.REQUESTED or beat_ms > PLANNED_BEAT_MS)


def _may_have_executor(plan: Instant) -> bool:
    return plan.state is State.INFLIGHT or plan.action in _EXECUTED_BY_THEIR_PLANNER


def _ripe_ms(plan: Instant, facts: TableFacts, policy: TablePolicy) -> int:
    ages = policy.doctor
    if is_ours(plan, facts) or not _may_have_executor(plan):
        return 0
    # Hudi names every instant by a time; any other name counts as the oldest possible.
    made_ms = instant_time_ms(plan.requested_time, facts.zone(policy)) or 0
    if plan.state is State.REQUESTED:
        return made_ms + int(ages.stuck_after_s * 1000)
    touched_ms = (facts.view.touched_ms or {}).get(plan.requested_time, made_ms)
    return max(made_ms, touched_ms) + int(ages.unguarded_after_s * 1000)


# --- Decide whether what failed writers left has to be rolled back; from facts with heartbeats and policy
#
# In multi-writer mode a failed write stays pending until a process rolls it back: Hudi's writers do not (policy for
# failed writes: LAZY), and it blocks archiving, index builds and readers of changes. An expired heartbeat proves that
# its writer is dead: a writer whose own heartbeat has expired gives its commit up (`HeartbeatUtils`). A write without
# any heartbeat proves nothing. A writer in single-writer mode, Hudi's default, sends none however long it lives, and
# rolls its own failures back at its next commit (policy EAGER): its writes are left alone, and block every service
# meanwhile.
#
# Hudi deletes a failed write's instants before it completes the rollback, so one that died in between is a rollback
# without a write: the provider completes it as well. Two executors of one rollback delete the same files of a dead
# write.

ASK_AFTER_MS = 600_000
"""The evaluation reads the heartbeat of a pending write of this age, whatever the policy for rollbacks."""


def needs_heartbeats(facts: TableFacts, policy: TablePolicy, now_ms: int) -> bool:
    """Whether a pending write is so old that the decisions depend on its heartbeat."""
    return bool(_ripe(facts.timeline.pending_writes(), facts, policy, _doubted_after_ms(policy), now_ms))


def find_unguarded_writes(facts: TableFacts, policy: TablePolicy, now_ms: int) -> tuple[str, ...]:
    """Return the old pending writes without a heartbeat, by requested time; none while the view has no heartbeats."""
    if facts.view.heartbeats_ms is None:
        return ()
    old = _ripe(facts.timeline.pending_writes(), facts, policy, _doubted_after_ms(policy), now_ms)
    return tuple(write.requested_time for write in old if write.requested_time not in facts.view.heartbeats_ms)


def block_while_unguarded(unguarded: tuple[str, ...], decision: Decision, policy: TablePolicy, now_ms: int) -> Decision:
    """Return the decision, blocked where it is due: no service begins next to a writer that takes no lock.

    A running service would be rolled back by that writer, or would commit to the metadata table at the same moment.
    """
    if not unguarded or decision.verdict is not Verdict.DUE or not TRAITS[decision.service].needs_lock:
        return decision
    reason = f"{decision.reason}, but {explain_unguarded(unguarded)}"
    again_ms = _again_ms(policy, now_ms)
    return replace(decision, verdict=Verdict.BLOCKED, reason=reason, evaluate_again_ms=again_ms, kept_by=KeptBy.WRITERS)


def decide_rollback(facts: TableFacts, policy: TablePolicy, now_ms: int) -> Decision:
    """Decide whether a rollback is due, not due or blocked. Without heartbeats in the view none is due."""
    service = Service.ROLLBACK
    rules = policy.rollback
    if not rules.enabled:
        return not_due(service, "rollback is switched off for this table (rollback.enabled: false)")
    writes = facts.timeline.pending_writes()
    begun = facts.timeline.pending(Action.ROLLBACK)
    if not writes and not begun:
        return not_due(service, "no write is pending")
    patience_ms = int(rules.after_s * 1000)
    overdue, halves = (_ripe(instants, facts, policy, patience_ms, now_ms) for instants in (writes, begun))
    evidence: Evidence = {
        "pending_writes": len(writes),
        "overdue_writes": len(overdue),
        "pending_rollbacks": len(begun),
        "oldest": min(instant.requested_time for instant in (*writes, *begun)),
    }
    if not overdue and not halves:
        ripe_ms = min(_begun_ms(instant, facts, policy) for instant in (*writes, *begun)) + patience_ms
        reason = f"{len(writes) + len(begun)} pending, none for {rules.after_s:,.0f} s (rollback.after_s)"
        return not_due(service, reason, evidence, ripe_ms)
    rule = heartbeat_rule(policy.hudi_options)
    beats = facts.view.heartbeats_ms
    dead = tuple(
        write for write in overdue if beats is not None and rule.has_expired(beats.get(write.requested_time), now_ms)
    )
    if not dead and not halves:
        unguarded = tuple(
            write.requested_time for write in overdue if beats is not None and write.requested_time not in beats
        )
        if unguarded:
            reason = explain_unguarded(unguarded)
            again_ms = _again_ms(policy, now_ms)
            parts = service, Verdict.BLOCKED, reason
            return Decision(*parts, evidence=evidence, evaluate_again_ms=again_ms, kept_by=KeptBy.WRITERS)
        seen = "is not read yet" if beats is None else "lives"
        reason = f"the heartbeat of {', '.join(write.requested_time for write in overdue)} {seen}"
        return not_due(service, reason, evidence, now_ms + rule.most_ms)
    times = tuple(sorted(instant.requested_time for instant in (*dead, *halves)))
    reason = "; ".join(
        _why(dead, "its heartbeat has expired, its writer failed") + _why(halves, "begun, and not completed")
    )
    due = Decision(service, Verdict.DUE, reason, Mode.EXECUTE, times[0], times, evidence)
    return block_without_lock(due, policy.hudi_options)


def _why(instants: tuple[Instant, ...], what: str) -> list[str]:
    named = ", ".join(f"{instant.action} {instant.requested_time}" for instant in instants)
    return [f"{named}: {what}"] if named else []


def _again_ms(policy: TablePolicy, now_ms: int) -> int:
    # The write may have completed since the timeline was read, and its heartbeat ends with it.
    return now_ms + heartbeat_rule(policy.hudi_options).most_ms


def _doubted_after_ms(policy: TablePolicy) -> int:
    return min(int(policy.rollback.after_s * 1000), ASK_AFTER_MS)


def _ripe(
    instants: tuple[Instant, ...], facts: TableFacts, policy: TablePolicy, patience_ms: int, now_ms: int
) -> tuple[Instant, ...]:
    return tuple(instant for instant in instants if _begun_ms(instant, facts, policy) + patience_ms <= now_ms)


def _begun_ms(write: Instant, facts: TableFacts, policy: TablePolicy) -> int:
    # Hudi's writers name every instant by a time; any other name counts as the oldest possible.
    return instant_time_ms(write.requested_time, facts.zone(policy)) or 0
