"""Holds of readers: what cleaning leaves for them, when they end, and what is refused."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from airflow_lake_provider.cli import holds as commands
from airflow_lake_provider.config.tables_source import TablesSource
from airflow_lake_provider.errors import HoldRefusedError
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db import holds
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.db.sinks import Sinks
from airflow_lake_provider.ui.answers import Viewer
from airflow_lake_provider.ui.app import create_pages
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import SERVICE_TOKEN, FakeClock, serve


@pytest.fixture
def table(lake: Path) -> HandMadeTable:
    table = HandMadeTable.create(lake / "orders")
    for second in (1, 2, 3):
        table.commit(second)
    return table


@pytest.fixture
def table_id(table: HandMadeTable) -> str:
    return table_id_of(str(table.path))


@pytest.fixture
def make_client(services: ManagerServices, table: HandMadeTable, tmp_path: Path) -> Callable[..., httpx.Client]:
    def make(policy: str = "holds: {max_hold_s: 3600}") -> httpx.Client:
        (tmp_path / "tables.yaml").write_text(f"tables:\n  - {{base_path: {table.path}, {policy}}}\n")
        services.loop.notify(Notice(str(table.path), "orders", Source.CONFIG))
        services.loop.drain()
        app = serve(lambda: replace(services, tables=TablesSource(str(tmp_path / "tables.yaml"))))
        return TestClient(app, headers={"Authorization": f"Bearer {SERVICE_TOKEN}"})

    return make


def add(client: httpx.Client, table_id: str, **body: Any) -> httpx.Response:
    return client.post(f"/tables/{table_id}/holds", json={"reader": "ann", "reason": "audit", "ttl_s": 60, **body})


def safepoint(client: httpx.Client, table_id: str) -> Any:
    return client.get(f"/tables/{table_id}/safepoint").json()["instant"]


def test_hold_is_the_safepoint_until_it_is_not_renewed(
    make_client: Callable[..., httpx.Client], table: HandMadeTable, table_id: str, clock: FakeClock
) -> None:
    client = make_client()
    held = add(client, table_id).json()
    assert (held["hold"], held["is_firm"], held["waits_for"]) == ("20261121120003000", True, [])
    table.commit(4)
    for _ in range(3):
        clock.advance(50)
        assert client.post(f"/tables/{table_id}/holds/{held['hold_id']}/renew").is_success
        assert safepoint(client, table_id) == held["hold"]
    clock.advance(61)
    assert safepoint(client, table_id) is None
    lost = client.post(f"/tables/{table_id}/holds/{held['hold_id']}/renew")
    assert (lost.status_code, lost.json()["error"]) == (409, "HoldLostError")


def test_no_renewal_makes_a_hold_last_longer_than_allowed(
    make_client: Callable[..., httpx.Client], table_id: str, clock: FakeClock
) -> None:
    client = make_client()
    held = add(client, table_id).json()
    for _ in range(71):
        clock.advance(50)
        assert client.post(f"/tables/{table_id}/holds/{held['hold_id']}/renew").is_success
    clock.advance(50)
    assert safepoint(client, table_id) is None
    assert client.post(f"/tables/{table_id}/holds/{held['hold_id']}/renew").status_code == 409


def test_text_of_a_reader_is_shown_plainly(make_client: Callable[..., httpx.Client], table_id: str) -> None:
    client = make_client()
    add(client, table_id, reader="ann\u202e\x1b[2J", reason="audit\u2028" * 30)
    (held,) = client.get(f"/tables/{table_id}/holds").json()["holds"]
    assert held["reader"] == "ann\\u202e\\x1b[2J"
    assert held["reason"].isprintable()
    assert len(held["reason"]) == 300


def test_renewal_does_not_bring_back_what_was_released(make_client: Callable[..., httpx.Client], table_id: str) -> None:
    client = make_client()
    held = add(client, table_id).json()
    one = f"/tables/{table_id}/holds/{held['hold_id']}"
    assert [client.delete(one).status_code for _ in range(2)] == [204, 204]
    assert client.post(f"{one}/renew").status_code == 409
    assert safepoint(client, table_id) is None


def test_commit_that_is_pending_as_the_reader_begins_is_held(
    make_client: Callable[..., httpx.Client], table: HandMadeTable, table_id: str
) -> None:
    """When it completes, its file slice would pass for the newest one before a later commit."""
    table.begin("20261121120002500")
    assert add(make_client(), table_id).json()["hold"] == "20261121120002500"


def test_reader_waits_for_a_clean_that_began_before_its_hold(
    make_client: Callable[..., httpx.Client], services: ManagerServices, table_id: str
) -> None:
    client = make_client()
    lease = services.executors.acquire(table_id, Service.CLEAN, "clean-1", 1)
    held = add(client, table_id).json()
    renew = f"/tables/{table_id}/holds/{held['hold_id']}/renew"
    assert (held["is_firm"], held["waits_for"]) == (False, ["clean-1"])
    assert client.post(renew).json()["waits_for"] == ["clean-1"]
    services.executors.release(table_id, Service.CLEAN, lease.token)
    assert client.post(renew).json()["is_firm"]
    assert client.get(f"/tables/{table_id}/holds").json()["holds"][0]["is_firm"]


def test_reader_waits_for_no_clean_that_begins_after_its_hold(
    make_client: Callable[..., httpx.Client], services: ManagerServices, table_id: str, clock: FakeClock
) -> None:
    client = make_client()
    before = services.executors.acquire(table_id, Service.CLEAN, "clean-1", 1)
    held = add(client, table_id).json()
    clock.advance(1)
    services.executors.release(table_id, Service.CLEAN, before.token)
    services.executors.acquire(table_id, Service.CLEAN, "clean-2", 1)
    assert client.post(f"/tables/{table_id}/holds/{held['hold_id']}/renew").json()["is_firm"]


@pytest.mark.parametrize(
    ("policy", "body", "says"),
    [
        ("holds: {max_hold_s: 600}", {"ttl_s": 601}, "ttl_s is 601 s, and a hold lasts 600 s at most"),
        ("holds: {max_hold_s: 600}", {"lasts_s": 601}, "lasts_s is 601 s, and a hold lasts 600 s at most"),
        ("holds: {enabled: false}", {}, "readers may hold no files (holds.enabled: false)"),
        ("clean: {policy: versions, retained_versions: 2}", {}, "clean.policy: versions counts no commits"),
        ("holds: {}", {"at_instant": "20250101000000000"}, "no commit of the table was there at 20250101000000000"),
    ],
)
def test_what_cannot_be_held_is_refused_with_its_reason(
    make_client: Callable[..., httpx.Client], table_id: str, policy: str, body: dict[str, Any], says: str
) -> None:
    client = make_client(policy)
    answer = add(client, table_id, **body)
    assert (answer.status_code, answer.json()["error"]) == (409, "HoldRefusedError")
    assert says in answer.json()["detail"]
    assert client.get(f"/tables/{table_id}/holds").json() == {"holds": []}


def test_table_that_is_not_known_is_refused(make_client: Callable[..., httpx.Client]) -> None:
    answer = add(make_client(), "nothing-0000000000000000")
    assert (answer.status_code, answer.json()["error"]) == (404, "TableUnknownError")


def test_hold_of_the_past_lasts_no_longer_than_what_it_keeps_may_have_been_replaced(
    make_client: Callable[..., httpx.Client], table_id: str, clock: FakeClock
) -> None:
    client = make_client("holds: {max_hold_s: 600}")
    clock.advance(302)  # the third commit completed 298.5 s ago, and replaced what is read as of the second
    as_of = {"at_instant": "20261121120002500"}
    answer = add(client, table_id, **as_of, lasts_s=400)
    assert "has been replaced for 298 s, so a hold may last 301 s more" in answer.json()["detail"]
    held = add(client, table_id, **as_of).json()
    assert held["until_ms"] - clock.now.timestamp() * 1000 == pytest.approx(301_500, abs=1000)
    assert held["hold"] == "20261121120002000"


def test_readers_hold_holds_sinks_and_readers_alike_the_oldest_counts(
    make_client: Callable[..., httpx.Client], services: ManagerServices, table: HandMadeTable, table_id: str
) -> None:
    client = make_client()
    add(client, table_id, at_instant="20261121120002500")
    add(client, table_id)
    assert safepoint(client, table_id) == "20261121120002000"
    hold = Sinks(services.registry).find_hold(table_id)
    assert hold is not None
    assert hold.describe().startswith("reader ann (audit) holds everything since 20261121120002000, until ")
    explained = client.get("/reports/explanation", params={"table": str(table.path)}).json()["holds"]
    assert [one["hold"] for one in explained] == ["20261121120002000", "20261121120003000"]
    assert 'lake_reader_hold_seconds{path="' in client.get("/metrics").text


def test_page_of_the_table_shows_the_reader(
    make_client: Callable[..., httpx.Client], services: ManagerServices, table_id: str
) -> None:
    held = add(make_client(), table_id).json()
    pages = TestClient(create_pages(lambda: services, lambda: Viewer("ann")))
    (shown,) = pages.get(f"/api/tables/{table_id}").json()["holds"]
    assert (shown["reader"], shown["reason"], shown["is_firm"]) == ("ann", "audit", True)
    assert (shown["until_ms"], shown["hold_ms"]) == (held["until_ms"], 1795262403000)


def test_hold_that_keeps_too_much_ends_when_it_is_renewed(
    make_client: Callable[..., httpx.Client],
    services: ManagerServices,
    table_id: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = make_client("holds: {max_held_bytes: 1000}")
    held = add(client, table_id).json()
    renew = f"/tables/{table_id}/holds/{held['hold_id']}/renew"
    module = "airflow_lake_provider.manager.supervision.reader_holds.held_bytes"
    monkeypatch.setattr(module, lambda *_: 1000)
    assert client.post(renew).is_success
    monkeypatch.setattr(module, lambda *_: 1001)
    assert "kept 1,001 bytes of replaced files" in client.post(renew).json()["detail"]
    assert safepoint(client, table_id) is None


def test_program_that_holds_without_end_is_stopped(
    make_client: Callable[..., httpx.Client],
    services: ManagerServices,
    table_id: str,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its token leaves holds to others, and all together have a bound."""
    monkeypatch.setattr(holds, "MAX_HOLDS_OF_ONE", 5)
    monkeypatch.setattr(holds, "MAX_HOLDS", 6)
    client = make_client()
    assert {add(client, table_id).status_code for _ in range(5)} == {200}
    assert "has 5 holds of token service_tokens.1 already" in add(client, table_id).json()["detail"]
    new = holds.NewHold("ann", "", "20261121120001000", "", 60_000, 10**15, "another")
    others = holds.ReaderHolds(services.registry)
    others.add(table_id, new)
    with pytest.raises(HoldRefusedError, match="6 times already"):
        others.add(table_id, new)
    clock.advance(61)
    assert add(client, table_id).is_success


def test_commands_hold_list_and_release(
    make_client: Callable[..., httpx.Client],
    services: ManagerServices,
    table: HandMadeTable,
    table_id: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    client = make_client()
    parts = SimpleNamespace(registry=services.registry, tables=services.tables, views=services.views)
    monkeypatch.setattr(commands, "open_reports", lambda: parts)
    monkeypatch.setattr(commands, "open_registry", lambda: services.registry)
    monkeypatch.setattr(commands, "find_table", lambda _text: str(table.path))
    commands.add(Namespace(table="orders", lasts="2h", reason="audit", at="", output="json"))
    (held,) = json.loads(capsys.readouterr().out)
    assert safepoint(client, table_id) == held["hold"] == "20261121120003000"
    commands.show(Namespace(table="", output="text"))
    assert held["hold_id"] in (shown := capsys.readouterr().out)
    assert "(audit), until " in shown
    commands.release(Namespace(hold_id=held["hold_id"], output="text"))
    assert safepoint(client, table_id) is None
    with pytest.raises(SystemExit, match="No hold"):
        commands.release(Namespace(hold_id=held["hold_id"], output="text"))
    with pytest.raises(SystemExit, match="a hold lasts 86,400 s at most"):
        commands.add(Namespace(table="orders", lasts="2d", reason="", at="", output="text"))
