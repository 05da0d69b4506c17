"""The part of a run that writes a snapshot, and between its parts the commits that complete meanwhile.

Rows go in the order of their keys, so that one key says how far the snapshot is. When it has taken a while and commits
wait, it moves on to a newer instant: the sink gets those commits' changes of keys that it has already, and the other
rows are read at the newer instant, which has the changes of all others. So the sink always has, of the keys until that
one, what the table had at an instant, and no commit waits longer for a snapshot than for one of its stretches.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from airflow_lake_provider.errors import ReplicationGapError
from airflow_lake_provider.replication.change import Batch, checksum_of
from airflow_lake_provider.replication.checkpoint import unread
from airflow_lake_provider.replication.feed import begin_snapshot, find_gap, find_snapshot_block, move_snapshot
from airflow_lake_provider.replication.sink import CountedSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_lake_provider.replication.change import Change, CommitRef
    from airflow_lake_provider.replication.checkpoint import Checkpoint, SnapshotProgress
    from airflow_lake_provider.replication.feed import SourceTimeline
    from airflow_lake_provider.replication.sink import Keeper
    from airflow_lake_provider.replication.spread import SnapshotRows, Spreader
    from airflow_lake_provider.replication.transactions import Order, Transactions

log = logging.getLogger(__name__)

_WHILE_READ = "the snapshot was read; it begins again"

_T = TypeVar("_T")
COUNTED_AFTER_S = 10.0
"""A snapshot that takes no longer is whole before people ask how much of it there is."""
_MAX_CHOICES = 5
"""Of a snapshot's instant, next to a writer that cleans."""
_PREPARATIONS = 4
"""A stretch lasts at least so many times as long as its first row took: all rows behind it are sorted once more."""


class SnapshotRun:
    """Writes one snapshot in stretches: the rows of one reading, in one transaction for each part."""

    def __init__(self, run: Transactions, keeper: Keeper, order: Order, spreader: Spreader) -> None:
        self._run = run
        self._spreader = spreader
        self._keeper = keeper
        self._order = order
        self._is_kept = False
        """Whether the keeper, or that of another stream at the same instant, kept the files of the snapshot."""
        self._was_counted = False
        """Whether the source was asked in this run how many rows the snapshot has: once, also when it cannot say."""

    def begin(self, known: Checkpoint) -> tuple[Checkpoint | None, str]:
        """Return a checkpoint that begins a snapshot; None, and why it cannot begin, when it has to wait.

        Both are empty for a table without commits.
        """
        with self._keeper.open() as keep:
            for _ in range(_MAX_CHOICES):
                timeline = self._run.refresh()
                begun = begin_snapshot(known, timeline, self._order.request)
                if begun is None or begun.snapshot is None:
                    break
                self._is_kept = keep(begun.snapshot.instant)
                if not self._is_kept:
                    break
                # A clean that was planned before it was kept does not spare it.
                if find_gap(begun, self._run.refresh()) is None:
                    break
        if begun is not None and begun.snapshot is not None:
            self._keeper.let_go(begun.snapshot.instant)
        waits_for = find_snapshot_block(timeline) if begun is None else ""
        if waits_for:
            log.warning("stream %s: %s", self._order.stream, waits_for)
        return begun, waits_for

    def resume(self, progress: SnapshotProgress | None, timeline: SourceTimeline) -> None:
        """Go on with the snapshot of an earlier run, if there is one, and let go of what a killed run kept."""
        self._is_kept = progress is not None and progress.instant in timeline.saved
        self._keeper.let_go(progress.instant if progress is not None else "")

    def find_commit(self, checkpoint: Checkpoint, progress: SnapshotProgress) -> CommitRef | None:
        """Return the next commit of which the sink needs the changes of keys that it has; None without one."""
        timeline = self._run.seen or self._run.refresh()
        late = [
            commit for commit in unread(checkpoint, timeline.completed) if commit.requested_time <= progress.instant
        ]
        return late[0] if late and progress.after is not None else None

    def write_stretch(self, checkpoint: Checkpoint, progress: SnapshotProgress) -> Checkpoint:
        """Write rows until the snapshot is whole or has to move; return the checkpoint, which then says where to."""
        commit = self._last_commit(checkpoint, progress)
        if commit is None:
            raise ReplicationGapError("a snapshot's checkpoint names no commit")
        clock = _Stretch(self._order.snapshot_pause_s)
        with self._spreader.read_snapshot(progress, checkpoint.spread) as rows:
            if rows is not None:
                return self._send_chunks(replace(checkpoint, commit=commit), commit, progress, rows, clock)
        is_first = progress.after is None
        schema = self._run.source.schema_of(commit)
        for part in self._run.waiting(_parts(self._run.source.read_snapshot(progress), self._order.snapshot_part_rows)):
            clock.note_part()
            for piece in _chunks(part, self._order.batch_rows):
                self._run.write(Batch(commit, piece, checkpoint.generation, is_first, schema))
                is_first = False
            progress = replace(progress, after=part[-1].key, rows=progress.rows + len(part))
            checkpoint = replace(checkpoint, commit=commit, snapshot=progress)
            timeline = self._run.require_no_gap(checkpoint, _WHILE_READ)
            self._keep_on(progress.instant, timeline)
            checkpoint = self._run.commit(checkpoint, timeline, len(part), checksum_of(part))
            ends = self._find_end(checkpoint, progress, timeline, clock)
            if ends is not None:
                return ends
            progress = self._counted(progress, clock)
        return self._end(checkpoint, progress, is_first=is_first)

    def _send_chunks(
        self,
        checkpoint: Checkpoint,
        commit: CommitRef,
        progress: SnapshotProgress,
        rows: SnapshotRows,
        clock: _Stretch,
    ) -> Checkpoint:
        """Have executors send the rows in chunks, each between two transactions of the stream, as a commit."""
        schema = self._run.source.schema_of(commit)
        had_begun = checkpoint.spread is not None
        for spread, kept in self._run.waiting(rows.cut()):
            clock.note_part()
            with kept as changes:
                timeline = self._run.require_no_gap(replace(checkpoint, spread=spread), _WHILE_READ)
                self._keep_on(progress.instant, timeline)
                if progress.after is None and not had_begun:
                    self._run.write(Batch(commit, (), checkpoint.generation, begins_snapshot=True, schema=schema))
                begun, sent = self._run.send(replace(checkpoint, spread=spread), timeline, changes, schema)
            progress = replace(progress, after=spread.until, rows=progress.rows + sent.rows)
            checkpoint = replace(begun, snapshot=progress, spread=None)
            checkpoint = self._run.commit(checkpoint, timeline, sent.rows, sent.checksum)
            if had_begun:
                # Only the rest of that chunk was read.
                return checkpoint
            ends = self._find_end(checkpoint, progress, timeline, clock)
            if ends is not None:
                return ends
            progress = self._counted(progress, clock)
        return self._end(checkpoint, progress, is_first=progress.after is None)

    def _counted(self, progress: SnapshotProgress, clock: _Stretch) -> SnapshotProgress:
        """Return the progress with the number of rows of the whole snapshot, once it has taken a while."""
        source = self._run.source
        if self._was_counted or progress.total is not None or not isinstance(source, CountedSource):
            return progress
        if clock.age_s < COUNTED_AFTER_S:
            return progress
        self._was_counted = True
        return replace(progress, total=source.count_snapshot(progress))

    def _find_end(
        self, checkpoint: Checkpoint, progress: SnapshotProgress, timeline: SourceTimeline, clock: _Stretch
    ) -> Checkpoint | None:
        """Return where the snapshot goes on when the rows that follow are to be read once more; None otherwise."""
        if self.find_commit(checkpoint, progress) is not None:
            # It was visible late, behind the reading's listing of files.
            return checkpoint
        return self._move(checkpoint, timeline) if clock.is_over() else None

    def _end(self, checkpoint: Checkpoint, progress: SnapshotProgress, *, is_first: bool) -> Checkpoint:
        """Return the checkpoint of the whole snapshot, unless a commit came late."""
        commit = checkpoint.commit
        if is_first and commit is not None:  # a table without rows: the sink must drop its rows all the same
            schema = self._run.source.schema_of(commit)
            self._run.write(Batch(commit, (), checkpoint.generation, begins_snapshot=True, schema=schema))
        timeline = self._run.require_no_gap(checkpoint, _WHILE_READ)
        if self.find_commit(checkpoint, progress) is not None:
            return checkpoint
        whole = self._run.commit(replace(checkpoint, snapshot=None), timeline, rows=0, checksum=0)
        self._keeper.let_go("")
        return whole

    def _last_commit(self, checkpoint: Checkpoint, progress: SnapshotProgress) -> CommitRef | None:
        """Return the last commit that the rows at the snapshot's instant have."""
        seen = self._run.seen.completed if self._run.seen is not None else ()
        held = [each for each in seen if each.requested_time <= progress.instant]
        return max(held, key=lambda each: each.requested_time, default=checkpoint.commit)

    def _move(self, checkpoint: Checkpoint, timeline: SourceTimeline) -> Checkpoint | None:
        """Return the checkpoint with a newer instant, whose files are kept; None when there is none yet."""
        moved = move_snapshot(checkpoint, timeline)
        if moved is None or moved.snapshot is None:
            return None
        if self._is_kept:
            with self._keeper.open() as keep:
                if not keep(moved.snapshot.instant):
                    return None
            if move_snapshot(checkpoint, self._run.refresh()) != moved:
                # A clean that was planned before the files were kept does not spare them, or commits came: later.
                return None
        log.info(
            "stream %s: the snapshot has %d rows, and goes on at %s", checkpoint.stream, moved.snapshot.rows,
            moved.snapshot.instant,
        )  # fmt: skip
        return moved

    def let_go_of_others(self, progress: SnapshotProgress) -> None:
        """Let cleans take the files of instants that the snapshot has left, now that this is durable."""
        if self._is_kept:
            self._keeper.let_go(progress.instant)

    def _keep_on(self, instant: str, timeline: SourceTimeline) -> None:
        """Keep the files again where what kept them is gone.

        Hudi has one savepoint of an instant. So another stream's served for this one as well, until that stream had its
        snapshot.
        """
        if self._is_kept and instant not in timeline.saved:
            with self._keeper.open() as keep:
                self._is_kept = keep(instant)


class _Stretch:
    """How long a reading has lasted."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._began_s = time.monotonic()
        self._first_s: float | None = None

    def note_part(self) -> None:
        """Note that rows are there."""
        if self._first_s is None:
            self._first_s = time.monotonic() - self._began_s

    @property
    def age_s(self) -> float:
        """Return how long it has lasted, in seconds."""
        return time.monotonic() - self._began_s

    def is_over(self) -> bool:
        """Whether it has lasted for long enough to be read once more from here on."""
        least_s = max(self._pause_s, _PREPARATIONS * (self._first_s or 0.0)) if self._pause_s else 0.0
        return self.age_s >= least_s


def _parts(rows: Iterable[Change], size: int) -> Iterator[list[Change]]:
    """Return rows in parts of at least this size, of which none ends between two rows of one key."""
    part: list[Change] = []
    for row in rows:
        if len(part) >= size and row.key != part[-1].key:
            yield part
            part = []
        part.append(row)
    if part:
        yield part


def _chunks(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
