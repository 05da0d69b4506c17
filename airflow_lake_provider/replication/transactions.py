"""The task of one replication run, its report, and the transactions that the run makes of its table and its sink."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping  # noqa: TC003 - a request is parsed by it
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from airflow_lake_provider.errors import ReplicationGapError
from airflow_lake_provider.replication.change import Batch, bytes_of, checksum_text
from airflow_lake_provider.replication.feed import find_gap, find_watermark, hold_of, parse_seek_time
from airflow_lake_provider.replication.heartbeat import print_time
from airflow_lake_provider.replication.sink import COMMIT, PHASES, READ, TIMELINE, WRITE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from airflow_lake_provider.replication.checkpoint import Checkpoint
    from airflow_lake_provider.replication.feed import SourceTimeline
    from airflow_lake_provider.replication.scope import Scope
    from airflow_lake_provider.replication.sink import ChangeSource, Sink
    from airflow_lake_provider.replication.spread import Sent, SpreadChanges

_T = TypeVar("_T")
UNBOUNDED = 2**62


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
    snapshot_pause_s: float = 60.0
    """How long commits wait for a snapshot, at least, until it lets them pass and goes on at a newer instant.

    0: until its next part is durable, however long it takes to read the rest once more.
    """
    max_transaction_rows: int = UNBOUNDED
    """A commit of more changes is several transactions, each of about as many."""
    max_commits: int = 1_000_000
    meaning: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """What the stream writes into its target: key, mode, format, columns. Another one begins with a snapshot."""
    ends_early: bool = False
    """The timeline that was read after the last commit ends the run: another run follows when there is more."""
    starts_now: bool = False
    """A sink that has nothing yet gets what completes from now on; `snapshot` and gaps come first."""
    heartbeat_s: float = 0.0
    """Make the position durable once more, with the time, when its own time is older than this; 0: never."""

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


class Transactions:
    """Counts and times what one run does with its table and its sink."""

    def __init__(
        self,
        source: ChangeSource,
        sink: Sink,
        on_checkpoint: Callable[[Checkpoint, str], None],
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        self.source = source
        self.sink = sink
        self._on_checkpoint = on_checkpoint
        self.snapshot_reason = ""
        """Why a new snapshot began in this run; empty when none did."""
        self.rows = 0
        """Those that are durable."""
        self.bytes = 0
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.seen: SourceTimeline | None = None
        """The timeline after the last commit was read, which is the one before the next is."""
        self.seen_s = 0.0
        """When the reading of that timeline began."""
        self._clock = clock
        """Dates the checkpoints; None where nothing asks for it."""
        self._seen_at = ""
        """When the reading of that timeline began, as checkpoints have it."""
        self.scope: Scope = ()
        """What each position is a position of."""

    def refresh(self, known: Checkpoint | None = None) -> SourceTimeline:
        """Read the timeline. What `known` has need not be distinguished from compactions and the like."""
        with self.timed(TIMELINE):
            began_s = time.monotonic()
            began_at = print_time(self._clock()) if self._clock is not None else ""
            self.seen = self.source.read_timeline(known)
            self.seen_s = began_s
            self._seen_at = began_at
        return self.seen

    def require_no_gap(self, checkpoint: Checkpoint, what: str, read_end_s: float = math.inf) -> SourceTimeline:
        """Return the timeline as it is now, or was after `read_end_s`.

        Raises ReplicationGapError when it no longer has what was read.
        """
        timeline = self.seen if read_end_s < self.seen_s else None
        if timeline is None:
            # A snapshot must know which writes are compactions, those that it has as well.
            timeline = self.refresh(checkpoint if checkpoint.snapshot is None else None)
        gap = find_gap(checkpoint, timeline)
        if gap:
            raise ReplicationGapError(f"{gap}, while {what}")
        return timeline

    def waiting(self, chunks: Iterator[_T]) -> Iterator[_T]:
        """Return the chunks, and count the time until each is there."""
        while True:
            with self.timed(READ):
                chunk = next(chunks, None)
            if chunk is None:
                return
            yield chunk

    def write(self, batch: Batch) -> None:
        """Hand changes to the sink."""
        with self.timed(WRITE):
            self.sink.write(batch)
            self.bytes += bytes_of(batch.changes)

    def commit(self, checkpoint: Checkpoint, timeline: SourceTimeline, rows: int, checksum: int) -> Checkpoint:
        """Make what was written durable with the checkpoint, and return that."""
        schema = self.source.schema_of(checkpoint.commit) if checkpoint.commit is not None else ""
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
            scope=self.scope,
            at=self._seen_at,
        )
        self.store(durable)
        self.rows += rows
        return durable

    def send(
        self, begun: Checkpoint, timeline: SourceTimeline, changes: SpreadChanges, schema: str
    ) -> tuple[Checkpoint, Sent]:
        """Make the intent durable, then the buckets; return the checkpoint in between, and what the buckets have."""
        # Also where an earlier run did: its tasks find another checkpoint now, and send nothing.
        begun = self.commit(begun, timeline, rows=0, checksum=0)
        with self.timed(WRITE):
            sent = changes.send(begun, schema)
        self.bytes += sent.bytes
        return begun, sent

    def store(self, durable: Checkpoint) -> None:
        """Make a checkpoint durable as it is, with what was written before."""
        with self.timed(COMMIT):
            self.sink.commit(durable)
        self._on_checkpoint(durable, self.snapshot_reason)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Count the time of a block as that of a phase."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.seconds[phase] += time.monotonic() - began_s
