"""Many streams in one driver: the task says which sinks are due, and each is brought up to date in a thread of its own.

The driver keeps each table's reader from one run of its stream to the next, so that a small commit costs two readings
of the timeline, one before and one after its rows, and one listing of what it touched. What fails in one stream fails
it alone. Nothing durable is kept here: each run begins with the checkpoint in the sink.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Client
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from py4j.protocol import Py4JJavaError

from airflow_lake_provider.errors import LeaseLostError
from airflow_lake_provider.job_contract import FailureKind, from_json, to_json
from airflow_lake_provider.replication.job import CHANNEL, ReplicationRequest, ReplicationResult
from airflow_lake_provider.replication.transactions import Order
from airflow_lake_provider.shared.hudi_settings import TIMELINE_ZONE
from lake_jobs.driver import files
from lake_jobs.driver.application import jvm_pid
from lake_jobs.driver.shutdown import DriverExit
from lake_jobs.driver.standing import ItemKind, StandingApplication, StandingSettings, ZoneGate
from lake_jobs.replication.source import HudiSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession


OpenTable: TypeAlias = "Callable[[SparkSession, ReplicationRequest], HudiSource]"


class Replicate(Protocol):
    """Brings one sink up to date; raises nothing but what ends the process."""

    def __call__(self, spark: SparkSession, request: ReplicationRequest, open_table: OpenTable) -> ReplicationResult:
        """Run one request, with the reader that `open_table` returns; what that raises is the run's to report."""


class TaskSource:
    """The task that began this driver, at the other end of a socket that only its user can open."""

    def __init__(self, path: str) -> None:
        self._connection = Client(path, family="AF_UNIX")
        # The application's threads share the connection: one question and its answer at a time.
        self._asking = threading.Lock()

    def pull(
        self, free: int, lines: Mapping[str, list[str]], known: list[str]
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return new requests by stream, and the streams to end with reasons. Raises LeaseLostError."""
        answer = self._ask({"free": free, "lines": dict(lines), "known": known})
        return dict(answer["requests"]), dict(answer["cancel"])

    def finish(self, item_id: str, result: ReplicationResult, lines: list[str], *, takes_next: bool) -> dict[str, str]:
        """Report a run's end; nothing follows in its place, or a busy stream would hold it. Raises LeaseLostError."""
        del takes_next
        self._ask({"ended": item_id, "result": to_json(result), "lines": lines})
        return {}

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        try:
            with self._asking:
                self._connection.send_bytes(json.dumps(question).encode())
                return dict(json.loads(self._connection.recv_bytes()))
        except (EOFError, OSError) as error:
            raise LeaseLostError(f"the task that began this driver has ended ({error})") from error


@dataclass(frozen=True, slots=True)
class _Kept:
    """A table's reader between two runs of a stream, with what it was opened for."""

    request: ReplicationRequest
    properties: str
    zone: str
    session: SparkSession
    table: HudiSource | None = None


class Streams:
    """Runs the requests of many streams, each with a Spark session and a reader of its own."""

    def __init__(self, spark: SparkSession, replicate: Replicate) -> None:
        self._spark = spark
        self._replicate = replicate
        self._gate = ZoneGate()
        self._kept: dict[str, _Kept] = {}

    def run(self, request: ReplicationRequest, find_cancelled: Callable[[], str] = str) -> ReplicationResult:
        """Bring one sink up to date."""
        why = find_cancelled()
        if why:
            return failed_stream(request, f"it did not begin: {why}")
        stream = request.order.stream
        kept = self._find_kept(request)

        def open_table(session: SparkSession, request: ReplicationRequest) -> HudiSource:
            table = kept.table or read_table(session, request)
            self._kept[stream] = replace(kept, table=table)
            return table

        with self._gate.enter(kept.zone):
            result = self._replicate(kept.session, request, open_table)
        if result.has_failed:
            # Whatever it was: the next run opens the table again.
            self._kept.pop(stream, None)
        return result

    def _find_kept(self, request: ReplicationRequest) -> _Kept:
        """Return what is kept of a stream; nothing of another configuration, nor of a table with other properties."""
        named = replace(request, order=Order(request.order.stream), result_path="", submitter=None)
        path = f"{request.base_path}/.hoodie/hoodie.properties"
        kept = self._kept.get(request.order.stream)
        try:
            properties = files.read_text(self._spark, path)
        except (OSError, Py4JJavaError):
            properties = ""  # the run says why
        if kept is not None and kept.request == named and kept.properties == properties:
            return kept
        # A session of its own: Hudi switches settings of the session on and off as it reads.
        return _Kept(named, properties, zone_in(properties), self._spark.newSession())


def read_table(spark: SparkSession, request: ReplicationRequest) -> HudiSource:
    """Open the table of a request. Raises LakeError, Py4JJavaError."""
    most_rows = request.max_transaction_rows
    return HudiSource(spark, request.base_path, request.mode, request.key, request.run_options.reader, most_rows)


def zone_in(properties: str) -> str:
    """Return the zone of a table's instants, as the text of its properties has it; Hudi's default where it has none."""
    named = (line.partition("=") for line in properties.splitlines() if not line.startswith("#"))
    return next((zone.strip() for name, _, zone in named if name.strip() == TIMELINE_ZONE), "LOCAL")


def run_streams(spark: SparkSession, request: ReplicationRequest, replicate: Replicate) -> ReplicationResult:
    """Run the streams that the task hands out until it says no more, or the driver is idle or old."""
    settings = StandingSettings.of(request.options)
    kind = ItemKind(partial(from_json, ReplicationRequest), Streams(spark, replicate).run, failed_stream)
    try:
        source = TaskSource(request.options[CHANNEL])
        StandingApplication(source, settings, spark.sparkContext, kind).run()
    except LeaseLostError as error:
        # Another driver has these streams, or is about to. Their sinks refuse this one, so it need not wait for locks.
        DriverExit(jvm_pid(spark), spark).exit(str(error))
    except OSError as error:
        return replace(failed_stream(request, f"the task does not answer: {error}"), stream="")
    return ReplicationResult("", ended=True)


def failed_stream(request: ReplicationRequest | None, message: str) -> ReplicationResult:
    """Return the result of a run that could not be run."""
    stream = "" if request is None else request.order.stream
    return ReplicationResult(stream, ended=True, failure_kind=FailureKind.OTHER, message=message[:1000])
