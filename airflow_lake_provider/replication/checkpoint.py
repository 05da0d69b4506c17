"""What is durable in a sink: which commits it has, and how far a snapshot got. Printing and parsing are inverses.

Commits are replicated in the order of completion, each alone. No single time is a lasting position on that order: a
file with an earlier completion time may become visible later (clocks differ, and stores are slow to list). So a
checkpoint names the commits that it has above a floor; what completed above the floor and is not named is unread.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import CheckpointDamagedError
from airflow_lake_provider.replication.change import CommitRef

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_lake_provider.replication.scope import Scope

VERSION = 1
# This many commits may become visible behind a later one and are still found.
NAMED_COMMITS = 50


@dataclass(frozen=True, slots=True)
class SnapshotProgress:
    """A snapshot in progress: rows are written in the order of their keys, as texts."""

    instant: str
    """Requested time of the last write that the snapshot holds; every earlier one was completed by then."""
    after: str | None = None
    """The key of the last row that is durable; None before the first part. All rows of that key are."""
    rows: int = 0
    clean: str = ""
    """The last clean without a bound by commits when the snapshot began: it left what the snapshot needs."""
    total: int | None = None
    """Rows that the table had when they were counted, which only a snapshot of several parts is worth; None before."""
    is_in_old_order: bool = False
    """Whether a release until 1.0 began it, in the order of record keys and partitions: it has to begin again."""


@dataclass(frozen=True, slots=True)
class CommitPart:
    """How much of a large commit is durable: its changes are written in the order of their keys."""

    after: str
    """The key of the last change that is durable; all changes of that key are."""
    rows: int
    """All changes of the commit that are durable."""


@dataclass(frozen=True, slots=True)
class CommitSpread:
    """A large commit that is being sent in buckets of keys, each with a transaction and a checkpoint of its own.

    The stream's checkpoint has it before the first bucket's transaction, and until the last one is durable. A bucket's
    own checkpoint names with it what the bucket has.
    """

    buckets: int
    attempt: str
    """Unlike that of any other attempt to send this or another commit; empty when the attempt was given up.

    A bucket that has this one is not sent again. By a number the buckets of an earlier attempt could pass for sent
    where the stream's checkpoint was lost, or after a seek.
    """
    key: tuple[str, ...]
    """The fields of the key: other fields would bring a row into another bucket."""
    until: str = ""
    """The last key of the rows of a snapshot that are being sent; empty for a commit."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The commits that one sink has of one table. Times are Hudi's instant times."""

    stream: str
    """The checkpoint's stream: `<table id>.<sink>`."""
    sequence: int
    """Rises by one with each transaction."""
    generation: int
    """Rises by one with each snapshot."""
    commit: CommitRef | None
    """The commit that this checkpoint was written with; with `part` or `spread` the sink has only a part of it."""
    floor: str = ""
    """Every commit that completed at or before this time is in the sink."""
    done: tuple[str, ...] = ()
    """Requested times of the commits in the sink that completed after the floor."""
    hold: str = ""
    """Requested time from which on the table's files and instants are still needed."""
    rows: int = 0
    """Changes of this commit, or rows of this part of a commit or of a snapshot."""
    checksum: str = ""
    """`checksum_of` those changes, 16 hexadecimal digits."""
    schema_id: str = ""
    schema: str = ""
    """The table's Avro schema, only where it differs from the one before."""
    snapshot: SnapshotProgress | None = None
    request: str = ""
    """The last fulfilled request for a snapshot or a seek, so that a repeated task does not fulfil it twice."""
    watermark: str = ""
    """The low watermark: every commit that completed at or before this time is in the sink, and none comes later."""
    part: CommitPart | None = None
    """Set within a commit that is larger than one transaction of the sink."""
    spread: CommitSpread | None = None
    """Set while a commit is sent in buckets."""
    scope: Scope = ()
    """What the position is a position of: the target, and what the stream writes there."""
    at: str = ""
    """When the timeline was read by which the position was found: ISO 8601 in UTC; empty without `heartbeat_s`."""

    @property
    def is_within_commit(self) -> bool:
        """Whether the sink may have only a part of `commit`, and no end of it."""
        return self.part is not None or self.spread is not None

    def has(self, commit: CommitRef) -> bool:
        """Whether the sink has this commit."""
        return commit.completed_time <= self.floor or commit.requested_time in self.done


def to_text(checkpoint: Checkpoint) -> str:
    """Print a checkpoint as one line of JSON."""
    body = asdict(checkpoint) | {"version": VERSION}
    for name in ("part", "spread"):
        if body[name] is None:
            # Releases that know no parts refuse the name, and need not outside of a commit that is there in part.
            del body[name]
    if checkpoint.scope:
        body["scope"] = dict(checkpoint.scope)
    else:
        del body["scope"]
    if not checkpoint.at:
        del body["at"]
    if checkpoint.snapshot is not None:
        # It is what a parsed text was, and never that of a new one.
        del body["snapshot"]["is_in_old_order"]
        if checkpoint.snapshot.total is None:
            del body["snapshot"]["total"]
    return json.dumps(body, separators=(",", ":"), sort_keys=True)


def from_text(text: str) -> Checkpoint:
    """Parse a checkpoint. Raises CheckpointDamagedError."""
    try:
        body: dict[str, Any] = json.loads(text)
        if body.pop("version") != VERSION:
            raise CheckpointDamagedError(f"the checkpoint is not of version {VERSION}: {text[:200]}")
        commit = body.pop("commit")
        snapshot = body.pop("snapshot")
        part = body.pop("part", None)
        spread = body.pop("spread", None)
        scope = tuple(sorted(body.pop("scope", {}).items()))
        if snapshot is not None and isinstance(snapshot["after"], list):
            snapshot |= {"after": None, "is_in_old_order": True}
        return Checkpoint(
            **body | {"done": tuple(body["done"])},
            commit=None if commit is None else CommitRef(**commit),
            snapshot=None if snapshot is None else SnapshotProgress(**snapshot),
            part=None if part is None else CommitPart(**part),
            spread=None if spread is None else CommitSpread(**spread | {"key": tuple(spread["key"])}),
            scope=scope,
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointDamagedError(f"the sink's text is not a checkpoint: {text[:200]!r}") from error


def unread(checkpoint: Checkpoint, completed: Iterable[CommitRef]) -> list[CommitRef]:
    """Return the commits that the sink does not have, in the order of completion."""
    return sorted((commit for commit in completed if not checkpoint.has(commit)), key=lambda commit: commit.order)


def with_done(checkpoint: Checkpoint, done: Iterable[str], completed: Sequence[CommitRef]) -> Checkpoint:
    """Return the checkpoint with more commits (requested times) in the sink, its floor raised where that is safe.

    `completed` are all completed commits that the table's active timeline shows.
    """
    named = {*checkpoint.done, *done}
    floor = checkpoint.floor
    in_sink = []
    for commit in sorted(completed, key=lambda commit: commit.order):
        if commit.completed_time > floor and commit.requested_time not in named:
            break
        in_sink.append(commit.completed_time)
    if len(in_sink) > NAMED_COMMITS:
        floor = max(floor, in_sink[-NAMED_COMMITS - 1])
    above = sorted(c.requested_time for c in completed if c.completed_time > floor and c.requested_time in named)
    return replace(checkpoint, floor=floor, done=tuple(above))


# --- How far cleaning and archiving may go: the oldest hold of a table's sinks, each of them for its time to live;
# pure
#
# The words are TiCDC's. A hold counts from the moment the sink is configured, even if it never ran, failed, or is
# paused; progress, or being up to date, renews it. Past its time to live it is released and the sink is marked "needs
# snapshot" in the same transaction, so that the sink can never continue as if nothing had happened.

EVERYTHING = "0"
"""The hold of a sink that has nothing yet: smaller than any instant time."""


@dataclass(frozen=True, slots=True)
class SinkHold:
    """What one sink of a table, or one of its readers, still needs."""

    sink: str
    """The sink's name, or the reader."""
    hold: str
    """Requested time from which on files and instants are needed."""
    renewed_ms: int
    ttl_s: float
    needs_snapshot: bool = False
    """It was released: nothing is held for it until its new snapshot begins."""
    is_reader: bool = False

    def ends_ms(self) -> int:
        """Return when the hold is released unless it is renewed."""
        return self.renewed_ms + int(self.ttl_s * 1000)


@dataclass(frozen=True, slots=True)
class Safepoint:
    """What cleaning and archiving must not pass. `instant` is None when nothing is held."""

    instant: str | None = None
    holder: str = ""
    """The sink, or the reader, with the oldest hold."""
    released: tuple[str, ...] = ()
    """Sinks whose time to live has ended; they must be marked before this safepoint is used."""


def find_safepoint(holds: Iterable[SinkHold], now_ms: int) -> Safepoint:
    """Return the oldest hold that counts, and the sinks to release."""
    counting = []
    released = []
    for hold in holds:
        if hold.needs_snapshot:
            continue
        if hold.ends_ms() <= now_ms:
            released.append(hold.sink)
        else:
            counting.append(hold)
    oldest = find_oldest(counting)
    if oldest is None:
        return Safepoint(released=tuple(released))
    return Safepoint(oldest.hold, oldest.sink, tuple(released))


def find_oldest(holds: Iterable[SinkHold]) -> SinkHold | None:
    """Return the hold that keeps most; None without any."""
    return min(holds, key=lambda hold: (hold.hold, hold.sink), default=None)
