"""Whether a service of the provider may begin now: go, shrink, or wait; pure.

The rules follow what Hudi 1.2 would do. From table version 8 on, compaction never conflicts with writers (file slices
are cut by completion time); cleaning and archiving rewrite nothing. From the moment at which a clustering is requested,
each write to its file groups fails: so it begins only where no writer lives or is expected, and when a writer needs the
file groups of a plan that an executor of this service left behind, the plan is withdrawn. A log compaction that
completes fails each writer of its file groups, and before version 8 a compaction fails each writer that was at work
when it was planned: both wait for such writers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.conflict.contention import WriteIntent, describe_file_groups, find_active_clashes
from airflow_lake_provider.conflict.marker_reader import ActiveInstant, Role
from airflow_lake_provider.instant_clock import instant_time_ms
from airflow_lake_provider.job_contract import PLANNED_BEAT_MS, Mode, Service
from airflow_lake_provider.shared.actions import State
from airflow_lake_provider.shared.partition_filter import can_be_named, find_partition_filter, only_in
from airflow_lake_provider.shared.recent_writes import RECENT_WRITES, TOUCH_NOTHING_OLD
from airflow_lake_provider.timeline_server.commit_interval import find_commit_interval_s
from airflow_lake_provider.timeline_server.schedule import SUSPICIOUS_AFTER_GAPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import tzinfo

    from airflow_lake_provider.config.service_policies import ConflictPolicy
    from airflow_lake_provider.conflict.activity import ConflictTable, TableActivity
    from airflow_lake_provider.hudi.commit_metadata import CommitMetadata
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.timeline_server.snapshot import TimelineSnapshot

# --- When the next write of a table is due, by its commit interval; pure

DEFAULT_DURATION_MS = 60_000
"""How long a clustering is assumed to run while the timeline does not show it."""
_MS = 1000
_CLUSTER = "CLUSTER"


@dataclass(frozen=True, slots=True)
class ExpectedWrite:
    """The write that is due next (ms since the epoch), and the partitions that the last ten writes touched."""

    due_ms: int
    gap_ms: int
    partitions: frozenset[str]


def expect_write(
    snapshot: TimelineSnapshot, commits: Mapping[str, CommitMetadata], now_ms: int, zone: tzinfo
) -> ExpectedWrite | None:
    """Return the next write; None where there is no commit interval, where writes ended, or where clocks do not fit.

    `commits` is the metadata of completed writes by requested time, `zone` that of the instants. Writes ended when
    three usual gaps passed.
    """
    gap_s = find_commit_interval_s(snapshot.timeline)
    writes = snapshot.timeline.completed_writes
    if gap_s is None or not writes:
        return None
    last_ms = instant_time_ms(writes[-1].completed_time or "", zone)
    gap_ms = int(gap_s * _MS)
    if last_ms is None or not 0 <= now_ms - last_ms <= SUSPICIOUS_AFTER_GAPS * gap_ms:
        return None
    touched = [commits[write.requested_time] for write in writes[-RECENT_WRITES:] if write.requested_time in commits]
    stats = (stat for write in touched if write.operation not in TOUCH_NOTHING_OLD for stat in write.stats)
    partitions = frozenset(stat.partition for stat in stats)
    return ExpectedWrite(last_ms + gap_ms, gap_ms, partitions) if partitions else None


def last_duration_ms(
    writes: Iterable[Instant], commits: Mapping[str, CommitMetadata], operation: str = _CLUSTER
) -> int | None:
    """Return how long the last service of an operation took from plan to commit; None when none is known."""
    found = None
    for write in writes:
        metadata = commits.get(write.requested_time)
        if metadata is not None and metadata.operation == operation:
            begin = instant_time_ms(write.requested_time, UTC)
            end = instant_time_ms(write.completed_time or "", UTC)
            found = end - begin if begin is not None and end is not None else found
    return found


_SHOWN = 5


class AdmissionVerdict(StrEnum):
    """What a service may do now."""

    GO = "go"
    SHRINK = "shrink"
    """Plan it (again) in the given partitions only."""
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Intent:
    """A service that is about to begin. `plans` are the pending plans that it would execute; without any it plans.

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
    """The verdict, and why. `evaluate_again_ms` is when to check again (ms since the epoch) if no commit comes first.

    `withdraw` names pending plans that block a writer and should leave the timeline. `options` carry a shrunk
    plan into Hudi.
    """

    verdict: AdmissionVerdict
    reason: str
    in_the_way: tuple[str, ...] = ()
    evaluate_again_ms: int | None = None
    withdraw: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def admit(
    intent: Intent, activity: TableActivity, expected: ExpectedWrite | None, period_ms: int, heartbeat_ms: int
) -> Admission:
    """Decide. `heartbeat_ms` is the age at which a heartbeat is dead, `period_ms` the pause before the next check."""
    found = _admit(intent, activity, expected, period_ms, heartbeat_ms)
    if found.evaluate_again_ms is None:
        return found
    pause_s = round((found.evaluate_again_ms - activity.now_ms) / _MS, 1)
    return replace(found, reason=f"{found.reason}; checked again in {pause_s:g} s or later")


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
        # A new plan may take any file group. Writers that began after a pending compaction know it.
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
    named = [plan for plan in activity.plans() if plan.instant in intent.plans]
    for plan in named:
        others = [other for other in activity.plans() if other not in named]
        verdict = find_active_clashes(_intent_of(plan), others, rule=activity.rule)
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
    """Whether an expired heartbeat proves that this provider made the plan, and that its executor, if any, is dead."""
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
        unknown_part = f"the following is unknown: {writer.unread[0]}" if writer.unread else "has not named its files"
        return Admission(
            AdmissionVerdict.WAIT,
            f"writer {writer.instant} is at work and {unknown_part}; it counts as dead when its heartbeat is "
            f"{heartbeat_ms // _MS} s old, and that is {_age_s(writer, activity.now_ms)} s old now",
            (writer.instant,),
            activity.now_ms + period_ms,
        )
    return _admit_next_to(_find_busy(intent, activity, expected), intent, activity, expected, period_ms)


def _find_busy(intent: Intent, activity: TableActivity, expected: ExpectedWrite | None) -> dict[str, str]:
    """Return by partition which writer touches it, or will touch it while the plan runs, of those that it may take."""
    busy = {name: f"writer {writer.instant}" for writer in activity.live_writers() for name in writer.partitions or ()}
    if expected is not None and _is_due(expected, intent, activity):
        busy = dict.fromkeys(expected.partitions, "the next write by the table's commit interval") | busy
    selected = find_partition_filter(intent.options).selected
    return {name: writer for name, writer in busy.items() if selected is None or name in selected}


def _is_due(expected: ExpectedWrite, intent: Intent, activity: TableActivity) -> bool:
    return expected.due_ms <= activity.now_ms + intent.duration_ms


def _admit_next_to(
    busy: Mapping[str, str], intent: Intent, activity: TableActivity, expected: ExpectedWrite | None, period_ms: int
) -> Admission:
    if not busy:
        return Admission(AdmissionVerdict.GO, "no writer is at work, and none is expected while it runs")
    writers = ", ".join(sorted(set(busy.values())))
    chosen = find_partition_filter(intent.options)
    free = sorted((intent.partitions if chosen.selected is None else chosen.selected) - busy.keys())
    if not chosen.obstacle and can_be_named(free):
        return Admission(
            AdmissionVerdict.SHRINK,
            f"{writers} touches {_names(busy)}: only {_names(free)} {'is' if len(free) == 1 else 'are'} clustered now",
            _instants(activity, busy),
            options=only_in(free),
        )
    again_ms = activity.now_ms + period_ms
    if expected is not None and _is_due(expected, intent, activity) and not activity.live_writers():
        again_ms = max(again_ms, expected.due_ms)
    why = f"{chosen.obstacle} chooses the others" if chosen.obstacle else "no other partition can be named"
    return Admission(
        AdmissionVerdict.WAIT, f"{writers} touches {_names(busy)}, and {why}", _instants(activity, busy), again_ms
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


def _intent_of(plan: ActiveInstant) -> WriteIntent:
    return WriteIntent(plan.instant, plan.planned, Role.CLUSTERING)


def _instants(activity: TableActivity, busy: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(w.instant for w in activity.live_writers() if not busy.keys().isdisjoint(w.partitions or ()))


def _age_s(writer: ActiveInstant, now_ms: int) -> int:
    return (now_ms - (writer.beat_ms or now_ms)) // _MS


def _names(partitions: Mapping[str, str] | list[str]) -> str:
    names = sorted(partitions)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(name or "the table (it has no partitions)" for name in names[:_SHOWN]) + more


# --- Read which writers are active on a table, then decide whether a service may begin

_ROLES = {
    Service.CLUSTERING: Role.CLUSTERING,
    Service.COMPACTION: Role.COMPACTION,
    Service.LOGCOMPACTION: Role.LOG_COMPACTION,
}

GO_UNCHECKED = Admission(AdmissionVerdict.GO, "early conflict detection does not apply")


def needs_admission(service: Service, mode: Mode, policy: ConflictPolicy) -> bool:
    """Whether anything but "go" can be the answer: only what rewrites file groups conflicts with writers."""
    return policy.enabled and service in _ROLES and mode is not Mode.WITHDRAW


def needs_watch(service: Service, mode: Mode, policy: ConflictPolicy) -> bool:
    """Whether a writer can conflict with the service while it runs: only a clustering stops for one."""
    return service is Service.CLUSTERING and mode is not Mode.SCHEDULE and needs_admission(service, mode, policy)


def find_pending_plans(table: ConflictTable, service: Service, now_ms: int) -> tuple[str, ...]:
    """Return the pending plans of a service that needs admission, by what they hold: up to table version 6 a
    clustering's action is that of an insert overwrite. Raises what reading a table raises.
    """
    return tuple(plan.instant for plan in table.read_activity(now_ms).plans() if plan.role is _ROLES[service])


def ask_admission(  # noqa: PLR0913 - a decision's parts, and what it is compared with
    service: Service,
    table: ConflictTable,
    commits: Mapping[str, CommitMetadata],
    plans: tuple[str, ...],
    policy: ConflictPolicy,
    now_ms: int,
    options: Mapping[str, str] = MappingProxyType({}),
) -> Admission:
    """Return whether a service may begin now: with the pending plans, or with a new one.

    `commits` is the metadata of completed writes on the active timeline, by requested time: from it come the known
    partitions, the expected writes and how long a clustering takes; no other service needs it. `options` are the
    decision's own settings, over those of the table. Raises what reading a table raises.
    """
    activity = table.read_activity(now_ms)
    writes = activity.snapshot.timeline.completed_writes
    intent = Intent(
        service,
        plans,
        frozenset(stat.partition for metadata in commits.values() for stat in metadata.stats),
        last_duration_ms(writes, commits) or DEFAULT_DURATION_MS,
        {**table.hudi_options, **options},
    )
    expected = None
    if not plans and service is Service.CLUSTERING:
        expected = expect_write(activity.snapshot, commits, now_ms, table.find_zone(activity.snapshot))
    return admit(intent, activity, expected, int(policy.period_s * 1000), table.rule.most_ms)
