"""Characters of a request that would not stay text: hidden ones in a notice's headers, and NUL anywhere."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel

from airflow_lake_provider.errors import MalformedRequestError
from airflow_lake_provider.http import parse_body
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.ui import app as pages
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import CALLBACK_TOKEN, SERVICE_TOKEN, serve


@pytest.fixture
def client(services: ManagerServices) -> httpx.Client:
    return TestClient(serve(lambda: services), raise_server_exceptions=False)


@pytest.mark.parametrize("header", ["X-Lake-Owner", "X-Lake-Database"])
@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (b"shop", "shop"),
        ("Käse-É".encode(), "Käse-É"),
        ("Käse".encode("latin-1"), "Käse"),
        (b"a\x9b31mb", None),
        ("a\u202eb".encode(), None),
        (b"a\xadb", None),
    ],
)
def test_owner_and_database_of_a_notice_hold_no_hidden_character(
    client: httpx.Client, registry: Registry, lake: Path, header: str, sent: bytes, kept: str | None
) -> None:
    table = HandMadeTable.create(lake / "orders")
    notice = {"commitTime": "20991121024807033", "tableName": "orders", "basePath": str(table.path)}
    headers: Any = {"HUDI-CALLBACK-KEY": CALLBACK_TOKEN, header: sent}
    answer = client.post("/callback", json=notice, headers=headers)
    if kept is None:
        assert answer.status_code == 422
        assert f"header {header} must not contain control or invisible" in answer.json()["detail"]
        return
    row = registry.get(table_id_of(str(table.path)))
    assert (answer.status_code, row.owner if "Owner" in header else row.database_name) == (200, kept)


def test_run_id_that_others_read_in_a_log_is_one_line(client: httpx.Client, registry: Registry, lake: Path) -> None:
    row = registry.mark_dirty(Notice(str(lake / "orders"), "orders", Source.HINT))
    body = {"run_id": "r\n2026-11-28 ERROR the disk is full", "try_number": 1}
    headers = {"Authorization": f"Bearer {SERVICE_TOKEN}"}
    answer = client.post(f"/tables/{row.table_id}/executors/clean", json=body, headers=headers)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("run_id: ")


NUL_PATHS = ("/tables/a%00b", "/reports/runs?table=%00", "/reports/tables?after=%00", "/tables?after=a%00")
NUL_PAGES = ("/api/tables?q=%00", "/api/tables/a%00b", "/api/tables?owner=%00", "/api/operations?run_id=%00")


def test_nul_reaches_no_database(client: httpx.Client, services: ManagerServices) -> None:
    viewer = TestClient(pages.create_pages(lambda: services, lambda: None), raise_server_exceptions=False)
    token = {"Authorization": f"Bearer {SERVICE_TOKEN}"}
    answers = [client.get(path, headers=token) for path in NUL_PATHS] + [viewer.get(path) for path in NUL_PAGES]
    assert [(answer.status_code, "NUL" in answer.json()["detail"]) for answer in answers] == [(422, True)] * 8
    hints = {"hints": [{"base_path": "/lake/a", "table_name": "a\0b"}]}
    assert "NUL" in client.post("/hints", json=hints, headers=token).json()["detail"]


class Body(BaseModel):
    text: str


@pytest.mark.parametrize(
    ("body", "is_nul"),
    [
        (rb'{"text": "\u0000"}', True),
        (rb'{"text": "a\\\u0000"}', True),
        (rb'{"text": "a\\u0000"}', False),
        (rb'{"text": "\u00e4"}', False),
    ],
)
def test_escaped_nul_differs_from_its_text(body: bytes, is_nul: bool) -> None:
    if is_nul:
        with pytest.raises(MalformedRequestError, match="NUL"):
            asyncio.run(parse_body(Body, body))
    else:
        asyncio.run(parse_body(Body, body))
