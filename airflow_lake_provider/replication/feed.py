"""What there is to replicate, decided from one look at the table's timeline; pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_lake_provider.replication.checkpoint import Checkpoint, SnapshotProgress, unread, with_done

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_lake_provider.replication.change import CommitRef

# Hudi's WriteOperationType.yieldChanges, the other way round: these rewrite files and change no row.
OPERATIONS_WITHOUT_CHANGES = frozenset(
    {"COMPACT", "LOG_COMPACT", "CLUSTER", "INDEX", "BUCKET_RESCALE", "ALTER_SCHEMA", "BUILD"}
)


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the table's active timeline. All times are requested times unless they say otherwise."""

    completed: tuple[CommitRef, ...]
    """Completed commits, deltacommits and replacecommits that change rows, in any order."""
    silent: frozenset[str] = frozenset()
    """Completed ones that change no row: compactions, clusterings, index builds."""
    pending: tuple[str, ...] = ()
    """Writes that are requested or inflight, plans of table services left out."""
    earliest: str = ""
    """The oldest write on the active timeline, in any state; empty on an empty timeline."""
    retained_from: str = ""
    """What the last clean kept: file versions that only earlier commits need are gone. Empty before the first clean."""
    cleaned_without_bound: str = ""
    """The last clean, or plan of one, that deletes files and does not say by commits what it keeps; requested time."""
    has_history: bool = False
    """Whether instants were archived."""
    has_savepoints: bool = False
    """Archiving may then leave the commits of savepoints, and take those after them."""
    restored: str = ""
    """The last restore, pending ones too; its requested time."""

    @property
    def known(self) -> frozenset[str]:
        """Completed writes of both kinds."""
        return self.silent.union(commit.requested_time for commit in self.completed)


def find_gap(checkpoint: Checkpoint, look: Look) -> str | None:
    """Say in one sentence why the changes after a checkpoint can no longer be read; None when they can.

    Hudi does not say so itself: reading cleaned or archived ranges returns fewer rows, or fails in some task.
    """
    known = look.known
    if checkpoint.commit is not None and checkpoint.commit.requested_time not in known:
        requested = checkpoint.commit.requested_time
        if look.has_history or not look.earliest or look.earliest <= requested:
            return (
                f"commit {requested} of the checkpoint is not on the active timeline: archived, or undone by a restore"
            )
        return (
            f"the timeline begins at {look.earliest}, after the checkpoint's commit {requested}: this is another table"
        )
    undone = _find_undone(checkpoint, look)
    if undone:
        return f"commit {undone}, which was replicated, is no longer on the active timeline: undone by a restore"
    if checkpoint.hold and look.earliest > checkpoint.hold:
        return f"the active timeline begins at {look.earliest}, instants from {checkpoint.hold} on were needed"
    return _find_cleaned(checkpoint, look)


def _find_undone(checkpoint: Checkpoint, look: Look) -> str:
    """Return a commit that the sink has and the timeline, which reaches further back, has not; empty without one.

    The checkpoint's own commit does not tell: a restore may leave it and undo another, because the two orders differ.
    """
    known = look.known
    gone = [done for done in checkpoint.done if done not in known and look.earliest and done >= look.earliest]
    return min((done for done in gone if not look.has_savepoints or done < look.restored), default="")


def _find_cleaned(checkpoint: Checkpoint, look: Look) -> str | None:
    """Say which clean may have deleted files that are still to be read; None when none has."""
    clean = look.cleaned_without_bound
    if checkpoint.snapshot is not None:
        needed = [checkpoint.snapshot.instant]
        clean = clean if clean > checkpoint.snapshot.clean else ""
    else:
        needed = [commit.requested_time for commit in unread(checkpoint, look.completed)]
    gone = [instant for instant in needed if instant < look.retained_from]
    if gone:
        return (
            f"commit {min(gone)} was not replicated, and a clean kept only what readers since {look.retained_from} need"
        )
    overtaken = [instant for instant in needed if instant < clean]
    if overtaken:
        return f"commit {min(overtaken)} was not replicated before clean {clean} deleted files"
    return None


def hold_of(checkpoint: Checkpoint, look: Look) -> str:
    """Return the requested time from which on the table's files and instants are needed after this checkpoint.

    The commit of the checkpoint is part of it: it proves, later, that the timeline still joins on.
    """
    needed = [commit.requested_time for commit in unread(checkpoint, look.completed)]
    needed += look.pending
    if checkpoint.snapshot is not None:
        needed.append(checkpoint.snapshot.instant)
    if checkpoint.commit is not None:
        needed.append(checkpoint.commit.requested_time)
    return min(needed, default="")


def begin_snapshot(checkpoint: Checkpoint, look: Look, request: str = "") -> Checkpoint | None:
    """Return a checkpoint that begins a snapshot of everything completed; None when there is nothing to snapshot yet.

    The snapshot's instant is the last write before the first pending one: what it holds is then told by requested
    times alone, whoever completes when. It may be a compaction: cleans keep what readers of that one need.
    """
    boundary = min(look.pending, default="9")
    held = [commit for commit in look.completed if commit.requested_time < boundary]
    if not held:
        return None
    last = max(held, key=lambda commit: commit.requested_time)
    instant = max(known for known in look.known if known < boundary)
    # Cleans without a bound keep the newest versions: those of the snapshot, unless some were newer by then.
    clean = look.cleaned_without_bound
    if any(instant < known < clean for known in look.known):
        clean = ""
    fresh = replace(checkpoint, commit=last, snapshot=SnapshotProgress(instant, clean=clean))
    return _begin_generation(fresh, held, look, request)


def find_snapshot_block(look: Look) -> str:
    """Say which write keeps a snapshot from beginning: nothing completed before it. Empty when none does."""
    if not look.completed or not look.pending:
        return ""
    first = min(look.pending)
    return (
        f"a snapshot cannot begin before write {first} completes or is rolled back: it is pending since before all "
        f"{len(look.completed)} completed commits of the active timeline"
    )


def seek(checkpoint: Checkpoint, look: Look, completed_until: str, request: str = "") -> Checkpoint:
    """Return a checkpoint from which on the commits that completed after `completed_until` are replicated."""
    before = [commit for commit in look.completed if commit.completed_time <= completed_until]
    last = max(before, key=lambda commit: commit.order, default=None)
    return _begin_generation(replace(checkpoint, commit=last, snapshot=None), before, look, request)


def _begin_generation(checkpoint: Checkpoint, in_sink: Sequence[CommitRef], look: Look, request: str) -> Checkpoint:
    """Return the checkpoint as the first of a new generation, with these commits counted as in the sink."""
    fresh = replace(
        checkpoint,
        generation=checkpoint.generation + 1,
        floor="",
        done=(),
        request=request or checkpoint.request,
    )
    fresh = with_done(fresh, (commit.requested_time for commit in in_sink), look.completed)
    return replace(fresh, hold=hold_of(fresh, look))


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a sink is behind: commits that it does not have, and the completion time of the oldest of them."""

    commits: int
    oldest_completed_time: str


def lag_of(checkpoint: Checkpoint | None, look: Look) -> Lag:
    """Count what a sink does not have; without a checkpoint, or within a snapshot, everything."""
    if checkpoint is None or checkpoint.snapshot is not None:
        missing = sorted(look.completed, key=lambda commit: commit.order)
    else:
        missing = unread(checkpoint, look.completed)
    return Lag(len(missing), missing[0].completed_time if missing else "")
