"""Which commits and snapshots are to be replicated, decided from one read of the table's timeline; pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import ConfigError, SeekRefusedError
from airflow_lake_provider.instant_clock import shift_instant_time
from airflow_lake_provider.replication.checkpoint import Checkpoint, SnapshotProgress, unread, with_done

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_lake_provider.replication.change import CommitRef

_SECONDS_OF_INSTANT = 14
"""Characters of an instant time without milliseconds."""
# Hudi's WriteOperationType.yieldChanges, inverted: these rewrite files and change no row.
OPERATIONS_WITHOUT_CHANGES = frozenset(
    {"COMPACT", "LOG_COMPACT", "CLUSTER", "INDEX", "BUCKET_RESCALE", "ALTER_SCHEMA", "BUILD"}
)


@dataclass(frozen=True, slots=True)
class CleansAfter:
    """What cleans left, as in `SourceTimeline`; a clean spares the files of savepoints that its plan names."""

    retained_from: str
    cleaned_without_bound: str


@dataclass(frozen=True, slots=True)
class SourceTimeline:
    """One read of the table's active timeline. All times are requested times unless named otherwise."""

    completed: tuple[CommitRef, ...]
    """Completed commits, deltacommits and replacecommits that change rows, in any order."""
    silent: frozenset[str] = frozenset()
    """Completed ones that change no row: compactions, clusterings, index builds."""
    pending: tuple[str, ...] = ()
    """Writes that are requested or inflight, without plans of table services."""
    compactions: frozenset[str] = frozenset()
    """Compactions, pending ones too: each begins a new file slice in the file groups of its plan."""
    earliest: str = ""
    """The oldest write on the active timeline, in any state; empty on an empty timeline."""
    retained_from: str = ""
    """What the last clean kept: files that only earlier commits need are deleted. Empty before the first clean."""
    cleaned_without_bound: str = ""
    """The last clean, or plan of one, that deletes files without a bound by commits; requested time."""
    has_history: bool = False
    """Whether instants were archived."""
    has_savepoints: bool = False
    """Archiving may then leave the commits of savepoints, and take those after them."""
    saved: Mapping[str, CleansAfter] = field(default_factory=lambda: MappingProxyType({}))
    """By instant with a savepoint: what the cleans left that did not spare its files."""
    restored: str = ""
    """The last restore, pending ones too; its requested time."""
    from_before_upgrade: frozenset[str] = frozenset()
    """Completed commits whose log files are named as before table version 8, in a table that is of a later one now."""

    @property
    def known(self) -> frozenset[str]:
        """Completed writes of both kinds."""
        return self.silent.union(commit.requested_time for commit in self.completed)

    def first_compaction_after(self, instant: str) -> str:
        """Return the first compaction, pending or not, that was requested after an instant; empty without one."""
        return min((compaction for compaction in self.compactions if compaction > instant), default="")


def find_gap(checkpoint: Checkpoint, timeline: SourceTimeline) -> str | None:
    """Return in one sentence why the changes after a checkpoint can no longer be read; None when they can.

    Hudi does not report it: reading cleaned or archived ranges returns fewer rows, or fails in some task.
    """
    known = timeline.known
    if checkpoint.commit is not None and checkpoint.commit.requested_time not in known:
        requested = checkpoint.commit.requested_time
        if timeline.has_history or not timeline.earliest or timeline.earliest <= requested:
            return (
                f"commit {requested} of the checkpoint is not on the active timeline: archived, or undone by a restore"
            )
        return (
            f"the timeline begins at {timeline.earliest}, after the checkpoint's commit {requested}: "
            "this is another table"
        )
    undone = _find_undone(checkpoint, timeline)
    if undone:
        return f"commit {undone}, which was replicated, is no longer on the active timeline: undone by a restore"
    if checkpoint.hold and timeline.earliest > checkpoint.hold:
        return f"the active timeline begins at {timeline.earliest}, instants from {checkpoint.hold} on were needed"
    return _find_unreadable(checkpoint, timeline)


def _find_undone(checkpoint: Checkpoint, timeline: SourceTimeline) -> str:
    """Return a commit that the sink has and the timeline, which reaches further back, lacks; empty without one.

    The checkpoint's own commit is no proof: a restore may leave it and undo another, because the two orders differ.
    """
    known = timeline.known
    undone = [done for done in checkpoint.done if done not in known and timeline.earliest and done >= timeline.earliest]
    return min((done for done in undone if not timeline.has_savepoints or done < timeline.restored), default="")


def _find_unreadable(checkpoint: Checkpoint, timeline: SourceTimeline) -> str | None:
    """Return why unread files cannot be read: deleted by a clean, or not in the snapshot's file slices."""
    retained_from = timeline.retained_from
    clean = timeline.cleaned_without_bound
    needed = [commit.requested_time for commit in unread(checkpoint, timeline.completed)]
    snapshot = checkpoint.snapshot
    if snapshot is not None:
        # Once it has keys, the rows behind them must have what it gets only those keys' changes of.
        cut = _find_cut(snapshot.instant, timeline, checkpoint.has if snapshot.after is None else None)
        if cut is not None:
            commit, compaction = cut
            return (
                f"a snapshot at {snapshot.instant} lacks rows of commit {commit.requested_time}: compaction "
                f"{compaction} was planned before that commit completed"
            )
        spared = timeline.saved.get(snapshot.instant, CleansAfter(retained_from, clean))
        over = spared.cleaned_without_bound if spared.cleaned_without_bound > snapshot.clean else ""
        gone = _find_cleaned([snapshot.instant], spared.retained_from, over)
        if gone is not None:
            return gone
        needed = [instant for instant in needed if snapshot.after is not None and instant <= snapshot.instant]
    older = timeline.from_before_upgrade.intersection(needed)
    if older:
        # Such a log file carries the instant of its base file: readers take it for written with that one.
        return (
            f"commit {min(older)} was not replicated before the table was upgraded to version 8 or later, and what "
            "its log files changed can no longer be read"
        )
    return _find_cleaned(needed, retained_from, clean)


def _find_cleaned(needed: Sequence[str], retained_from: str, clean: str) -> str | None:
    deleted = [instant for instant in needed if instant < retained_from]
    if deleted:
        return (
            f"commit {min(deleted)} was not replicated, and a clean kept only what readers since {retained_from} need"
        )
    overtaken = [instant for instant in needed if instant < clean]
    if overtaken:
        return f"commit {min(overtaken)} was not replicated before clean {clean} deleted files"
    return None


def hold_of(checkpoint: Checkpoint, timeline: SourceTimeline) -> str:
    """Return the requested time from which the table's files and instants are needed after this checkpoint.

    The commit of the checkpoint is included: it proves, later, that the timeline still joins on.
    """
    needed = [commit.requested_time for commit in unread(checkpoint, timeline.completed)]
    needed += timeline.pending
    if checkpoint.snapshot is not None:
        needed.append(checkpoint.snapshot.instant)
    if checkpoint.commit is not None:
        needed.append(checkpoint.commit.requested_time)
    return min(needed, default="")


def find_watermark(checkpoint: Checkpoint, timeline: SourceTimeline) -> str:
    """Return the last completion time at or before which the sink has every commit, whatever completes from now on.

    A write completes after it was requested, so none that is pending now completes before its requested time. The
    checkpoint's floor is a lower bound that pending writes do not hold back.
    """
    lacking = [commit.completed_time for commit in unread(checkpoint, timeline.completed)]
    bound = min((*lacking, *timeline.pending), default="9")
    before = [commit.completed_time for commit in timeline.completed if commit.completed_time < bound]
    return max((checkpoint.floor, *before))


def begin_snapshot(checkpoint: Checkpoint, timeline: SourceTimeline, request: str = "") -> Checkpoint | None:
    """Return a checkpoint that begins a snapshot of everything completed; None when there is nothing to snapshot yet.

    The snapshot's instant is before the first pending write: requested times alone then show what it holds, whatever
    completes when. It may be a compaction, a pending one too: cleans keep what readers of that one need.
    """
    instant = _find_snapshot_instant(timeline)
    if instant is None:
        return None
    held = [commit for commit in timeline.completed if commit.requested_time <= instant]
    last = max(held, key=lambda commit: commit.requested_time)
    # Cleans without a bound keep the newest versions: those of the snapshot, unless some were newer by then.
    clean = timeline.cleaned_without_bound if _is_newest_before_clean(instant, timeline) else ""
    snapshot = SnapshotProgress(instant, clean=clean)
    fresh = replace(checkpoint, commit=last, snapshot=snapshot, generation=checkpoint.generation + 1)
    return _begin_anew(fresh, held, timeline, request)


def move_snapshot(checkpoint: Checkpoint, timeline: SourceTimeline) -> Checkpoint | None:
    """Return the checkpoint of a snapshot that goes on at a newer instant; None without such a one.

    What it has not of the commits until then are their changes of the keys that it has.
    """
    progress = checkpoint.snapshot
    instant = _find_snapshot_instant(timeline)
    if progress is None or progress.after is None or instant is None or instant <= progress.instant:
        return None
    if not any(commit.requested_time <= instant for commit in unread(checkpoint, timeline.completed)):
        return None
    clean = timeline.cleaned_without_bound if _is_newest_before_clean(instant, timeline) else ""
    moved = replace(checkpoint, snapshot=replace(progress, instant=instant, clean=clean))
    return moved if find_gap(moved, timeline) is None else None


def _find_snapshot_instant(timeline: SourceTimeline) -> str | None:
    """Return the last instant before the first pending write that shows a complete snapshot; None without one.

    Without a pending write that is the last write or compaction, which no compaction follows. With one, any compaction
    before it qualifies, unless a write that it should hold was pending until after the next one was planned: so a
    table where writes and compactions always overlap does not block a snapshot indefinitely.
    """
    boundary = min(timeline.pending, default="9")
    first = min((commit.requested_time for commit in timeline.completed), default="9")
    candidates = sorted(
        (found for found in timeline.known | timeline.compactions if first <= found < boundary), reverse=True
    )
    for position, instant in enumerate(candidates):
        is_kept = instant >= timeline.retained_from and _is_newest_before_clean(instant, timeline)
        if (position == 0 or is_kept) and _find_cut(instant, timeline) is None:
            return instant
    return None


def _is_newest_before_clean(instant: str, timeline: SourceTimeline) -> bool:
    return not any(instant < known < timeline.cleaned_without_bound for known in timeline.known)


def _find_cut(
    instant: str, timeline: SourceTimeline, is_in_sink: Callable[[CommitRef], bool] | None = None
) -> tuple[CommitRef, str] | None:
    """Return a commit that a snapshot at an instant should have and lacks rows of, and the compaction that caused it.

    Hudi 1.x puts a log file into the newest file slice whose instant is not after the file's *completion*, pending
    compactions' slices included (HoodieFileGroup.getBaseInstantTime), and a reader at an instant skips slices
    with a later one. So the rows of a commit that completed after a compaction was planned are seen only from that
    compaction's instant on.
    """
    compaction = timeline.first_compaction_after(instant)
    cut = [commit for commit in timeline.completed if commit.requested_time <= instant]
    cut = [commit for commit in cut if is_in_sink is None or is_in_sink(commit)]
    last = max(cut, key=lambda commit: commit.order, default=None)
    if not compaction or last is None or last.completed_time < compaction:
        return None
    return last, compaction


def find_snapshot_block(timeline: SourceTimeline) -> str:
    """Return what keeps a snapshot from beginning: a pending write, and why. Empty when none does."""
    if not timeline.completed or not timeline.pending:
        return ""
    first = min(timeline.pending)
    held = [known for known in timeline.known | timeline.compactions if known < first]
    cut = _find_cut(max(held), timeline) if held else None
    if cut is not None:
        commit, compaction = cut
        return (
            f"a snapshot cannot begin before write {first} completes or is rolled back: compaction {compaction} was "
            f"planned while it and write {commit.requested_time} were pending, and a snapshot before {first} would "
            f"lack rows of {commit.requested_time}"
        )
    return (
        f"a snapshot cannot begin before write {first} completes or is rolled back: it is pending since before all "
        f"{len(timeline.completed)} completed commits of the active timeline"
    )


def parse_seek_time(text: str) -> str:
    """Return the time of a seek as an instant time with milliseconds. Raises ConfigError for any other text.

    Instants are compared as texts: a date alone, or ISO 8601, is before or after all of them, whatever it means.
    """
    digits = f"{text}000" if len(text) == _SECONDS_OF_INSTANT else text
    if not digits.isdecimal() or shift_instant_time(digits, 0) != digits:
        raise ConfigError(
            f"seek_until is {text!r}, allowed: an instant time as on the table's timeline and in its zone, "
            "yyyyMMddHHmmssSSS, for example 20260601000000000"
        )
    return digits


END_OF_TIME = "9" * 17
"""An instant time after all others."""


def seek(checkpoint: Checkpoint, timeline: SourceTimeline, completed_until: str, request: str = "") -> Checkpoint:
    """Return a checkpoint from which the commits that completed after `completed_until` are replicated.

    The generation stays, for the sink's rows do: readers get those commits once more, in order. Only a stream that has
    nothing yet begins its first one. Raises SeekRefusedError within a snapshot, whose rest would be missing for good.
    """
    if checkpoint.snapshot is not None:
        raise SeekRefusedError(
            f"stream {checkpoint.stream} has its snapshot at {checkpoint.snapshot.instant} in part only, so it cannot "
            f"seek to {completed_until}: let it replicate until the snapshot is whole, then seek"
        )
    before = [commit for commit in timeline.completed if commit.completed_time <= completed_until]
    last = max(before, key=lambda commit: commit.order, default=None)
    generation = checkpoint.generation + (checkpoint.sequence == 0)
    moved = replace(checkpoint, commit=last, generation=generation)
    return _begin_anew(moved, before, timeline, request)


def _begin_anew(
    checkpoint: Checkpoint, in_sink: Sequence[CommitRef], timeline: SourceTimeline, request: str
) -> Checkpoint:
    """Return the checkpoint with these commits, and no others, counted as in the sink."""
    fresh = replace(checkpoint, floor="", done=(), part=None, spread=None, request=request or checkpoint.request)
    fresh = with_done(fresh, (commit.requested_time for commit in in_sink), timeline.completed)
    return replace(fresh, hold=hold_of(fresh, timeline))


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a sink is behind: commits that it does not have, and the completion time of the oldest of them."""

    commits: int
    oldest_completed_time: str
    snapshot_rows: int | None = None
    """Within a snapshot, whose instant the commits come after: how many of its rows the sink has."""
    snapshot_total: int | None = None
    """How many rows the snapshot has, where they were counted."""


def lag_of(checkpoint: Checkpoint | None, timeline: SourceTimeline) -> Lag:
    """Count what a sink does not have: without a checkpoint everything, within a snapshot what its instant lacks."""
    if checkpoint is None:
        missing = sorted(timeline.completed, key=lambda commit: commit.order)
    else:
        missing = unread(checkpoint, timeline.completed)
    oldest = missing[0].completed_time if missing else ""
    if checkpoint is None or checkpoint.snapshot is None:
        return Lag(len(missing), oldest)
    return Lag(len(missing), oldest, checkpoint.snapshot.rows, checkpoint.snapshot.total)
