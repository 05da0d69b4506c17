"""Stands between writers and Airflow: loses notices, doubles them, holds them back. Its letters are real requests."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

from tests.system.crashes.faults import RoundPlan

Deliver = Callable[[bytes, Mapping[str, str]], int]
"""Hands a notice (body, headers) on and returns the answer's status; 0 when no server answered."""


@dataclass(frozen=True, slots=True)
class Letter:
    """One notice of a commit, and what became of it."""

    table_name: str
    instant: str
    fate: str
    status: int


def to_url(url: str) -> Deliver:
    """Return what posts a notice to an address as it came."""

    def deliver(body: bytes, headers: Mapping[str, str]) -> int:
        try:
            return httpx.post(url, content=body, headers=dict(headers), timeout=10).status_code
        except httpx.HTTPError:
            return 0

    return deliver


class Postman:
    """An HTTP server in this process. `letters` are all notices so far, in the order of their answers."""

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._lock = threading.Lock()
        self._timers: list[threading.Timer] = []
        self._plan = RoundPlan(0, (), 0.0, 0.0, 0.0)
        self._rng = random.Random(0)
        self.letters: list[Letter] = []
        postman = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = postman._take(body, self.headers)
                self.send_response(status or 503)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="postman", daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1/hoodie/callback"

    def begin(self, plan: RoundPlan) -> None:
        """From now on treat notices as this round wants it."""
        self._plan, self._rng = plan, random.Random(plan.seed + 1)

    def letters_of(self, table_name: str) -> list[Letter]:
        return [letter for letter in self.letters if letter.table_name == table_name]

    def wait(self) -> None:
        """Wait until everything that was held back is delivered."""
        for timer in self._timers:
            timer.join()
        self._timers.clear()

    def close(self) -> None:
        self.wait()
        self._server.shutdown()
        self._server.server_close()

    def _take(self, body: bytes, headers: Mapping[str, str]) -> int:
        reported = json.loads(body)
        kept = {key: value for key, value in headers.items() if key.lower() not in {"host", "content-length"}}
        with self._lock:
            drops, doubles, holds, wait_s = (self._rng.random() for _ in range(4))

        def send(fate: str) -> int:
            status = self._deliver(body, kept)
            with self._lock:
                self.letters.append(Letter(reported["tableName"], reported["commitTime"], fate, status))
            return status

        if drops < self._plan.drop:
            with self._lock:
                self.letters.append(Letter(reported["tableName"], reported["commitTime"], "lost on its way", 0))
            return 200
        if holds < self._plan.hold:
            timer = threading.Timer(1 + 7 * wait_s, lambda: send("held back"))
            self._timers.append(timer)
            timer.start()
            return 200
        if doubles < self._plan.double:
            send("the first of two")
        return send("delivered")
