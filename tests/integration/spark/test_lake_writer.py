"""The stock writer of the local stack: what it writes, and which notices Hudi sends for it."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest
from conftest import MakeTable, rows, rows_written

from local_stack import lake_writer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


class FakeManager(HTTPServer):
    """Takes notices and remembers each one's headers and body."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), NoticeHandler)
        self.notices: list[tuple[dict[str, str], dict[str, object]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/hoodie/callback"


class NoticeHandler(BaseHTTPRequestHandler):
    server: FakeManager

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.notices.append((dict(self.headers.items()), body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def manager() -> Iterator[FakeManager]:
    with FakeManager() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_each_commit_but_the_dropped_one_is_announced_with_token_and_headers(
    spark: SparkSession, make_table: MakeTable, manager: FakeManager
) -> None:
    table = make_table()
    first = table.written.commits
    written = replace(table.written, drop_notices=(first,))
    callback = lake_writer.Callback(manager.url, "s3cret", {"X-Lake-Database": "sales", "X-Lake-Owner": "shop"})
    for commit in (first, first + 1):
        options = lake_writer.write_options(written, commit, callback, {})
        lake_writer.write_commit(spark, written, commit, options)

    ((headers, body),) = manager.notices
    assert headers["HUDI-CALLBACK-KEY"] == "s3cret"
    assert (headers["X-Lake-Database"], headers["X-Lake-Owner"]) == ("sales", "shop")
    assert body["basePath"] == str(table.path)
    last_commit = max(table.spans("deltacommit"))
    assert body["commitTime"] == last_commit[0]
    assert rows(spark, table) == rows_written(spark, written, first + 2)
    assert len(rows(spark, table)) == lake_writer.rows_expected(written, first + 1)
    # Updates are logged, so there is something to compact, and the writer compacts nothing itself.
    assert any(".log." in path.name for path in table.path.glob("*/.*"))
    assert table.completed() == table.pending() == set()
