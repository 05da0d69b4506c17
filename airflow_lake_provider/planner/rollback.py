"""Decide whether what failed writers left has to be rolled back; pure, from the view with heartbeats and the policy.

In multi-writer mode a failed write stays pending until somebody rolls it back: Hudi's writers do not (failed-writes
policy LAZY), and it holds archiving, index builds and readers of changes up. A writer that Hudi takes for dead has no
heartbeat, or an old one (`HoodieHeartbeatClient`). Hudi deletes a failed write's instants before it completes the
rollback, so one that died in between is a rollback without a write: it is gone on with as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.planner.decision import Decision, Verdict, block_without_lock, not_due
from airflow_lake_provider.timeline.heartbeat import heartbeat_rule
from airflow_lake_provider.timeline.instant import Action
from airflow_lake_provider.timeline.loader import instant_time_ms

if TYPE_CHECKING:
    from airflow_lake_provider.planner.decision import Evidence
    from airflow_lake_provider.policies import TablePolicy
    from airflow_lake_provider.timeline.instant import Instant
    from airflow_lake_provider.view.table_view import TableView


def find_overdue_writes(view: TableView, policy: TablePolicy, now_ms: int) -> tuple[Instant, ...]:
    """Return the pending writes that are old enough for their writer to be doubted."""
    return _ripe(view.timeline.pending_writes(), view, policy, now_ms)


def decide_rollback(view: TableView, policy: TablePolicy, now_ms: int) -> Decision:
    """Say whether a rollback is due, not due or blocked, and why. Without heartbeats in the view none is due."""
    service, rules = Service.ROLLBACK, policy.rollback
    if not rules.enabled:
        return not_due(service, "rollback is switched off for this table (rollback.enabled: false)")
    writes, begun = view.timeline.pending_writes(), view.timeline.pending(Action.ROLLBACK)
    if not writes and not begun:
        return not_due(service, "no write is pending")
    overdue, halves = find_overdue_writes(view, policy, now_ms), _ripe(begun, view, policy, now_ms)
    evidence: Evidence = {
        "pending_writes": len(writes),
        "overdue_writes": len(overdue),
        "pending_rollbacks": len(begun),
        "oldest": min(instant.requested_time for instant in (*writes, *begun)),
    }
    if not overdue and not halves:
        ripe_ms = min(_begun_ms(instant, view) for instant in (*writes, *begun)) + _patience_ms(policy)
        reason = f"{len(writes) + len(begun)} pending, none for {rules.after_s:,.0f} s (rollback.after_s)"
        return not_due(service, reason, evidence, ripe_ms)
    rule, beats = heartbeat_rule(policy.hudi_options), view.heartbeats_ms
    dead = () if beats is None else tuple(w for w in overdue if not rule.is_live(beats.get(w.requested_time), now_ms))
    if not dead and not halves:
        seen = "was not asked for" if beats is None else "lives"
        reason = f"the heartbeat of {', '.join(write.requested_time for write in overdue)} {seen}"
        return not_due(service, reason, evidence, now_ms + rule.most_ms)
    times = tuple(sorted(instant.requested_time for instant in (*dead, *halves)))
    reason = "; ".join(_why(dead, "no heartbeat, its writer failed") + _why(halves, "begun, and not completed"))
    due = Decision(service, Verdict.DUE, reason, Mode.EXECUTE, times[0], times, evidence)
    return block_without_lock(due, policy.hudi_options)


def _why(instants: tuple[Instant, ...], what: str) -> list[str]:
    named = ", ".join(f"{instant.action} {instant.requested_time}" for instant in instants)
    return [f"{named}: {what}"] if named else []


def _ripe(instants: tuple[Instant, ...], view: TableView, policy: TablePolicy, now_ms: int) -> tuple[Instant, ...]:
    return tuple(instant for instant in instants if _begun_ms(instant, view) + _patience_ms(policy) <= now_ms)


def _begun_ms(write: Instant, view: TableView) -> int:
    # What is no time is no Hudi writer's instant, and as old as can be.
    return instant_time_ms(write.requested_time, view.properties.time_zone) or 0


def _patience_ms(policy: TablePolicy) -> int:
    return int(policy.rollback.after_s * 1000)
