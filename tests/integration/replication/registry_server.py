"""A small schema registry with Confluent's interface, over real HTTP: subjects, numbers, a rule, a login."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Registry:
    """What the server knows. `login` is `user:password`, `token` a bearer's; empty for none."""

    login: str = ""
    token: str = ""
    url: str = ""
    refuse_new: bool = False
    schemas: list[str] = field(default_factory=list)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    kinds: dict[int, str] = field(default_factory=dict)
    """Of each number, the kind of schema that its registration named."""

    def latest(self, subject: str) -> tuple[int, dict[str, Any]]:
        if subject not in self.subjects:
            return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
        return 200, {"schema": self.schemas[self.subjects[subject][-1] - 1]}

    def register(self, subject: str, schema: str, kind: str = "AVRO") -> tuple[int, dict[str, Any]]:
        if schema in self.schemas:
            number = self.schemas.index(schema) + 1
        elif self.refuse_new:
            return 409, {"error_code": 409, "message": "Schema being registered is incompatible with an earlier schema"}
        else:
            self.schemas.append(schema)
            number = len(self.schemas)
            self.kinds[number] = kind
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return 200, {"id": number}

    def schema(self, number: int) -> Any:
        return json.loads(self.schemas[number - 1])


@contextmanager
def serve(registry: Registry, certificate: Path | None = None) -> Iterator[Registry]:
    """Serve it on the loopback address; by HTTPS with a certificate."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            _, subjects, subject, versions = self.path.split("/")
            assert (subjects, versions) == ("subjects", "versions")
            self.answer(lambda: registry.register(subject, body["schema"], body.get("schemaType", "AVRO")))

        def do_GET(self) -> None:
            if self.path.endswith("/versions/latest"):
                self.answer(lambda: registry.latest(self.path.split("/")[2]))
                return
            _, schemas, ids, number = self.path.split("/")
            assert (schemas, ids) == ("schemas", "ids")
            self.answer(lambda: (200, {"schema": registry.schemas[int(number) - 1]}))

        def answer(self, find: Callable[[], tuple[int, dict[str, Any]]]) -> None:
            expected = f"Basic {base64.b64encode(registry.login.encode()).decode()}" if registry.login else ""
            expected = f"Bearer {registry.token}" if registry.token else expected
            is_refused = expected and self.headers.get("Authorization") != expected
            status, answer = (401, {"error_code": 401, "message": "Unauthorized"}) if is_refused else find()
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing goes to the tests' output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    registry.url = f"{'http' if certificate is None else 'https'}://localhost:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
