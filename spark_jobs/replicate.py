"""The application for spark-submit: `replicate.py <path of the ReplicationRequest JSON>`.

Brings one sink up to date with one table. The result file is rewritten while the run goes on, so that the task knows
how far it is. Exit codes: 0 the sink has everything, 1 the result says why not, 2 there was no usable request.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from typing import TYPE_CHECKING

import job_files
from driver_end import DriverEnd
from failure_kind import causes_of, describe
from job_contract import Submitter
from progress import say
from py4j.protocol import Py4JJavaError
from replication_source import HudiSource
from run_services import jvm_pid, open_session
from submitter_watch import watch_submitter

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.replication.checkpoint import Checkpoint, to_text
from airflow_lake_provider.replication.job import (
    ReplicationRequest,
    ReplicationResult,
    request_from_text,
    result_to_text,
)
from airflow_lake_provider.replication.pump import Pump
from airflow_lake_provider.replication.sink import create_sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRESS_INTERVAL_S = 5.0


def replicate(spark: SparkSession, request: ReplicationRequest) -> ReplicationResult:
    """Run one request and say how it went; raises nothing but what ends the process."""
    progress, began_s = Progress(spark, request), time.monotonic()
    try:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        sink = create_sink(request.kind, request.sink_settings)
        source = HudiSource(spark, request.base_path, request.mode, request.key, request.order.stream)
        report = Pump(source, sink, request.order, progress.advance).run()
    except LakeError as error:
        return progress.failed(f"{type(error).__name__}: {error}", retriable=error.retriable)
    except Py4JJavaError as error:
        traceback.print_exc()
        return progress.failed(describe(causes_of(error.java_exception)), retriable=True)
    except Exception as error:  # noqa: BLE001 - the outermost loop: the task must be told
        traceback.print_exc()
        return progress.failed(f"{type(error).__name__}: {error}", retriable=True)
    ended, text = True, to_text(report.checkpoint) if report.checkpoint is not None else ""
    return ReplicationResult(
        request.order.stream,
        ended,
        text,
        report.commits,
        report.rows,
        report.snapshot_reason,
        bytes=report.bytes,
        seconds=time.monotonic() - began_s,
        waits_for=report.waits_for,
    )


class Progress:
    """Tells the task how far the run is, without a file for each of many small commits."""

    def __init__(self, spark: SparkSession, request: ReplicationRequest) -> None:
        self._spark = spark
        self._request = request
        self._written = time.monotonic()
        self._commits = 0
        self._rows = 0
        self._checkpoint = ""

    def advance(self, checkpoint: Checkpoint) -> None:
        """Take note of a durable checkpoint."""
        self._commits += checkpoint.snapshot is None
        self._rows += checkpoint.rows
        self._checkpoint = to_text(checkpoint)
        of = checkpoint.commit.requested_time if checkpoint.commit is not None else "nothing"
        what = f"{checkpoint.snapshot.rows} rows of the snapshot at" if checkpoint.snapshot is not None else "all until"
        say(self._request.table_name, f"{self._request.order.stream} has {what} {of} (+{checkpoint.rows} rows)")
        if time.monotonic() - self._written >= PROGRESS_INTERVAL_S:
            self._written = time.monotonic()
            job_files.write_text(self._spark, self._request.result_path, result_to_text(self._result(ended=False)))

    def failed(self, message: str, *, retriable: bool) -> ReplicationResult:
        """Return the result of a run that ended with an error; what is durable stays."""
        return self._result(ended=True, error=message, retriable=retriable)

    def _result(self, *, ended: bool, error: str = "", retriable: bool = True) -> ReplicationResult:
        return ReplicationResult(
            self._request.order.stream,
            ended,
            self._checkpoint,
            self._commits,
            self._rows,
            error=error,
            retriable=retriable,
        )


def main(arguments: list[str]) -> int:
    """Read the request, run it, write the result; return the exit code."""
    if len(arguments) != 1:
        print("usage: spark-submit ... replicate.py <path of the request JSON>", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.INFO, format="lake: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    try:
        spark = open_session()
        request = request_from_text(job_files.read_text(spark, arguments[0]))
    except Exception:  # noqa: BLE001 - the edge: whatever it is, nothing has been touched yet
        traceback.print_exc()
        return 2
    submitter = Submitter(**request.submitter) if request.submitter is not None else None
    driver = DriverEnd(jvm_pid(spark))
    driver.end_at_sigterm()
    watch_submitter(submitter, driver.end)
    result = replicate(spark, request)
    job_files.write_text(spark, request.result_path, result_to_text(result))
    say(
        request.table_name,
        result.error or result.waits_for or f"{result.commits} commits, {result.rows} rows replicated",
    )
    return 1 if result.error else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
