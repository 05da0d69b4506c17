"""A large commit in buckets of keys: executors send them side by side, and no row passes the run's own process.

A bucket is a transaction with a checkpoint of its own, under the name of a stream of its own (`bucket_stream`). The
stream's checkpoint says which commit is being sent before the first of them, and has the commit after the last one.

So every step may run twice, and two runs may overlap. A bucket is sent by the last process that opened it, if the
stream's checkpoint is still the one with which its run began the buckets; and a bucket that names the attempt is there.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from airflow_lake_provider.errors import (
    CheckpointDamagedError,
    ConfigError,
    ReadIncompleteError,
    SourceRefusedError,
    StreamOvertakenError,
)
from airflow_lake_provider.replication.change import Batch, Change, CommitRef, checksum_of
from airflow_lake_provider.replication.checkpoint import Checkpoint, CommitSpread, from_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from airflow_lake_provider.replication.checkpoint import SnapshotProgress
    from airflow_lake_provider.replication.sink import Sink, SinkSettings

_BUCKET = re.compile(r"(.+)#\d+", re.DOTALL)


def bucket_stream(stream: str, bucket: int) -> str:
    """Return the name of a bucket's own stream; the name of a sink has no `#`."""
    return f"{stream}#{bucket}"


def owner_of(stream: str) -> str:
    """Return the stream whose bucket this is; any other stream itself. The inverse of `bucket_stream`."""
    found = _BUCKET.fullmatch(stream)
    return stream if found is None else found[1]


@runtime_checkable
class BucketSink(Protocol):
    """A sink whose streams may write side by side, and that can be asked for one stream by another."""

    def find_bucket_obstacle(self) -> str:
        """Return why a commit cannot come in buckets with these settings; empty when it can."""

    def find_checkpoint(self, stream: str) -> str | None:
        """Return the text of a stream's durable checkpoint, if any. Its writer stays its writer."""

    def end_writers(self, streams: Collection[str]) -> None:
        """Let no process commit that opened one of these streams before."""


# --- What the run's own process does


@dataclass(frozen=True, slots=True)
class Sent:
    """What is durable of a commit, or of a bucket."""

    rows: int = 0
    checksum: int = 0
    bytes: int = 0


class SpreadChanges(Protocol):
    """The changes of one commit, all of them read and counted, by bucket."""

    def send(self, begun: Checkpoint, schema: str) -> Sent:
        """Make all buckets durable, those left out that are; `begun` is the stream's checkpoint. Raises LakeError."""


class SnapshotRows(Protocol):
    """The rows of a snapshot behind a key, all of them read and kept, in chunks of neighbouring keys."""

    def cut(self) -> Iterator[tuple[CommitSpread, AbstractContextManager[SpreadChanges]]]:
        """Return the chunks in the order of their keys, each with how it is sent."""


class Spreader(Protocol):
    """Decides which commits are sent in buckets, and has them sent."""

    def read_snapshot(
        self, progress: SnapshotProgress, begun: CommitSpread | None
    ) -> AbstractContextManager[SnapshotRows | None]:
        """Read the rows behind `progress.after`, of a chunk that has begun those until its last key alone.

        Returns None to send them from this process: they are few, or executors cannot send them.
        """

    def before_first(self, commits: Sequence[CommitRef]) -> Sequence[CommitRef]:
        """Return the commits, or some of them, that come before the first one that is large enough for buckets."""

    def plan(self, commit: CommitRef) -> CommitSpread | None:
        """Return how a commit is to be sent that has not begun; None to send it from this process."""

    def read(self, commit: CommitRef, spread: CommitSpread) -> AbstractContextManager[SpreadChanges]:
        """Read all changes of a commit, and keep them. Raises ReadIncompleteError, SourceRefusedError, ConfigError."""

    def end_writers(self, spread: CommitSpread) -> None:
        """Let no process commit that opened one of the buckets before."""


class NoSpreader:
    """Sends nothing in buckets, and so cannot go on with a commit that has begun like that."""

    def read_snapshot(
        self, progress: SnapshotProgress, begun: CommitSpread | None
    ) -> AbstractContextManager[SnapshotRows | None]:
        """Return None. Raises ConfigError for a chunk that has begun."""
        if begun is not None:
            raise ConfigError(
                f"the snapshot at {progress.instant} is in the sink in part, in {begun.buckets} buckets, and this run "
                "has no executors for the others: request a new snapshot"
            )
        return nullcontext()

    def before_first(self, commits: Sequence[CommitRef]) -> Sequence[CommitRef]:
        """Return all of them."""
        return commits

    def plan(self, commit: CommitRef) -> CommitSpread | None:
        """Return None."""

    def read(self, commit: CommitRef, spread: CommitSpread) -> AbstractContextManager[SpreadChanges]:
        """Raise ConfigError."""
        raise ConfigError(
            f"commit {commit.requested_time} is in the sink in part, in {spread.buckets} buckets, and this run has no "
            "executors for the others: request a new snapshot"
        )

    def end_writers(self, spread: CommitSpread) -> None:
        """Do nothing: no process of these runs writes buckets."""


def give_up(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint after which no bucket that begins can be sent, though its commit is there in part."""
    if checkpoint.spread is None:
        return checkpoint
    spread = replace(checkpoint.spread, attempt="")
    return replace(checkpoint, sequence=checkpoint.sequence + 1, spread=spread, rows=0, checksum=f"{0:016x}", schema="")


def find_given_up(checkpoint: Checkpoint) -> str:
    """Return in one sentence that a commit will never be whole; empty otherwise."""
    spread = checkpoint.spread
    commit = checkpoint.commit
    if spread is None or spread.attempt or commit is None:
        return ""
    return f"commit {commit.requested_time} is in the sink in part, and an earlier run gave it up"


# --- What a task does


@dataclass(frozen=True, slots=True)
class Expected:
    """What was counted of one bucket before anything of it is sent."""

    rows: int
    checksum: int
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class BucketOrder:
    """The task of sending one bucket."""

    settings: SinkSettings
    """Of the stream's sink."""
    begun: Checkpoint
    """The stream's checkpoint with which the buckets began."""
    bucket: int
    expected: Expected
    schema: str = ""
    """The table's Avro schema as the commit wrote it."""
    more_options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Of a bucket's sink, unless the entry says otherwise."""


def send_bucket(
    order: BucketOrder, create: Callable[[SinkSettings], Sink], batches: Iterable[Sequence[Change]]
) -> Sent:
    """Make one bucket durable unless it is, and return what is durable of it.

    Raises StreamOvertakenError when the stream's checkpoint is another one by now, ReadIncompleteError when the changes
    are not those that were counted, and what the sink raises.
    """
    begun = order.begun
    if begun.spread is None or begun.commit is None:
        raise CheckpointDamagedError(f"the checkpoint of stream {begun.stream} has no commit that comes in buckets")
    stream = bucket_stream(begun.stream, order.bucket)
    options = {**order.more_options, **order.settings.options}
    sink = create(replace(order.settings, stream=stream, options=options))
    try:
        # A task that is late must not take the bucket from the one that has it by right.
        _require_current(sink, begun)
        text = sink.open()
        known = None if text is None else from_text(text)
        if known is not None and known.spread is not None and known.spread.attempt == begun.spread.attempt:
            return _require_as_sent(known, order)
        # And once more: a run that goes on from here has to open this bucket, and so ends this process's transaction.
        _require_current(sink, begun)
        rows, checksum = _write(sink, order, begun.commit, batches)
        if (rows, checksum) != (order.expected.rows, order.expected.checksum):
            raise ReadIncompleteError(
                f"{rows} changes with checksum {checksum:016x} came to bucket {order.bucket} of commit "
                f"{begun.commit.requested_time}, and {order.expected.rows} with {order.expected.checksum:016x} were "
                "counted: the table's files have changed meanwhile"
            )
        number = 0 if known is None else known.sequence
        sink.commit(
            Checkpoint(
                stream,
                number + 1,
                begun.generation,
                begun.commit,
                rows=rows,
                checksum=f"{checksum:016x}",
                schema_id=begun.schema_id,
                spread=begun.spread,
            )
        )
        return Sent(rows, checksum, order.expected.bytes)
    finally:
        sink.close()


def _write(sink: Sink, order: BucketOrder, commit: CommitRef, batches: Iterable[Sequence[Change]]) -> tuple[int, int]:
    rows = checksum = 0
    for changes in batches:
        sink.write(Batch(commit, changes, order.begun.generation, schema=order.schema))
        rows, checksum = rows + len(changes), checksum_of(changes, checksum)
    return rows, checksum


def _require_current(sink: Sink, begun: Checkpoint) -> None:
    text = sink.find_checkpoint(begun.stream) if isinstance(sink, BucketSink) else None
    known = None if text is None else from_text(text)
    if known is None or (known.sequence, known.spread) != (begun.sequence, begun.spread):
        raise StreamOvertakenError(
            f"another run has gone on with stream {begun.stream} since this one began its buckets"
        )


def _require_as_sent(known: Checkpoint, order: BucketOrder) -> Sent:
    """Return what an earlier task has sent. Columns that an entry leaves out change its checksum, and no row."""
    if known.rows != order.expected.rows:
        commit = "" if known.commit is None else known.commit.requested_time
        raise SourceRefusedError(
            f"{order.expected.rows} changes of commit {commit} are in bucket {order.bucket} now, and the sink has "
            f"{known.rows} of them already: request a new snapshot"
        )
    return Sent(known.rows, int(known.checksum, 16), order.expected.bytes)


def sum_up(sent: Iterable[Sent]) -> Sent:
    """Return what is durable of the commit: a checksum is a sum, whatever the order of the rows."""
    rows = checksum = size = 0
    for each in sent:
        rows, checksum, size = rows + each.rows, checksum + each.checksum, size + each.bytes
    return Sent(rows, checksum & 0xFFFF_FFFF_FFFF_FFFF, size)


def count_buckets(wanted: int, rows: int, max_transaction_rows: int) -> int:
    """Return in how many buckets a commit comes: more than wanted where one's transaction would be too large."""
    return max(wanted, -(-rows // max_transaction_rows))
