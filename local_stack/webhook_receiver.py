"""A receiver of webhooks: a real HTTP server that stores the posts to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class WebhookReceiver(ThreadingHTTPServer):
    """Answers every post with `status`; `posts` are path, headers and body."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.posts: list[tuple[str, dict[str, str], dict[str, Any]]] = []

    def connection(self, **settings: Any) -> str:
        """Return the Airflow connection to this receiver, as JSON."""
        return json.dumps({"conn_type": "http", "host": f"http://127.0.0.1:{self.server_port}"} | settings)


class _Handler(BaseHTTPRequestHandler):
    server: WebhookReceiver

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.posts.append((self.path, dict(self.headers), body))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def webhook_receiver() -> Iterator[WebhookReceiver]:
    """Receive for as long as it lasts."""
    with WebhookReceiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
