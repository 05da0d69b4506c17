"""Rows of docs/threat-model.md that no other file tries, and that each row names tests that there are."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from fastapi import FastAPI, Header, HTTPException
from fastapi.testclient import TestClient
from starlette.types import ASGIApp

from airflow_lake_provider import http
from airflow_lake_provider.config import access
from airflow_lake_provider.config.access import Grant, Right, TokensSource
from airflow_lake_provider.config.tables_source import TablesSource
from airflow_lake_provider.errors import PagesBusyError, TooManyBodiesError
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.manager.api.app import create_app
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.plugins import lake_plugin
from airflow_lake_provider.timeline_server.routes import create_timeline_app
from airflow_lake_provider.ui import app as pages
from airflow_lake_provider.ui.answers import Viewer
from tests.support.patience import patient
from tests.support.tables import HandMadeTable
from tests.support.team_tokens import routes, send, state
from tests.unit.manager.conftest import CALLBACK_TOKEN, SERVICE_TOKEN, FakeRunGateway, serve

ROOT = Path(__file__).parents[3]
TABLES = """
defaults:
  hudi_options:
    hoodie.write.lock.provider: org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider
    hoodie.write.lock.zookeeper.password: secret://connection/lake_zk/password
tables:
  - {name: scratch_*, clean: {retained_commits: 1}, ttl: {retained_days: 1}}
  - {name: orders, clean: {retained_commits: 500}, archive: {min_commits: 600, max_commits: 700}}
"""
SERVICE = {"Authorization": f"Bearer {SERVICE_TOKEN}"}


@pytest.fixture
def orders(lake: Path) -> HandMadeTable:
    table = HandMadeTable.create(lake / "orders")
    for second in (1, 2, 3):
        table.commit(second)
    return table


@pytest.fixture
def manager(services: ManagerServices, tmp_path: Path, orders: HandMadeTable) -> ManagerServices:
    (tmp_path / "tables.yaml").write_text(TABLES, encoding="utf-8")
    manager = replace(services, tables=TablesSource(str(tmp_path / "tables.yaml")))
    hint = {"hints": [{"base_path": str(orders.path), "table_name": "orders"}]}
    assert TestClient(serve(lambda: manager)).post("/hints", json=hint, headers=SERVICE).is_success
    manager.loop.drain()
    return manager


@pytest.fixture
def client(manager: ManagerServices) -> httpx.Client:
    return TestClient(serve(lambda: manager), raise_server_exceptions=False)


def test_each_row_of_the_page_names_tests_that_there_are() -> None:
    page = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    rows = [line for line in page.splitlines() if line.startswith("| **")]
    named = [re.findall(r"`(test_\w+)`", row) for row in rows]
    assert len(rows) == 14
    assert all(named[:-1]), "all but the owner of the settings"
    assert [name for names in named for name in names if f"def {name}(" not in tests] == []


def test_writer_changes_no_policy_and_no_retention(
    client: httpx.Client, registry: Registry, gateway: FakeRunGateway, manager: ManagerServices, orders: HandMadeTable
) -> None:
    table_id = table_id_of(str(orders.path))

    def held() -> dict[str, Any]:
        wanted = {"base_path": str(orders.path), "table_name": registry.get(table_id).table_name, "service": "clean"}
        return {
            "policy": client.get("/policy", params=wanted, headers=SERVICE).json(),
            "sinks": client.get(f"/tables/{table_id}/sinks", headers=SERVICE).json(),
            "leases": [row for row in state(registry) if "lease_until_ms" in row],
        }

    lease = {"run_id": "run", "try_number": 1}
    token = client.post(f"/tables/{table_id}/executors/clean", json=lease, headers=SERVICE).json()["token"]
    before, runs = held(), len(gateway.runs)
    assert before["policy"]["hudi_options"]["hoodie.clean.commits.retained"] == "500"
    headers = {"HUDI-CALLBACK-KEY": CALLBACK_TOKEN, "Authorization": f"Bearer {CALLBACK_TOKEN}"}
    for name in ("scratch_1", "orders", "x"):
        body = {"commitTime": "20991121024807033", "tableName": name, "basePath": str(orders.path)}
        more = {"X-Lake-Database": "scratch", "X-Lake-Owner": "attacker"}
        assert client.post("/callback", json=body, headers=headers | more).status_code == 200
        for method, path in routes(client):
            send(client, method, path, orders, headers)
        manager.loop.drain()
    assert held() == before
    assert len(gateway.runs) == runs, "a notice alone starts nothing"
    assert client.post(f"/tables/{table_id}/executors/clean/renew", json={"token": token}, headers=SERVICE).is_success


def test_viewer_changes_nothing_and_reads_no_secret(
    manager: ManagerServices, client: httpx.Client, registry: Registry, orders: HandMadeTable
) -> None:
    viewer = TestClient(pages.create_pages(lambda: manager, lambda: None), raise_server_exceptions=False)
    before = state(registry)
    shown = ""
    of_table = f"/api/tables/{table_id_of(str(orders.path))}"
    parts = ("", "/timeline", "/examination")
    for path in (
        "/api/me",
        "/api/overview",
        "/api/backlog",
        "/api/backlog/history",
        "/api/tables?q=%25",
        *(f"{of_table}{part}" for part in parts),
        "/api/tables/..%2F..%2Fetc",
        "/app/lake.py",
    ):
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            answer = viewer.request(method, path)
            shown += answer.text
            assert method == "GET" or answer.status_code in {404, 405}
    assert viewer.post(f"{of_table}/forget", json={}).status_code == 403
    assert viewer.post(f"{of_table}/pause", json={"text": "", "paused": True}).status_code == 403
    assert "orders" in shown
    for secret in (CALLBACK_TOKEN, SERVICE_TOKEN, "secret://", "hoodie.write.lock.zookeeper", "password"):
        assert secret not in shown
    session = {"Cookie": "_token=a-session-of-airflow", "Authorization": "Basic dmlld2VyOng="}
    for method, path in routes(client):
        if path != "/health":
            assert send(client, method, path, orders, session).status_code == 401, path
    assert state(registry) == before


def test_pages_of_a_store_that_does_not_answer_leave_threads_for_the_others(
    manager: ManagerServices, orders: HandMadeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, began = threading.Event(), threading.Semaphore(0)

    def hang(*_: Any) -> Any:
        began.release()
        answers.wait(20)
        raise PagesBusyError("it never answered")

    monkeypatch.setattr(TableViewCache, "refresh", hang)

    def find_user(x_user: Annotated[str, Header()] = "") -> Viewer:
        return Viewer(x_user)

    viewer = TestClient(pages.create_pages(lambda: manager, find_user), raise_server_exceptions=False)
    url = f"/api/tables/{table_id_of(str(orders.path))}/timeline"
    first, second = ({"x-user": "olga"}, {"x-user": "ines"})
    with viewer, ThreadPoolExecutor(pages.PAGES_AT_ONCE) as threads:
        hung = [threads.submit(viewer.get, url, headers=first) for _ in range(pages.PAGES_AT_ONCE_OF_ONE)]
        for _ in hung:
            assert began.acquire(timeout=10)
        assert viewer.get(url, headers=first).status_code == 503, "the places of one user"
        others = pages.PAGES_AT_ONCE - pages.PAGES_AT_ONCE_OF_ONE
        hung += [threads.submit(viewer.get, url, headers=second) for _ in range(others)]
        for _ in range(others):
            assert began.acquire(timeout=10), "which leave places for the others"
        refused = [viewer.get(url) for _ in range(50)]
        assert {(answer.status_code, answer.headers["retry-after"]) for answer in refused} == {(503, "5")}
        assert viewer.get("/api/overview").status_code == 200
        answers.set()
        for one in hung:
            one.result(10)
        assert viewer.get(url).status_code == 200, "every place came back"


def test_pages_of_a_database_that_does_not_answer_leave_threads_for_the_others(
    manager: ManagerServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()

    def hang(*_: Any) -> Any:
        answers.wait(20)
        return []

    monkeypatch.setattr(pages, "load_numbers", hang)
    monkeypatch.setattr(pages, "_page_of_runs", hang)

    def find_user(x_user: Annotated[str, Header()] = "") -> Viewer:
        return Viewer(x_user)

    viewer = TestClient(pages.create_pages(lambda: manager, find_user), raise_server_exceptions=False)
    urls = ("/api/overview", "/api/operations")

    def is_full(user: str) -> bool:
        return viewer.get("/api/me", headers={"x-user": user}).status_code == 503

    def wait_until_full(user: str) -> bool:
        ends_s = time.monotonic() + 10
        while not is_full(user) and time.monotonic() < ends_s:
            time.sleep(0.01)
        return is_full(user)

    with viewer, ThreadPoolExecutor(2 * pages.MAX_PAGES) as threads:
        for user in ("olga", "ines"):
            for number in range(pages.MAX_PAGES):  # more than there are places
                threads.submit(viewer.get, urls[number % 2], headers={"x-user": user})
            assert wait_until_full(user)
            assert is_full("third") == (user == "ines"), "one user leaves places for the others"
        began_s = time.monotonic()
        assert viewer.get("/app/lake.svg").status_code == 200
        assert time.monotonic() - began_s < patient(5), "the threads that are left answer"
        answers.set()
    assert not any(map(is_full, ("olga", "ines", "third"))), "every place came back"


async def send_endlessly(app: ASGIApp, path: str, headers: dict[str, str]) -> tuple[int, int]:
    """Post a body that ends only after 4 MB; return the answer's status and how many bytes of it the app read."""
    chunk, most, read, answers = b" " * 65_536, 4_194_304, 0, []

    async def receive() -> dict[str, Any]:
        nonlocal read
        read += len(chunk)
        return {"type": "http.request", "body": chunk, "more_body": read < most}

    async def send(message: Any) -> None:
        answers.append(message)

    await app(scope_of(app, path, headers), receive, send)
    return answers[0]["status"], read


def scope_of(app: ASGIApp, path: str, headers: dict[str, str]) -> dict[str, Any]:
    """Return the scope of a POST of JSON."""
    given = {"content-type": "application/json", **headers}
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in given.items()]
    return {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": raw, "root_path": "", "scheme": "http", "http_version": "1.1", "server": ("lake", 80),
            "client": ("10.0.0.9", 4000), "asgi": {"version": "3.0"}, "app": app}  # fmt: skip


UNKNOWN = [{}, {"Authorization": "Bearer guessed", "HUDI-CALLBACK-KEY": "guessed"}]


@pytest.mark.parametrize("headers", UNKNOWN)
def test_no_body_is_read_without_a_known_token(
    client: httpx.Client, manager: ManagerServices, headers: dict[str, str]
) -> None:
    app = create_app(lambda: manager)
    posted = [path.replace("{service}", "clean") for method, path in routes(client) if method in {"post", "delete"}]
    assert len(posted) > 10
    for path in posted:
        assert asyncio.run(send_endlessly(app, path, headers)) == (401, 0), path
    alone = create_timeline_app(lambda: manager.timeline_server)
    assert asyncio.run(send_endlessly(alone, "/v1/hoodie/timeline/changes", headers)) == (401, 0)


def only(right: Right) -> TokensSource:
    """Return tokens of which one, "guarded", has a single right."""

    class Tokens(TokensSource):
        def identify(self, given: str | None, **_: Any) -> tuple[Grant, ...]:
            return (Grant("team", frozenset({right})),)

    return Tokens()


@pytest.mark.parametrize("right", [Right.NOTIFY, Right.READ])
def test_no_body_is_read_for_a_caller_without_the_right_to_the_route(
    client: httpx.Client, manager: ManagerServices, right: Right
) -> None:
    app = create_app(lambda: manager)
    object.__setattr__(manager, "tokens", only(right))
    open_to_it = {"/timeline/changes"} if right is Right.READ else {"/callback"}
    for method, path in routes(client):
        if method in {"post", "delete"} and path not in open_to_it:
            path = (
                path.replace("{service}", "clean")
                .replace("{table_id}", "unknown")
                .replace("{sink}", "s")
                .replace("{hold_id}", "0" * 32)
            )
            status, read = asyncio.run(send_endlessly(app, path, {"Authorization": "Bearer guarded"}))
            assert (status in {401, 403, 404, 405}, read) == (True, 0), (path, status)


def test_pages_read_no_body_before_the_login_and_none_beyond_their_limit(manager: ManagerServices) -> None:
    def refuse() -> None:
        raise HTTPException(401, "no session")

    user = Viewer("olga", may_pause=True, may_forget=True, may_run=True)
    checks = (refuse, lambda: user, lambda: Viewer("vera"))
    closed, opened, viewing = (pages.create_pages(lambda: manager, check) for check in checks)
    posted = [f"/api/tables/some/{action}" for action in ("pause", "snooze", "forget")]
    posted += [f"/api/bulk/{action}" for action in ("run", "pause", "snooze")]
    assert posted == [path.replace("{table_id}", "some") for path, item in opened.openapi()["paths"].items()
                      if "post" in item]  # fmt: skip
    for path in posted:
        assert asyncio.run(send_endlessly(closed, path, {})) == (401, 0)
        assert asyncio.run(send_endlessly(viewing, path, {})) == (403, 0), "a user without the right to the action"
        assert asyncio.run(send_endlessly(opened, path, {"Content-Length": "1048577"})) == (413, 0)
        status, read = asyncio.run(send_endlessly(opened, path, {"Transfer-Encoding": "chunked"}))
        assert (status, read <= 1024 * 1024 + 65_536) == (413, True)
        assert asyncio.run(send_endlessly(opened, path, {"content-type": "text/plain"})) == (422, 0)


def test_bodies_that_stop_in_the_middle_leave_places_for_other_senders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_BODIES", 3)
    monkeypatch.setattr(http, "MAX_BODIES_OF_ONE", 2)
    places = http._make_places()
    with places.hold("slow"), places.hold("slow"):
        with pytest.raises(TooManyBodiesError), places.hold("slow"):
            pass
        with places.hold("other"), pytest.raises(TooManyBodiesError), places.hold("third"):
            pass
        with pytest.raises(TooManyBodiesError), places.hold("of a team", left_free=1):
            pass
    with places.hold("slow"), places.hold("of a team", left_free=1):
        pass


@pytest.mark.parametrize("spelled", ["Bearer {}", "bEARER   {} ", "BEARER {}"])
@pytest.mark.parametrize("kind", ["manager", "timelines"])
def test_bodies_of_one_token_share_its_places_however_it_is_spelled(
    manager: ManagerServices, monkeypatch: pytest.MonkeyPatch, spelled: str, kind: str
) -> None:
    monkeypatch.setattr(http, "MAX_BODIES_OF_ONE", 1)
    by = {"a team": Right.READ, "another": Right.READ}
    tokens = TokensSource()
    tokens._configured = tuple(  # type: ignore[assignment]
        (access._digest(name), Grant(name, frozenset({right}), ("/lake",))) for name, right in by.items()
    )
    object.__setattr__(manager, "tokens", tokens)
    object.__setattr__(manager.timeline_server, "tokens", tokens)
    app = create_app(lambda: manager) if kind == "manager" else create_timeline_app(lambda: manager.timeline_server)
    path = "/timeline/changes" if kind == "manager" else "/v1/hoodie/timeline/changes"
    client = TestClient(app)

    async def ask() -> tuple[int, int]:
        is_read = asyncio.Event()
        slow = asyncio.create_task(send_slowly(app, path, {"Authorization": "Bearer a team"}, is_read))
        await is_read.wait()
        sent = [
            await asyncio.to_thread(client.post, path, json={}, headers={"Authorization": spelled.format(name)})
            for name in by
        ]
        slow.cancel()
        return sent[0].status_code, sent[1].status_code

    assert asyncio.run(ask()) == (429, 200)


async def send_slowly(app: ASGIApp, path: str, headers: dict[str, str], is_read: asyncio.Event) -> None:
    """Post a body that never arrives; say when the app begins to read it."""

    async def receive() -> dict[str, Any]:
        is_read.set()
        await asyncio.Event().wait()
        return {}

    async def send(message: Any) -> None:
        raise AssertionError(message)

    await app(scope_of(app, path, headers | {"content-length": "100"}), receive, send)


def test_bodies_of_one_user_share_its_places_whatever_its_cookies_say(
    manager: ManagerServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_BODIES_OF_ONE", 1)
    app = pages.create_pages(lambda: manager, lambda: Viewer("olga", may_run=True))
    path = "/api/bulk/run"

    async def ask() -> int:
        is_read = asyncio.Event()
        slow = asyncio.create_task(send_slowly(app, path, {"cookie": "_token=olga"}, is_read))
        await is_read.wait()
        headers = {"cookie": "_token=olga; more=1"}
        sent = await asyncio.to_thread(TestClient(app).post, path, json={}, headers=headers)
        slow.cancel()
        return sent.status_code

    assert asyncio.run(ask()) == 429


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Length": "17000000"},
        {"Content-Length": "9" * 30},
        {"Content-Length": "\u00b2"},
        {"Transfer-Encoding": "chunked"},
    ],
)
def test_body_that_is_too_large_or_does_not_say_its_size_is_not_read(
    manager: ManagerServices, headers: dict[str, str]
) -> None:
    app = create_app(lambda: manager)
    assert asyncio.run(send_endlessly(app, "/hints", SERVICE | headers)) == (413, 0)


@pytest.mark.parametrize("prefix", ["", "/airflow"])
def test_writer_reaches_the_mounted_callback_below_whatever_path_airflow_has(
    manager: ManagerServices, orders: HandMadeTable, prefix: str
) -> None:
    airflow = FastAPI(root_path=prefix)
    airflow.mount("/v1/hoodie", create_app(lambda: manager))
    client, key = TestClient(airflow), {"HUDI-CALLBACK-KEY": CALLBACK_TOKEN}
    body = {"commitTime": "20991121024807033", "tableName": "orders", "basePath": str(orders.path)}
    assert client.post(f"{prefix}/v1/hoodie/callback", json=body, headers=key).status_code == 200
    assert client.post(f"{prefix}/v1/hoodie/hints", json={"hints": []}, headers=key).status_code == 401
    assert client.post(f"{prefix}/v1/hoodie/hints", json={"hints": []}, headers=SERVICE).status_code == 200


def test_hostile_files_of_one_team_leave_the_other_teams_table_evaluated(
    manager: ManagerServices, client: httpx.Client, lake: Path
) -> None:
    """Ten tables whose properties or newest commit are a pipe, which a read of it would wait for without an end."""
    for number in range(10):
        table = HandMadeTable.create(lake / f"shop{number}")
        table.commit(1)
        spoiled = table.path / ".hoodie" / "hoodie.properties"
        if number % 2:
            spoiled = max(file for file in (table.path / ".hoodie").rglob("*.deltacommit"))
        spoiled.unlink()
        os.mkfifo(spoiled)
    bank = HandMadeTable.create(lake / "bank")
    bank.commit(1)
    names = [*(f"shop{number}" for number in range(10)), "bank"]
    hints = [{"base_path": str(lake / name), "table_name": name} for name in names]
    assert client.post("/hints", json={"hints": hints}, headers=SERVICE).is_success
    manager.loop.drain()
    rows = {name: manager.registry.find(table_id_of(str(lake / name))) for name in names}
    assert rows["bank"] is not None
    assert rows["bank"].evaluated_ms
    assert all(row is not None for row in rows.values())


@pytest.mark.parametrize("is_shown", [True, False])
def test_routes_are_described_where_airflows_are(monkeypatch: pytest.MonkeyPatch, is_shown: bool) -> None:
    monkeypatch.setenv("AIRFLOW__API__ENABLE_SWAGGER_UI", str(is_shown))
    mounted = {app["url_prefix"]: app["app"] for app in lake_plugin._fastapi_apps.__wrapped__()}
    timelines = create_timeline_app(lambda: pytest.fail("opened"), is_described=lake_plugin.shows_api_description())
    documents = ("/openapi.json", "/docs", "/redoc", "/v1/hoodie/openapi.json", "/v1/hoodie/docs", "/v1/hoodie/redoc")
    shown = {
        name: [path for path in documents if TestClient(app).get(path).status_code == 200]
        for name, app in {**mounted, "timelines": timelines}.items()
    }
    every = {"/v1/hoodie": list(documents[:3]), "/lake": [], "timelines": list(documents[3:5])}
    assert shown == {name: paths if is_shown else [] for name, paths in every.items()}


def test_no_redirect_leads_to_a_host_that_the_caller_names(manager: ManagerServices) -> None:
    timelines = create_timeline_app(lambda: manager.timeline_server)
    for app, path in (
        (create_app(lambda: manager), "/tables/"),
        (pages.create_pages(lambda: manager, Viewer), "/api/me/"),
        (timelines, "/v1/hoodie/timeline/health/"),
    ):
        answer = TestClient(app).get(path, headers={"Host": "evil.example"} | SERVICE, follow_redirects=False)
        assert (answer.status_code, "location" in answer.headers) == (404, False), path


def test_no_text_turns_around_what_stands_next_to_it(manager: ManagerServices, lake: Path) -> None:
    # As Java's properties write a character.
    table = HandMadeTable.create(lake / "turned", name=r"a\u202ecba\u2067")
    table.commit(1)
    (table.path / ".hoodie" / "timeline" / "20261121130000000\u202e.commit").touch()
    hint = {"hints": [{"base_path": str(table.path), "table_name": "turned"}]}
    assert TestClient(serve(lambda: manager)).post("/hints", json=hint, headers=SERVICE).is_success
    manager.loop.drain()
    client = TestClient(pages.create_pages(lambda: manager, Viewer))
    one = f"/api/tables/{table_id_of(str(table.path))}"
    answers = {path: client.get(path) for path in ("/api/tables", one, f"{one}/timeline", f"{one}/examination")}
    assert all(answer.is_success and answer.text.isprintable() for answer in answers.values())
    assert answers[one].json()["row"]["name"] == r"a\u202ecba\u2067"
    assert r"20261121130000000\u202e.commit" in answers[f"{one}/timeline"].json()["problems"][0]["message"]
    user = TestClient(pages.create_pages(lambda: manager, lambda: Viewer("olga", may_run=True, may_pause=True)))
    sent = {
        "table_ids": [table_id_of(str(table.path))],
        "service": "clean",
        "dry_run": True,
        "paused": True,
        "text": "",
    }
    for action in ("run", "pause", "snooze"):
        (line,) = user.post(f"/api/bulk/{action}", json=sent).json()["lines"]
        assert line["table"] == r"a\u202ecba\u2067"
        assert all(text.isprintable() for text in line.values())


def test_no_answer_is_shown_in_a_page_of_another_site(manager: ManagerServices) -> None:
    timelines = create_timeline_app(lambda: manager.timeline_server)
    managers = create_app(lambda: manager)
    lake = pages.create_pages(lambda: manager, Viewer)
    asked: list[tuple[FastAPI, str, int]] = [
        (managers, "/health", 200),
        (managers, "/docs", 200),
        (managers, "/tables", 401),
        (managers, "/nothing", 404),
        (lake, "/api/tables", 200),
        (lake, "/app/lake.js", 200),
        (lake, "/api/tables/none", 404),
        (timelines, "/v1/hoodie/docs", 200),
        (timelines, "/v1/hoodie/timeline/health", 401),
    ]
    for app, path, status in asked:
        answer = TestClient(app).get(path)
        headers = [answer.headers.get(name) for name in ("x-frame-options", "content-security-policy")]
        assert (answer.status_code, headers) == (status, ["DENY", "frame-ancestors 'none'"]), path
        assert answer.headers["x-content-type-options"] == "nosniff", path
        # A proxy that caches what a header lets in would give one caller's answer to the next.
        assert answer.headers["cache-control"] == "private, no-cache", path
    sent = TestClient(managers).post("/hints", json={})
    assert (sent.status_code, sent.headers.get("x-frame-options")) == (401, "DENY")
