"""Tokens of two teams: no route shows or changes what lies below the other team's root."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from airflow_lake_provider.config.tables_source import TablesSource
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.api import tables
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.operations import record_run
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.schema import lake_run, lake_search, lake_table
from airflow_lake_provider.manager.reports.reports import Reports
from airflow_lake_provider.manager.runs.airflow_runs import RunFacts, RunState
from airflow_lake_provider.manager.runs.run_ids import run_id_of
from tests.support.tables import HandMadeTable
from tests.support.team_tokens import (
    TOKENS,
    bearer,
    routes,
    send,
    state,
)
from tests.unit.manager.conftest import SERVICE_TOKEN, FakeInstanceGateway, serve

OPEN = {("get", "/health")}
SERVICE = {"Authorization": f"Bearer {SERVICE_TOKEN}"}


@pytest.fixture
def shop(lake: Path) -> HandMadeTable:
    table = HandMadeTable.create(lake / "shop" / "orders")
    table.commit(1)
    return table


@pytest.fixture
def bank(lake: Path) -> HandMadeTable:
    table = HandMadeTable.create(lake / "bank" / "accounts")
    table.commit(1)
    return table


@pytest.fixture
def client(manager: ManagerServices, shop: HandMadeTable, bank: HandMadeTable) -> Iterator[httpx.Client]:
    client = TestClient(serve(lambda: manager), raise_server_exceptions=False)
    for table in (shop, bank):
        hint = {"base_path": str(table.path), "table_name": table.path.name}
        assert client.post("/hints", json={"hints": [hint]}, headers=SERVICE).status_code == 200
    manager.loop.drain()
    return client


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer guessed", "HUDI-CALLBACK-KEY": "guessed"}])
def test_every_route_but_health_needs_a_token_and_none_changes_anything_without(
    client: httpx.Client, registry: Registry, shop: HandMadeTable, headers: dict[str, str]
) -> None:
    before = state(registry)
    for method, path in routes(client):
        expected = 200 if (method, path) in OPEN else 401
        answer = send(client, method, path, shop, headers)
        assert answer.status_code == expected, f"{method} {path}: {answer.text}"
    assert state(registry) == before


@pytest.mark.parametrize("role", TOKENS)
def test_no_route_shows_or_changes_another_teams_table(
    client: httpx.Client, registry: Registry, bank: HandMadeTable, role: str
) -> None:
    before = state(registry)
    headers = bearer(role) | {"HUDI-CALLBACK-KEY": TOKENS[role]}
    listing = {
        ("get", "/tables"), ("get", "/tables/silent"), ("get", "/reports/tables"), ("get", "/reports/backlog"),
        ("post", "/sinks/claim"), ("get", "/metrics"), ("get", "/reports/bill"),
    }  # fmt: skip
    for method, path in routes(client):
        answer = send(client, method, path, bank, headers)
        assert "accounts" not in answer.text.replace(table_id_of(str(bank.path)), "").replace(str(bank.path), "")
        if (method, path) in listing and role != "writer" and answer.status_code == 200:
            assert str(bank.path) not in answer.text
        elif (method, path) not in OPEN:
            assert answer.status_code in {401, 403, 404}, f"{method} {path}: {answer.text}"
    assert state(registry) == before


@pytest.mark.parametrize("role", TOKENS)
def test_refusals_show_not_whether_a_table_exists(
    client: httpx.Client, lake: Path, bank: HandMadeTable, role: str
) -> None:
    missing = HandMadeTable(lake / "bank" / "nowhere0")
    headers = bearer(role) | {"HUDI-CALLBACK-KEY": TOKENS[role]}
    for method, path in routes(client):
        there, not_there = (
            (answer.status_code, answer.text.replace(table_id_of(str(table.path)), "").replace(str(table.path), ""))
            for table in (bank, missing)
            for answer in [send(client, method, path, table, headers)]
        )
        if (method, path) not in OPEN:
            assert there == not_there, f"{method} {path}"


def test_writer_of_a_team_can_notify_and_nothing_else(
    client: httpx.Client, registry: Registry, shop: HandMadeTable
) -> None:
    headers = bearer("writer") | {"HUDI-CALLBACK-KEY": TOKENS["writer"]}
    accepted = set()
    for method, path in routes(client):
        answer = send(client, method, path, shop, headers)
        if answer.is_success and (method, path) not in OPEN:
            accepted.add(path)
        elif (method, path) not in OPEN:
            assert answer.status_code in {401, 403}, f"{method} {path}"
            assert "has no right" in answer.text or "all tables" in answer.text, answer.text
    assert accepted == {"/callback", "/service/{service}"}


def test_reader_of_a_team_changes_nothing_of_its_own_table(
    client: httpx.Client, registry: Registry, shop: HandMadeTable
) -> None:
    before = state(registry)
    seen = {path for method, path in routes(client) if send(client, method, path, shop, bearer("reader")).is_success}
    assert state(registry) == before
    assert seen == {
        "/health",
        "/metrics",
        "/tables",
        "/tables/silent",
        "/tables/{table_id}",
        "/tables/{table_id}/conformance",
        "/tables/{table_id}/instances",
        "/tables/{table_id}/sinks",
        "/tables/{table_id}/holds",
        "/reports/tables",
        "/reports/backlog",
        "/reports/bill",
        "/reports/backpressure",
        "/reports/runs",
        "/reports/history",
        "/reports/explanation",
        "/timeline/view",
        "/timeline/changes",
        "/timeline/archive",
        "/timeline/latest",
    }


def test_operator_of_a_team_works_on_its_own_table(
    client: httpx.Client, registry: Registry, shop: HandMadeTable
) -> None:
    headers, table_id = bearer("operator"), table_id_of(str(shop.path))
    assert [row["table_id"] for row in client.get("/tables", headers=headers).json()["tables"]] == [table_id]
    policy = {"base_path": str(shop.path), "table_name": "x", "service": "clean"}
    assert client.get("/policy", params=policy, headers=headers).is_success
    lease = client.post(f"/tables/{table_id}/executors/clean", json={"run_id": "r", "try_number": 1}, headers=headers)
    token = {"token": lease.json()["token"]}
    assert client.post(f"/tables/{table_id}/executors/clean/release", json=token, headers=headers).status_code == 204
    assert client.get(f"/tables/{table_id}/safepoint", headers=headers).is_success
    assert client.delete(f"/tables/{table_id}", headers=headers).status_code == 204
    for what in (client.post("/sweep", headers=headers), client.get("/config", headers=headers)):
        assert what.status_code == 403
        assert "service_tokens" in what.json()["detail"]


def test_operator_of_a_team_takes_no_run_of_another_teams_table(
    client: httpx.Client, registry: Registry, shop: HandMadeTable, bank: HandMadeTable
) -> None:
    mine, theirs = (table_id_of(str(table.path)) for table in (shop, bank))
    run_id = run_id_of(theirs, Service.CLEAN, "20261121024807033", attempt=2)
    with registry.transaction() as session:
        record_run(session, theirs, "manual__1", "clean", 0)
    report = {"try_number": 1, "service": "clean", "outcome": "completed", "error": "spoilt"}
    for headers, refused in ((bearer("operator"), 403), (SERVICE, None)):
        sent = [
            client.post(f"/tables/{mine}/runs", json=report | {"run_id": run_id}, headers=headers),
            client.post(f"/tables/{mine}/executors/clean", json={"run_id": run_id, "try_number": 1}, headers=headers),
        ]
        assert [answer.status_code for answer in sent] == ([refused] * 2 if refused else [204, 200])
    client.post(f"/tables/{mine}/runs", json=report | {"run_id": "manual__1"}, headers=bearer("operator"))
    other = {"run_id": "manual__1", "try_number": 1}
    assert client.post(f"/tables/{mine}/executors/archive", json=other, headers=bearer("operator")).is_success
    with registry.transaction() as session:
        (row,) = session.execute(select(lake_run).where(lake_run.c.run_id == "manual__1")).mappings()
    assert (row["table_id"], row["started_ms"], row["error"]) == (theirs, None, None)


def test_operator_of_a_team_takes_no_run_by_hand_of_another_teams_table(
    client: httpx.Client, manager: ManagerServices, registry: Registry, shop: HandMadeTable, bank: HandMadeTable
) -> None:
    mine, theirs = (table_id_of(str(table.path)) for table in (shop, bank))
    gateway = cast(FakeInstanceGateway, manager.instance_gateway)
    conf = {"base_path": str(bank.path), "reason": "a secret"}
    gateway.runs.append(RunFacts("by hand", RunState.QUEUED, 0, params=conf))

    def claim(run_id: str, table_id: str, headers: dict[str, str]) -> list[int]:
        report = {"run_id": run_id, "try_number": 1, "service": "clean", "outcome": "completed", "error": "spoilt"}
        lease = {"run_id": run_id, "try_number": 1}
        sent = [
            client.post(f"/tables/{table_id}/runs", json=report, headers=headers),
            client.post(f"/tables/{table_id}/executors/clean", json=lease, headers=headers),
        ]
        return [answer.status_code for answer in sent]

    def record(run_id: str) -> list[tuple[str, str | None]]:
        with registry.transaction() as session:
            rows = session.execute(select(lake_run).where(lake_run.c.run_id == run_id)).mappings()
            return [(row["table_id"], row["error"]) for row in rows]

    for taken in ("by hand", f"observed.{theirs}.clean.20000"):
        assert claim(taken, mine, bearer("operator")) == [403, 403]
        assert record(taken) == []
    # A run that does not exist yet: its own table has it once its executor begins.
    assert claim("not yet", mine, bearer("operator")) == [204, 200]
    assert client.post(f"/tables/{theirs}/executors/clean", json={"run_id": "not yet", "try_number": 1},
                       headers=SERVICE).is_success  # fmt: skip
    assert record("not yet") == [(theirs, None)]


def test_holder_of_a_team_holds_files_of_its_own_table_and_nothing_else(
    client: httpx.Client, shop: HandMadeTable
) -> None:
    headers, accepted = bearer("holder"), set()
    for method, path in routes(client):
        answer = send(client, method, path, shop, headers)
        if answer.status_code not in {401, 403} and (method, path) not in OPEN:
            accepted.add((method, path))
    one = "/tables/{table_id}/holds/{hold_id}"
    assert accepted == {("post", "/tables/{table_id}/holds"), ("post", f"{one}/renew"), ("delete", one)}
    table_id = table_id_of(str(shop.path))
    (held,) = client.get(f"/tables/{table_id}/holds", headers=SERVICE).json()["holds"]
    assert client.delete(f"/tables/{table_id}/holds/{held['hold_id']}", headers=headers).status_code == 204
    assert client.get(f"/tables/{table_id}/holds", headers=SERVICE).json()["holds"] == []


def test_pages_of_a_team_end_where_its_tables_end(
    client: httpx.Client, registry: Registry, lake: Path, shop: HandMadeTable
) -> None:
    hints = [{"base_path": f"{lake}/{team}/t{n}", "table_name": "t"} for n in range(5) for team in ("shop", "bank")]
    assert client.post("/hints", json={"hints": hints}, headers=SERVICE).is_success
    found: list[str] = []
    after = ""
    while page := client.get("/tables", params={"after": after, "limit": 2}, headers=bearer("reader")).json()["tables"]:
        found += [row["base_path"] for row in page]
        after = page[-1]["table_id"]
    assert sorted(found) == sorted([str(shop.path), *(f"{lake}/shop/t{n}" for n in range(5))])


def test_silent_tables_of_a_team_stand_behind_no_other_teams(
    client: httpx.Client, registry: Registry, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_MAX_ROWS", 3)
    paths = [f"{lake}/{team}/t{n}" for team in ("bank", "shop") for n in range(5)]
    hints = [{"base_path": path, "table_name": "t"} for path in paths]
    assert client.post("/hints", json={"hints": hints}, headers=SERVICE).is_success
    with registry.transaction() as session:
        session.execute(update(lake_table).values(next_evaluation_ms=None))
        for overdue_ms, path in enumerate(paths, 1):
            row = update(lake_table).where(lake_table.c.table_id == table_id_of(path))
            session.execute(row.values(next_evaluation_ms=overdue_ms, dirty_since_ms=None))
    for limit, count in (("2", 2), ("1000", 5)):
        rows = client.get("/tables/silent", params={"limit": limit}, headers=bearer("reader")).json()["tables"]
        assert [row["base_path"] for row in rows] == [f"{lake}/shop/t{n}" for n in range(count)]
    assert len(client.get("/tables/silent", headers=SERVICE).json()["tables"]) == 10


SECRET_ENTRY = """
tables:
  - name: accounts
    hudi_options: {hoodie.of.the.bank: "1", hoodie.write.lock.provider: "org.apache.hudi.BankLock"}
    spark_conf: {spark.of.the.bank: "1"}
  - name: orders
    hudi_options: {hoodie.of.the.shop: "1"}
    spark_conf: {spark.of.the.shop: "1"}
"""


@pytest.fixture
def three_pages(
    manager: ManagerServices, lake: Path, tmp_path: Path, shop: HandMadeTable, bank: HandMadeTable
) -> httpx.Client:
    """Two teams with three pages of two rows each, side by side in every order; the bank's have settings."""
    (tmp_path / "tables.yaml").write_text(SECRET_ENTRY, encoding="utf-8")
    services = replace(manager, tables=TablesSource(str(tmp_path / "tables.yaml")))
    client = TestClient(serve(lambda: services), raise_server_exceptions=False)
    tables = [shop, bank]
    for number in range(5):
        tables += [HandMadeTable.create(lake / team / f"of_{team}_{number}") for team in ("shop", "bank")]
    for table in tables[2:]:
        table.commit(1)
    hints = [{"base_path": str(table.path), "table_name": table.path.name} for table in tables]
    assert client.post("/hints", json={"hints": hints}, headers=SERVICE).status_code == 200
    services.loop.drain()
    # Each table has the name of its folder.
    with services.registry.transaction() as session:
        for hint in hints:
            for rows in (lake_table, lake_search):
                renamed = update(rows).where(rows.c.table_id == table_id_of(hint["base_path"]))
                session.execute(renamed.values(table_name=hint["table_name"]))
    return client


def find_foreign(text: str) -> list[str]:
    return [word for word in ("accounts", "/bank", "of_bank", "of.the.bank", "BankLock") if word in text]


@pytest.mark.parametrize("sort", ["name", "worst", "backlog"])
def test_no_cursor_and_no_count_of_a_list_is_another_teams(three_pages: httpx.Client, sort: str) -> None:
    rows: list[str] = []
    after: list[Any] = []
    pages = 0
    while True:
        query = {"sort": sort, "after": json.dumps(after), "limit": "2"}
        answer = three_pages.get("/reports/tables", params=query, headers=bearer("reader"))
        assert find_foreign(answer.text) == []
        page = answer.json()
        assert page["total"] == 6
        rows += [row["base_path"] for row in page["tables"]]
        after, pages = page["next"], pages + 1
        if not after:
            break
    assert (pages, len(rows), len(set(rows))) == (3, 6, 6)


@pytest.mark.parametrize("role", TOKENS)
def test_no_answer_about_an_own_table_names_another_teams(
    three_pages: httpx.Client, shop: HandMadeTable, role: str
) -> None:
    """What a token may ask of its own tables shows nothing of others: neither names, nor ids, nor settings."""
    headers = bearer(role) | {"HUDI-CALLBACK-KEY": TOKENS[role]}
    for method, path in routes(three_pages):
        answer = send(three_pages, method, path, shop, headers)
        assert find_foreign(answer.text) == [], f"{method} {path}"
        if role == "reader":
            assert "of.the.shop" not in answer.text, f"{method} {path}: settings of Hudi and Spark"
    for name in ("accounts", "of_bank_1", "account", "bank.accounts"):
        asked = {"table": name, "table_name": name, "base_path": str(shop.path), "service": "clean", "sort": "name"}
        for path in (
            *("/policy", "/reports/explanation", "/reports/runs", "/reports/history", "/reports/backpressure"),
            "/reports/tables",
        ):
            text = three_pages.get(path, params=asked, headers=headers).text
            assert find_foreign(text.replace(repr(name), "")) == [], f"{path} {name}"


def test_explanations_of_one_token_leave_places_for_the_others(
    client: httpx.Client, shop: HandMadeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, began = threading.Event(), threading.Semaphore(0)
    explain = Reports.explain

    def hang(reports: Reports, base_path: str) -> dict[str, Any]:
        began.release()
        answers.wait(20)
        return explain(reports, base_path)

    def ask(role: str) -> httpx.Response:
        return client.get("/reports/explanation", params={"table": str(shop.path)}, headers=bearer(role))

    monkeypatch.setattr(Reports, "explain", hang)
    with ThreadPoolExecutor(4) as threads:
        hung = [threads.submit(ask, "reader") for _ in range(2)]
        for _ in hung:
            assert began.acquire(timeout=10)
        refused = ask("reader")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert "2 explanations of token 'shop-reader'" in refused.json()["detail"]
        others = [threads.submit(ask, "operator") for _ in range(2)]
        for _ in others:
            assert began.acquire(timeout=10), "a place was left"
        answers.set()
        assert {one.result(10).status_code for one in (*hung, *others)} == {200}
    assert ask("reader").status_code == 200, "every place came back"


def test_policy_of_a_team_is_that_of_the_tables_own_name(three_pages: httpx.Client, shop: HandMadeTable) -> None:
    asked = {"base_path": str(shop.path), "table_name": "accounts", "service": "clean"}
    by_team = three_pages.get("/policy", params=asked, headers=bearer("operator")).json()
    assert by_team["spark_conf"] == {"spark.of.the.shop": "1"}
    by_all = three_pages.get("/policy", params=asked, headers=SERVICE).json()
    assert by_all["spark_conf"] == {"spark.of.the.bank": "1"}, "the words are those that would have leaked"


def test_long_poll_of_a_team_names_no_change_of_another_teams_table(
    client: httpx.Client, manager: ManagerServices, shop: HandMadeTable, bank: HandMadeTable
) -> None:
    timelines = manager.timeline_server.timelines
    asked = {"tables": [{"base_path": str(shop.path), "version": ""}], "cursor": "", "wait_s": 0}
    cursor = client.post("/timeline/changes", json=asked, headers=SERVICE).json()["cursor"]
    for table in (shop, bank):
        table.commit(2)
        timelines.snapshot(str(table.path))
    for table in (shop, bank):
        timelines.log.add(str(table.path))
    again = asked | {"cursor": cursor}
    by_all = client.post("/timeline/changes", json=again, headers=SERVICE).json()["changed"]
    by_team = client.post("/timeline/changes", json=again, headers=bearer("reader")).json()["changed"]
    assert str(bank.path) in {entry["base_path"] for entry in by_all}
    assert {entry["base_path"] for entry in by_team} == {str(shop.path)}
