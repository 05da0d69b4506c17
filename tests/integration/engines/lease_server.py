"""Plays the manager for tasks: leases that run out, one holder at a time, one policy, and sinks that want a snapshot.

It swallows all hints and reports.
"""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NO_POLICY: dict[str, Any] = {
    "hudi_options": {},
    "engine": "",
    "spark_conn_id": "",
    "spark_conf": {},
    "conflict": {},
    "timeout_s": 3600.0,
}
UNKNOWN_TABLE: dict[str, Any] = {
    "table_name": "",
    "identified": False,
    "completed_time": "",
    "changed_time": "",
    "sinks": [],
}
BEGUN: dict[str, Any] = {"needs_snapshot": True, "request": "", "generation": 0}


@dataclass
class Leases:
    """By path: the token that holds, and until when."""

    lease_s: float
    held: dict[str, tuple[str, float]] = field(default_factory=dict)
    """With a token that no task has, a task has lost its lease."""
    guard: threading.Lock = field(default_factory=threading.Lock)
    policy: dict[str, Any] = field(default_factory=dict)
    """What `NO_POLICY` has not."""

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        found = re.fullmatch(r"(?P<key>.*/executors/[a-z]+)(?P<verb>(/.*)?)", path)
        if found is None:
            return 200, BEGUN if path.endswith("/begin") else {"marked": 1}
        key, verb = found["key"], found["verb"]
        with self.guard:
            token, until = self.held.get(key, ("", 0.0))
            alive = until > time.monotonic()
            if not verb:
                if alive:
                    return 409, {"detail": "held by another run"}
                token = uuid.uuid4().hex
            elif not alive or body["token"] != token:
                return 409, {"detail": "the lease has passed to another executor"}
            self.held[key] = (token, 0.0 if verb == "/release" else time.monotonic() + self.lease_s)
            return 200, {"token": token, "lease_s": self.lease_s}


@contextmanager
def serve_leases(lease_s: float, leases: Leases | None = None) -> Iterator[str]:
    """Serve on a free loopback port; yield the address."""
    leases = leases or Leases(lease_s)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(*leases.answer(self.path, body))

        def do_GET(self) -> None:
            is_safepoint = self.path.endswith("/safepoint")
            self._answer(200, {"instant": None} if is_safepoint else UNKNOWN_TABLE | NO_POLICY | leases.policy)

        def _answer(self, status: int, answer: dict[str, Any]) -> None:
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            """Be quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
