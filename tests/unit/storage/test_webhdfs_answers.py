"""A NameNode that leads elsewhere, or a file without an end: the login stays, and the reader comes back."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.storage import store, webhdfs
from airflow_lake_provider.storage.table_storage import Storage, open_storage
from tests.support.patience import patient

Answer = Callable[[BaseHTTPRequestHandler], None]
STATUS = {"pathSuffix": "", "type": "FILE", "length": 10, "modificationTime": 1}


@contextmanager
def serve(answer: Answer) -> Iterator[tuple[str, list[str]]]:
    """Serve a port; yield its address, and the logins that arrived."""
    logins: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            logins.append(self.headers.get("Authorization", ""))
            with suppress(OSError):
                answer(self)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing goes to the tests' output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}", logins
    finally:
        server.shutdown()
        server.server_close()


def say(handler: BaseHTTPRequestHandler, content: bytes, status: int = 200, **headers: str) -> None:
    handler.send_response(status)
    for name, text in {"Content-Length": str(len(content)), **headers}.items():
        handler.send_header(name, text)
    handler.end_headers()
    handler.wfile.write(content)


def name_node(location: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        if "op=OPEN" in handler.path:
            say(handler, b"", 307, Location=location)
        else:
            say(handler, json.dumps({"FileStatus": STATUS}).encode())

    return answer


def table(address: str) -> Storage:
    return open_storage(f"webhdfs://{address}/lake/t", {"user": "svc", "password": "the-password"})


def test_login_goes_to_the_name_node_alone() -> None:
    with (
        serve(lambda handler: say(handler, b"0123456789")) as (elsewhere, stolen),
        serve(name_node(f"http://{elsewhere}/x")) as (address, own),
    ):
        assert table(address).read_bytes("f") == b"0123456789"
        assert table(address).read_bytes("f") == b"0123456789"
    assert set(stolen) == {""}
    assert own
    assert all(login.startswith("Basic ") for login in own)


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://127.0.0.1/x", "//", "http://[::", "data:,x"])
def test_file_is_read_by_http_alone(location: str) -> None:
    with serve(name_node(location)) as (address, _), pytest.raises((LakeError, OSError)):
        table(address).read_bytes("f")


def test_redirects_in_a_circle_end() -> None:
    with (
        serve(lambda handler: say(handler, b"", 307, Location=handler.path)) as (address, _),
        pytest.raises((LakeError, OSError)),
    ):
        table(address).stat("f")


def test_answer_without_an_end_gives_its_reader_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhdfs, "MAX_ANSWER_BYTES", 3_000_000)
    monkeypatch.setattr(webhdfs, "TIMEOUT_S", 1.0)

    def flood(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b"x" * 65_536)

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b"x" * 1_100_000)
            time.sleep(0.6)

    for answer in (flood, drip, lambda _: time.sleep(5)):
        began_s = time.monotonic()
        with serve(answer) as (address, _), pytest.raises((LakeError, OSError)):
            table(address).stat("f")
        assert time.monotonic() - began_s < patient(4)


def drip_body(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "500000")
    handler.end_headers()
    while True:
        handler.wfile.write(b" ")
        time.sleep(0.2)


def drip_head(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        handler.wfile.write(b"x")
        time.sleep(0.2)


@pytest.mark.parametrize("answer", [drip_body, drip_head])
def test_drops_of_an_answer_give_its_reader_back(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time-out of a socket begins again with each byte, and what was announced is waited for as a whole."""
    monkeypatch.setattr(store, "QUESTION_TIMEOUT_S", 1.0)
    for ask in (lambda of: of.stat("f"), lambda of: of.list_names("d"), lambda of: of.read_bytes("f")):
        began_s = time.monotonic()
        with serve(answer) as (address, _), pytest.raises(LakeError, match="within 1 s"):
            ask(table(address))
        assert time.monotonic() - began_s < patient(4)
