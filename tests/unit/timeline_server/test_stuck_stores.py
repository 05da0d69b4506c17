"""A store that never answers costs the timeline server threads of that store, and no other store's tables anything."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.storage.store import MAX_FILE_BYTES, LocalStore
from airflow_lake_provider.storage.table_storage import Storage, open_storage
from airflow_lake_provider.timeline_server import server as server_module
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.schedule import SharedLimits
from airflow_lake_provider.timeline_server.server import ServerOptions, TableFeed, TimelineServer
from airflow_lake_provider.timeline_server.snapshot import NOW
from tests.support.tables import HandMadeTable

DEAD = [f"s3a://dead/lake/t{number}" for number in range(24)]


class HangingStore(LocalStore):
    """Answers nothing, or nothing about commits, until it is let go."""

    def __init__(self, let_go: threading.Event, only: str = "") -> None:
        self._let_go = let_go
        self._only = only

    def stat(self, path: str):  # type: ignore[no-untyped-def]
        if not self._only:
            self._let_go.wait(60)
        return super().stat(path)

    def read_bytes(self, path: str, limit_bytes: int = MAX_FILE_BYTES) -> bytes:
        if not self._only or path.endswith(self._only):
            self._let_go.wait(60)
        return super().read_bytes(path, limit_bytes)


@pytest.fixture
def let_go() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def tables(tmp_path: Path) -> list[str]:
    made = [HandMadeTable.create(tmp_path / f"t{number}") for number in range(3)]
    for table in made:
        table.commit(1)
    return [str(table.path) for table in made]


@pytest.fixture
def server(let_go: threading.Event) -> TimelineServer:
    def open_table(base_path: str) -> Storage:
        if base_path.startswith("s3a://dead/"):
            return Storage(base_path, HangingStore(let_go), base_path)
        return open_storage(base_path)

    return TimelineServer(SharedTimelines(SharedLimits(cold_start_s=0.0), open_table), ServerOptions())


async def wait_until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - of other threads
            await asyncio.sleep(0.02)


def test_tables_of_other_stores_are_refreshed_while_a_store_never_answers(
    server: TimelineServer, tables: list[str], let_go: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_STUCK_S", 0.2)

    async def live() -> None:
        running = asyncio.create_task(server.run())
        for path in DEAD:
            server.timelines.register(path)
            server.hint(TableFeed(path, 1))
        await wait_until(lambda: server._busy["s3a://dead"] >= server.options.refresh_threads)
        for path in tables:
            server.timelines.register(path)
            server.hint(TableFeed(path, 1))
        await wait_until(lambda: all(server.timelines.find_shown(path) is not None for path in tables))
        assert server._busy["s3a://dead"] <= server.options.refresh_threads
        let_go.set()
        await wait_until(lambda: not server._busy["s3a://dead"])
        running.cancel()

    asyncio.run(live())


def test_readers_of_a_store_that_never_answers_keep_no_other_reader_and_no_loop_waiting(
    server: TimelineServer, tables: list[str], let_go: threading.Event
) -> None:
    async def live() -> None:
        hanging = [
            asyncio.create_task(server.read(lambda path=path: server.timelines.snapshot(path, NOW), path))  # type: ignore[misc]
            for path in DEAD
        ]
        await asyncio.sleep(0.2)
        async with asyncio.timeout(10):
            for path in tables:
                found = await server.read(lambda path=path: server.timelines.snapshot(path, NOW), path)  # type: ignore[misc]
                assert found.timeline.completed()
        for waiting in hanging:
            waiting.cancel()
        let_go.set()

    asyncio.run(live())


def test_commit_metadata_that_is_never_answered_holds_up_no_other_table(
    tables: list[str], let_go: threading.Event
) -> None:
    dead, well = tables[0], [f"/lake/t{number}" for number in range(300)]

    def open_table(base_path: str) -> Storage:
        if base_path == dead:
            return Storage(base_path, HangingStore(let_go, only=".deltacommit"), base_path)
        return Storage(base_path, LocalStore(), tables[1])

    views = TableViewCache(SharedTimelines(None, open_table))
    threading.Thread(target=views.refresh, args=(dead,), daemon=True).start()
    read: list[str] = []

    def read_all() -> None:
        for path in well:
            views.refresh(path)
            read.append(path)

    reader = threading.Thread(target=read_all, daemon=True)
    reader.start()
    reader.join(10)
    assert len(read) == len(well)
