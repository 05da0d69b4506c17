"""The rules of a policy against what a table shows, and how several of them make one answer. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from airflow_lake_provider.errors import LockNotConfiguredError, WriterUnguardedError
from airflow_lake_provider.hudi.properties import zone_of_jobs
from airflow_lake_provider.instant_clock import describe_foreign, find_foreign, instant_time_ms
from airflow_lake_provider.job_contract import OPTIMISTIC, REWRITES, TRAITS, Mode, Service, find_lock_problem
from airflow_lake_provider.obstacles import (
    explain_inner_table,
    explain_pending_restore,
    find_empty_plans,
    find_stopping,
    point_to_lost_metadata,
)
from airflow_lake_provider.shared.actions import Action
from airflow_lake_provider.shared.hudi_settings import CONCURRENCY_MODE, LOCK_PROVIDER
from airflow_lake_provider.table_layout import find_layout_problem

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import tzinfo

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.hudi.properties import TimelineFiles
    from airflow_lake_provider.instant_clock import Stamp
    from airflow_lake_provider.planner.table_view import TableView
    from airflow_lake_provider.table_layout import TableLayout
    from airflow_lake_provider.timeline_head import ArchivedBehind

ALL = "all"
"""The value of `combine` with which every rule that is on must hold."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: what was found and its threshold, in words, and whether it holds. One that is off never counts."""

    text: str
    holds: bool
    is_on: bool = True
    ripe_ms: int | None = None
    """When a rule of time will hold if nothing else happens; None for all others."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """The answer of all rules. `evaluate_again_ms` is when time alone may change it; None when it cannot."""

    is_due: bool
    text: str
    evaluate_again_ms: int | None = None


_PLURAL_OF_ONE = re.compile(r"^1 (delta commit|commit|write|log file)s\b")


def of_one(text: str) -> str:
    """Return a reason that begins with a count in the singular where it is 1: `1 write since the last clean`."""
    return _PLURAL_OF_ONE.sub(r"1 \1", text)


def rule_of_count(text: str, count: int, least: int | None) -> Rule:
    """Return the rule that there are at least so many; off without a threshold."""
    text = of_one(text)
    if least is None:
        return Rule(f"{text} (rule: off)", holds=False, is_on=False)
    return Rule(f"{text} (rule: {least})", holds=count >= least)


def rule_of_age(waiting: Sequence[Instant], max_age_s: float | None, now_ms: int, zone: tzinfo) -> Rule | None:
    """Return the rule of how long the first of the writes, by completion, may wait; None when it is off."""
    if max_age_s is None:
        return None
    if not waiting:
        return Rule(f"nothing waits (rule: {max_age_s:,.0f} s)", holds=False)
    since_ms = instant_time_ms(waiting[0].ordering_time, zone)
    if since_ms is None:
        return Rule(f"the time of the oldest write is not readable (rule: {max_age_s:,.0f} s)", holds=False)
    ripe_ms = since_ms + int(max_age_s * 1000)
    text = f"the oldest write waits for {(now_ms - since_ms) / 1000:,.0f} s (rule: {max_age_s:,.0f} s)"
    return Rule(text, holds=now_ms >= ripe_ms, ripe_ms=ripe_ms)


def combine_rules(rules: Sequence[Rule | None], combine: str) -> Ruling:
    """Combine the rules: due by any of them, or by all that are on (`combine: all`)."""
    shown = [rule for rule in rules if rule is not None]
    active = [rule for rule in shown if rule.is_on]
    held = [rule for rule in active if rule.holds]
    is_due = bool(held) and (combine != ALL or len(held) == len(active))
    if is_due:
        return Ruling(is_due=True, text=" and ".join(rule.text for rule in held))
    open_times = [rule.ripe_ms for rule in active if not rule.holds]
    times = [ripe_ms for ripe_ms in open_times if ripe_ms is not None]
    evaluate_again_ms = min(times, default=None)
    if combine == ALL:
        evaluate_again_ms = max(times) if times and len(times) == len(open_times) else None
    return Ruling(is_due=False, text="; ".join(rule.text for rule in shown), evaluate_again_ms=evaluate_again_ms)


# --- The decision about one service of one table, with its reason in words

Evidence: TypeAlias = "Mapping[str, int | float | str | None]"
"""The numbers and instants that a decision rests on."""


class Verdict(StrEnum):
    """Whether a service should run now."""

    DUE = "due"
    NOT_DUE = "not_due"
    BLOCKED = "blocked"
    """It would be due, but must not run before a person changes what the reason names."""


class KeptBy(StrEnum):
    """What keeps a service from running, besides that it is not due; the reason names it in words."""

    NOTHING = ""
    PAUSE = "pause"
    OBSERVED = "observed"
    LOCK = "lock"
    """Service and writers have no lock in common."""
    WRITERS = "writers"
    """A writer that takes no lock, or is not set up as the service needs it."""
    CONFLICT = "conflict"
    """A writer at work on what the service would rewrite."""
    TABLE = "table"
    """What a person has to repair, or change: of the table's files, its layout, its zone, the policy."""
    DAG = "dag"
    WINDOW = "window"
    RUN = "run"
    """Another run of the table."""
    BUDGET = "budget"
    """A budget, a pool or a queue."""
    SPREAD = "spread"
    """A pause of seconds or minutes, so that not everything starts at once."""


@dataclass(frozen=True, slots=True)
class DecisionBasis:
    """What the registry keeps of a decision when the manager creates a run for it (`last_runs.LastRun`)."""

    digest: str = ""
    """Of what the decision rests on, new writes aside. A run that had an effect changes it."""
    newest_write: str = ""
    """Completed time of the newest completed write."""
    retained_from: str = ""
    """Cleaning leaves what writes that completed from this moment on replaced; empty is not known."""
    is_certain: bool = True
    """Whether the timeline shows that there is something to do; otherwise only a run finds out."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One service of one table, decided.

    `key_instant` names what the decision rests on (a pending plan, else the newest completed write): the same
    state of the table gives the same key, so that two evaluations cannot start two runs. Empty unless due.
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
    evaluate_again_ms: int | None = None
    """When time alone may change the decision, ms since the epoch; None when only the table can."""
    basis: DecisionBasis = field(default_factory=DecisionBasis)
    kept_by: KeptBy = KeptBy.NOTHING


class Urgency(IntEnum):
    """How soon a due service should start when there are too few slots: Airflow's `priority_weight` of its run.

    Where budgets are too small, it weighs what the service brings (`ranking.WEIGHTS`).
    """

    MASS = 1
    """What can wait: rewrites and searches of whole tables, and what has a period."""
    USUAL = 2
    OVERDUE = 3
    """Its rule holds twice over, or its plan is on the timeline: readers get slower."""
    GROWING = 4
    """As before, of cleaning and archiving: storage or the timeline grows."""
    UNBLOCKS = 5
    """Writers, or all other services of the table, wait for it."""
    AGED = 6
    """It has waited for a slot for long: what is more urgent must not starve it. Only the sweep assigns this."""

    @property
    def word(self) -> str:
        """The urgency as people read it."""
        return self.name.lower()


def urgency_of(decision: Decision, policy: TablePolicy) -> Urgency:
    """Return the urgency of a due decision, from its evidence and the policy's rules."""
    traits = TRAITS[decision.service]
    if decision.service is Service.ROLLBACK or decision.mode is Mode.WITHDRAW:
        return Urgency.UNBLOCKS
    if traits.has_period:
        return Urgency.MASS
    if decision.plan_instants and decision.service is Service.CLUSTERING:
        return Urgency.UNBLOCKS
    if decision.plan_instants or _holds_twice_over(decision, policy):
        return Urgency.GROWING if traits.retains else Urgency.OVERDUE
    return Urgency.MASS if traits.can_wait else Urgency.USUAL


def _holds_twice_over(decision: Decision, policy: TablePolicy) -> bool:
    names = {
        Service.COMPACTION: ("delta_commits", policy.compaction.delta_commits),
        Service.CLEAN: ("writes_since_clean", policy.clean.commits),
        Service.ARCHIVE: ("active_writes", policy.archive.max_commits),
        Service.METACOMPACTION: ("writes_since", policy.metacompaction.commits),
    }
    if decision.service not in names:
        return False
    name, rule = names[decision.service]
    found = decision.evidence.get(name)
    return rule is not None and isinstance(found, int) and found >= 2 * rule


def not_due(
    service: Service, reason: str, evidence: Evidence = MappingProxyType({}), evaluate_again_ms: int | None = None
) -> Decision:
    """Return the decision that a service need not run."""
    return Decision(service, Verdict.NOT_DUE, of_one(reason), evidence=evidence, evaluate_again_ms=evaluate_again_ms)


def only_observe(decisions: Sequence[Decision], why: str) -> tuple[Decision, ...]:
    """Return the decisions about a table that is observed: none starts a service or notifies people.

    `why` is the reason; empty for a table that is managed, whose decisions stay as they are.
    """
    return tuple(
        _observed(found, why) if why and found.verdict is not Verdict.NOT_DUE else found for found in decisions
    )


def _observed(decision: Decision, why: str) -> Decision:
    reason = f"only observed, else {decision.verdict}: {decision.reason} ({why})"
    found = not_due(decision.service, reason, decision.evidence, decision.evaluate_again_ms)
    return replace(found, kept_by=KeptBy.OBSERVED)


def hold_paused(decision: Decision, policy: TablePolicy, now_ms: int) -> Decision:
    """Return a decision, or, while its service is paused, that the service need not run: by whom, and what is found."""
    by = policy.find_pause(decision.service, now_ms)
    if not by:
        return decision
    else_ = "" if decision.verdict is Verdict.NOT_DUE else f"else {decision.verdict}: "
    ends_ms = policy.find_pause_end_ms(decision.service, now_ms)
    again_ms = min((at for at in (decision.evaluate_again_ms, ends_ms) if at is not None), default=None)
    found = not_due(decision.service, f"paused by {by}; {else_}{decision.reason}", decision.evidence, again_ms)
    return replace(found, kept_by=KeptBy.PAUSE)


def block_without_lock(due: Decision, hudi_options: Mapping[str, str]) -> Decision:
    """Return a due decision, or, when the options hold no lock that reaches the writers, that it is blocked."""
    problem = find_lock_problem(hudi_options)
    if problem is None:
        return due
    return _block(due, problem, KeptBy.LOCK)


def stable_key(writes: Sequence[Instant], every: int) -> str:
    """Return the requested time of the first write, later of every n-th one.

    A service that is due, runs and finds nothing to do leaves no trace on the timeline. With this key it is not run
    again for the next commit, but for the n-th one.
    """
    if not writes:
        return ""
    full_buckets = len(writes) // every
    return writes[max(full_buckets * every - 1, 0)].requested_time


# --- What a sink of replication, or a reader, still needs of a table. Pure


@dataclass(frozen=True, slots=True)
class Hold:
    """The oldest hold that counts. The jobs of cleaning and archiving clamp to it again when they begin."""

    instant: str
    """Requested time from which on files and instants are needed; `0` is everything."""
    holder: str
    """The sink's name, or the reader, and why it reads."""
    ends_ms: int
    """When it is released unless the sink makes progress, or the reader renews it, ms since the epoch."""
    is_reader: bool = False

    def describe(self) -> str:
        """Return which sink or reader holds what, and until when."""
        what = "everything" if self.instant == "0" else f"everything since {self.instant}"
        if self.is_reader:
            return f"reader {self.holder} holds {what}, until {self._ends} UTC unless it renews its hold"
        return f"sink {self.holder} holds {what}, until {self._ends} UTC unless it makes progress"

    def evidence(self) -> Evidence:
        """Return the same as evidence."""
        return {"held_by": self.holder, "held_from": self.instant, "held_until": self._ends}

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
    """Raise WriterUnguardedError when a writer that takes no lock may be active.

    `pending_writes` are requested times. In multi-writer mode a heartbeat exists before the instant and until it
    completes, and a writer that is killed leaves it behind. In single-writer mode there is none, and such a writer may
    roll back what others have in flight. Its age proves nothing: a commit may take hours.
    """
    unguarded = tuple(sorted(time for time in pending_writes if time not in heartbeats))
    if unguarded:
        raise WriterUnguardedError(f"table {table}: {explain_unguarded(unguarded)}")


def explain_unguarded(writes: Collection[str]) -> str:
    """Explain what pending writes without a heartbeat mean, and what to do; `writes` are requested times."""
    named = ", ".join(writes)
    several = len(writes) > 1
    return (
        f"the write{'s' if several else ''} {named} {'are' if several else 'is'} in flight without a heartbeat, so "
        "nothing proves that the writer is dead, and it takes no lock: set "
        f"{CONCURRENCY_MODE}={OPTIMISTIC} (with it hoodie.clean.failed.writes.policy=LAZY) and the same "
        f"{LOCK_PROVIDER} in every writer as in this service; a write that its dead writer left is rolled back by that "
        "writer's next commit, or by a run of the service rollback by hand that names the instant"
    )


# --- Block every due service that Hudi would fail each time, until a person repairs the table. Pure


def block_stopped(decisions: Sequence[Decision], view: TableView, files: TimelineFiles) -> tuple[Decision, ...]:
    """Return the decisions, those that are due blocked by a pending restore, an empty plan or a lost metadata table."""
    plans = find_empty_plans((entry.name, entry.size_bytes) for entry in files.entries)
    lost = point_to_lost_metadata(view.properties.metadata_partitions) if files.is_metadata_lost else ""
    restoring = explain_pending_restore(restore.requested_time for restore in view.timeline.pending(Action.RESTORE))
    found = []
    for decision in decisions:
        is_repair = decision.mode is Mode.WITHDRAW
        problem = restoring or ("" if is_repair else lost or find_stopping(decision.service, plans))
        found.append(_block(decision, problem) if problem and decision.verdict is Verdict.DUE else decision)
    return tuple(found)


# --- Block every due service of a table on which another time zone than the jobs' named instants. Pure


def block_archived_behind(behind: ArchivedBehind | None, decision: Decision) -> Decision:
    """Return the decision, blocked where it is due and its job would make the loss of archived writes final."""
    if behind is None or decision.verdict is not Verdict.DUE or TRAITS[decision.service].is_harmless_to_unseen:
        return decision
    return _block(decision, behind.refuse())


def block_foreign_zone(
    decisions: Sequence[Decision], view: TableView, policy: TablePolicy, stamps: Sequence[Stamp], now_ms: int
) -> tuple[Decision, ...]:
    """Return the decisions, those that are due blocked when an instant was not named in the jobs' zone.

    Archiving names no instant, but archives by their order.
    """
    table_zone = view.properties.time_zone
    zone = zone_of_jobs(table_zone, policy.spark_conf)
    foreign = find_foreign(stamps, zone.offset_ms, now_ms)
    if foreign is None:
        return tuple(decisions)
    problem = describe_foreign(foreign, zone.name, table_zone)
    return tuple(_block(decision, problem) if decision.verdict is Verdict.DUE else decision for decision in decisions)


# --- Block what a table's layout forbids. Pure


def block_by_layout(decisions: Sequence[Decision], layout: TableLayout, policy: TablePolicy) -> tuple[Decision, ...]:
    """Return the decisions, those that are due blocked when the table's layout forbids the service."""
    return tuple(_block_by_layout(one, layout, {**policy.hudi_options, **one.options}) for one in decisions)


def _block_by_layout(decision: Decision, layout: TableLayout, options: Mapping[str, str]) -> Decision:
    if decision.verdict is not Verdict.DUE:
        return decision
    problem = find_layout_problem(decision.service, decision.mode, layout, options)
    return _block(decision, problem) if problem else decision


# --- Block what goes by a table's partitions while another table lies among them. Pure


def block_outer_table(decisions: Sequence[Decision], inner: str, *, has_metadata: bool) -> tuple[Decision, ...]:
    """Return the decisions, those that are due blocked where Hudi lists the partitions of a table in `inner` as well.

    With a metadata table only archiving does, for the readers without it; the job finds out whether the metadata table
    lists them, too.
    """
    if not inner:
        return tuple(decisions)
    problem = explain_inner_table(inner, is_in_metadata=None if has_metadata else False)
    return tuple(
        _block(found, problem)
        if may_meet_inner(found) and (not has_metadata or found.service is Service.ARCHIVE)
        else found
        for found in decisions
    )


def may_meet_inner(decision: Decision) -> bool:
    """Whether a service is due that another table among the partitions may forbid."""
    is_due = decision.verdict is Verdict.DUE and decision.mode is not Mode.WITHDRAW
    return is_due and TRAITS[decision.service].lists_partitions


# --- Block the rewriting of a table whose readers would have seen other rows. Pure


def block_rewrites(decisions: Sequence[Decision], problem: str) -> tuple[Decision, ...]:
    """Return the decisions, those blocked that are due and rewrite rows, where there is a problem with that."""
    return tuple(
        _block(decision, problem) if problem and is_due_rewrite(decision) else decision for decision in decisions
    )


def is_due_rewrite(decision: Decision) -> bool:
    """Whether a service is due that rewrites rows which readers see already."""
    return decision.verdict is Verdict.DUE and decision.service in REWRITES


def _block(due: Decision, problem: str, kept_by: KeptBy = KeptBy.TABLE) -> Decision:
    reason = f"{due.reason}, but {problem}"
    return Decision(due.service, Verdict.BLOCKED, reason, evidence=due.evidence, kept_by=kept_by)
