"""Whether a user's own write can still win, by what storage shows (pure), and the watch that reads it repeatedly.

Hudi decides at the commit: the write that commits first wins, and Hudi rejects each write that shares a file group with
it and began before that commit. So a write has certainly lost when such a commit completed. Before that RFC-56's order
counts: of two live writers on one file group the older continues. A writer that has already lost blocks no other. The
guard reports what is not certain, and ends no write for it: a file that cannot be read, a plan that may be withdrawn, a
commit from the moment at which the write began.

Source: Hudi 1.2 `SimpleConcurrentFileWritesConflictResolutionStrategy`, `PreferWriterConflictResolutionStrategy`,
`BucketIndexConcurrentFileWritesConflictResolutionStrategy`, `HoodieLockConfig`, `BaseHoodieWriteClient.startCommit`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.conflict.contention import (
    STRATEGY,
    Clash,
    ClashKind,
    WriteIntent,
    WriterRule,
    describe_file_groups,
    find_writer_rule,
    must_yield,
)
from airflow_lake_provider.conflict.marker_reader import ActiveInstant, Role
from airflow_lake_provider.hudi.commit_metadata import split_file_group_key
from airflow_lake_provider.instant_clock import shift_instant_time
from airflow_lake_provider.shared.actions import Action, State

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_lake_provider.conflict.activity import ConflictTable, TableActivity
    from airflow_lake_provider.hudi.commit_metadata import CommitMetadata
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.timeline_server.snapshot import TimelineSnapshot

# --- What a write touches, compared with another instant


@dataclass(frozen=True, slots=True)
class _Touched:
    """What one write touches: file groups (keys, or buckets), and whole partitions; None: the whole table."""

    keys: frozenset[bytes]
    overwritten: frozenset[str] | None = frozenset()

    @staticmethod
    def of(active: ActiveInstant, rule: WriterRule) -> _Touched:
        return _Touched(rule.comparable(active.markers.file_groups() | active.planned), active.overwritten)

    def shared(self, other: _Touched) -> frozenset[bytes]:
        """Return what both touch, as far as it is named."""
        return (self.keys & other.keys) | _inside(self.keys, other.overwritten) | _inside(other.keys, self.overwritten)


def _inside(keys: frozenset[bytes], partitions: frozenset[str] | None) -> frozenset[bytes]:
    if partitions is None:
        return keys
    if not partitions:
        return frozenset()
    return frozenset(key for key in keys if split_file_group_key(key)[0] in partitions)


# --- The forecast

SETTLE_MS = 60_000
"""Hudi notes what has completed some time after it took the instant. A commit of that time may be in what the write
began with, unless the write was seen to have planned its work before.
"""


class Outlook(StrEnum):
    """What becomes of a write, as far as storage shows it."""

    NOT_BEGUN = "not begun"
    """It has no instant yet, or none that is known to be its own."""
    CAN_WIN = "can win"
    LOSES = "loses"
    """Hudi will reject it; `clashes` say because of what."""
    COMMITTED = "committed"
    UNKNOWN = "unknown"
    """`notes` say why nothing is certain."""


@dataclass(frozen=True, slots=True)
class WriteForecast:
    """The outlook of one write (`instant`), with what is certain (`clashes`) and what is not (`notes`)."""

    outlook: Outlook
    instant: str = ""
    clashes: tuple[Clash, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WriteFacts:
    """What one reading of a table shows of the write `instant`.

    `completed` are writes that completed since its oldest rival began, with their metadata by requested time in
    `commits`. `planned_after` has, of each pending write that was seen inflight, the latest completion that was seen
    then: it had planned its work, so what completed later is not in what it began with. `old_plans` are services' plans
    that lasted longer than the provider needs to withdraw one of its own.
    """

    instant: str
    activity: TableActivity
    completed: tuple[Instant, ...] = ()
    commits: Mapping[str, CommitMetadata] = field(default_factory=lambda: MappingProxyType({}))
    planned_after: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    old_plans: frozenset[str] = frozenset()
    damaged: tuple[str, ...] = ()


class _Fate(StrEnum):
    SURVIVES = "survives"
    LOST = "lost"
    UNCLEAR = "unclear"


def judge_write(facts: WriteFacts, rule: WriterRule) -> WriteForecast:
    """Judge one write by one reading of its table."""
    timeline = facts.activity.snapshot.timeline
    if any(instant.requested_time == facts.instant for instant in timeline.completed()):
        return WriteForecast(Outlook.COMMITTED, facts.instant)
    own = next((active for active in facts.activity.actives if active.instant == facts.instant), None)
    if own is None or not own.action:
        return WriteForecast(Outlook.NOT_BEGUN, facts.instant)
    if rule.unjudged:
        return WriteForecast(Outlook.UNKNOWN, facts.instant, notes=(rule.unjudged,))
    notes = [f"restore {restore.requested_time} is pending" for restore in timeline.pending(Action.RESTORE)]
    mine = _Touched.of(own, rule)
    commits, maybe = _commit_clashes(facts, rule, own.instant, mine)
    notes += [f"{clash}, when this write was beginning" for clash in maybe]
    writers = _writer_clashes(facts, rule, mine, notes)
    plans = _plan_clashes(facts, rule, mine, notes)
    notes += [f"not read: {name}" for name in (*own.unread, *facts.damaged)]
    clashes = (*commits, *writers, *plans)
    outlook = Outlook.LOSES if clashes else Outlook.UNKNOWN if notes else Outlook.CAN_WIN
    return WriteForecast(outlook, facts.instant, clashes, tuple(notes))


def _commit_clashes(
    facts: WriteFacts, rule: WriterRule, instant: str, mine: _Touched
) -> tuple[list[Clash], list[Clash]]:
    """Return the clashes of a write with what completed since it began: the certain ones, and the others."""
    certain: list[Clash] = []
    maybe: list[Clash] = []
    settled = shift_instant_time(instant, SETTLE_MS)
    planned_after = facts.planned_after.get(instant)
    for other in facts.completed:
        metadata = facts.commits.get(other.requested_time)
        completed = other.completed_time or ""
        if metadata is None or other.requested_time == instant or completed <= instant:
            continue
        if metadata.operation == "COMPACT" and (facts.activity.compactions_pass or other.requested_time < instant):
            continue
        shared = mine.shared(_Touched(rule.comparable(metadata.file_group_keys())))
        if shared:
            is_certain = completed >= settled or (planned_after is not None and completed > planned_after)
            clash = Clash(other.requested_time, other.action.value, ClashKind.COMMIT, shared)
            (certain if is_certain else maybe).append(clash)
    return certain, maybe


def _writer_clashes(facts: WriteFacts, rule: WriterRule, mine: _Touched, notes: list[str]) -> list[Clash]:
    """Return the clashes with older live writers that nothing else makes fail, oldest first."""
    fates: list[tuple[ActiveInstant, _Touched, _Fate]] = []
    found = []
    own = WriteIntent(facts.instant, mine.keys)
    for writer in facts.activity.live_writers():
        if not must_yield(own, writer, rule=rule) or not writer.action:
            continue  # without an action: it has not begun, or it is a reservation, which need not become a write
        touched = _Touched.of(writer, rule)
        fate = _fate_of(facts, rule, writer, touched, fates)
        fates.append((writer, touched, fate))
        notes += [f"not read: {name}" for name in writer.unread]
        shared = mine.shared(touched)
        if shared and fate is _Fate.SURVIVES:
            kind = ClashKind.MARKER if mine.keys & rule.comparable(writer.markers.file_groups()) else ClashKind.PLAN
            found.append(Clash(writer.instant, writer.action, kind, shared))
        elif shared and fate is _Fate.UNCLEAR:
            notes.append(f"writer {writer.instant} shares {describe_file_groups(shared)}, and may lose itself")
    return found


def _fate_of(
    facts: WriteFacts,
    rule: WriterRule,
    writer: ActiveInstant,
    touched: _Touched,
    older: list[tuple[ActiveInstant, _Touched, _Fate]],
) -> _Fate:
    certain, maybe = _commit_clashes(facts, rule, writer.instant, touched)
    met = {fate for _, others, fate in older if touched.shared(others)}
    if certain or _Fate.SURVIVES in met:
        return _Fate.LOST
    plans = _plan_clashes(facts, rule, touched, [])
    is_unclear = maybe or plans or _Fate.UNCLEAR in met or (writer.unread and older)
    return _Fate.UNCLEAR if is_unclear else _Fate.SURVIVES


def _plan_clashes(facts: WriteFacts, rule: WriterRule, mine: _Touched, notes: list[str]) -> list[Clash]:
    """Return the clashes with services' plans that last; the others become notes."""
    found: list[Clash] = []
    own = WriteIntent(facts.instant, mine.keys)
    passes = facts.activity.compactions_pass
    for plan in facts.activity.plans():
        shared = mine.shared(_Touched.of(plan, rule))
        if not shared or not must_yield(own, plan, compactions_pass=passes, rule=rule):
            continue
        clash = Clash(plan.instant, plan.action, ClashKind.PLAN, shared)
        if plan.role is Role.LOG_COMPACTION:
            # Only its completion rejects a writer, and the writer may be first.
            notes.append(str(clash))
        elif plan.role is Role.COMPACTION or plan.instant in facts.old_plans:
            found.append(clash)
        else:
            notes.append(f"{clash}; the plan may be withdrawn for this write")
    return found


def describe_end(base_path: str, forecast: WriteForecast, rule: WriterRule, ran_s: float) -> str:
    """Describe why a write is ended: table, both instants, file groups, the setting, and what to do."""
    clashes = "; ".join(str(clash) for clash in forecast.clashes)
    return (
        f"table {base_path}: write {forecast.instant} is ended early after {ran_s:.0f} s, because Hudi would reject "
        f"it at its commit ({STRATEGY}={rule.strategy_name}): {clashes}. A retry after that one has "
        "ended can win; to avoid the conflict run writers of these partitions one after another (an Airflow pool), or "
        "reserve the partitions (reserve_partitions of the guard)"
    )


# --- Read a table again and again for one write


class GuardWatch:
    """Judges one write by reading its table repeatedly. Not to be shared by threads.

    `identify` returns the write's own instant by the timeline, empty while it is not known. Of a write that is not
    known only the timeline is read.
    """

    def __init__(
        self,
        table: ConflictTable,
        read_snapshot: Callable[[], TimelineSnapshot],
        identify: Callable[[TimelineSnapshot], str],
        plan_patience_s: float,
    ) -> None:
        self._table = table
        self._read_snapshot = read_snapshot
        self._identify = identify
        self._plan_patience_ms = int(plan_patience_s * 1000)
        self._plans_seen_ms: dict[str, int] = {}
        self._planned_after: dict[str, str] = {}
        self._was_begun = False
        self.rule = find_writer_rule(table.hudi_options)
        self.instant = ""

    def check(self, now_ms: int) -> WriteForecast:
        """Read once. Raises what reading a table raises."""
        if not self.instant:
            self.instant = self._identify(self._read_snapshot())
        if not self.instant:
            return WriteForecast(Outlook.NOT_BEGUN)
        # The name after its own, so that its own markers are read too, and those of younger writers are not.
        activity = self._table.read_activity(now_ms, writer=f"{self.instant}0")
        oldest = min((active.instant for active in activity.live_writers()), default=self.instant)
        completed, damaged = self._table.load_commits(min(oldest, self.instant), activity.snapshot)
        facts = WriteFacts(
            self.instant,
            activity,
            completed,
            self._table.commits,
            self._planned_after,
            self._find_old_plans(activity, now_ms),
            damaged,
        )
        forecast = judge_write(facts, self.rule)
        self._note_progress(activity)
        if forecast.outlook is Outlook.NOT_BEGUN and self._was_begun:
            # Rolled back, or committed and archived since the last check.
            return WriteForecast(Outlook.UNKNOWN, self.instant, notes=("its instant is on the timeline no longer",))
        return forecast

    def find_at_work(self, instants: frozenset[str], now_ms: int) -> frozenset[str]:
        """Return which of these are live writers or pending services. Raises what reading a table raises."""
        actives = self._table.read_activity(now_ms).actives
        return instants & {a.instant for a in actives if a.is_live or a.role is not Role.WRITER}

    def _note_progress(self, activity: TableActivity) -> None:
        timeline = activity.snapshot.timeline
        pending = {i.requested_time: i.state for i in timeline.pending()}
        self._was_begun = self._was_begun or self.instant in pending
        latest = max((i.completed_time or "" for i in timeline.completed_writes), default="")
        self._planned_after = {
            name: self._planned_after.get(name, latest) for name, state in pending.items() if state is State.INFLIGHT
        }

    def _find_old_plans(self, activity: TableActivity, now_ms: int) -> frozenset[str]:
        pending = [plan.instant for plan in activity.plans()]
        self._plans_seen_ms = {name: self._plans_seen_ms.get(name, now_ms) for name in pending}
        return frozenset(n for n, ms in self._plans_seen_ms.items() if now_ms - ms >= self._plan_patience_ms)
