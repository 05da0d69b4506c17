"""A server at the schema registry's address that answers nonsense."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from airflow_lake_provider.errors import SinkUnavailableError
from airflow_lake_provider.replication.sinks.kafka_server import SchemaRegistry
from airflow_lake_provider.sink_options.registry import RegistryOptions


@contextmanager
def serve(content: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing goes to the tests' output."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("number", ['"1"', "null", "[]", "{}", "-1", "2147483648", "1e999", "NaN", "true", "1.5"])
def test_number_that_no_record_can_name_is_one_clear_error(number: str) -> None:
    with (
        serve(b'{"id": %s}' % number.encode()) as address,
        pytest.raises(SinkUnavailableError, match=f"registry at {address} numbers a schema"),
    ):
        SchemaRegistry(RegistryOptions(address), "t-value").register('"string"')
