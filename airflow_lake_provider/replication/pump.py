"""Bring one sink up to date with one table: a snapshot where one is due, then each unread commit alone.

A commit is one transaction of the sink, or several where it has more rows than one may have (`CommitPart`).
A crash may interrupt every step. Only what the sink committed together with its checkpoint is durable, and every run
begins by reading that checkpoint from the sink.
"""

from __future__ import annotations

import hashlib
import logging
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeVar

from airflow_lake_provider.errors import ReplicationGapError
from airflow_lake_provider.replication.change import Batch, bytes_of, checksum_of
from airflow_lake_provider.replication.checkpoint import Checkpoint, CommitPart, from_text, unread, with_done
from airflow_lake_provider.replication.feed import (
    begin_snapshot,
    find_gap,
    find_snapshot_block,
    find_watermark,
    hold_of,
    parse_seek_time,
    seek,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from airflow_lake_provider.replication.change import Change, CommitRef
    from airflow_lake_provider.replication.checkpoint import SnapshotProgress
    from airflow_lake_provider.replication.feed import SourceTimeline
    from airflow_lake_provider.replication.sink import Sink

log = logging.getLogger(__name__)

_T = TypeVar("_T")
UNBOUNDED = 2**62
_MOST_CHOICES = 5
"""Of a snapshot's instant, next to a writer that cleans."""
TIMELINE, READ, WRITE, COMMIT = PHASES = ("timeline", "read", "write", "commit")
"""What a run spends its time on: reading the timeline, waiting for rows, handing them to the sink, its commits."""


class ChangeSource(Protocol):
    """A table as the pump reads it."""

    def read_timeline(self, known: Checkpoint | None = None) -> SourceTimeline:
        """Read the timeline again. What `known` has need not be distinguished from compactions and the like."""

    def expect(self, commits: Sequence[CommitRef]) -> None:
        """Take a hint: these will be read next, in this order, so some may be read ahead."""

    def read_blocks(self, commit: CommitRef, after: str = "") -> Iterator[Sequence[Change]]:
        """Return the changes of one completed commit alone, in order per key, in blocks of any length.

        With `after` those of keys behind this one, in the order in which `is_by_key` returns them.
        """

    def is_by_key(self, commit: CommitRef) -> bool:
        """Whether a commit's blocks, of which one was read, are in an order of their keys that is always the same.

        Its transaction may then end between any two keys.
        """

    def read_end_s(self, commit: CommitRef) -> float:
        """Return when all of a commit had been read, which may be long before its last block was asked for.

        In seconds of `time.monotonic`.
        """

    def read_snapshot(self, progress: SnapshotProgress) -> Iterator[tuple[tuple[str, str], Change]]:
        """Return the rows of a snapshot behind `progress.after`, each with its record key and partition, in order."""

    def schema_of(self, commit: CommitRef) -> str:
        """Return the table's Avro schema as this commit wrote it."""


class Keeper(Protocol):
    """Keeps the files of one stream's snapshots from cleans."""

    def open(self) -> AbstractContextManager[Callable[[str], bool]]:
        """Return what keeps those of an instant, and says whether it does so from now on.

        It does not where the table is not cleaned, or nothing can be kept.
        """

    def let_go(self, instant: str) -> None:
        """Let cleans take what was kept for snapshots of this stream, except for the one at this instant."""


class NoKeeper:
    """Keeps nothing: a clean that takes files of a snapshot makes it begin again."""

    def open(self) -> AbstractContextManager[Callable[[str], bool]]:
        """Return what keeps no instant."""
        return nullcontext(lambda instant: False)

    def let_go(self, instant: str) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Order:
    """The task of one run."""

    stream: str
    request: str = ""
    """Names a request for a snapshot or a seek: it is fulfilled once, however often the run is repeated."""
    snapshot: bool = False
    """Take a snapshot, whatever the checkpoint is."""
    seek_until: str = ""
    """Continue with the commits that completed after this time, an instant time."""
    generation: int = 0
    """The last one that the manager knows of: a sink that has lost its checkpoint does not begin below it again."""
    batch_rows: int = 5_000
    snapshot_part_rows: int = 50_000
    max_transaction_rows: int = UNBOUNDED
    """A commit of more changes is several transactions, each of about as many."""
    max_commits: int = 1_000_000
    ends_early: bool = False
    """The timeline that was read after the last commit ends the run: another run follows when there is more."""

    def __post_init__(self) -> None:
        if self.seek_until:
            object.__setattr__(self, "seek_until", parse_seek_time(self.seek_until))


@dataclass(frozen=True, slots=True)
class Report:
    """What a run did, and the checkpoint that is durable now."""

    checkpoint: Checkpoint | None
    commits: int = 0
    rows: int = 0
    snapshot_reason: str = ""
    bytes: int = 0
    """Of the changes as JSON, whatever the sink makes of them."""
    waits_for: str = ""
    """Why a due snapshot could not begin; empty when the sink has everything."""
    phases: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Seconds of the run by phase (`PHASES`)."""


class Pump:
    """One run over one table and one sink."""

    def __init__(
        self,
        source: ChangeSource,
        sink: Sink,
        order: Order,
        on_checkpoint: Callable[[Checkpoint], None] = lambda _: None,
        keeper: Keeper | None = None,
    ) -> None:
        self._source = source
        self._sink = sink
        self._order = order
        self._on_checkpoint = on_checkpoint
        self._keeper = keeper or NoKeeper()
        self._commits = 0
        self._rows = 0
        self._bytes = 0
        self._reason = ""
        self._waits_for = ""
        self._has_taken_snapshot = False
        self._is_kept = False
        """Whether the keeper, or that of another stream at the same instant, kept the files of the snapshot."""
        self._seen: SourceTimeline | None = None
        """The timeline after the last commit was read, which is the one before the next is."""
        self._seen_s = 0.0
        """When the reading of that timeline began."""
        self._seconds = dict.fromkeys(PHASES, 0.0)

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
            checkpoint = self._start(durable)
            while checkpoint is not None:
                moved = self._step(checkpoint)
                if moved is None:
                    break
                durable = checkpoint = moved
            return Report(
                durable, self._commits, self._rows, self._reason, self._bytes, self._waits_for, dict(self._seconds)
            )
        finally:
            self._source.expect(())
            self._sink.close()

    def _start(self, durable: Checkpoint | None) -> Checkpoint | None:
        """Return the checkpoint to continue from: the sink's own, unless a snapshot or a seek is due."""
        base = durable or Checkpoint(self._order.stream, 0, self._order.generation, None)
        is_new_request = bool(self._order.request) and base.request != self._order.request
        if self._order.seek_until and is_new_request:
            timeline = self._refresh()
            moved = seek(base, timeline, self._order.seek_until, self._order.request)
            if moved.commit is None and timeline.has_history:
                # Some of the archived commits completed after that time, and cannot be read any more.
                return self._begin(base, f"seek to {self._order.seek_until}: that is before the active timeline")
            return self._commit(moved, timeline, rows=0, checksum=0)
        if durable is None:
            return self._begin(base, "the sink has nothing of this table yet")
        if self._order.snapshot and is_new_request:
            return self._begin(base, "requested")
        # Hudi begins no query at an instant that a clean has passed, whatever a savepoint keeps of it.
        timeline = self._refresh(durable)
        gap = find_gap(durable, replace(timeline, saved={}))
        if not gap:
            self._is_kept = durable.snapshot is not None and durable.snapshot.instant in timeline.saved
            # A run that was killed left it.
            self._keeper.let_go(durable.snapshot.instant if durable.snapshot is not None else "")
        return self._begin(base, gap) if gap else durable

    def _begin(self, base: Checkpoint, reason: str) -> Checkpoint | None:
        log.warning("stream %s: a new snapshot begins: %s", self._order.stream, reason)
        self._reason = reason
        known = replace(base, generation=max(base.generation, self._order.generation))
        with self._keeper.open() as keep:
            for _ in range(_MOST_CHOICES):
                timeline = self._refresh()
                begun = begin_snapshot(known, timeline, self._order.request)
                if begun is None or begun.snapshot is None:
                    break
                self._is_kept = keep(begun.snapshot.instant)
                if not self._is_kept:
                    break
                # A clean that was planned before it was kept does not spare it.
                if find_gap(begun, self._refresh()) is None:
                    break
        if begun is not None and begun.snapshot is not None:
            self._keeper.let_go(begun.snapshot.instant)
        self._waits_for = find_snapshot_block(timeline) if begun is None else ""
        if self._waits_for:
            log.warning("stream %s: %s", self._order.stream, self._waits_for)
        return begun

    def _step(self, checkpoint: Checkpoint) -> Checkpoint | None:
        """Do one transaction; None when nothing is left to do."""
        if checkpoint.snapshot is not None:
            return self._snapshot(checkpoint, checkpoint.snapshot)
        if checkpoint.part is not None and checkpoint.commit is not None:
            return self._replicate(checkpoint, checkpoint.commit)
        todo = unread(checkpoint, self._seen.completed) if self._seen is not None else []
        if not todo and self._order.ends_early and self._commits:
            # The timeline was read after the last commit's rows, or the commit would not be in the sink.
            return None
        if not todo or (self._has_taken_snapshot and not self._commits):
            timeline = self._refresh(checkpoint)
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
        self._source.expect(todo)
        return self._replicate(checkpoint, todo[0])

    def _replicate(self, checkpoint: Checkpoint, commit: CommitRef) -> Checkpoint:
        """Write one commit, or the rest of it, in one transaction for each `max_transaction_rows`."""
        rows, checksum, most = 0, 0, self._order.max_transaction_rows
        part, schema = checkpoint.part or CommitPart("", 0), self._source.schema_of(commit)
        blocks = _cut(self._source.read_blocks(commit, part.after), min(self._order.batch_rows, most))
        for changes in self._waiting(blocks):
            if self._source.is_by_key(commit):
                if rows >= most and changes[0].key != part.after:
                    checkpoint = self._end_part(replace(checkpoint, commit=commit, part=part), commit, rows, checksum)
                    rows = checksum = 0
                part = CommitPart(changes[-1].key, part.rows + len(changes))
            with self._timed(WRITE):
                self._sink.write(Batch(commit, changes, checkpoint.generation, schema=schema))
                rows, checksum = rows + len(changes), checksum_of(changes, checksum)
                self._bytes += bytes_of(changes)
        # A clean may have deleted files while they were read, and Hudi then returns fewer rows without an error. A
        # timeline that was read after the rows shows it.
        is_shown = self._seen is not None and self._source.read_end_s(commit) < self._seen_s
        timeline = self._seen if self._seen is not None and is_shown else self._refresh(checkpoint)
        gap = find_gap(checkpoint, timeline)
        if gap:
            raise ReplicationGapError(f"{gap}, while commit {commit.requested_time} was read; a snapshot follows")
        moved = with_done(replace(checkpoint, commit=commit, part=None), (commit.requested_time,), timeline.completed)
        self._commits += 1
        return self._commit(moved, timeline, rows, checksum)

    def _end_part(self, checkpoint: Checkpoint, commit: CommitRef, rows: int, checksum: int) -> Checkpoint:
        what = f"commit {commit.requested_time} was read; a snapshot follows"
        return self._commit(checkpoint, self._require_no_gap(checkpoint, what), rows, checksum)

    def _snapshot(self, checkpoint: Checkpoint, progress: SnapshotProgress) -> Checkpoint:
        """Write the rest of the rows, one transaction for each part."""
        commit = checkpoint.commit
        if commit is None:
            raise ReplicationGapError("a snapshot's checkpoint names no commit")
        is_first, schema = progress.after is None, self._source.schema_of(commit)
        for part in self._waiting(_chunks(self._source.read_snapshot(progress), self._order.snapshot_part_rows)):
            changes = [change for _, change in part]
            with self._timed(WRITE):
                for piece in _chunks(iter(changes), self._order.batch_rows):
                    self._sink.write(Batch(commit, piece, checkpoint.generation, is_first, schema))
                    is_first = False
                self._bytes += bytes_of(changes)
            progress = replace(progress, after=part[-1][0], rows=progress.rows + len(part))
            checkpoint = replace(checkpoint, snapshot=progress)
            timeline = self._require_no_gap(checkpoint, "the snapshot was read; it begins again")
            self._keep_on(progress.instant, timeline)
            checkpoint = self._commit(checkpoint, timeline, len(changes), checksum_of(changes))
        if is_first:  # a table without rows: the sink must drop its rows all the same
            self._sink.write(Batch(commit, (), checkpoint.generation, begins_snapshot=True, schema=schema))
        timeline = self._require_no_gap(checkpoint, "the snapshot was read; it begins again")
        whole = self._commit(replace(checkpoint, snapshot=None), timeline, rows=0, checksum=0)
        self._has_taken_snapshot = True
        self._keeper.let_go("")
        return whole

    def _keep_on(self, instant: str, timeline: SourceTimeline) -> None:
        """Keep the files again where what kept them is gone.

        Hudi has one savepoint of an instant. So another stream's served for this one as well, until that stream had its
        snapshot.
        """
        if self._is_kept and instant not in timeline.saved:
            with self._keeper.open() as keep:
                self._is_kept = keep(instant)

    def _require_no_gap(self, checkpoint: Checkpoint, what: str) -> SourceTimeline:
        # A snapshot must know which writes are compactions, those that it has as well.
        timeline = self._refresh(checkpoint if checkpoint.snapshot is None else None)
        gap = find_gap(checkpoint, timeline)
        if gap:
            raise ReplicationGapError(f"{gap}, while {what}")
        return timeline

    def _refresh(self, known: Checkpoint | None = None) -> SourceTimeline:
        with self._timed(TIMELINE):
            began_s = time.monotonic()
            self._seen = self._source.read_timeline(known)
            self._seen_s = began_s
        return self._seen

    def _waiting(self, chunks: Iterator[_T]) -> Iterator[_T]:
        while True:
            with self._timed(READ):
                chunk = next(chunks, None)
            if chunk is None:
                return
            yield chunk

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began_s = time.monotonic()
        try:
            yield
        finally:
            self._seconds[phase] += time.monotonic() - began_s

    def _commit(self, checkpoint: Checkpoint, timeline: SourceTimeline, rows: int, checksum: int) -> Checkpoint:
        schema = self._source.schema_of(checkpoint.commit) if checkpoint.commit is not None else ""
        schema_id = checksum_text(schema) if schema else ""
        durable = replace(
            checkpoint,
            sequence=checkpoint.sequence + 1,
            hold=hold_of(checkpoint, timeline),
            watermark="" if checkpoint.snapshot is not None else find_watermark(checkpoint, timeline),
            rows=rows,
            checksum=f"{checksum:016x}",
            schema_id=schema_id,
            schema=schema if schema_id != checkpoint.schema_id else "",
        )
        with self._timed(COMMIT):
            self._sink.commit(durable)
        self._rows += rows
        self._on_checkpoint(durable)
        return durable


def checksum_text(text: str) -> str:
    """Return a short digest of a text: 16 hexadecimal digits."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _chunks(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def _cut(blocks: Iterable[Sequence[_T]], size: int) -> Iterator[Sequence[_T]]:
    for block in blocks:
        for start in range(0, len(block), size):
            yield block[start : start + size]
