"""Every client of the manager trusts a private authority by Airflow's own settings, or the environment's."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from airflow_lake_provider.cli import command
from airflow_lake_provider.config.manager_trust import ManagerTrust, ssl_context
from airflow_lake_provider.errors import ConfigError, ManagerUnreachableError, TimelineServerUnavailableError
from airflow_lake_provider.hooks.lake import LakeHook, airflow_trust
from airflow_lake_provider.manager.read_model import ProblemsReport
from airflow_lake_provider.timeline_server.client import AsyncTimelineClient, TimelineClient, TimelineEndpoint
from lake_jobs.driver.standing import WORK_CA, WORK_KEY, WORK_LEASE, WORK_TOKEN, WORK_URL, WorkSource
from tests.support.private_ca import load, sign

REFUSED = (ManagerUnreachableError, TimelineServerUnavailableError, command.NoManagerError)
ANSWER = {"tables": [], "changed": [], "requests": {}, "cancel": {}, "cursor": "", "changes": [], "resync": False,
          "problems": []}  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        content = json.dumps(ANSWER).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET

    def log_message(self, *_args: object) -> None:
        return


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_args: object) -> None:
        return  # A client that does not trust it hangs up.


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sign("authority", None, tmp_path_factory.mktemp("ca"))


def serve(context: ssl.SSLContext) -> Iterator[str]:
    with _QuietServer(("127.0.0.1", 0), _Handler) as server:
        # The handshake is the handler's: the thread that accepts must not wait for a client.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"https://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def manager(authority: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sign("server", load(authority), tmp_path_factory.mktemp("server")))
    yield from serve(context)


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", command.NO_MANAGER):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setenv("AIRFLOW__LAKE__SERVICE_TOKENS", "a-token")


def ask_by_hook(url: str) -> None:
    hook = LakeHook()
    hook._address = lambda: (url, "a-token")  # type: ignore[method-assign]
    hook.list_tables()


def ask_by_timeline_client(url: str) -> None:
    client = TimelineClient(TimelineEndpoint(url, "a-token", airflow_trust()))
    try:
        client.list_known(["/lake/t"])
    finally:
        client.close()


def ask_by_trigger(url: str) -> None:
    async def ask() -> None:
        client = AsyncTimelineClient(TimelineEndpoint(url, "a-token", airflow_trust()))
        try:
            await client._client.post("/changes", json={})
        except Exception as error:
            raise TimelineServerUnavailableError(str(error)) from error
        finally:
            await client._client.aclose()

    asyncio.run(ask())


def ask_by_command(url: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__LAKE__MANAGER_URL", url)
        command.ask(ProblemsReport)


def ask_by_application(url: str) -> None:
    options = {WORK_URL: url, WORK_TOKEN: "t", WORK_KEY: "k", WORK_LEASE: "l"}
    WorkSource(options | {WORK_CA: airflow_trust().private_authorities()}).pull(1, {}, [])


Client = Callable[[str], None]
CLIENTS: tuple[Client, ...] = (
    ask_by_hook,
    ask_by_timeline_client,
    ask_by_trigger,
    ask_by_command,
    ask_by_application,
)
AIRFLOWS = ("AIRFLOW__API__SSL_CA_FILE", "AIRFLOW__API__SSL_CERT")


@pytest.mark.parametrize("name", [*AIRFLOWS, "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
@pytest.mark.parametrize("ask", CLIENTS)
def test_client_trusts_a_private_authority(
    manager: str, authority: Path, monkeypatch: pytest.MonkeyPatch, ask: Client, name: str
) -> None:
    if ask is ask_by_application and name == "REQUESTS_CA_BUNDLE":
        pytest.skip("the driver follows Airflow's settings, and Python's own variables where it runs")
    monkeypatch.setenv(name, str(authority))
    ask(manager)


@pytest.mark.parametrize("ask", CLIENTS)
def test_client_sends_no_token_to_a_server_that_it_does_not_trust(manager: str, ask: Client) -> None:
    with pytest.raises(REFUSED, match="CERTIFICATE_VERIFY_FAILED"):
        ask(manager)


@pytest.mark.parametrize("ask", [ask_by_hook, ask_by_timeline_client, ask_by_command])
def test_refusal_says_what_to_set(manager: str, ask: Client) -> None:
    with pytest.raises(REFUSED, match=r"set \[api\] ssl_ca_file of this host"):
        ask(manager)


def test_own_authority_stands_in_place_of_the_public_ones(
    manager: str, authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__API__SSL_CA_FILE", str(sign("another", None, tmp_path)))
    monkeypatch.setenv("AIRFLOW__API__CLIENT_USE_PUBLIC_CERTS", "False")
    trust = airflow_trust()
    assert [dict(found["subject"][0])["commonName"] for found in ssl_context(manager, trust).get_ca_certs()] == [
        "another"
    ]
    with pytest.raises(REFUSED):
        ask_by_hook(manager)


def test_server_that_wants_to_know_its_clients_knows_the_hook(
    authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sign("server", load(authority), tmp_path))
    context.load_verify_locations(authority)
    context.verify_mode = ssl.CERT_REQUIRED
    monkeypatch.setenv("AIRFLOW__API__SSL_CA_FILE", str(authority))
    served = serve(context)
    url = next(served)
    for ask in (ask_by_hook, ask_by_timeline_client, ask_by_command):
        with pytest.raises(REFUSED):
            ask(url)
    client = sign("client", load(authority), tmp_path)
    for name in ("CERT", "KEY"):
        monkeypatch.setenv(f"AIRFLOW__API__CLIENT_SSL_{name}", str(client))
    for ask in (ask_by_hook, ask_by_timeline_client, ask_by_command):
        ask(url)
    next(served, None)


def test_application_gets_no_key(authority: Path) -> None:
    text = ManagerTrust(server_cert=str(authority)).private_authorities()
    assert text.count("BEGIN CERTIFICATE") == 1
    assert "KEY" in authority.read_text(encoding="utf-8")
    assert "KEY" not in text


@pytest.mark.parametrize("name", AIRFLOWS)
def test_file_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "/nowhere.pem")
    with pytest.raises(ConfigError, match=r"\[api\] ssl_c\w+ = /nowhere.pem cannot be read"):
        ssl_context("https://manager", airflow_trust())
    # Without TLS it does not matter.
    ssl_context("http://manager", airflow_trust())
