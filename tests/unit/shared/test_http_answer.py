"""Servers that answer with a redirect, without an end, or with garbage: no login leaves, and no call hangs."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from airflow_lake_provider.shared.http_answer import ask
from tests.support.patience import patient

Serve = Callable[[socket.socket], None]


@contextmanager
def serve(answer: Serve) -> Iterator[tuple[str, list[bytes]]]:
    """Serve connections on a port of its own; yield its address, and what clients have sent."""
    heard: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def one(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            request = b""
            while b"\r\n\r\n" not in request and (part := connection.recv(65_536)):
                request += part
            heard.append(request)
            answer(connection)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=one, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", heard
    finally:
        listener.close()


def say(content: bytes, status: str = "200 OK", more: str = "") -> Serve:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\n{more}\r\n"
    return lambda connection: connection.sendall(head.encode() + content)


def flood(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connection.sendall(b"x" * 65_536)


def drip(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        connection.sendall(b"X-Wait: 1\r\n"[:1])
        time.sleep(0.05)


def with_login(address: str, body: bytes | None = None) -> urllib.request.Request:
    return urllib.request.Request(address, body, {"Authorization": "Bearer the-token"})


@pytest.mark.parametrize("body", [None, b"{}"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_is_not_followed_and_takes_no_login_along(status: int, body: bytes | None) -> None:
    with serve(say(b"{}")) as (elsewhere, heard):
        redirect = say(b"", f"{status} Moved", f"Location: {elsewhere}/x\r\n")
        with serve(redirect) as (address, _), pytest.raises(OSError, match=f"redirects .{status}."):
            ask(with_login(address, body), 5)
    assert heard == []


@pytest.mark.parametrize("address", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x", "x"])
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises((OSError, ValueError), match=r"http://|unknown url type"):
        ask(urllib.request.Request(address), 5)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (flood, "more than 100,000 bytes"),
        (drip, "no whole answer within|timed out"),
        (lambda _: time.sleep(3), "no whole answer within|timed out"),
        (lambda connection: connection.sendall(b"\x00\xffgarbage\r\n\r\n" * 100), "BadStatusLine"),
        (
            lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 500),
            "got more than 100 headers",
        ),
        (say(b"", more="Content-Length: 99999999999\r\n"), ""),
    ],
)
def test_answer_without_an_end_or_sense_ends_in_time(answer: Serve, problem: str) -> None:
    began_s = time.monotonic()
    with serve(answer) as (address, _):
        if problem:
            with pytest.raises(OSError, match=problem):
                ask(with_login(address), 1, limit_bytes=100_000)
        else:
            with suppress(OSError):
                ask(with_login(address), 1, limit_bytes=100_000)
    assert time.monotonic() - began_s < patient(3)


def test_refusal_is_an_answer_of_limited_size() -> None:
    with serve(say(b'{"error": "x"}', "409 Conflict")) as (address, _):
        answer = ask(with_login(address), 5)
    assert (answer.status, json.loads(answer.content), answer.is_success) == (409, {"error": "x"}, False)
    with serve(say(b"x" * 200, "500 Error")) as (address, _), pytest.raises(OSError, match="more than 100 bytes"):
        ask(with_login(address), 5, limit_bytes=100)


def test_every_client_of_the_standard_library_keeps_its_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_lake_provider.cli import command
    from airflow_lake_provider.config.manager_trust import NO_SETTINGS
    from airflow_lake_provider.manager.read_model import OverviewReport
    from local_stack import maven_central

    with serve(say(b"{}")) as (elsewhere, heard):
        redirect = say(b"", "302 Found", f"Location: {elsewhere}/x\r\n")
        with serve(redirect) as (address, _):
            monkeypatch.setattr(command, "find_address", lambda: (address, "the-token", NO_SETTINGS))
            with pytest.raises(command.NoManagerError, match="redirects"):
                command.ask(OverviewReport)
            assert heard == []
            # Mirrors of Maven Central do redirect, to stores of other hosts.
            named = address.replace("http://", "http://shop:the-password@")
            maven_central._append(f"{named}/a.jar", tmp_path / "a.jar.part")
    (request,) = heard
    assert b"uthorization" not in request


def test_no_other_client_follows_redirects_with_a_login() -> None:
    root = Path(__file__).parents[3]
    places = ("airflow_lake_provider", "spark_jobs", "docker", "demo", "tools", "local_stack")
    found = {
        str(path.relative_to(root))
        for place in places
        for path in (root / place).rglob("*.py")
        if "urllib.request" in (text := path.read_text(encoding="utf-8"))
        and "Authorization" in text
        and not ("http_answer import" in text or "add_unredirected_header" in text)
    }
    assert found == set(), "use shared/http_answer.py"


def test_certificates_are_verified() -> None:
    with serve(say(b"{}")) as (address, _), pytest.raises((OSError, ssl.SSLError)):
        ask(with_login(address.replace("http://", "https://")), 5, ssl.create_default_context())
