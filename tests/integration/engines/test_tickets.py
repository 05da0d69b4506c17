"""Tickets for YARN's REST APIs from a real KDC: a login that is wrong is one error, retried or not as it should be.

That YARN takes the tickets: test_secure_yarn.py.
"""

from __future__ import annotations

import shutil
import threading
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests

from airflow_lake_provider.errors import EngineAwayError, ServiceRefusedError
from airflow_lake_provider.execution.engines.engine import Login
from airflow_lake_provider.execution.engines.yarn import Negotiate
from local_stack import hadoop
from local_stack.kerberos import REALM, LocalKerberos, with_another_key

pytestmark = pytest.mark.integration

SPNEGO = bytes.fromhex("2b0601050502")


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKerberos]:
    if not hadoop.LIB.is_dir() and (shutil.which("mvn") is None or shutil.which("java") is None):
        pytest.skip("Kerberos needs Maven and Java 17")
    realm = LocalKerberos(tmp_path_factory.mktemp("kdc"))
    try:
        realm.start()
        yield realm
    finally:
        realm.stop()


@pytest.fixture
def login(realm: LocalKerberos, monkeypatch: pytest.MonkeyPatch) -> Login:
    # MIT's library reads these at each use.
    monkeypatch.setenv("KRB5_CONFIG", str(realm.config))
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{realm.folder}/no-such-cache")
    return Login(realm.client, str(realm.keytab), "extra of connection 'spark'")


@dataclass(frozen=True)
class Shown:
    """What an API was shown by one request."""

    ticket: str
    body: bytes


def ask(login: Login, host: str = "localhost", body: bytes = b"") -> Shown:
    """Change something by an API that wants a ticket; return what it was shown, with one."""
    shown: list[Shown] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            sent = self.rfile.read(int(self.headers["Content-Length"]))
            shown.append(Shown(self.headers.get("Authorization", ""), sent))
            self.send_response(200 if shown[-1].ticket else 401)
            self.send_header("WWW-Authenticate", "Negotiate")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Be quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://{host}:{server.server_address[1]}/"
        requests.put(url, body, auth=Negotiate(login, "job"), timeout=10).raise_for_status()
    finally:
        server.shutdown()
        server.server_close()
    without, with_ticket = shown
    assert without == Shown("", body)
    return with_ticket


def test_api_that_wants_a_ticket_gets_one_of_the_keytab_and_the_whole_request_again(login: Login) -> None:
    shown = ask(login, body=b'{"state": "KILLED"}')
    assert shown.body == b'{"state": "KILLED"}'
    scheme, _, ticket = shown.ticket.partition(" ")
    assert scheme == "Negotiate"
    # The object id of SPNEGO comes first (RFC 4178).
    assert SPNEGO in b64decode(ticket)[:16]


def test_login_that_is_wrong_is_refused_and_says_what_helps(realm: LocalKerberos, login: Login, tmp_path: Path) -> None:
    old = replace(login, keytab=str(with_another_key(realm.keytab, tmp_path / "old.keytab")))
    with pytest.raises(ServiceRefusedError, match=r"old.keytab \(extra of connection 'spark'\): .* its new keytab"):
        ask(old)
    with pytest.raises(ServiceRefusedError, match="holds no key of the principal"):
        ask(replace(login, principal=f"ann@{REALM}"))
    unknown = tmp_path / "unknown.keytab"
    unknown.write_bytes(realm.keytab.read_bytes().replace(b"\x00\x04lake", b"\x00\x04laka"))
    with pytest.raises(ServiceRefusedError, match="the realm has no such principal"):
        ask(replace(login, principal=f"laka@{REALM}", keytab=str(unknown)))
    with pytest.raises(ServiceRefusedError, match="by its host's name"):
        ask(login, "127.0.0.1")


def test_ticket_that_is_not_there_now_is_waited_for(
    realm: LocalKerberos, login: Login, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(EngineAwayError, match="there is no valid ticket"):
        ask(Login())
    away = tmp_path / "krb5.conf"
    away.write_text(realm.config.read_text("utf-8").replace(f":{realm.port}", ":9"), "utf-8")
    monkeypatch.setenv("KRB5_CONFIG", str(away))
    copy = shutil.copy(realm.keytab, tmp_path / "copy.keytab")
    with pytest.raises(EngineAwayError, match="the KDC does not answer"):
        ask(replace(login, keytab=str(copy)))
