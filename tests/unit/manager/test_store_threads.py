"""Requests that wait for a table's store leave the API server's threads, and those of other tokens, to the others."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from airflow_lake_provider.config.tables_source import TablesSource
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.manager.api import tables
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.api.store_threads import AT_ONCE_OF_ONE, Reads, StoreThreads
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.planner.table_view import TableViewCache
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import SERVICE_TOKEN, serve

SERVICE = {"Authorization": f"Bearer {SERVICE_TOKEN}"}
SERVER_THREADS = 40
HOLD = {"reader": "ann", "ttl_s": 60}
READS: list[tuple[str, str, Any]] = [
    ("POST", "/tables/{id}/holds", HOLD),
    ("GET", "/tables/{id}/instances", None),
    ("GET", "/reports/runs?table={id}", None),
    ("GET", "/policy?base_path={path}&table_name=orders&service=clean", None),
]


@pytest.mark.parametrize(("method", "path", "body"), READS, ids=[path for _, path, _ in READS])
def test_requests_of_a_store_that_does_not_answer_leave_threads_for_the_others(
    services: ManagerServices,
    lake: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    path: str,
    body: Any,
) -> None:
    table = HandMadeTable.create(lake / "orders")
    table.commit(1)
    file = tmp_path / "tables.yaml"
    file.write_text(f"tables:\n  - {{base_path: {table.path}, table_may_set: [weight 0..2]}}\n")
    services.loop.notify(Notice(str(table.path), "orders", Source.CONFIG))
    services.loop.drain()
    app = serve(lambda: replace(services, tables=TablesSource(str(file))))
    answers = threading.Event()
    delay(monkeypatch, answers)
    address = path.format(id=table_id_of(str(table.path)), path=table.path)

    async def ask() -> tuple[int, set[int]]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://t", headers=SERVICE, timeout=60) as client:
            asked = [
                asyncio.create_task(client.request(method, address, json=body)) for _ in range(SERVER_THREADS + 10)
            ]
            try:
                await asyncio.sleep(1)
                async with asyncio.timeout(20):
                    health = await client.get("/health")
            finally:
                answers.set()
                found = await asyncio.gather(*asked)
            return health.status_code, {one.status_code for one in found}

    assert asyncio.run(ask()) == (200, {200})


def delay(monkeypatch: pytest.MonkeyPatch, answers: threading.Event) -> None:
    """Have the store answer once the event is set."""
    refresh, load = TableViewCache.refresh, tables.load_table_properties

    def refresh_late(self: TableViewCache, *arguments: Any) -> Any:
        answers.wait(60)
        return refresh(self, *arguments)

    def load_late(storage: Any) -> Any:
        answers.wait(60)
        return load(storage)

    monkeypatch.setattr(TableViewCache, "refresh", refresh_late)
    monkeypatch.setattr(tables, "load_table_properties", load_late)


def test_one_token_and_one_kind_leave_threads_for_the_others() -> None:
    answers = threading.Event()

    async def ask() -> list[str]:
        threads = StoreThreads()
        waiting = [
            asyncio.create_task(threads.run(Reads.HOLD, "shop", lambda: answers.wait(60)))
            for _ in range(AT_ONCE_OF_ONE * 3)
        ]
        try:
            await asyncio.sleep(0.1)
            async with asyncio.timeout(20):
                return [
                    await threads.run(Reads.HOLD, "bank", lambda: "bank"),
                    await threads.run(Reads.RENEWAL, "shop", lambda: "renewal"),
                ]
        finally:
            answers.set()
            await asyncio.gather(*waiting)

    assert asyncio.run(ask()) == ["bank", "renewal"]
