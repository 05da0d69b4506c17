"""Whether a pending plan may be executed now, or may have an executor elsewhere; pure, from facts and policy.

Executors of this service keep a heartbeat for each plan that they execute, whatever it is, and leave one for each that
they make. So a plan with a heartbeat needs no patience: a living one makes the job refuse, and an expired one proves
that its executor is dead. For a plan that was begun, the heartbeat that its planner left proves nothing
(`PLANNED_BEAT_MS`): a writer's own service executes what it finds. A plan without a heartbeat comes from another
process. Hudi gives clustering and clean no heartbeat, and compactions only from 1.2 on in multi-writer mode, so nothing
proves an executor dead, and two executors of one plan destroy each other's files. Writers leave a compaction that is
only requested for a table service to execute (RFC-43); a process that plans a clustering or a clean executes it itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.hudi.instant import Action, State
from airflow_lake_provider.instant_clock import instant_time_ms
from airflow_lake_provider.job_contract import PLANNED_BEAT_MS
from airflow_lake_provider.planner.rules import not_due

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_lake_provider.config.policies import DoctorPolicy, TablePolicy
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.job_contract import Service
    from airflow_lake_provider.planner.facts import TableFacts
    from airflow_lake_provider.planner.rules import Decision, Evidence

PLANNED = (Action.COMPACTION, Action.LOGCOMPACTION, Action.CLUSTERING, Action.CLEAN)
_EXECUTED_BY_THEIR_PLANNER = frozenset({Action.CLUSTERING, Action.CLEAN})


def find_begun_plans(facts: TableFacts) -> tuple[Instant, ...]:
    """Return the pending plans that a process has begun to execute; their last change has to be read."""
    return tuple(plan for plan in facts.timeline.pending(*PLANNED) if plan.state is State.INFLIGHT)


def needs_heartbeats(facts: TableFacts) -> bool:
    """Whether a pending plan may have an executor elsewhere."""
    return any(_may_have_executor(plan) for plan in facts.timeline.pending(*PLANNED))


def find_executable(plans: Sequence[Instant], facts: TableFacts, policy: DoctorPolicy, now_ms: int) -> tuple[str, ...]:
    """Return the requested times of those plans that may be executed now."""
    return tuple(plan.requested_time for plan in plans if _ripe_ms(plan, facts, policy) <= now_ms)


def wait_for_owner(
    service: Service, plans: Sequence[Instant], facts: TableFacts, policy: TablePolicy, now_ms: int, evidence: Evidence
) -> Decision:
    """Return the decision that plans are left to the process that made or began them, and until when.

    At least one of them may not be executed now.
    """
    ages = policy.doctor
    waiting = [plan for plan in plans if _ripe_ms(plan, facts, ages) > now_ms]
    plan = min(waiting, key=lambda plan: _ripe_ms(plan, facts, ages))
    if plan.state is State.INFLIGHT:
        what = "has an executor without a heartbeat, whose files a second executor would destroy"
        until = f"the provider executes it {ages.unguarded_after_s:,.0f} s after its last sign of life"
        setting = "doctor.unguarded_after_s"
    else:
        what = "belongs to another process, which executes it itself"
        until = f"the provider executes it {ages.stuck_after_s:,.0f} s after it was made"
        setting = "doctor.stuck_after_s"
    reason = f"{service} plan {plan.requested_time} {what}: {until} ({setting})"
    return not_due(service, reason, evidence, _ripe_ms(plan, facts, ages))


def _may_have_executor(plan: Instant) -> bool:
    return plan.state is State.INFLIGHT or plan.action in _EXECUTED_BY_THEIR_PLANNER


def _ripe_ms(plan: Instant, facts: TableFacts, policy: DoctorPolicy) -> int:
    beat_ms = (facts.view.heartbeats_ms or {}).get(plan.requested_time)
    is_ours = beat_ms is not None and (plan.state is State.REQUESTED or beat_ms > PLANNED_BEAT_MS)
    if is_ours or not _may_have_executor(plan):
        return 0
    # Hudi names every instant by a time; any other name counts as the oldest possible.
    made_ms = instant_time_ms(plan.requested_time, facts.properties.time_zone) or 0
    if plan.state is State.REQUESTED:
        return made_ms + int(policy.stuck_after_s * 1000)
    touched_ms = (facts.view.touched_ms or {}).get(plan.requested_time, made_ms)
    return max(made_ms, touched_ms) + int(policy.unguarded_after_s * 1000)
