"""Bring one sink up to date with one table: a snapshot where one is due, then each unread commit alone.

A commit is one transaction of the sink, or several where it has more rows than one may have (`CommitPart`).
A crash may interrupt every step. Only what the sink committed together with its checkpoint is durable, and every run
begins by reading that checkpoint from the sink.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import ReplicationGapError
from airflow_lake_provider.replication.change import PARTITION_PATH, Batch, checksum_of
from airflow_lake_provider.replication.checkpoint import Checkpoint, CommitPart, from_text, unread, with_done
from airflow_lake_provider.replication.feed import END_OF_TIME, find_gap, seek
from airflow_lake_provider.replication.heartbeat import is_heartbeat_due
from airflow_lake_provider.replication.scope import TargetSink, TargetState, find_other_scope, scope_of
from airflow_lake_provider.replication.sink import READ, NoKeeper
from airflow_lake_provider.replication.snapshot_run import SnapshotRun
from airflow_lake_provider.replication.spread import NoSpreader, find_given_up, give_up
from airflow_lake_provider.replication.transactions import Order, Report, Transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from airflow_lake_provider.replication.change import Change, CommitRef
    from airflow_lake_provider.replication.checkpoint import CommitSpread, SnapshotProgress
    from airflow_lake_provider.replication.sink import ChangeSource, Keeper, Sink
    from airflow_lake_provider.replication.spread import Spreader

log = logging.getLogger(__name__)


class Pump:
    """One run over one table and one sink."""

    def __init__(  # noqa: PLR0913 - the parts of one run, each used as it is
        self,
        source: ChangeSource,
        sink: Sink,
        order: Order,
        on_checkpoint: Callable[[Checkpoint, str], None] = lambda _, __: None,
        keeper: Keeper | None = None,
        spreader: Spreader | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._source = source
        self._sink = sink
        self._order = order
        self._spreader = spreader or NoSpreader()
        self._clock = clock
        self._run = Transactions(source, sink, on_checkpoint, clock if order.heartbeat_s else None)
        self._snapshots = SnapshotRun(self._run, keeper or NoKeeper(), order, self._spreader)
        self._commits = 0
        self._waits_for = ""
        self._has_taken_snapshot = False

    def run(self) -> Report:
        """Open the sink, bring it up to date, close it. Raises what source and sink raise."""
        try:
            text = self._sink.open()
            durable = from_text(text) if text is not None else None
            if durable is not None and durable.stream != self._order.stream:
                raise ReplicationGapError(
                    f"the sink holds the checkpoint of stream {durable.stream!r}, not of {self._order.stream!r}: "
                    "two tables must not share one topic, folder or table"
                )
            checkpoint = self._start(durable, self._find_other_target(durable))
            while checkpoint is not None:
                moved = self._step(checkpoint)
                if moved is None:
                    break
                durable = checkpoint = moved
            if checkpoint is not None:
                durable = self._beat(checkpoint)
            run = self._run
            return Report(
                durable, self._commits, run.rows, run.snapshot_reason, run.bytes, self._waits_for, dict(run.seconds)
            )
        finally:
            self._source.expect(())
            self._sink.close()

    def _find_other_target(self, durable: Checkpoint | None) -> str:
        """Return why the sink's target does not have what the checkpoint says; empty when it does."""
        target = self._sink.find_target() if isinstance(self._sink, TargetSink) else TargetState()
        self._run.scope = scope_of(target.identity, self._order.meaning)
        if durable is None:
            return ""
        if target.is_empty and durable.snapshot is None and not self._order.starts_now:
            return "the sink's target is empty: either it was emptied or made again, or the table had no rows"
        if not durable.scope and PARTITION_PATH in self._order.meaning.get("key", ""):
            return "an earlier release named the rows by other fields than their partition's path"
        return find_other_scope(durable.scope, self._run.scope)

    def _start(self, durable: Checkpoint | None, other: str = "") -> Checkpoint | None:
        """Return the checkpoint to continue from: the sink's own, unless a snapshot or a seek is due."""
        base = durable or Checkpoint(self._order.stream, 0, self._order.generation, None)
        if other:
            return self._begin(base, other)
        is_new_request = bool(self._order.request) and base.request != self._order.request
        if self._order.seek_until and is_new_request:
            timeline = self._run.refresh()
            moved = seek(base, timeline, self._order.seek_until, self._order.request)
            if moved.commit is None and timeline.has_history:
                # Some of the archived commits completed after that time, and cannot be read any more.
                return self._begin(base, f"seek to {self._order.seek_until}: that is before the active timeline")
            return self._run.commit(self._leave_buckets(base, moved), timeline, rows=0, checksum=0)
        if durable is None and self._order.starts_now and not self._order.snapshot:
            timeline = self._run.refresh()
            log.info("stream %s starts with what completes from now on", self._order.stream)
            return self._run.commit(seek(base, timeline, END_OF_TIME), timeline, rows=0, checksum=0)
        if durable is None:
            return self._begin(base, "the sink has nothing of this table yet")
        if self._order.snapshot and is_new_request:
            return self._begin(base, "requested")
        # Hudi begins no query at an instant that a clean has passed, whatever a savepoint keeps of it.
        timeline = self._run.refresh(durable)
        gap = find_gap(durable, replace(timeline, saved={})) or find_given_up(durable)
        if not gap and durable.snapshot is not None and durable.snapshot.is_in_old_order:
            gap = "an earlier release began the snapshot, and read its rows in another order"
        if not gap:
            self._snapshots.resume(durable.snapshot, timeline)
        return self._begin(base, gap) if gap else durable

    def _begin(self, base: Checkpoint, reason: str) -> Checkpoint | None:
        log.warning("stream %s: a new snapshot begins: %s", self._order.stream, reason)
        self._run.snapshot_reason = reason
        known = replace(base, generation=max(base.generation, self._order.generation))
        begun, self._waits_for = self._snapshots.begin(known)
        return begun if begun is None else self._leave_buckets(base, begun)

    def _leave_buckets(self, base: Checkpoint, moved: Checkpoint) -> Checkpoint:
        """Return where the stream goes on, once no bucket of a commit that it leaves in part can be sent any more."""
        if base.spread is None:
            return moved
        given_up = give_up(base)
        self._run.store(given_up)
        # Only now: a task that begins between the two would find its run's own checkpoint.
        self._spreader.end_writers(base.spread)
        return replace(moved, sequence=given_up.sequence)

    def _step(self, checkpoint: Checkpoint) -> Checkpoint | None:
        """Do one transaction; None when nothing is left to do."""
        if checkpoint.snapshot is not None and checkpoint.part is None:
            return self._snapshot(checkpoint, checkpoint.snapshot)
        if checkpoint.is_within_commit and checkpoint.commit is not None:
            return self._replicate(checkpoint, checkpoint.commit)
        todo = unread(checkpoint, self._run.seen.completed) if self._run.seen is not None else []
        if not todo and self._order.ends_early and self._commits:
            # The timeline was read after the last commit's rows, or the commit would not be in the sink.
            return None
        if not todo or (self._has_taken_snapshot and not self._commits):
            timeline = self._run.refresh(checkpoint)
            gap = find_gap(checkpoint, timeline)
            if gap and self._has_taken_snapshot:
                self._waits_for = (
                    f"{gap}: the snapshot took longer than a writer's cleans keep files, so the next run takes "
                    "another; let the writer keep more (hoodie.clean.commits.retained), or not clean by itself"
                )
                log.warning("stream %s: %s", self._order.stream, self._waits_for)
                return None
            if gap:
                return self._begin(checkpoint, gap)
            todo = unread(checkpoint, timeline.completed)
        todo = todo[: self._order.max_commits - self._commits]
        if not todo:
            return None
        self._source.expect(self._spreader.before_first(todo))
        return self._replicate(checkpoint, todo[0])

    def _beat(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return the position, durable once more with the present time where that is due."""
        timeline = self._run.seen
        if self._waits_for or timeline is None:
            return checkpoint
        if not is_heartbeat_due(checkpoint, timeline, self._order.heartbeat_s, self._clock()):
            return checkpoint
        return self._run.commit(checkpoint, timeline, rows=0, checksum=0)

    def _snapshot(self, checkpoint: Checkpoint, progress: SnapshotProgress) -> Checkpoint:
        """Do one step of a snapshot: a commit's changes of the keys that the sink has, or rows behind them."""
        late = self._snapshots.find_commit(checkpoint, progress) if checkpoint.spread is None else None
        if late is not None:
            moved = self._replicate(checkpoint, late)
            self._snapshots.let_go_of_others(progress)
            return moved
        moved = self._snapshots.write_stretch(checkpoint, progress)
        self._has_taken_snapshot = moved.snapshot is None
        return moved

    def _replicate(self, checkpoint: Checkpoint, commit: CommitRef) -> Checkpoint:
        """Write one commit, or the rest of it, in one transaction for each `max_transaction_rows`, or in buckets."""
        spread = checkpoint.spread or (self._spreader.plan(commit) if _is_whole(checkpoint) else None)
        if spread is not None:
            return self._spread(checkpoint, commit, spread)
        rows = 0
        checksum = 0
        most = self._order.max_transaction_rows
        part = checkpoint.part or CommitPart("", 0)
        schema = self._source.schema_of(commit)
        blocks = _cut(self._source.read_blocks(commit, part.after), min(self._order.batch_rows, most))
        for block in self._run.waiting(blocks):
            changes = _among(block, checkpoint.snapshot)
            if self._source.is_by_key(commit):
                if rows >= most and block[0].key != part.after:
                    checkpoint = self._end_part(replace(checkpoint, commit=commit, part=part), commit, rows, checksum)
                    rows = checksum = 0
                part = CommitPart(block[-1].key, part.rows + len(changes))
            if changes:
                self._run.write(Batch(commit, changes, checkpoint.generation, schema=schema))
                rows, checksum = rows + len(changes), checksum_of(changes, checksum)
        # A clean may have deleted files while they were read, and Hudi then returns fewer rows without an error. A
        # timeline that was read after the rows shows it.
        what = f"commit {commit.requested_time} was read; a snapshot follows"
        timeline = self._run.require_no_gap(checkpoint, what, self._source.read_end_s(commit))
        moved = with_done(replace(checkpoint, commit=commit, part=None), (commit.requested_time,), timeline.completed)
        self._commits += 1
        return self._run.commit(moved, timeline, rows, checksum)

    def _spread(self, checkpoint: Checkpoint, commit: CommitRef, spread: CommitSpread) -> Checkpoint:
        """Have one commit sent in buckets, between two transactions of the stream."""
        begun = replace(checkpoint, commit=commit, spread=spread)
        what = f"commit {commit.requested_time} was read"
        with ExitStack() as kept:
            with self._run.timed(READ):
                changes = kept.enter_context(self._spreader.read(commit, spread))
            timeline = self._run.require_no_gap(begun, f"{what}; a snapshot follows")
            begun, sent = self._run.send(begun, timeline, changes, self._source.schema_of(commit))
        self._commits += 1
        moved = with_done(replace(begun, spread=None), (commit.requested_time,), timeline.completed)
        return self._run.commit(moved, timeline, sent.rows, sent.checksum)

    def _end_part(self, checkpoint: Checkpoint, commit: CommitRef, rows: int, checksum: int) -> Checkpoint:
        what = f"commit {commit.requested_time} was read; a snapshot follows"
        return self._run.commit(checkpoint, self._run.require_no_gap(checkpoint, what), rows, checksum)


def _is_whole(checkpoint: Checkpoint) -> bool:
    """Whether a commit begins here that the sink gets with all of its changes."""
    return checkpoint.part is None and checkpoint.snapshot is None


def _among(changes: Sequence[Change], progress: SnapshotProgress | None) -> Sequence[Change]:
    """Return a commit's changes of the keys that the sink has: all of them, but while a snapshot is on its way."""
    if progress is None:
        return changes
    after = progress.after or ""
    return [change for change in changes if change.key <= after]


def _cut(blocks: Iterable[Sequence[Change]], size: int) -> Iterator[Sequence[Change]]:
    for block in blocks:
        for start in range(0, len(block), size):
            yield block[start : start + size]
