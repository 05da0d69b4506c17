"""Whether one of our own services may begin now: go, shrink, or wait; pure.

What Hudi 1.2 would do decides. Compaction never conflicts with writers from table version 8 on (file slices are cut by
completion time), cleaning and archiving rewrite nothing. A clustering makes each write to its file groups fail, from
the moment it is requested: so it begins only where no writer lives or is expected, and a plan that an executor of this
service left behind is withdrawn when a writer needs its file groups first. A log compaction makes each writer fail on
whose file groups it completes, and before version 8 a compaction each writer that was at work when it was planned: they
wait for those.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.conflict.active_instant import ActiveInstant, Role
from airflow_lake_provider.conflict.contention import Claim, describe_file_groups, find_active_clashes
from airflow_lake_provider.conflict.expected_write import DEFAULT_DURATION_MS
from airflow_lake_provider.conflict.partition_filter import can_be_named, find_partition_filter, only_in
from airflow_lake_provider.job_contract import PLANNED_BEAT_MS, Service
from airflow_lake_provider.timeline.instant import State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.conflict.conflict_table import TableActivity
    from airflow_lake_provider.conflict.expected_write import ExpectedWrite

_SHOWN = 5
_MS = 1000


class AdmissionVerdict(StrEnum):
    """What a service may do now."""

    GO = "go"
    SHRINK = "shrink"
    """Plan it (again) in the given partitions only."""
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Intent:
    """A service that is about to begin. `plans` are the pending plans that it would execute; without any it plans anew.

    `partitions` are those that the table is known to have; without any nothing can be shrunk. `options` are the Hudi
    settings that it will run with: they may choose partitions themselves.
    """

    service: Service
    plans: tuple[str, ...] = ()
    partitions: frozenset[str] = frozenset()
    duration_ms: int = DEFAULT_DURATION_MS
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Admission:
    """The verdict, and why. `look_again_ms` is when to ask again (ms since the epoch), though a commit may come first.

    `withdraw` names pending plans that hold a writer up and should be taken from the timeline. `options` carry a shrunk
    plan into Hudi.
    """

    verdict: AdmissionVerdict
    reason: str
    in_the_way: tuple[str, ...] = ()
    look_again_ms: int | None = None
    withdraw: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def admit(
    intent: Intent, activity: TableActivity, expected: ExpectedWrite | None, period_ms: int, heartbeat_ms: int
) -> Admission:
    """Decide. `heartbeat_ms` is the age at which a heartbeat is dead, `period_ms` how soon to look again at most."""
    found = _admit(intent, activity, expected, period_ms, heartbeat_ms)
    if found.look_again_ms is None:
        return found
    pause_s = round((found.look_again_ms - activity.now_ms) / _MS, 1)
    return replace(found, reason=f"{found.reason}; asked again in {pause_s:g} s or later")


def _admit(
    intent: Intent, activity: TableActivity, expected: ExpectedWrite | None, period_ms: int, heartbeat_ms: int
) -> Admission:
    if intent.service is not Service.CLUSTERING:
        return _admit_compaction(intent, activity, period_ms)
    blocked = _wait_for_plans(intent, activity, period_ms)
    if blocked is not None:
        return blocked
    if intent.plans:
        return _admit_plans(intent, activity, period_ms)
    return _admit_new_plan(intent, activity, expected, period_ms, heartbeat_ms)


def _admit_compaction(intent: Intent, activity: TableActivity, period_ms: int) -> Admission:
    is_log = intent.service is Service.LOGCOMPACTION
    if not is_log and (intent.service is not Service.COMPACTION or activity.compactions_pass):
        return Admission(AdmissionVerdict.GO, f"{intent.service} does not conflict with writers")
    plans = [plan for plan in activity.plans() if plan.instant in intent.plans]
    for writer in activity.live_writers():
        # A new plan may take any file group. Of a pending compaction, writers that began after it know.
        hurt = [plan for plan in plans if (is_log or writer.instant < plan.instant) and _may_share(writer, plan)]
        if hurt or not plans:
            return Admission(
                AdmissionVerdict.WAIT,
                f"writer {writer.instant} is at work, and would fail at its commit if a {intent.service} rewrote its "
                "file groups meanwhile",
                (writer.instant,),
                activity.now_ms + period_ms,
            )
    return Admission(AdmissionVerdict.GO, f"no writer is at work on what the {intent.service} rewrites")


def _may_share(writer: ActiveInstant, plan: ActiveInstant) -> bool:
    """Whether a writer touches a file group of the plan, or may yet put new rows into one."""
    if writer.partitions is None or writer.unread or plan.unread:
        return True
    return bool(writer.overlap(plan.planned)) or not writer.partitions.isdisjoint(plan.partitions or ())


def _wait_for_plans(intent: Intent, activity: TableActivity, period_ms: int) -> Admission | None:
    """Two plans of one file group: Hudi plans around what is pending, so only a damaged or foreign plan gets here."""
    ours = [plan for plan in activity.plans() if plan.instant in intent.plans]
    for plan in ours:
        verdict = find_active_clashes(_claim(plan), [other for other in activity.plans() if other not in ours])
        if verdict.clashes:
            clash = verdict.clashes[0]
            return Admission(
                AdmissionVerdict.WAIT,
                f"plan {plan.instant} waits: {clash}",
                (clash.instant,),
                activity.now_ms + period_ms,
            )
    return None


def _admit_plans(intent: Intent, activity: TableActivity, period_ms: int) -> Admission:
    plans = [plan for plan in activity.plans() if plan.instant in intent.plans]
    for plan in plans:
        for writer in activity.live_writers():
            shared = writer.overlap(plan.planned)
            if shared or _may_touch(writer, plan):
                what = describe_file_groups(shared) if shared else "file groups that it has not named yet"
                end = "the plan is withdrawn, and made again when the writer has ended"
                is_dead = _may_be_withdrawn(plan, activity)
                if not is_dead:
                    end = "the plan is not withdrawn, because nothing proves that its own executor is dead"
                return Admission(
                    AdmissionVerdict.WAIT,
                    f"writer {writer.instant} is at work on {what} of the pending plan {plan.instant}, and would fail "
                    f"at its commit: {end}",
                    (writer.instant,),
                    activity.now_ms + period_ms,
                    withdraw=(plan.instant,) if is_dead else (),
                )
    return Admission(AdmissionVerdict.GO, "no writer is at work on the plan's file groups")


def _may_be_withdrawn(plan: ActiveInstant, activity: TableActivity) -> bool:
    """Whether an expired heartbeat proves that the plan is ours, and that its executor, if it had one, is dead."""
    if plan.beat_ms is None or plan.is_live:
        return False
    begun = {i.requested_time for i in activity.snapshot.timeline.pending() if i.state is State.INFLIGHT}
    return plan.instant not in begun or plan.beat_ms > PLANNED_BEAT_MS


def _admit_new_plan(
    intent: Intent, activity: TableActivity, expected: ExpectedWrite | None, period_ms: int, heartbeat_ms: int
) -> Admission:
    unknown = [writer for writer in activity.live_writers() if writer.partitions is None or writer.unread]
    if unknown:
        writer = unknown[0]
        unsaid = f"this is not known of it: {writer.unread[0]}" if writer.unread else "has not said on what"
        return Admission(
            AdmissionVerdict.WAIT,
            f"writer {writer.instant} is at work and {unsaid}; it counts as dead when its heartbeat is "
            f"{heartbeat_ms // _MS} s old, and that is {_age_s(writer, activity.now_ms)} s old now",
            (writer.instant,),
            activity.now_ms + period_ms,
        )
    return _admit_beside(_find_busy(intent, activity, expected), intent, activity, expected, period_ms)


def _find_busy(intent: Intent, activity: TableActivity, expected: ExpectedWrite | None) -> dict[str, str]:
    """Return who touches which of the partitions that the plan may take, or will touch it while it runs."""
    busy = {name: f"writer {writer.instant}" for writer in activity.live_writers() for name in writer.partitions or ()}
    if expected is not None and _is_due(expected, intent, activity):
        busy = dict.fromkeys(expected.partitions, "the next write by the table's rhythm") | busy
    selected = find_partition_filter(intent.options).selected
    return {name: who for name, who in busy.items() if selected is None or name in selected}


def _is_due(expected: ExpectedWrite, intent: Intent, activity: TableActivity) -> bool:
    return expected.due_ms <= activity.now_ms + intent.duration_ms


def _admit_beside(
    busy: Mapping[str, str], intent: Intent, activity: TableActivity, expected: ExpectedWrite | None, period_ms: int
) -> Admission:
    if not busy:
        return Admission(AdmissionVerdict.GO, "no writer is at work, and none is expected while it runs")
    who = ", ".join(sorted(set(busy.values())))
    chosen = find_partition_filter(intent.options)
    free = sorted((intent.partitions if chosen.selected is None else chosen.selected) - busy.keys())
    if not chosen.obstacle and can_be_named(free):
        return Admission(
            AdmissionVerdict.SHRINK,
            f"{who} touches {_names(busy)}: only {_names(free)} {'is' if len(free) == 1 else 'are'} clustered now",
            _instants(activity, busy),
            options=only_in(free),
        )
    again_ms = activity.now_ms + period_ms
    if expected is not None and _is_due(expected, intent, activity) and not activity.live_writers():
        again_ms = max(again_ms, expected.due_ms)
    why = f"{chosen.obstacle} chooses the others" if chosen.obstacle else "no other partition can be named"
    return Admission(
        AdmissionVerdict.WAIT, f"{who} touches {_names(busy)}, and {why}", _instants(activity, busy), again_ms
    )


def _may_touch(writer: ActiveInstant, plan: ActiveInstant) -> bool:
    """Whether a writer may yet name a file group of the plan.

    One that began after the plan leaves its file groups alone, or fails before it writes. One that began before puts
    new rows into small file groups, which it does not name before it writes them.
    """
    if writer.unread:
        return True
    if writer.instant > plan.instant:
        return False
    return writer.partitions is None or not writer.partitions.isdisjoint(plan.partitions or ())


def _claim(plan: ActiveInstant) -> Claim:
    return Claim(plan.instant, plan.planned, Role.CLUSTERING)


def _instants(activity: TableActivity, busy: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(w.instant for w in activity.live_writers() if not busy.keys().isdisjoint(w.partitions or ()))


def _age_s(writer: ActiveInstant, now_ms: int) -> int:
    return (now_ms - (writer.beat_ms or now_ms)) // _MS


def _names(partitions: Mapping[str, str] | list[str]) -> str:
    names = sorted(partitions)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(name or "the table (it has no partitions)" for name in names[:_SHOWN]) + more
