"""Readers' holds next to two API servers on PostgreSQL: a reader that is killed, one that loses its hold, and races."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI
from sqlalchemy import create_engine
from sqlalchemy.engine import Engine
from sqlalchemy.orm import sessionmaker

from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.config.tables_source import TablesSource
from airflow_lake_provider.errors import HoldLostError, HoldRefusedError, TableUnknownError
from airflow_lake_provider.hooks.reader_hold import hudi_hold
from airflow_lake_provider.manager.api.app import create_app
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db import holds
from airflow_lake_provider.manager.db.database import DatabaseClock
from airflow_lake_provider.manager.db.holds import NewHold, ReaderHolds
from airflow_lake_provider.manager.db.leases import Executors
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.db.schema import metadata
from airflow_lake_provider.manager.db.sinks import Sinks
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from airflow_lake_provider.manager.loop.timeline_feed import TimelineServerGateway
from airflow_lake_provider.manager.supervision.monitoring import DeadlineSweep
from airflow_lake_provider.manager.supervision.repair_round import RepairRound
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.storage.table_storage import open_storage
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.server import ServerOptions, TimelineServer
from local_stack.postgres import LocalPostgres
from local_stack.processes import free_port, wait_until
from tests.support.patience import patient
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import FakeInstanceGateway, FakeRunGateway

pytestmark = pytest.mark.integration

TOKEN = "service-secret"
ROOT = Path(__file__).parents[3]
TTL_S = 3


@dataclass(frozen=True)
class Server:
    """One API server: its address, and its own view of the database."""

    url: str
    registry: Registry


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    database = LocalPostgres()
    database.start()
    engine = create_engine(database.url)
    metadata.create_all(engine)
    yield engine
    engine.dispose()
    database.stop()


def open_services(engine: Engine, root: Path) -> ManagerServices:
    make = sessionmaker(engine)
    registry = Registry(make, DatabaseClock(make))
    settings = LakeSettings(service_tokens=(TOKEN,), allowed_roots=(str(root),))
    server = TimelineServer(SharedTimelines(now_ms=registry.now_ms), ServerOptions((str(root),), (TOKEN,)))
    views, instances = TableViewCache(server.timelines), FakeInstanceGateway()
    loop = ManagerLoop(settings, registry, TimelineServerGateway(server), views, FakeRunGateway(), TablesConfig)
    return ManagerServices(
        settings,
        registry,
        Executors(registry, lease_s=60),
        loop,
        server,
        TablesSource(""),
        views,
        instances,
        DeadlineSweep(registry, instances),
        RepairRound(registry, TablesConfig, open_storage),
    )


@pytest.fixture
def servers(engine: Engine, tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    opened, running = [], []
    for _ in range(2):
        services, app, port = open_services(engine, tmp_path), FastAPI(), free_port()
        app.mount("/v1/hoodie", create_app(lambda services=services: services))
        server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run)
        thread.start()
        wait_until(lambda server=server: server.started, 60, "the manager", [])
        running.append((server, thread))
        opened.append(Server(f"http://127.0.0.1:{port}", services.registry))
    yield opened[0], opened[1]
    for server, thread in running:
        server.should_exit = True
        thread.join()


@pytest.fixture
def table(servers: tuple[Server, Server], tmp_path: Path) -> HandMadeTable:
    table = HandMadeTable.create(tmp_path / "orders")
    table.commit(1)
    servers[0].registry.mark_dirty(Notice(str(table.path), "orders", Source.CONFIG))
    return table


READER = """
import sys, time
from airflow_lake_provider.hooks.reader_hold import hudi_hold
with hudi_hold(sys.argv[1], manager_url=sys.argv[2], token=sys.argv[3], ttl_s=float(sys.argv[4]), reason="export"):
    print("reads", flush=True)
    time.sleep(600)
"""


def test_hold_of_a_killed_reader_ends_after_its_time_to_live_and_not_before(
    servers: tuple[Server, Server], table: HandMadeTable
) -> None:
    first, second = servers
    table_id = first.registry.mark_dirty(Notice(str(table.path), "orders", Source.HINT)).table_id
    command = [sys.executable, "-c", READER, str(table.path), first.url, TOKEN, str(TTL_S)]
    reader = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reads\n"
        time.sleep(2 * TTL_S)
        assert Sinks(second.registry).safepoint(table_id).instant == "20261121120001000", "it is renewed"
        reader.send_signal(signal.SIGKILL)
        reader.wait(30)
        killed_s = time.monotonic()
        assert Sinks(second.registry).safepoint(table_id).instant is not None
        wait_until(lambda: Sinks(second.registry).safepoint(table_id).instant is None, 60, "the end of the hold", [])
        assert time.monotonic() - killed_s < patient(TTL_S + 30)
    finally:
        reader.kill()
        reader.wait(30)
        if reader.stdout is not None:
            reader.stdout.close()


def test_reader_learns_that_its_hold_was_lost(servers: tuple[Server, Server], table: HandMadeTable) -> None:
    first, second = servers
    access = {"manager_url": first.url, "token": TOKEN}
    with hudi_hold(str(table.path), **access, ttl_s=TTL_S) as hold:  # type: ignore[arg-type]
        hold.require_held()
        (held,) = ReaderHolds(second.registry).list_holds(hold.table_id)
        assert held.hold_id == hold.hold_id
    assert not ReaderHolds(second.registry).list_holds(hold.table_id), "released with the block"
    begun = hudi_hold(str(table.path), **access, ttl_s=TTL_S)  # type: ignore[arg-type]
    hold = begun.__enter__()
    ReaderHolds(second.registry).release(hold.table_id, hold.hold_id)
    time.sleep(TTL_S)
    with pytest.raises(HoldLostError, match="has ended"):
        begun.__exit__(None, None, None)
    with (
        pytest.raises(TableUnknownError, match="table /no-such/table is not in the registry"),
        hudi_hold("/no-such/table", **access),
    ):  # type: ignore[arg-type]
        pytest.fail("it began")
    with (
        pytest.raises(HoldRefusedError, match="lasts 86,400 s at most"),
        hudi_hold(str(table.path), **access, ttl_s=90_000),
    ):  # type: ignore[arg-type]
        pytest.fail("it began")


def test_holds_that_are_added_at_the_same_time_pass_no_bound(
    servers: tuple[Server, Server], table: HandMadeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holds, "MAX_HOLDS_OF_ONE", 5)
    table_id = servers[0].registry.mark_dirty(Notice(str(table.path), "orders", Source.HINT)).table_id
    new = NewHold("ann", "", "20261121120001000", "", 60_000, 10**15, "shop")
    barrier = threading.Barrier(16)

    def add(number: int) -> None:
        barrier.wait(60)
        with suppress(HoldRefusedError):
            ReaderHolds(servers[number % 2].registry).add(table_id, new)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ReaderHolds(servers[0].registry).list_holds(table_id)) <= 5


def test_renewal_races_with_release_and_with_the_end_and_brings_nothing_back(
    servers: tuple[Server, Server], table: HandMadeTable
) -> None:
    first, second = servers
    table_id = first.registry.mark_dirty(Notice(str(table.path), "orders", Source.HINT)).table_id
    mine, theirs = ReaderHolds(first.registry), ReaderHolds(second.registry)
    new = NewHold("ann", "", "20261121120001000", "", 60_000, 10**15)
    barrier = threading.Barrier(2)
    wrong: list[str] = []

    def renew_until_lost(hold_id: str, renewed: list[str]) -> None:
        barrier.wait(60)
        try:
            for _ in range(20):
                mine.renew(table_id, hold_id)
                renewed.append(hold_id)
        except HoldLostError:
            return

    for number in range(60):
        is_end = number % 2 == 1
        hold_id = mine.add(table_id, NewHold("ann", "", new.hold, "", 5, 10**15) if is_end else new)
        renewed: list[str] = []
        thread = threading.Thread(target=renew_until_lost, args=(hold_id, renewed))
        thread.start()
        barrier.wait(60)
        if is_end:
            time.sleep(0.004)
            if Sinks(second.registry).safepoint(table_id).instant is None:
                with pytest.raises(HoldLostError):
                    mine.renew(table_id, hold_id)
            thread.join()
        else:
            assert theirs.release(table_id, hold_id)
            thread.join()
            if theirs.list_holds(table_id):
                wrong.append(hold_id)
            assert Sinks(first.registry).safepoint(table_id).instant is None
        theirs.release(table_id, hold_id)
    assert not wrong
