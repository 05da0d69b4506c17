"""A small HTTP server that plays a cluster's API, and programs on PATH that talk to it."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Answer = tuple[int, dict[str, Any]]
Route = Callable[[str, str, dict[str, str], dict[str, Any]], Answer]
"""(method, path, query, body) -> (status, JSON, or plain text as its `text`)."""


@contextmanager
def serve(route: Route) -> Iterator[int]:
    """Serve on a free loopback port; yield it."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            parts = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            status, answer = route(self.command, parts.path, query, body)
            text = str(answer["text"]).encode() if "text" in answer else json.dumps(answer).encode()
            self.send_response(status)
            if "wants" in answer:
                self.send_header("WWW-Authenticate", answer["wants"])
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = _answer

        def log_message(self, *_: Any) -> None:
            """Be quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def install_program(folder: Path, name: str, port: int) -> None:
    """Install a program that posts its arguments to `/submitted`, prints the answer's `output`, ends with `code`."""
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, sys, urllib.request\n"
        "body = json.dumps({'argv': sys.argv[1:]}).encode()\n"
        f"request = urllib.request.Request('http://127.0.0.1:{port}/submitted', body)\n"
        "answer = json.load(urllib.request.urlopen(request))\n"
        "print(answer['output'], flush=True)\n"
        "sys.exit(answer.get('code', 0))\n",
        encoding="utf-8",
    )
    program.chmod(0o755)
