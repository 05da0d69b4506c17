"""A client of the manager closes its connections with its own end: a triggerer makes one for each question."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from airflow_lake_provider.config.settings import TimelineServerMode
from airflow_lake_provider.errors import TimelineServerUnavailableError
from airflow_lake_provider.hooks.lake import LakeHook
from airflow_lake_provider.timeline_server.client import TimelineEndpoint
from airflow_lake_provider.timeline_server.views import TimelineViewManager


@pytest.fixture
def manager() -> Iterator[tuple[str, threading.Event]]:
    """Serve an empty answer; the event is set when a client has closed its connection."""
    closed = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", "14")
            self.end_headers()
            self.wfile.write(b'{"tables": []}')

        def finish(self) -> None:
            super().finish()
            closed.set()

        def log_message(self, *_args: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", closed
        server.shutdown()
        thread.join()


def ask_by_hook(url: str) -> LakeHook:
    hook = LakeHook()
    hook._address = lambda: (url, "a-token")  # type: ignore[method-assign]
    hook.list_tables()
    return hook


def ask_by_views(url: str) -> TimelineViewManager:
    views = TimelineViewManager(TimelineServerMode.REQUIRED, TimelineEndpoint(url, "a-token"))
    with pytest.raises(TimelineServerUnavailableError):
        views.get_view("/lake/t").snapshot()
    return views


@pytest.mark.parametrize("ask", [ask_by_hook, ask_by_views])
def test_connection_ends_with_its_client(manager: tuple[str, threading.Event], ask: Callable[[str], object]) -> None:
    url, closed = manager
    client = ask(url)
    assert not closed.wait(0.2)
    del client
    gc.collect()
    assert closed.wait(10)
