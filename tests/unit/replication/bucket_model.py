"""A sink in memory whose streams write side by side and fence each other, and runs that send it commits in buckets."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from airflow_lake_provider.errors import SinkFencedError
from airflow_lake_provider.replication.change import Batch, Change, CommitRef, bytes_of, checksum_of
from airflow_lake_provider.replication.checkpoint import Checkpoint, CommitSpread, SnapshotProgress, from_text, to_text
from airflow_lake_provider.replication.pump import Pump
from airflow_lake_provider.replication.sink import Sink, SinkSettings
from airflow_lake_provider.replication.spread import (
    BucketOrder,
    BucketSink,
    Expected,
    Sent,
    bucket_stream,
    count_buckets,
    send_bucket,
    sum_up,
)
from airflow_lake_provider.replication.transactions import Order, Report
from tests.unit.replication.table_model import ModelTable

STREAM = "t.sink"


class Died(Exception):
    """The process of a run is gone."""


@dataclass
class Store:
    """What is durable; `dies_at` counts the calls of all its sinks down to a crash before or after one took effect."""

    records: list[tuple[CommitRef, int, Change]] = field(default_factory=list)
    texts: dict[str, list[str]] = field(default_factory=dict)
    """The checkpoints of each stream, in the order in which they were committed."""
    epochs: dict[str, int] = field(default_factory=dict)
    dies_at: int = -1
    dies_after: bool = False
    calls: list[str] = field(default_factory=list)

    def last(self, stream: str = STREAM) -> Checkpoint:
        return from_text(self.texts[stream][-1])

    def call(self, name: str, *, is_end: bool = False) -> None:
        if not is_end:
            self.dies_at -= 1
            self.calls.append(name)
        if self.dies_at == 0 and is_end == self.dies_after:
            raise Died

    def rows(self) -> dict[int, int]:
        """What a reader makes of the newest generation's records, in their order."""
        newest = max((generation for _, generation, _ in self.records), default=0)
        rows: dict[int, int] = {}
        for _, generation, change in self.records:
            if generation == newest:
                key = json.loads(change.key)["id"]
                if change.after is None:
                    rows.pop(key, None)
                else:
                    rows[key] = json.loads(change.after)["value"]
        return rows

    def versions(self) -> list[tuple[str, int, str]]:
        return [(commit.requested_time, generation, change.key) for commit, generation, change in self.records]


class StoreSink:
    """One stream's sink."""

    def __init__(self, store: Store, stream: str) -> None:
        self._store = store
        self._stream = stream
        self._epoch = 0
        self._staged: list[tuple[CommitRef, int, Change]] = []

    def open(self) -> str | None:
        self._store.call(f"open {self._stream}")
        self._epoch = self._store.epochs[self._stream] = self._store.epochs.get(self._stream, 0) + 1
        self._store.call("open", is_end=True)
        return self.find_checkpoint(self._stream)

    def write(self, batch: Batch) -> None:
        self._store.call(f"write {self._stream}")
        self._staged += [(batch.commit, batch.generation, change) for change in batch.changes]
        self._store.call("write", is_end=True)

    def commit(self, checkpoint: Checkpoint) -> None:
        self._store.call(f"commit {self._stream}")
        if self._epoch != self._store.epochs[self._stream]:
            raise SinkFencedError(f"another run has opened stream {self._stream}")
        assert checkpoint.stream == self._stream
        texts = self._store.texts.setdefault(self._stream, [])
        assert checkpoint.sequence == (from_text(texts[-1]).sequence if texts else 0) + 1
        self._store.records += self._staged
        texts.append(to_text(checkpoint))
        self._staged = []
        self._store.call("commit", is_end=True)

    def close(self) -> None:
        self._staged = []

    def find_bucket_obstacle(self) -> str:
        return ""

    def find_checkpoint(self, stream: str) -> str | None:
        texts = self._store.texts.get(stream)
        return texts[-1] if texts else None

    def end_writers(self, streams: Collection[str]) -> None:
        for stream in streams:
            self._store.call(f"end {stream}")
            self._store.epochs[stream] = self._store.epochs.get(stream, 0) + 1
            self._store.call("end", is_end=True)


@dataclass
class ModelSpreader:
    """Sends commits of at least `from_rows` rows in buckets: to a store one after another, elsewhere side by side."""

    table: ModelTable
    store: Store | None
    buckets: int = 3
    from_rows: int = 4
    attempts: Iterator[str] = field(default_factory=lambda: iter([]))
    before_send: Callable[[Checkpoint], None] = lambda _: None
    in_order: Callable[[list[int]], list[int]] = lambda buckets: buckets
    settings: SinkSettings = field(default_factory=lambda: SinkSettings(STREAM, "t"))
    make: Callable[[SinkSettings], Sink] | None = None
    snapshot_from_rows: float = math.inf
    chunk_rows: int = 3

    @contextmanager
    def read_snapshot(self, progress: SnapshotProgress, begun: CommitSpread | None) -> Iterator[ModelRows | None]:
        rows = [row for row in self.table.read_snapshot(progress) if begun is None or row.key <= begun.until]
        yield ModelRows(self, rows, begun) if begun is not None or len(rows) >= self.snapshot_from_rows else None

    def before_first(self, commits: Sequence[CommitRef]) -> Sequence[CommitRef]:
        return commits

    def plan(self, commit: CommitRef) -> CommitSpread | None:
        rows = len(self.table.commits[commit.requested_time][1])
        if self.buckets == 1 or rows < self.from_rows:
            return None
        return CommitSpread(count_buckets(self.buckets, rows, 1000), next(self.attempts), ("id",))

    @contextmanager
    def read(self, commit: CommitRef, spread: CommitSpread) -> Iterator[ModelChanges]:
        yield ModelChanges.of(self, self.table.read(commit), spread)

    def end_writers(self, spread: CommitSpread) -> None:
        own = self.sink(self.settings)
        assert isinstance(own, BucketSink)
        own.end_writers([bucket_stream(self.settings.stream, at) for at in range(spread.buckets)])

    def sink(self, settings: SinkSettings) -> Sink:
        if self.make is not None:
            return self.make(settings)
        assert self.store is not None
        return StoreSink(self.store, settings.stream)


@dataclass
class ModelRows:
    """The rows of a snapshot, or of the chunk of it that has begun."""

    spreader: ModelSpreader
    rows: list[Change]
    begun: CommitSpread | None

    def cut(self) -> Iterator[tuple[CommitSpread, AbstractContextManager[ModelChanges]]]:
        size = self.spreader.chunk_rows if self.begun is None else max(1, len(self.rows))
        for start in range(0, len(self.rows), size):
            chunk = self.rows[start : start + size]
            attempt = next(self.spreader.attempts)
            spread = self.begun or CommitSpread(self.spreader.buckets, attempt, ("id",), chunk[-1].key)
            yield spread, nullcontext(ModelChanges.of(self.spreader, chunk, spread))


@dataclass
class ModelChanges:
    """A commit's changes by bucket."""

    spreader: ModelSpreader
    found: dict[int, list[Change]]

    @classmethod
    def of(cls, spreader: ModelSpreader, changes: Iterable[Change], spread: CommitSpread) -> ModelChanges:
        found: dict[int, list[Change]] = {}
        for change in changes:
            found.setdefault(crc32(change.key.encode()) % spread.buckets, []).append(change)
        return cls(spreader, found)

    def order(self, begun: Checkpoint, bucket: int) -> BucketOrder:
        rows = self.found[bucket]
        expected = Expected(len(rows), checksum_of(rows), bytes_of(rows))
        return BucketOrder(self.spreader.settings, begun, bucket, expected)

    def task(self, begun: Checkpoint, bucket: int) -> Sent:
        rows = self.found[bucket]
        return send_bucket(self.order(begun, bucket), self.spreader.sink, (rows[:2], rows[2:]))

    def send(self, begun: Checkpoint, schema: str) -> Sent:
        self.spreader.before_send(begun)
        wanted = self.spreader.in_order(sorted(self.found))
        if self.spreader.make is None:
            return sum_up([self.task(begun, bucket) for bucket in wanted])
        with ThreadPoolExecutor(len(wanted)) as pool:
            return sum_up(list(pool.map(lambda bucket: self.task(begun, bucket), wanted)))


def run(table: ModelTable, store: Store, spreader: ModelSpreader | None = None, **order: Any) -> Report:
    given = Order(STREAM, **order)
    return Pump(table, StoreSink(store, STREAM), given, keeper=table, spreader=spreader).run()
