"""The pages in Airflow's UI: what they show, whom they refuse, and that names from writers do no harm."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from fastapi import HTTPException
from fastapi.testclient import TestClient

from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.registry import PAGE_SIZE, Notice, Registry, Search, Show, Source, search_tables
from airflow_lake_provider.manager.db.sinks import Sinks
from airflow_lake_provider.manager.instances import RunFacts, distance
from airflow_lake_provider.manager.scheduling import RunState
from airflow_lake_provider.ui.app import create_pages
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
    services.loop.mark_dirty(Notice(str(lake / "orders"), "orders", Source.COMMIT_CALLBACK, (), "sales", "shop"))
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
    door = services.instance_door
    assert isinstance(door, FakeInstanceDoor)
    run_id = f"{looked}.compaction.20261121120001000"
    door.runs.append(RunFacts(run_id, RunState.QUEUED, services.registry.now_ms(), params={"service": "compaction"}))
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


@pytest.mark.parametrize(
    ("time_ms", "said"),
    [(None, "-"), (1_000_000, "0 s ago"), (999_000, "1 s ago"), (1_119_000, "in 119 s"), (1_120_000, "in 2 min")],
)
def test_distance_in_words(time_ms: int | None, said: str) -> None:
    assert distance(time_ms, 1_000_000) == said
