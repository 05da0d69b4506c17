"""Which tables the pages find, and which of them they show to whom."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from airflow_lake_provider.config.access import TokensSource
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.db.search import TablePageFound, TableSearch, page_of_tables
from airflow_lake_provider.manager.health.health import TableState
from airflow_lake_provider.ui.answers import Viewer
from airflow_lake_provider.ui.app import create_pages
from tests.support.tables import HandMadeTable


def register(registry: Registry, *paths: str) -> None:
    for path in paths:
        registry.register(Notice(path, path.rsplit("/", 1)[-1], Source.HINT))


def found(registry: Registry, text: str, *states: TableState) -> TablePageFound:
    return page_of_tables(registry, TableSearch(text, states))


def client_of(services: ManagerServices, viewer: Viewer) -> httpx.Client:
    return TestClient(create_pages(lambda: services, lambda: viewer))


def test_search_matches_any_case_and_takes_signs_literally(registry: Registry) -> None:
    register(registry, "/lake/Sales/orders", "/lake/sales/pay_ments", "/lake/x/paybments")
    assert len(found(registry, "SALES").rows) == 2
    assert [row.table.table_name for row in found(registry, "y_m").rows] == ["pay_ments"]
    assert found(registry, "%").total == 0


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
    client = client_of(teams, replace(viewer, may_forget=True, may_pause=True))
    page = client.get("/api/tables").json()
    assert {row["name"] for row in page["rows"]} == seen
    assert page["total"] == len(seen)
    for path in ("/lake/shop/orders", "/lake/shopping/lists", "s3a://bucket/shop/carts", "/lake/bank/accounts",
                 "/lake/press/news", "/lake/Shop/other"):  # fmt: skip
        table_id, name = table_id_of(path), path.rsplit("/", 1)[-1]
        for part in ("", "/policy"):
            answer = client.get(f"/api/tables/{table_id}{part}")
            assert (answer.status_code == 200) is (name in seen), path
        if name not in seen:
            for part, body in (("forget", {}), ("pause", {"text": "", "paused": True})):
                assert client.post(f"/api/tables/{table_id}/{part}", json=body).status_code == 404
            assert client.get(f"/api/tables/{table_id}/examination").status_code == 404


def test_no_token_sees_tables_while_the_first_tokens_file_is_wrong(teams: ManagerServices, tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("tokens: [", encoding="utf-8")
    object.__setattr__(teams, "tokens", TokensSource(path=str(tmp_path / "wrong.yaml")))
    client = client_of(teams, Viewer("sue"))
    assert client.get("/api/tables").status_code == 403
    assert "wrong.yaml is not YAML" in client.get("/api/tables").text


# --- What a search finds is what the registry holds


def test_search_follows_the_names_and_findings_of_the_registry(
    services: ManagerServices, registry: Registry, lake: Path, orders: str
) -> None:
    assert found(registry, "sales").total == 1
    table = HandMadeTable(lake / "orders")
    table.write_properties("Renamed", "Shop2")
    # A file with another size: the timelines read the properties again.
    services.loop.notify(Notice(str(table.path), "orders", Source.COMMIT_CALLBACK))
    table.commit(9)
    services.loop.drain()
    row = registry.get(orders)
    assert row.table_name == "Renamed"
    assert [one.table.table_id for one in found(registry, "shop2\nrenamed").rows] == []
    assert [one.table.table_id for one in found(registry, "RENAMED").rows] == [orders]
    assert found(registry, str(lake).upper()).total == 1
    (lake / "orders").rename(lake / "moved")
    services.loop.notify(Notice(str(table.path), "orders", Source.COMMIT_CALLBACK))
    services.loop.drain()
    assert found(registry, "", TableState.UNREADABLE).rows[0].table.table_id == orders


def test_user_who_is_called_like_a_role_is_none_of_its_members() -> None:
    assert Viewer("role:Admin", frozenset({"Shop"})).names == {"role:Shop"}
    assert Viewer("olga", frozenset({"Shop"})).names == {"olga", "role:Shop"}
    assert Viewer("").names == frozenset()
