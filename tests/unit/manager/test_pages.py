"""The pages in Airflow's UI: what they show, whom they refuse, and that names from writers do no harm."""

from __future__ import annotations

import hashlib
import json
import re
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from fastapi import HTTPException
from fastapi.testclient import TestClient

from airflow_lake_provider.config.access import TokensSource
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.registry import Notice, Registry, Source
from airflow_lake_provider.manager.db.search import PAGE_SIZE, Search, Show, search_tables
from airflow_lake_provider.manager.db.sinks import Sinks
from airflow_lake_provider.manager.instances import RunFacts, distance
from airflow_lake_provider.manager.scheduling import RunState
from airflow_lake_provider.ui.app import Viewer, create_pages, sign_form
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import FakeInstanceDoor


@pytest.fixture
def client(services: ManagerServices) -> httpx.Client:
    return TestClient(create_pages(lambda: services, lambda: None), raise_server_exceptions=False)


@pytest.fixture
def looked(services: ManagerServices, lake: Path) -> str:
    """A table with three delta commits, for which the loop has started a compaction."""
    table = HandMadeTable.create(lake / "orders")
    for number in range(1, 4):
        table.commit(number)
    services.loop.notify(Notice(str(lake / "orders"), "orders", Source.COMMIT_CALLBACK, (), "sales", "shop"))
    services.loop.drain()
    return table_id_of(str(lake / "orders"))


def register(registry: Registry, *paths: str) -> None:
    for path in paths:
        registry.register(Notice(path, path.rsplit("/", 1)[-1], Source.HINT))


def test_list_shows_what_is_due_and_links_to_the_table(client: httpx.Client, looked: str) -> None:
    page = client.get("/").text
    assert f'href="table?id={looked}"' in page
    assert "sales.orders" in page
    assert 'class="badge due"' in page
    assert "1 to 1 of 1" in page


def test_table_shows_services_with_reasons_instances_and_timeline(
    client: httpx.Client, services: ManagerServices, looked: str
) -> None:
    gateway = services.instance_gateway
    assert isinstance(gateway, FakeInstanceDoor)
    run_id = f"{looked}.compaction.20261121120001000"
    gateway.runs.append(RunFacts(run_id, RunState.QUEUED, services.registry.now_ms(), params={"service": "compaction"}))
    page = client.get("/table", params={"id": looked}).text
    assert "3 delta commits" in page
    assert 'class="badge scheduled"' in page
    assert f'href="../dags/lake_table_service/runs/{run_id}"' in page
    assert "deltacommit" in page
    assert "owner shop" in page


def test_sinks_are_shown_in_the_state_that_the_command_tells(
    client: httpx.Client, registry: Registry, looked: str
) -> None:
    Sinks(registry).configure(looked, {"kafka": 3600})
    Sinks(registry).pause(looked, "kafka", paused=True)
    page = client.get("/table", params={"id": looked}).text
    assert '<td class="name">kafka</td><td>paused</td>' in page


def test_sink_that_is_configured_no_more_is_shown_with_the_time_of_its_release(
    client: httpx.Client, registry: Registry, looked: str
) -> None:
    Sinks(registry).configure(looked, {"kafka": 3600})
    Sinks(registry).configure(looked, {}, grace_s=7200)
    page = client.get("/table", params={"id": looked}).text
    assert '<td class="name">kafka</td><td>unconfigured</td>' in page
    assert "no longer configured: its hold is released at 2026-11-21 14:00:00 UTC" in page


def test_search_matches_any_case_and_takes_signs_literally(registry: Registry) -> None:
    register(registry, "/lake/Sales/orders", "/lake/sales/pay_ments", "/lake/x/paybments")
    assert len(search_tables(registry, Search("SALES")).rows) == 2
    assert [row["table_name"] for row in search_tables(registry, Search("y_m")).rows] == ["pay_ments"]
    assert search_tables(registry, Search("%")).total == 0


def test_list_has_pages(registry: Registry, client: httpx.Client) -> None:
    register(registry, *(f"/lake/t{number:03}" for number in range(PAGE_SIZE + 5)))
    first, second = (client.get("/", params={"q": "/lake/", "page": page}).text for page in (1, 2))
    assert f"1 to {PAGE_SIZE} of {PAGE_SIZE + 5}" in first
    assert ("Next" in first, "Previous" in first) == (True, False)
    assert f"{PAGE_SIZE + 1} to {PAGE_SIZE + 5} of {PAGE_SIZE + 5}" in second
    assert "page=1" in second
    assert "No table matches" in client.get("/", params={"page": 3}).text


def test_only_tables_with_what_is_asked_for(registry: Registry, looked: str) -> None:
    register(registry, "/lake/quiet")
    assert [row["table_id"] for row in search_tables(registry, Search(show=Show.DUE)).rows] == [looked]
    assert search_tables(registry, Search(show=Show.BLOCKED)).total == 0
    assert search_tables(registry, Search(show=Show.PROBLEM)).total == 0


def test_a_table_that_is_gone_has_a_page_that_says_so(client: httpx.Client, registry: Registry) -> None:
    register(registry, "/nowhere/orders")
    answer = client.get("/table", params={"id": table_id_of("/nowhere/orders")})
    assert answer.status_code == 200
    assert "/nowhere/orders" in answer.text
    assert 'role="alert"' in answer.text


def test_hostile_names_are_text(client: httpx.Client, registry: Registry) -> None:
    hostile = '/lake/"><script>alert(1)</script>'
    registry.register(Notice(hostile, "<script>alert(1)</script>", Source.COMMIT_CALLBACK))
    for path in ("/", f"/table?id={table_id_of(hostile)}", "/?q=<script>alert(1)</script>"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert "<script>alert" not in answer.text
        assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_unknown_table_and_broken_questions_get_an_answer(client: httpx.Client) -> None:
    unknown = client.get("/table", params={"id": "no-such-table"})
    assert unknown.status_code == 404
    assert "no-such-table" in unknown.text
    assert client.get("/", params={"page": 0}).status_code == 422
    assert client.get("/", params={"show": "everything"}).status_code == 422
    assert client.get("/assets/base.html").status_code == 404
    assert client.get("/assets/lake.css").headers["content-type"].startswith("text/css")


def test_nothing_is_shown_to_who_may_not_look(services: ManagerServices, looked: str) -> None:
    def refuse() -> None:
        raise HTTPException(403, "no")

    client = TestClient(create_pages(lambda: services, refuse))
    for path in ("/", f"/table?id={looked}", "/assets/lake.css"):
        assert client.get(path).status_code == 403


# --- A person forgets a table


KEY = b"shared by all API servers"
OPERATOR = Viewer("olga", frozenset({"Op"}), may_forget=True)


def client_of(services: ManagerServices, viewer: Viewer, key: bytes = KEY) -> httpx.Client:
    return TestClient(create_pages(lambda: services, lambda: viewer, key), follow_redirects=False)


def form_of(page: str) -> dict[str, str]:
    """Return the fields of a page's form, as a browser sends them."""
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page))


def test_table_is_forgotten_by_the_button_of_its_page(services: ManagerServices, registry: Registry) -> None:
    register(registry, "/lake/orders")
    table_id = table_id_of("/lake/orders")
    Sinks(registry).configure(table_id, {"kafka": 3600})
    client = client_of(services, OPERATOR)
    page = client.get("/table", params={"id": table_id}).text
    assert 'method="post" action="forget"' in page
    # Another API server answers: it has the same key.
    answer = client_of(services, OPERATOR).post(
        "/forget", data=form_of(page), headers={"Sec-Fetch-Site": "same-origin"}
    )
    assert (answer.status_code, answer.headers["location"]) == (303, "./")
    assert registry.find(table_id) is None
    assert Sinks(registry).list_sinks(table_id) == []
    assert search_tables(registry, Search("orders")).total == 0
    assert client.post("/forget", data=form_of(page)).status_code == 404


@pytest.mark.parametrize(
    ("viewer", "changes", "headers"),
    [
        pytest.param(replace(OPERATOR, may_forget=False), {}, {}, id="without-airflows-permission"),
        pytest.param(OPERATOR, {"proof": ""}, {}, id="without-proof"),
        pytest.param(OPERATOR, {"proof": "\u00e4" * 64}, {}, id="wrong-proof"),
        pytest.param(replace(OPERATOR, name="oleg"), {}, {}, id="proof-of-another-user"),
        pytest.param(OPERATOR, {"id": table_id_of("/lake/other")}, {}, id="proof-for-another-table"),
        pytest.param(OPERATOR, {}, {"Sec-Fetch-Site": "cross-site"}, id="from-another-site"),
    ],
)
def test_form_that_no_page_of_this_user_sent_forgets_nothing(
    services: ManagerServices, registry: Registry, viewer: Viewer, changes: dict[str, str], headers: dict[str, str]
) -> None:
    register(registry, "/lake/orders", "/lake/other")
    page = client_of(services, OPERATOR).get("/table", params={"id": table_id_of("/lake/orders")}).text
    answer = client_of(services, viewer).post("/forget", data=form_of(page) | changes, headers=headers)
    assert answer.status_code == 403
    assert search_tables(registry, Search()).total == 2


def test_proof_of_yesterday_and_of_another_key_is_refused(services: ManagerServices, registry: Registry) -> None:
    register(registry, "/lake/orders")
    table_id = table_id_of("/lake/orders")
    for key, now_s in ((KEY, time.time() - 24 * 3600), (b"another", time.time())):
        form = {"id": table_id, "proof": sign_form(key, OPERATOR, table_id, now_s)}
        assert client_of(services, OPERATOR).post("/forget", data=form).status_code == 403
    assert client_of(services, OPERATOR).post("/forget", content=b"x" * 5000).status_code == 413
    assert client_of(services, OPERATOR).get("/forget").status_code == 405
    assert registry.find(table_id) is not None


def test_viewer_has_no_button(services: ManagerServices, registry: Registry) -> None:
    register(registry, "/lake/orders")
    page = client_of(services, Viewer("vera")).get("/table", params={"id": table_id_of("/lake/orders")}).text
    assert "Forget" not in page


def test_table_whose_service_runs_is_not_forgotten(services: ManagerServices, registry: Registry) -> None:
    register(registry, "/lake/orders")
    table_id = table_id_of("/lake/orders")
    services.executors.acquire(table_id, Service.CLEAN, "run", 1)
    client = client_of(services, OPERATOR)
    answer = client.post("/forget", data=form_of(client.get("/table", params={"id": table_id}).text))
    assert answer.status_code == 409
    assert "forget the table when the run has ended" in answer.text


# --- Tables of a team


@pytest.fixture
def teams(services: ManagerServices, registry: Registry, tmp_path: Path) -> ManagerServices:
    file = tmp_path / "tokens.yaml"
    entries = [
        {"name": "shop", "roots": ["/lake/shop", "s3://Bucket/shop"], "viewers": ["role:Shop", "sue"]},
        {"name": "bank", "roots": ["/lake/bank"], "viewers": ["role:Bank"]},
        {"name": "press", "roots": ["/lake/press"]},
    ]
    for number, entry in enumerate(entries):
        entry |= {"rights": ["read"], "sha256": [hashlib.sha256(str(number).encode()).hexdigest()]}
    file.write_text(json.dumps({"tokens": entries}), encoding="utf-8")
    register(
        registry, "/lake/shop/orders", "/lake/shopping/lists", "s3a://bucket/shop/carts", "/lake/bank/accounts",
        "/lake/press/news", "/lake/Shop/other",
    )  # fmt: skip
    object.__setattr__(services, "tokens", TokensSource(path=str(file)))
    return services


COMMON = {"lists", "news", "other"}


@pytest.mark.parametrize(
    ("viewer", "seen"),
    [
        pytest.param(Viewer("sue"), COMMON | {"orders", "carts"}, id="user-by-name"),
        pytest.param(Viewer("x", frozenset({"Shop"})), COMMON | {"orders", "carts"}, id="role"),
        pytest.param(Viewer("x", frozenset({"Bank", "Viewer"})), COMMON | {"accounts"}, id="other-team"),
        pytest.param(Viewer("x", frozenset({"Bank", "Shop"})), COMMON | {"accounts", "orders", "carts"}, id="both"),
        pytest.param(Viewer("Shop", frozenset({"sue"})), COMMON, id="name-of-a-role-is-no-role"),
        pytest.param(Viewer(), COMMON, id="nobody"),
    ],
)
def test_pages_show_a_team_its_tables_and_those_of_no_team(
    teams: ManagerServices, viewer: Viewer, seen: set[str]
) -> None:
    client = client_of(teams, replace(viewer, may_forget=True))
    page = client.get("/").text
    assert f"of {len(seen)}" in page
    for path in ("/lake/shop/orders", "/lake/shopping/lists", "s3a://bucket/shop/carts", "/lake/bank/accounts",
                 "/lake/press/news", "/lake/Shop/other"):  # fmt: skip
        table_id, name = table_id_of(path), path.rsplit("/", 1)[-1]
        assert (f"table?id={table_id}" in page) is (name in seen), path
        assert (client.get("/table", params={"id": table_id}).status_code == 200) is (name in seen), path
        if name not in seen:
            proof = sign_form(KEY, replace(viewer, may_forget=True), table_id, time.time())
            assert client.post("/forget", data={"id": table_id, "proof": proof}).status_code == 404


def test_nobody_sees_tables_while_the_first_tokens_file_is_wrong(teams: ManagerServices, tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("tokens: [", encoding="utf-8")
    object.__setattr__(teams, "tokens", TokensSource(path=str(tmp_path / "wrong.yaml")))
    client = client_of(teams, Viewer("sue"))
    assert client.get("/").status_code == 403
    assert "wrong.yaml is not YAML" in client.get("/").text


# --- What a search finds is what the registry holds


def test_search_follows_the_names_and_findings_of_the_registry(
    services: ManagerServices, registry: Registry, lake: Path, looked: str
) -> None:
    assert search_tables(registry, Search("sales")).total == 1
    table = HandMadeTable(lake / "orders")
    table.write_properties("Renamed", "Shop2")
    # A file with another size: the timelines read the properties again.
    services.loop.notify(Notice(str(table.path), "orders", Source.COMMIT_CALLBACK))
    table.commit(9)
    services.loop.drain()
    row = registry.get(looked)
    assert row["table_name"] == "Renamed"
    assert [found["table_id"] for found in search_tables(registry, Search("shop2\nrenamed")).rows] == []
    assert [found["table_id"] for found in search_tables(registry, Search("RENAMED")).rows] == [looked]
    assert search_tables(registry, Search(str(lake).upper())).total == 1
    (lake / "orders").rename(lake / "moved")
    services.loop.notify(Notice(str(table.path), "orders", Source.COMMIT_CALLBACK))
    services.loop.drain()
    assert search_tables(registry, Search(show=Show.PROBLEM)).total == 1
    # What was due before the failure stays so.
    assert search_tables(registry, Search(show=Show.DUE)).total == 1


@pytest.mark.parametrize(
    ("time_ms", "said"),
    [(None, "-"), (1_000_000, "0 s ago"), (999_000, "1 s ago"), (1_119_000, "in 119 s"), (1_120_000, "in 2 min")],
)
def test_distance_in_words(time_ms: int | None, said: str) -> None:
    assert distance(time_ms, 1_000_000) == said
