"""The rules of a policy against what a table shows, and how several of them make one answer. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from airflow_lake_provider.errors import LockNotConfiguredError, WriterUnguardedError
from airflow_lake_provider.hudi.job_zone import zone_of_jobs
from airflow_lake_provider.hudi.timeline import instant_time_ms
from airflow_lake_provider.instant_clock import describe_foreign, find_foreign
from airflow_lake_provider.job_contract import (
    CONCURRENCY_MODE,
    LOCK_PROVIDER,
    OPTIMISTIC,
    Mode,
    Service,
    commits_to_keep,
    find_lock_problem,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.hudi.instant import Action, Instant
    from airflow_lake_provider.hudi.timeline import Timeline
    from airflow_lake_provider.instant_clock import Stamp
    from airflow_lake_provider.planner.table_view import TableView

ALL = "all"
"""The value of `combine` with which every rule that is on must hold."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: what was found beside its threshold, in words, and whether it holds. One that is off never counts."""

    says: str
    holds: bool
    is_on: bool = True
    ripe_ms: int | None = None
    """When a rule of time will hold if nothing else happens; None for all others."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """The answer of all rules. `look_again_ms` is when time alone may change it; None when it cannot."""

    is_due: bool
    says: str
    look_again_ms: int | None = None


def rule_of_count(says: str, count: int, least: int | None) -> Rule:
    """Return the rule that there are at least so many; off without a threshold."""
    if least is None:
        return Rule(f"{says} (rule: off)", holds=False, is_on=False)
    return Rule(f"{says} (rule: {least})", holds=count >= least)


def rule_of_age(waiting: Sequence[Instant], max_age_s: float | None, now_ms: int, time_zone: str) -> Rule | None:
    """Return the rule of how long the first of the writes, by completion, may wait; None when it is off."""
    if max_age_s is None:
        return None
    if not waiting:
        return Rule(f"nothing waits (rule: {max_age_s:,.0f} s)", holds=False)
    since_ms = instant_time_ms(waiting[0].completed_time or waiting[0].requested_time, time_zone)
    if since_ms is None:
        return Rule(f"nothing says since when the oldest write waits (rule: {max_age_s:,.0f} s)", holds=False)
    ripe_ms = since_ms + int(max_age_s * 1000)
    says = f"the oldest write waits for {(now_ms - since_ms) / 1000:,.0f} s (rule: {max_age_s:,.0f} s)"
    return Rule(says, holds=now_ms >= ripe_ms, ripe_ms=ripe_ms)


def combine_rules(rules: Sequence[Rule | None], combine: str) -> Ruling:
    """Return what the rules say together: due by any of them, or by all that are on (`combine: all`)."""
    shown = [rule for rule in rules if rule is not None]
    active = [rule for rule in shown if rule.is_on]
    held = [rule for rule in active if rule.holds]
    is_due = bool(held) and (combine != ALL or len(held) == len(active))
    if is_due:
        return Ruling(is_due=True, says=" and ".join(rule.says for rule in held))
    open_times = [rule.ripe_ms for rule in active if not rule.holds]
    times = [ripe_ms for ripe_ms in open_times if ripe_ms is not None]
    look_again_ms = min(times, default=None)
    if combine == ALL:
        look_again_ms = max(times) if times and len(times) == len(open_times) else None
    return Ruling(is_due=False, says="; ".join(rule.says for rule in shown), look_again_ms=look_again_ms)


# --- What the planner says of one service of one table, with its reason in words

Evidence: TypeAlias = "Mapping[str, int | float | str | None]"
"""The numbers and instants that a decision rests on."""


class Verdict(StrEnum):
    """Whether a service shall run now."""

    DUE = "due"
    NOT_DUE = "not_due"
    BLOCKED = "blocked"
    """It would be due, but must not run until somebody changes what the reason names."""


@dataclass(frozen=True, slots=True)
class Footing:
    """What is remembered of a decision when a run is created for it (`turns.Turn`)."""

    basis: str = ""
    """A digest of what it rests on beside new writes. A run that had an effect changes it."""
    newest_write: str = ""
    """Completed time of the newest completed write."""
    kept_from: str = ""
    """Cleaning leaves what writes that completed from this moment on replaced; empty is not known."""
    is_certain: bool = True
    """Whether the timeline shows that there is something to do; otherwise only a run finds out."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One service of one table, decided.

    `key_instant` names what the decision rests on (a pending plan, else the newest completed write): the same
    state of the table gives the same key, so that asking twice cannot start two runs. Empty unless due.
    """

    service: Service
    verdict: Verdict
    reason: str
    mode: Mode = Mode.SCHEDULE_AND_EXECUTE
    key_instant: str = ""
    plan_instants: tuple[str, ...] = ()
    evidence: Evidence = field(default_factory=lambda: MappingProxyType({}))
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Hudi settings that carry the policy into the job (retention, ...)."""
    look_again_ms: int | None = None
    """When time alone may change the decision, ms since the epoch; None when only the table can."""
    footing: Footing = field(default_factory=Footing)


def not_due(
    service: Service, reason: str, evidence: Evidence = MappingProxyType({}), look_again_ms: int | None = None
) -> Decision:
    """Return the decision that a service need not run."""
    return Decision(service, Verdict.NOT_DUE, reason, evidence=evidence, look_again_ms=look_again_ms)


def block_without_lock(due: Decision, hudi_options: Mapping[str, str]) -> Decision:
    """Return a due decision, or, when the options hold no lock that reaches the writers, that it is blocked."""
    problem = find_lock_problem(hudi_options)
    if problem is None:
        return due
    return Decision(due.service, Verdict.BLOCKED, f"{due.reason}, but {problem}", evidence=due.evidence)


# --- What several rules ask of a timeline: the completed writes after a point, and a key that stays for a while. Pure


def writes_after(timeline: Timeline, after: str) -> tuple[Instant, ...]:
    """Return completed writes that completed after `after` (exclusive), by completion."""
    writes = timeline.completed_writes_by_completion()
    return tuple(write for write in writes if (write.completed_time or write.requested_time) > after)


def last_completed(timeline: Timeline, action: Action) -> Instant | None:
    """Return the completed instant of an action that was requested last; None when there is none."""
    found = [instant for instant in timeline.completed() if instant.action is action]
    return found[-1] if found else None


def stable_key(writes: Sequence[Instant], every: int) -> str:
    """Return the requested time of the first write, later of every n-th one.

    A service that is due, runs and finds nothing to do leaves no trace on the timeline. With this key it is not run
    again for the next commit, but for the n-th one.
    """
    if not writes:
        return ""
    full_buckets = len(writes) // every
    return writes[max(full_buckets * every - 1, 0)].requested_time


# --- What replication's slowest sink still needs of a table, as the planner hears of it. Pure


@dataclass(frozen=True, slots=True)
class Hold:
    """The oldest hold that counts. Cleaning and archiving are clamped to it once more as their job begins."""

    instant: str
    """Requested time from which on files and instants are needed; `0` is everything."""
    sink: str
    ends_ms: int
    """When it is released unless the sink makes progress, ms since the epoch."""

    def commits(self, timeline: Timeline) -> int:
        """Return how many of the newest writes a job keeps for it."""
        requested = [write.requested_time for write in timeline.completed_writes_by_completion()]
        return commits_to_keep(requested, self.instant)

    def describe(self) -> str:
        """Return who holds what, and until when."""
        what = "everything" if self.instant == "0" else f"everything since {self.instant}"
        return f"sink {self.sink} holds {what}, until {self._ends} UTC unless it makes progress"

    def evidence(self) -> Evidence:
        """Return the same as facts."""
        return {"held_by": self.sink, "held_from": self.instant, "held_until": self._ends}

    @property
    def _ends(self) -> str:
        return datetime.fromtimestamp(self.ends_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


# --- When Hudi needs a lock between a table's writers and a service in another process, and whether one is set
#
# As soon as a second process schedules or completes anything on a table, all of them need the same distributed lock
# provider and multi-writer mode (Hudi, concurrency control; `HoodieLockConfig`). Writers in single-writer mode would
# also roll back what another process has in flight (failed-writes policy EAGER).


def require_lock(hudi_options: Mapping[str, str], table: str) -> None:
    """Raise LockNotConfiguredError, naming the table and the setting, unless the options hold a usable lock."""
    problem = find_lock_problem(hudi_options)
    if problem is not None:
        raise LockNotConfiguredError(f"table {table}: {problem}")


def require_guarded_writers(pending_writes: Collection[str], heartbeats: Collection[str], table: str) -> None:
    """Raise WriterUnguardedError when a writer may be at work that takes no part in the locking.

    `pending_writes` are requested times. In multi-writer mode a heartbeat exists before the instant and until it
    completes, and a writer that is killed leaves it behind. In single-writer mode there is none, and such a writer may
    roll back what others have in flight. Its age tells nothing: a commit may take hours.
    """
    unguarded = tuple(sorted(time for time in pending_writes if time not in heartbeats))
    if unguarded:
        raise WriterUnguardedError(f"table {table}: {explain_unguarded(unguarded)}")


def explain_unguarded(writes: Collection[str]) -> str:
    """Say what pending writes without a heartbeat mean, and what to do; of these requested times."""
    named, several = ", ".join(writes), len(writes) > 1
    return (
        f"the write{'s' if several else ''} {named} {'are' if several else 'is'} in flight without a heartbeat, so "
        "nothing proves that the writer is dead, and it takes no lock: set "
        f"{CONCURRENCY_MODE}={OPTIMISTIC} (with it hoodie.clean.failed.writes.policy=LAZY) and the same "
        f"{LOCK_PROVIDER} in every writer as in this service; a write that its dead writer left is rolled back by that "
        "writer's next commit, or by a run of the service rollback by hand that names the instant"
    )


# --- Block every due service of a table on which another time zone than the jobs' named instants. Pure


def block_foreign_zone(
    decisions: Sequence[Decision], view: TableView, policy: TablePolicy, stamps: Sequence[Stamp], now_ms: int
) -> tuple[Decision, ...]:
    """Return the decisions, those that are due blocked when an instant was not named in the jobs' zone.

    Archiving names no instant, but archives by their order.
    """
    table_zone = view.properties.time_zone
    zone = zone_of_jobs(table_zone, policy.spark_conf)
    foreign = None if zone is None else find_foreign(stamps, zone.offset_ms, now_ms)
    if zone is None or foreign is None:
        return tuple(decisions)
    problem = describe_foreign(foreign, zone.name, table_zone)
    return tuple(_block(decision, problem) if decision.verdict is Verdict.DUE else decision for decision in decisions)


def _block(due: Decision, problem: str) -> Decision:
    return Decision(due.service, Verdict.BLOCKED, f"{due.reason}, but {problem}", evidence=due.evidence)
