"""Tables leave the registry: by command immediately, and by themselves when nothing has been at their path for long."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.config.tables_file import parse_tables_file
from airflow_lake_provider.errors import ExecutorBusyError, TableUnknownError
from airflow_lake_provider.job_contract import Service, Standing
from airflow_lake_provider.manager.api.app import create_app
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.leases import Executors
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.db.sinks import Sinks
from airflow_lake_provider.manager.loop.reconciler import FORGET_AFTER_MS, ManagerLoop
from airflow_lake_provider.manager.loop.timeline_feed import RegistryFeed, TimelineServerGateway
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.timeline_server.server import TimelineServer
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import SERVICE_TOKEN, FakeClock, FakeRunGateway

HEADERS = {"Authorization": f"Bearer {SERVICE_TOKEN}"}
WEEK_S = FORGET_AFTER_MS / 1000
MakeLoop = Callable[[], ManagerLoop]


def mark(registry: Registry, table: HandMadeTable) -> str:
    return registry.mark_dirty(Notice(str(table.path), "orders", Source.HINT)).table_id


@pytest.fixture
def table(lake: Path) -> HandMadeTable:
    table = HandMadeTable.create(lake / "orders")
    table.commit(1)
    return table


def drain_for(loop: ManagerLoop, registry: Registry, clock: FakeClock, seconds: float) -> None:
    for _ in range(8):
        clock.advance(seconds / 8)
        loop.drain()


def test_table_that_is_missing_for_a_week_is_forgotten_with_its_sinks(
    registry: Registry, make_loop: MakeLoop, clock: FakeClock, table: HandMadeTable, timeline_server: TimelineServer
) -> None:
    loop, table_id = make_loop(), mark(registry, table)
    loop.drain()
    timeline_server.timelines.register(str(table.path))
    Sinks(registry).begin_run(table_id, "mirror", 3600, "run-1")
    shutil.rmtree(table.path)
    mark(registry, table)
    loop.drain()
    drain_for(loop, registry, clock, WEEK_S - 3600)
    assert loop.forget_missing_tables() == 0
    assert "no Hudi table" in registry.get(table_id).problem
    drain_for(loop, registry, clock, 2 * 3600)
    assert loop.forget_missing_tables() == 1
    assert registry.find(table_id) is None
    with registry.transaction() as session:
        assert session.execute(text("select count(*) from lake_sink")).scalar_one() == 0
    assert timeline_server.timelines.memory.find(str(table.path)) is None
    assert timeline_server.timelines.due.due_ms(str(table.path)) is None


def test_table_that_comes_back_in_time_stays_and_the_week_begins_anew(
    registry: Registry, make_loop: MakeLoop, clock: FakeClock, table: HandMadeTable
) -> None:
    loop, table_id = make_loop(), mark(registry, table)
    loop.drain()
    away = table.path.with_name("away")
    for _ in range(2):
        table.path.rename(away)
        mark(registry, table)
        drain_for(loop, registry, clock, WEEK_S - 7200)
        assert registry.get(table_id).missing_since_ms is not None
        away.rename(table.path)
        drain_for(loop, registry, clock, 7200)
        assert registry.get(table_id).missing_since_ms is None
        assert loop.forget_missing_tables() == 0


def test_table_that_cannot_be_read_is_not_missing(
    registry: Registry, make_loop: MakeLoop, clock: FakeClock, table: HandMadeTable
) -> None:
    loop, table_id = make_loop(), mark(registry, table)
    (table.path / ".hoodie" / "hoodie.properties").write_text("hoodie.table.version=99\n")
    mark(registry, table)
    drain_for(loop, registry, clock, 3 * WEEK_S)
    assert registry.get(table_id).evaluation_failures > 0
    assert loop.forget_missing_tables() == 0


def test_table_that_the_tables_file_names_is_never_forgotten(
    settings: object, registry: Registry, clock: FakeClock, table: HandMadeTable, timeline_server: TimelineServer
) -> None:
    named: TablesConfig = parse_tables_file(f"tables: [{{base_path: {table.path}}}]", "t.yaml")
    gateway, views = TimelineServerGateway(timeline_server), TableViewCache(timeline_server.timelines)
    loop = ManagerLoop(settings, registry, gateway, views, FakeRunGateway(), lambda: named)  # type: ignore[arg-type]
    table_id = mark(registry, table)
    shutil.rmtree(table.path)
    drain_for(loop, registry, clock, 3 * WEEK_S)
    assert registry.get(table_id).missing_since_ms is not None
    assert loop.forget_missing_tables() == 0


def test_table_in_service_is_not_forgotten_until_its_executor_ended(
    registry: Registry, table: HandMadeTable, clock: FakeClock
) -> None:
    table_id, executors = mark(registry, table), Executors(registry, lease_s=60)
    executors.acquire(table_id, Service.COMPACTION, "run-7", 1)
    with pytest.raises(ExecutorBusyError, match="run-7 executes compaction"):
        registry.forget(table_id)
    clock.advance(61)
    assert registry.forget(table_id) == str(table.path)
    with pytest.raises(TableUnknownError):
        registry.forget(table_id)


@pytest.mark.parametrize("alone", [Standing.RESTORE, Standing.UPGRADE, Standing.ERASURE])
def test_next_to_what_runs_alone_no_service_of_the_table_has_a_lease(
    registry: Registry, table: HandMadeTable, alone: Standing
) -> None:
    table_id, executors = mark(registry, table), Executors(registry, lease_s=60)
    clean = executors.acquire(table_id, Service.CLEAN, "run-1", 1)
    with pytest.raises(ExecutorBusyError, match="run-1 executes clean"):
        executors.acquire(table_id, alone, "alone-1", 1)
    executors.release(table_id, Service.CLEAN, clean.token)
    lease = executors.acquire(table_id, alone, "alone-1", 2)
    with pytest.raises(ExecutorBusyError, match=f"alone-1 executes {alone}"):
        executors.acquire(table_id, Service.COMPACTION, "run-2", 1)
    executors.renew(table_id, alone, lease.token)
    executors.acquire("another", Service.COMPACTION, "run-3", 1)
    executors.release(table_id, alone, lease.token)
    executors.acquire(table_id, Service.COMPACTION, "run-2", 2)


def test_route_forgets_and_a_later_notice_registers_anew(
    services: ManagerServices, registry: Registry, table: HandMadeTable
) -> None:
    table_id = mark(registry, table)
    with TestClient(create_app(lambda: services)) as client:
        assert client.delete(f"/tables/{table_id}").status_code == 401
        assert client.delete(f"/tables/{table_id}", headers=HEADERS).status_code == 204
        assert client.delete(f"/tables/{table_id}", headers=HEADERS).status_code == 404
    assert mark(registry, table) == table_id
    assert registry.get(table_id).notices == 1


def test_other_servers_stop_watching_a_forgotten_table_that_is_gone(
    registry: Registry, timeline_server: TimelineServer, table: HandMadeTable
) -> None:
    path, table_id = str(table.path), mark(registry, table)
    server = TimelineServer(timeline_server.timelines, timeline_server.options, RegistryFeed(registry, TablesConfig))
    server.timelines.register(path)
    shutil.rmtree(table.path)
    server._refresh(path, is_hinted=False)
    assert server.timelines.memory.find(path) is not None
    registry.forget(table_id)
    server._refresh(path, is_hinted=False)
    assert server.timelines.memory.find(path) is None
