"""Small HTTP servers for tests that play the manager to Airflow's tasks."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class JsonHandler(BaseHTTPRequestHandler):
    """Reads and answers JSON; a subclass has the methods."""

    def body(self) -> dict[str, Any]:
        """Return the request's body."""
        found: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["content-length"])))
        return found

    def answer(self, body: dict[str, Any]) -> None:
        """Answer with 200 and this body."""
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: Any) -> None:
        return


@contextmanager
def serve(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve on a free port of 127.0.0.1; give the server's URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
