"""The application for spark-submit: `replicate.py <path of the ReplicationRequest JSON>`.

Brings one sink up to date with one table. The run writes its result file again and again while it goes on, so that the
task knows how far it is. A request with a channel (`job.CHANNEL`) is for a driver of many streams.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError

from airflow_lake_provider.errors import ConfigError, LakeError
from airflow_lake_provider.job_contract import FailureKind, to_json
from airflow_lake_provider.replication.change import PARTITION_PATH, Change, Op
from airflow_lake_provider.replication.checkpoint import Checkpoint, to_text
from airflow_lake_provider.replication.job import CHANNEL, ReplicationRequest, ReplicationResult
from airflow_lake_provider.replication.pump import Pump
from airflow_lake_provider.replication.sink import create_sink
from airflow_lake_provider.sink_options.run import find_misfit
from airflow_lake_provider.sink_options.where import parse_where
from lake_jobs.driver import files
from lake_jobs.driver.application import memory_of, run_application
from lake_jobs.driver.failure import causes_of, classify, describe
from lake_jobs.driver.files import log_progress
from lake_jobs.hudi.java_errors import keep_java_errors
from lake_jobs.replication.column_rules import rules_of
from lake_jobs.replication.commit_spreader import CommitSpreader
from lake_jobs.replication.hudi_sink import HudiSink
from lake_jobs.replication.one_moment import plan_at_one_moment
from lake_jobs.replication.repair import send_again
from lake_jobs.replication.selected_source import SelectedSource
from lake_jobs.replication.sent_again import send_changes
from lake_jobs.replication.snapshot_keeper import SnapshotKeeper
from lake_jobs.replication.streams import read_table, run_streams
from lake_jobs.replication.verification import Verification, verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from airflow_lake_provider.replication.sink import Sink
    from airflow_lake_provider.replication.transactions import Report
    from lake_jobs.replication.streams import OpenTable

PROGRESS_INTERVAL_S = 5.0


def run(spark: SparkSession, request: ReplicationRequest) -> ReplicationResult:
    """Run the request of one sink, or a driver of many."""
    return run_streams(spark, request, replicate) if CHANNEL in request.options else replicate(spark, request)


def replicate(
    spark: SparkSession, request: ReplicationRequest, open_table: OpenTable = read_table
) -> ReplicationResult:
    """Run one request and return how it went; raise nothing but what ends the process."""
    result = _replicate(spark, request, open_table)
    done = f"{result.commits} commits, {result.rows} rows replicated"
    for how, commits in result.readers.items():
        log_progress(request.table_name, f"{commits} commits read by {how}")
    if result.rows:
        log_progress(request.table_name, ", ".join(f"{name} {spent:.1f} s" for name, spent in result.phases.items()))
    log_progress(request.table_name, result.message or result.waits_for or done)
    return result


def _replicate(spark: SparkSession, request: ReplicationRequest, open_table: OpenTable) -> ReplicationResult:
    progress = Progress(spark, request)
    began_s = time.monotonic()
    keep_java_errors()
    try:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        sink = create_sink(request.kind, request.sink_settings)
        table = open_table(spark, request)
        _require_key(request, table.key)
        rows = request.max_transaction_rows
        order = replace(
            request.order,
            max_transaction_rows=rows,
            meaning=request.meaning(table.key),
            starts_now=request.run_options.starts_now,
            heartbeat_s=request.run_options.heartbeat_s,
        )
        before = Counter(table.readers)
        options = request.run_options
        source = SelectedSource(table, rules_of(options.columns, request.table_name), options.where, request.mode)
        keeper = SnapshotKeeper(spark, request, table)

        def catch_up(sink: Sink) -> Report:
            _introduce(sink, source)
            spreader = CommitSpreader(spark, request, table, sink)
            return Pump(source, sink, order, progress.advance, keeper, spreader).run()

        report = catch_up(sink)
        sent = _send_rows(source, request, catch_up) if request.rows else 0
        verified = _verify(source, request, catch_up) if request.is_verification else None
        if verified is not None and not verified.is_same:
            return progress.failed(FailureKind.REFUSED, str(verified))
    except LakeError as error:
        kind = FailureKind(error.failure_kind) if error.retriable else FailureKind.REFUSED
        return progress.failed(kind, str(error))
    except Py4JJavaError as error:
        traceback.print_exc()
        causes = causes_of(error.java_exception)
        return progress.failed(classify(causes), describe(causes))
    except Exception as error:  # noqa: BLE001 - the outermost loop: the task needs a result
        traceback.print_exc()
        return progress.failed(FailureKind.OTHER, f"{type(error).__name__}: {error}")
    return ReplicationResult(
        request.order.stream,
        ended=True,
        checkpoint=to_text(report.checkpoint) if report.checkpoint is not None else "",
        commits=report.commits,
        rows=report.rows + sent,
        snapshot_reason=report.snapshot_reason,
        bytes=report.bytes,
        seconds=time.monotonic() - began_s,
        readers=dict(table.readers - before),
        waits_for=report.waits_for,
        verified="" if verified is None else str(verified),
        phases={phase: round(seconds, 3) for phase, seconds in report.phases.items()},
    )


def _require_key(request: ReplicationRequest, key: Sequence[str]) -> None:
    """Refuse a key that the sink's records cannot have. Raises ConfigError."""
    what = f"the key of table {request.base_path} is {', '.join(key)}, and"
    names_no_key = request.kind == "hudi" or (request.kind == "file" and request.mode == "latest")
    if PARTITION_PATH in key and names_no_key:
        rest = ", ".join(name for name in key if name != PARTITION_PATH)
        raise ConfigError(
            f"{what} rows of sink {request.kind} have no {PARTITION_PATH}: name other fields in key, such as key: "
            f"[{rest}] where a record key is in one partition alone (of sink file also: set mode: changes)"
        )
    _, misfit = find_misfit(request.kind, request.run_options)
    if misfit:
        raise ConfigError(misfit)
    nested = [name for name in key if "." in name]
    form = request.options.get("format", "json")
    if nested and (names_no_key or form != "json"):
        raise ConfigError(
            f"{what} {nested[0]} is a part of a column, which sink {request.kind} has no name for in format {form}, "
            f"mode {request.mode}: use format json and mode changes, or name other fields in key"
        )


def _verify(source: SelectedSource, request: ReplicationRequest, catch_up: Callable[[Sink], Report]) -> Verification:
    def create() -> Sink:
        return create_sink(request.kind, request.sink_settings)

    def repair(found: Verification, rows: Callable[[], Iterator[tuple[str, str]]], checkpoint: Checkpoint) -> None:
        send_again(found, rows, checkpoint, create(), source)

    return verify(source, create(), lambda: catch_up(create()).checkpoint, repair if request.is_repair else None)


def _send_rows(source: SelectedSource, request: ReplicationRequest, catch_up: Callable[[Sink], Report]) -> int:
    """Bring the sink up to date, and send it those of the table's rows that the request chooses; return how many."""
    if request.options.get("provide.transaction.metadata"):
        raise ConfigError(
            "rows of a part cannot be sent with provide.transaction.metadata: their commit's transaction has ended. "
            "Take a snapshot of all rows"
        )

    def create() -> Sink:
        return create_sink(request.kind, request.sink_settings)

    where = parse_where(request.rows)
    checkpoint, read = plan_at_one_moment(
        source, lambda: catch_up(create()).checkpoint, lambda: source.plan_rows(where)
    )
    schema = source.schema_of(checkpoint.commit) if checkpoint.commit is not None else ""
    rows = (Change(Op.READ, key, None, row) for key, row in read())
    sink = create()
    _introduce(sink, source)
    sent = send_changes(rows, checkpoint, sink, schema, request.max_transaction_rows)
    log_progress(request.table_name, f"{request.order.stream} got {sent} rows once more: {request.rows}")
    return sent


def _introduce(sink: Sink, source: SelectedSource) -> None:
    """Let a sink that makes its own table know the one that it follows."""
    if isinstance(sink, HudiSink):
        sink.follow(source)


class Progress:
    """Writes for the task how far the run is, without a file for each of many small commits."""

    def __init__(self, spark: SparkSession, request: ReplicationRequest) -> None:
        self._spark = spark
        self._request = request
        self._memory = memory_of(spark)
        self._written = time.monotonic()
        self._commits = 0
        self._rows = 0
        self._checkpoint = ""
        self._snapshot_reason = ""

    def advance(self, checkpoint: Checkpoint, snapshot_reason: str) -> None:
        """Count a durable checkpoint, and write it when the last one was written a while ago."""
        self._snapshot_reason = snapshot_reason
        self._commits += checkpoint.snapshot is None and not checkpoint.is_within_commit
        self._rows += checkpoint.rows
        self._checkpoint = to_text(checkpoint)
        of = checkpoint.commit.requested_time if checkpoint.commit is not None else "nothing"
        what = f"{checkpoint.snapshot.rows} rows of the snapshot at" if checkpoint.snapshot is not None else "all until"
        if checkpoint.part is not None:
            what = f"{checkpoint.part.rows} changes of commit"
        if checkpoint.spread is not None:
            what = f"begun {checkpoint.spread.buckets} buckets of commit"
        log_progress(
            self._request.table_name, f"{self._request.order.stream} has {what} {of} (+{checkpoint.rows} rows)"
        )
        if self._request.result_path and time.monotonic() - self._written >= PROGRESS_INTERVAL_S:
            self._written = time.monotonic()
            files.write_text(self._spark, self._request.result_path, to_json(self._result(ended=False)))

    def failed(self, kind: FailureKind, message: str) -> ReplicationResult:
        """Return the result of a run that ended with an error; what is durable stays."""
        return self._result(ended=True, kind=kind, message=message)

    def _result(self, *, ended: bool, kind: FailureKind | None = None, message: str = "") -> ReplicationResult:
        return ReplicationResult(
            self._request.order.stream,
            ended,
            self._checkpoint,
            self._commits,
            self._rows,
            snapshot_reason=self._snapshot_reason,
            failure_kind=kind,
            message=message,
            memory=self._memory,
        )


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="lake: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    sys.exit(run_application(sys.argv[1:], ReplicationRequest, run))
