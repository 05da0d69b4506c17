"""A large commit read once, cut into buckets of keys, counted, and sent by as many tasks of the executors.

A row's bucket is Spark's own `hash` of its key's text (Murmur3, seed 42) modulo their number: the hash by which Spark
brings rows to partitions, so a bucket is a partition. It is the same in every run.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, takewhile
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark import StorageLevel, TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.udf import UserDefinedFunction

from airflow_lake_provider.errors import (
    ConfigError,
    LakeError,
    ReadIncompleteError,
    ReplicationFailedError,
    SinkFencedError,
    SourceRefusedError,
)
from airflow_lake_provider.replication.change import Op
from airflow_lake_provider.replication.checkpoint import CommitSpread, to_text
from airflow_lake_provider.replication.spread import (
    BucketSink,
    Expected,
    Sent,
    bucket_stream,
    count_buckets,
    sum_up,
)
from lake_jobs.driver.failure import causes_of
from lake_jobs.replication.arrow_changes import AFTER, BEFORE, COLUMNS, KEY, OP
from lake_jobs.replication.bucket_task import OUTCOME, BucketOutcome, BucketWork, say_missing, send
from lake_jobs.replication.commits_in_turn import open_alone, require_whole
from lake_jobs.replication.row_transfer import BLOCK_BYTES, BLOCK_ROWS
from lake_jobs.replication.slice_reader import GROUP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from airflow_lake_provider.replication.change import CommitRef
    from airflow_lake_provider.replication.checkpoint import Checkpoint, SnapshotProgress
    from airflow_lake_provider.replication.job import ReplicationRequest
    from airflow_lake_provider.replication.sink import Sink
    from airflow_lake_provider.replication.spread import SpreadChanges
    from lake_jobs.replication.source import HudiSource

log = logging.getLogger(__name__)

_BUCKET_ROWS = 250_000
"""Rows of a snapshot in each bucket of a chunk, at least."""
_AHEAD = 64
"""Of how many commits that follow it is found out at once whether they are large."""
_MAX_KNOWN = 10_000
_MAP_ARROW = 207
"""Spark's number for a function of record batches; the module that names it is another one in Spark 4."""
_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_FENCED = re.compile(r"\bSinkFencedError: (.*)")
_BUCKET_OPTIONS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    # The client's queue: 1 GiB unless set, for each of the tasks that an executor runs at once.
    {"kafka": MappingProxyType({"kafka.queue.buffering.max.kbytes": "65536"})}
)


class CommitSpreader:
    """Sends the large commits of one table to one sink. `sink` is the stream's own, which the run opens."""

    def __init__(self, spark: SparkSession, request: ReplicationRequest, table: HudiSource, sink: Sink) -> None:
        self._spark = spark
        self._request = request
        self._table = table
        self._sink = sink
        self._large: dict[str, bool] = {}
        self._settings = request.sink_settings

    def before_first(self, commits: Sequence[CommitRef]) -> Sequence[CommitRef]:
        """Return the next commits up to the first large one: what the driver does not send it must not read ahead."""
        if self._request.run_options.buckets == 1 or self._find_obstacle():
            return commits
        return list(takewhile(lambda commit: not self._is_large(commit), islice(commits, _AHEAD)))

    def plan(self, commit: CommitRef) -> CommitSpread | None:
        """Return how a large commit is sent. None for a smaller one, and where only the driver can send."""
        if self._request.run_options.buckets == 1 or not self._is_large(commit):
            return None
        why = self._find_obstacle() or self._missing
        if why:
            log.warning("commit %s of table %s is sent by the driver alone: %s", commit.requested_time, self._path, why)
            return None
        return self.plan_rows(self._table.describe(commit).counted_rows)

    @contextmanager
    def read_snapshot(self, progress: SnapshotProgress, begun: CommitSpread | None) -> Iterator[_KeptSnapshot | None]:
        """Read the rows of a snapshot, and let Spark keep them in the order of their keys.

        Returns None where they are fewer than a large commit has, or the driver alone can send them.
        """
        what = f"the snapshot at {progress.instant} of table {self._path}"
        if begun is not None:
            self._require_fit(what, begun)
            yield _KeptSnapshot(self, None, self._table.snapshot_rows(progress, begun.until), (), begun)
            return
        why = self._find_obstacle() or self._missing if self._request.run_options.buckets > 1 else "by its settings"
        if why:
            if self._request.run_options.buckets > 1:
                log.warning("%s is sent by the driver alone: %s", what, why)
            yield None
            return
        kept = self._table.snapshot_rows(progress).repartitionByRange(KEY).sortWithinPartitions(KEY)
        kept = kept.persist(StorageLevel.DISK_ONLY)
        try:
            by_range = kept.groupBy(F.spark_partition_id()).agg(F.max(KEY), F.count("*")).collect()
            ranges = sorted((last, rows) for _, last, rows in by_range)
            is_large = sum(rows for _, rows in ranges) >= self._request.run_options.buckets_from_rows
            yield _KeptSnapshot(self, progress.after, kept, ranges) if is_large else None
        finally:
            kept.unpersist()

    @contextmanager
    def keep(self, rows: DataFrame, buckets: int) -> Iterator[_KeptChanges]:
        """Bring changes into buckets that Spark keeps, and count them."""
        # A delete comes first. What is kept need not be read from the table again.
        order = [name for name in (KEY, OP, GROUP) if name in rows.columns]
        kept = rows.repartition(buckets, KEY).sortWithinPartitions(*order).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            yield self._kept(kept, _count_buckets(kept, buckets))
        finally:
            kept.unpersist()

    def plan_rows(self, rows: int, until: str = "") -> CommitSpread:
        """Return how so many changes are sent: those of a commit, or of a snapshot until a key."""
        buckets = count_buckets(self._request.run_options.buckets, rows, self._request.max_transaction_rows)
        return CommitSpread(buckets, uuid.uuid4().hex[:16], self._table.key, until)

    @property
    def chunk_rows(self) -> int:
        """Rows of a snapshot that are sent between two transactions of the stream, at least."""
        return self._request.run_options.buckets * min(_BUCKET_ROWS, self._request.max_transaction_rows)

    @contextmanager
    def read(self, commit: CommitRef, spread: CommitSpread) -> Iterator[_KeptChanges]:
        """Read a commit into buckets that Spark keeps, and compare it with its own statistics."""
        self._require_fit(f"commit {commit.requested_time} of table {self._path}", spread)
        found = self._table.describe(commit)
        reading = open_alone(self._table, found)
        changes = reading.changes()
        if changes is None:
            require_whole(self._table, found, reading, {})
            yield self._kept(None, {})
            return
        with self.keep(changes.select(*COLUMNS, GROUP), spread.buckets) as kept:
            counted = kept.rows.groupBy(GROUP, OP).count().collect() if kept.rows is not None else []
            counts = {(group, op): number for group, op, number in counted}
            require_whole(self._table, found, reading, counts)
            log.info(
                "commit %s of table %s: %s changes in %s buckets",
                *(commit.requested_time, self._path, sum(counts.values()), spread.buckets),
            )
            yield kept

    def end_writers(self, spread: CommitSpread) -> None:
        """Let no task of an earlier run commit a bucket."""
        if isinstance(self._sink, BucketSink):
            self._sink.end_writers([bucket_stream(self._settings.stream, at) for at in range(spread.buckets)])

    @property
    def _path(self) -> str:
        return self._table.base_path

    def _is_large(self, commit: CommitRef) -> bool:
        known = self._large.get(commit.requested_time)
        if known is None:
            try:
                found = self._table.describe(commit)
            except LakeError:
                return True  # its own turn says why
            if len(self._large) >= _MAX_KNOWN:
                self._large.clear()
            known = max(found.rows, found.counted_rows) >= self._request.run_options.buckets_from_rows
            self._large[commit.requested_time] = known
        return known

    def _find_obstacle(self) -> str:
        if not isinstance(self._sink, BucketSink):
            return f"one process writes to a sink {self._request.kind}"
        return self._sink.find_bucket_obstacle()

    @cached_property
    def _missing(self) -> str:
        """What executors lack, by a job that asks as many tasks as run at once; it begins their Pythons as well."""
        kind = self._request.kind
        settings = self._settings
        at_once = int(self._spark.sparkContext.defaultParallelism)
        try:
            rows = _map_batches(
                self._spark.range(at_once, numPartitions=at_once), lambda it: say_missing(kind, settings, it)
            )
            return next((text for (text,) in rows.collect() if text), "")
        except Py4JJavaError as error:
            root = causes_of(error.java_exception)[-1]
            lines = [line for line in root.message.splitlines() if line.strip()]
            return f"an executor cannot run its part: {lines[-1] if lines else root.class_name}"

    def _require_fit(self, what: str, spread: CommitSpread) -> None:
        what = f"{what} is in the sink in part, in {spread.buckets} buckets"
        obstacle = self._find_obstacle()
        if obstacle:
            raise ConfigError(f"{what}, and {obstacle}: set the entry back until it is there as a whole")
        if spread.key != self._table.key:
            raise SourceRefusedError(
                f"{what}, with key {', '.join(spread.key)}, and key names {', '.join(self._table.key)} now: name those "
                "until it is there as a whole, or request a new snapshot"
            )

    def _kept(self, rows: DataFrame | None, expected: Mapping[int, Expected]) -> _KeptChanges:
        request = self._request
        more = dict(_BUCKET_OPTIONS.get(self._request.kind, {}))
        settings = replace(self._settings, options=dict(self._settings.options))
        return _KeptChanges(self._spark, rows, BucketWork(request.kind, settings, "", expected, "", more))


@dataclass(frozen=True, slots=True)
class _KeptChanges:
    """The changes of a commit by bucket, kept by Spark, and what was counted of each bucket that has any."""

    spark: SparkSession
    rows: DataFrame | None
    work: BucketWork

    def send(self, begun: Checkpoint, schema: str) -> Sent:
        """Send the buckets that are not durable. Raises the error of one of them when all tasks have ended."""
        if self.rows is None or not self.work.expected:
            return Sent()
        work = replace(self.work, begun=to_text(begun), schema=schema)
        with _batches_of(self.spark, self._batch_rows()):
            outcomes = _run_tasks(self.rows.select(*COLUMNS), work)
        failed = [outcome.to_error() for outcome in outcomes if outcome.error]
        if failed:
            # What no retry fixes is worth more than that the others were away.
            raise min(failed, key=lambda error: error.retriable)
        lacking = sorted(set(work.expected) - {outcome.bucket for outcome in outcomes})
        if lacking:
            raise ReplicationFailedError(f"no task has reported of bucket {lacking[0]} of stream {begun.stream}")
        return sum_up(Sent(outcome.rows, outcome.checksum, outcome.bytes) for outcome in outcomes)

    def _batch_rows(self) -> int:
        """How many rows a task holds at once: few where they are large."""
        largest = max(-(-each.bytes // each.rows) for each in self.work.expected.values())
        return max(1, min(BLOCK_ROWS, BLOCK_BYTES // max(1, largest)))


@dataclass(frozen=True, slots=True)
class _KeptSnapshot:
    """Rows of a snapshot that Spark keeps, and the last key and the number of rows of each range of keys, in order."""

    spreader: CommitSpreader
    after: str | None
    rows: DataFrame
    ranges: Sequence[tuple[str, int]]
    begun: CommitSpread | None = None
    """The chunk that has begun; the rows are then its own."""

    def cut(self) -> Iterator[tuple[CommitSpread, AbstractContextManager[SpreadChanges]]]:
        """Return ranges that are next to each other as one chunk, until it is large enough."""
        changes = self.rows.select(
            F.lit(Op.READ.value).alias(OP), KEY, F.lit(None).cast("string").alias(BEFORE), AFTER
        )  # fmt: skip
        if self.begun is not None:
            yield self.begun, self.spreader.keep(changes, self.begun.buckets)
            return
        low = self.after
        rows = 0
        for at, (last, more) in enumerate(self.ranges, start=1):
            rows += more
            if rows < self.spreader.chunk_rows and at < len(self.ranges):
                continue
            # Spark knows the first and the last key of what it keeps, and reads no more than this.
            chunk = changes.where(F.col(KEY) <= last)
            spread = self.spreader.plan_rows(rows, last)
            yield spread, self.spreader.keep(chunk if low is None else chunk.where(F.col(KEY) > low), spread.buckets)
            low = last
            rows = 0


def _count_buckets(kept: DataFrame, buckets: int) -> dict[int, Expected]:
    """Return rows, checksum and bytes by bucket; these rows are computed here, and kept."""
    texts = [F.coalesce(F.col(name), F.lit("")) for name in (OP, KEY, BEFORE, AFTER)]
    parts = [part for text in texts for part in (F.lit("\0"), text)][1:]
    size = sum((F.octet_length(text) for text in texts[2:]), F.octet_length(texts[1]))
    at = F.spark_partition_id().alias("at")
    bucket = F.expr(f"pmod(hash({KEY}), {buckets})").alias("bucket")
    counted = kept.groupBy(at, bucket).agg(F.count("*"), F.sum(F.crc32(F.concat(*parts))), F.sum(size)).collect()
    strayed = next((row for row in counted if row[0] != row[1]), None)
    if strayed is not None:
        raise ReadIncompleteError(f"Spark has rows of bucket {strayed[1]} in its partition {strayed[0]}: report this")
    return {bucket: Expected(rows, checksum, size) for _, bucket, rows, checksum, size in counted}


def _run_tasks(rows: DataFrame, work: BucketWork) -> list[BucketOutcome]:
    def run(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        if context is None:
            raise RuntimeError("this runs in a task of Spark alone")
        return send(work, context.partitionId(), batches)

    try:
        return [BucketOutcome(**json.loads(text)) for (text,) in _map_batches(rows, run).collect()]
    except Py4JJavaError as error:
        found = _FENCED.search(str(error))
        if found is not None:
            raise SinkFencedError(found[1]) from error
        raise


def _map_batches(rows: DataFrame, run: Callable[[Iterator[Any]], Iterator[Any]]) -> DataFrame:
    """Return what a function makes of each partition's record batches. As `mapInArrow`, which asks for pandas too."""
    returned = T.StructType([T.StructField(OUTCOME, T.StringType())])
    function = UserDefinedFunction(run, returned, evalType=_MAP_ARROW)
    mapped: Any = rows._jdf
    is_barrier = False
    column: Any = function(*[rows[name] for name in rows.columns])
    return DataFrame(mapped.pythonMapInArrow(column._jc.expr(), is_barrier), rows.sparkSession)


@contextmanager
def _batches_of(spark: SparkSession, rows: int) -> Iterator[None]:
    before = spark.conf.get(_BATCH_ROWS)
    spark.conf.set(_BATCH_ROWS, str(rows))
    try:
        yield
    finally:
        spark.conf.set(_BATCH_ROWS, str(before))
