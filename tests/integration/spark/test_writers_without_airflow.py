"""A stock writer while Airflow is down, silent or broken: its commits stand, and it waits for a bounded time.

The same with the client that RFC-43 put into Hudi, which is why it should stay switched off.
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
from conftest import MakeTable, Table, rows, rows_written
from py4j.protocol import Py4JJavaError

from local_stack import lake_writer
from local_stack.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

TIMEOUT_S = 2
SILENT = 0


class AwkwardManager(ThreadingHTTPServer):
    """Answers every request with one status, or (SILENT) takes it and never answers."""

    daemon_threads = True

    def __init__(self, status: int) -> None:
        super().__init__(("127.0.0.1", 0), AwkwardHandler)
        self.status = status
        self.requests: list[str] = []
        self.waited_s: queue.SimpleQueue[float] = queue.SimpleQueue()
        """How long the client waited for its answer before it hung up."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class AwkwardHandler(BaseHTTPRequestHandler):
    server: AwkwardManager

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        self.server.requests.append(self.path)
        if self.server.status == SILENT:
            # Ends when the client gives up: nothing more comes, then its end of the connection is closed.
            taken = time.monotonic()
            self.rfile.read(1)
            self.server.waited_s.put(time.monotonic() - taken)
            self.close_connection = True
            return
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def start_manager() -> Iterator[Callable[[int], AwkwardManager]]:
    servers: list[AwkwardManager] = []

    def start(status: int) -> AwkwardManager:
        servers.append(AwkwardManager(status))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def write_next(spark: SparkSession, table: Table, url: str, **options: str) -> float:
    """Write the table's next commit with its callback on; return the seconds that it took."""
    commit = table.written.commits
    timeout = {"hoodie.write.commit.callback.http.timeout.seconds": str(TIMEOUT_S)}
    written = replace(table.written, hudi_options={**table.written.hudi_options, **timeout, **options})
    settings = lake_writer.write_options(written, commit, lake_writer.Callback(url, "s3cret"), {})
    began = time.monotonic()
    # The settings of the table win over the writer's own of five seconds.
    lake_writer.write_commit(spark, written, commit, settings | timeout)
    return time.monotonic() - began


def commits(table: Table) -> int:
    return len(table.completed("deltacommit"))


@pytest.mark.parametrize(
    "status", [500, *(pytest.param(status, marks=pytest.mark.soak) for status in (503, 404, 401))], ids=str
)
def test_commit_stands_when_the_manager_answers_an_error_and_nothing_is_sent_again(
    spark: SparkSession, make_table: MakeTable, start_manager: Callable[[int], AwkwardManager], status: int
) -> None:
    table, manager = make_table(), start_manager(status)
    before = commits(table)
    seconds = write_next(spark, table, f"{manager.url}/v1/hoodie/callback")
    print(f"answer {status}: the commit took {seconds:.1f} s")
    assert commits(table) == before + 1
    assert manager.requests == ["/v1/hoodie/callback"]
    assert rows(spark, table) == rows_written(spark, table.written, before + 1)


def test_commit_stands_when_no_server_listens(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table()
    before = commits(table)
    seconds = write_next(spark, table, f"http://127.0.0.1:{free_port()}/v1/hoodie/callback")
    print(f"no server listens: the commit took {seconds:.1f} s")
    assert commits(table) == before + 1
    assert rows(spark, table) == rows_written(spark, table.written, before + 1)


def test_writer_of_a_silent_manager_hangs_up_by_itself_after_its_timeout(
    spark: SparkSession, make_table: MakeTable, start_manager: Callable[[int], AwkwardManager]
) -> None:
    """The manager never ends the wait, so that the writer's own timeout must have."""
    table, manager = make_table(), start_manager(SILENT)
    before = commits(table)
    seconds = write_next(spark, table, f"{manager.url}/v1/hoodie/callback")
    print(f"no answer: the commit took {seconds:.1f} s, {TIMEOUT_S} s of them waiting")
    # Hudi's own default is 30 s; in between lies what a busy machine takes.
    assert manager.waited_s.get(timeout=10) < TIMEOUT_S + 10
    assert len(manager.requests) == 1
    assert commits(table) == before + 1
    assert rows(spark, table) == rows_written(spark, table.written, before + 1)


@pytest.mark.soak
@pytest.mark.parametrize("status", [200, 500, None], ids=["answers-200", "answers-500", "down"])
def test_rfc_43s_own_client_fails_the_write_after_the_commit_whatever_the_manager_does(
    spark: SparkSession, make_table: MakeTable, start_manager: Callable[[int], AwkwardManager], status: int | None
) -> None:
    table = make_table()
    before = commits(table)
    url = f"http://127.0.0.1:{free_port()}" if status is None else (manager := start_manager(status)).url
    own_client = {
        "hoodie.table.services.enabled": "true",
        "hoodie.compact.schedule.inline": "true",
        "hoodie.compact.inline.max.delta.commits": "1",
        "hoodie.table.service.manager.enabled": "true",
        "hoodie.table.service.manager.uris": url,
        "hoodie.table.service.manager.actions": "compaction",
    }
    with pytest.raises(Py4JJavaError, match=r"no default value .* hoodie.table.service.manager.deploy.extra.params"):
        write_next(spark, table, f"{url}/v1/hoodie/callback", **own_client)
    # The write has failed for its caller, and stands nevertheless, with a plan that was not announced.
    assert commits(table) == before + 1
    assert len(table.pending()) == 1
    if status is not None:
        assert not [path for path in manager.requests if "/service/" in path]


def remote_view(manager: AwkwardManager) -> dict[str, str]:
    """Return what has a client of Hudi ask a shared timeline server first."""
    return {
        "hoodie.embed.timeline.server": "false",
        "hoodie.filesystem.view.type": "REMOTE_FIRST",
        "hoodie.filesystem.view.remote.host": "127.0.0.1",
        "hoodie.filesystem.view.remote.port": str(manager.server_port),
        "hoodie.write.markers.type": "DIRECT",
    }


@pytest.mark.soak
def test_only_writers_ask_a_shared_timeline_server_and_go_on_without_it(
    spark: SparkSession, make_table: MakeTable, start_manager: Callable[[int], AwkwardManager]
) -> None:
    """Readers of Hudi 1.2.0 make their file-system view themselves, whatever `hoodie.filesystem.view.type` says."""
    table, manager = make_table(), start_manager(404)
    before = commits(table)
    options = remote_view(manager)
    incremental = {"hoodie.datasource.query.type": "incremental", "hoodie.datasource.read.begin.instanttime": "000"}
    for more in (
        {},
        {"hoodie.metadata.enable": "false"},
        {"hoodie.datasource.query.type": "read_optimized"},
        incremental,
    ):
        reader = spark.read.format("hudi").options(**options, **more).load(str(table.path))
        assert reader.count() > 0
    assert manager.requests == []
    write_next(spark, table, f"http://127.0.0.1:{free_port()}/v1/hoodie/callback", **options)
    asked = {path.split("?")[0] for path in manager.requests}
    print(f"a writer asks {sorted(asked)}")
    assert asked, "a writer asks the server before it makes a view of its own"
    assert all(path.startswith("/v1/hoodie/view/") for path in asked)
    assert rows(spark, table) == rows_written(spark, table.written, before + 1)
