"""Many streams in one driver, through spark-submit, with real Hudi tables: one fails, the driver is killed, the others
go on, and no sink lacks a change or has one twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from test_replicate_as_process import META, end, submit

from airflow_lake_provider.job_contract import (
    WORK_AT_ONCE,
    WORK_IDLE_S,
    WORK_MAX_AGE_S,
    FailureKind,
    from_json,
    to_json,
)
from airflow_lake_provider.replication.change import ChangeMode
from airflow_lake_provider.replication.job import CHANNEL, Channel, ReplicationRequest, ReplicationResult
from airflow_lake_provider.replication.transactions import Order
from local_stack.postgres import LocalPostgres

if TYPE_CHECKING:
    from conftest import MakeTable, Table
    from pyspark.sql import SparkSession

    from lake_jobs.replication.streams import OpenTable

PATIENCE_S = 120 * float(os.environ.get("LAKE_PATIENCE", "1"))
AT_ONCE = 2


class Task:
    """Hands out the streams that are due, each when it does not run, and keeps what became of them."""

    def __init__(self) -> None:
        self.due: list[str] = []
        self.requests: dict[str, ReplicationRequest] = {}
        self.results: dict[str, list[ReplicationResult]] = {}
        self.most_at_once = 0
        self._running = set[str]()
        self._changed = threading.Condition()

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        with self._changed:
            if "ended" in question:
                self._running.discard(question["ended"])
                result = from_json(ReplicationResult, question["result"])
                self.results.setdefault(result.stream, []).append(result)
                self._changed.notify_all()
                return {}
            taken = [stream for stream in self.due if stream not in self._running][: question["free"]]
            self.due = [stream for stream in self.due if stream not in taken]
            self._running |= {*taken}
            self.most_at_once = max(self.most_at_once, len(self._running))
            return {"requests": {stream: to_json(self.requests[stream]) for stream in taken}, "cancel": {}}

    def run(self, streams: list[str]) -> dict[str, ReplicationResult]:
        """Have these streams run once more; return how it went with each."""
        with self._changed:
            self.results.clear()
            self.due += streams
            assert self._changed.wait_for(lambda: len(self.results) == len(streams), PATIENCE_S), self.results
            return {stream: results[-1] for stream, results in self.results.items()}

    def forget_running(self) -> None:
        self._running.clear()


@contextlib.contextmanager
def driver(folder: Path, task: Task) -> Any:
    channel = Channel(task.answer)
    options = {CHANNEL: channel.path, WORK_AT_ONCE: str(AT_ONCE), WORK_IDLE_S: "600", WORK_MAX_AGE_S: "600"}
    request = ReplicationRequest("", "streams", "", Order("streams"), str(folder / "result.json"), options=options)
    with channel:
        process = submit(folder, request)
        try:
            yield process, channel
            assert channel.error is None
        finally:
            end(process)


def stream_of(table: Table, sinks: Path) -> ReplicationRequest:
    name = table.written.name
    order = Order(f"{name}.file", ends_early=True)
    options = {"path": str(sinks / name), "format": "parquet"}
    return ReplicationRequest(str(table.path), name, "file", order, "", options=options)


def records_of(sinks: Path, name: str) -> list[dict[str, Any]]:
    paths = sorted((sinks / name).glob("[0-9]*.parquet"))
    return [record for path in paths for record in pq.ParquetFile(path).read().to_pylist()]


def rows_of(spark: SparkSession, table: Table) -> dict[int, dict[str, Any]]:
    return {row.id: row.asDict() for row in spark.read.format("hudi").load(str(table.path)).drop(*META).collect()}


def assert_whole(spark: SparkSession, table: Table, sinks: Path) -> None:
    records = records_of(sinks, table.written.name)
    times = Counter((record["commit"], record["key"]["id"]) for record in records)
    assert set(times.values()) == {1}, "a change is there twice"
    newest = {record["key"]["id"]: record["after"] for record in records}
    assert newest == rows_of(spark, table)


def test_a_stream_fails_alone_a_killed_driver_loses_and_doubles_nothing_and_one_ends_with_its_task(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    tables = [make_table(name) for name in ("orders", "returns", "visits", "broken")]
    sinks, task = tmp_path / "sinks", Task()
    for table in tables:
        task.requests[f"{table.written.name}.file"] = stream_of(table, sinks)
    every, good = list(task.requests), list(task.requests)[:-1]
    with driver(tmp_path, task) as (first, _):
        begun = task.run(every)
        assert {result.message for result in begun.values()} == {""}
        for table in tables:
            add_commit(spark, table, 3)
        log_of_commit(tables[-1]).unlink()
        kill_in_the_middle(first, task, good, sinks)
    task.forget_running()
    with driver(tmp_path, task) as (second, channel):
        ended = task.run(["broken.file", *good])
        failed = ended.pop("broken.file")
        assert failed.failure_kind is not None
        assert failed.failure_kind is not FailureKind.REFUSED
        assert "is not there" in failed.message
        assert not any(result.has_failed for result in ended.values())
        # Nothing waits behind the one that fails, however often it is tried.
        again = task.run(["broken.file", *good])
        assert [again[stream].has_failed for stream in every] == [False, False, False, True]
        assert task.most_at_once == AT_ONCE
        assert channel.error is None
        channel.close()
        second.wait(PATIENCE_S)
        # Its thread was in the middle of a question.
        channel.error = None
    log = (tmp_path / "driver.log").read_text()
    assert "the task that began this driver has ended" in log
    assert json.dumps(channel.path)[1:-1] not in log
    for table in tables[:-1]:
        assert_whole(spark, table, sinks)


@pytest.mark.soak  # the sink alone: tests/integration/replication/test_stopped_servers.py
def test_database_that_hangs_costs_its_own_stream_alone(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    mirrored, copied = make_table("mirrored"), make_table("copied")
    sinks, task, server = tmp_path / "sinks", Task(), LocalPostgres()
    server.start()
    try:
        server.query("create table mirror (id bigint primary key)")
        options = {"url": server.url, "table": "mirror", "timeout_s": "3"}
        order = Order("mirrored.database", ends_early=True)
        task.requests["mirrored.database"] = ReplicationRequest(
            str(mirrored.path), "mirrored", "database", order, "", ChangeMode.LATEST, ("id",), options
        )
        task.requests["copied.file"] = stream_of(copied, sinks)
        every = list(task.requests)
        with driver(tmp_path, task):
            assert {result.message for result in task.run(every).values()} == {""}
            for table in (mirrored, copied):
                add_commit(spark, table, 3)
            server.pause()
            ended = task.run(every)
            assert not ended["copied.file"].has_failed
            assert ended["mirrored.database"].failure_kind not in (None, FailureKind.REFUSED)
            assert re.search("timeout expired|has not answered", ended["mirrored.database"].message)
            server.resume()
            assert not task.run(["mirrored.database"])["mirrored.database"].has_failed
            assert {int(row) for row in server.query("select id from mirror")} == rows_of(spark, mirrored).keys()
        assert_whole(spark, copied, sinks)
    finally:
        server.resume()
        server.stop()


def add_commit(spark: SparkSession, table: Table, number: int) -> None:
    from conftest import write

    # The copies have the name of what they are copies of in their properties.
    write(spark, replace(table.written, name="orders"), number)


def log_of_commit(table: Table) -> Path:
    """Return a file that the newest commit wrote."""
    newest = max(table.completed("deltacommit"))
    return next(path for path in table.path.rglob(f".*_{newest}.log.*") if not path.name.endswith(".crc"))


def kill_in_the_middle(process: subprocess.Popen[bytes], task: Task, streams: list[str], sinks: Path) -> None:
    """Kill the driver when the first of its streams has written, while others have not."""
    before = count_files(sinks)
    task.due += streams
    deadline = time.monotonic() + PATIENCE_S
    while count_files(sinks) == before:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    assert count_files(sinks) < before + len(streams), "nothing was left to do"


def count_files(sinks: Path) -> int:
    return len(list(sinks.glob("*/[0-9]*.parquet")))


def test_reader_of_a_table_is_kept_until_its_properties_or_its_entry_change(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    from lake_jobs.replication.streams import Streams

    seen, results = list[object](), [False, False, False, False, True, False]

    def replicate(session: SparkSession, request: ReplicationRequest, open_table: OpenTable) -> ReplicationResult:
        seen.append(open_table(session, request))
        kind = FailureKind.OTHER if results.pop(0) else None
        return ReplicationResult(request.order.stream, ended=True, failure_kind=kind)

    streams, table = Streams(spark, replicate), make_table()
    request = stream_of(table, tmp_path)
    streams.run(request)
    streams.run(replace(request, order=replace(request.order, request="another")))
    with (table.path / ".hoodie" / "hoodie.properties").open("a") as properties:
        properties.write("hoodie.table.comment=new\n")
    # Hadoop's own checksum of the file as it was: with it no reader could open the table.
    (table.path / ".hoodie" / ".hoodie.properties.crc").unlink(missing_ok=True)
    streams.run(request)
    other = replace(request, options={**request.options, "reader": "slices"})
    streams.run(other)
    streams.run(other)
    streams.run(other)
    assert None not in seen
    kept = [seen[at] is seen[at + 1] for at in range(len(seen) - 1)]
    # The fifth run has failed, so the sixth one opens the table again.
    assert kept == [True, False, False, True, False]
