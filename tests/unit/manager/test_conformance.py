"""How the manager checks a table's writers: when, at what cost, what it keeps, whom it notifies, what it blocks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import CompactionPolicy
from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.manager.api.app import create_app
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.registry import Registry, parse_instants
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.health.table_problems import TableProblem
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from airflow_lake_provider.manager.loop.timeline_feed import TimelineServerGateway
from airflow_lake_provider.manager.supervision.monitoring import DeadlineSweep
from airflow_lake_provider.manager.supervision.notifications import NoNotifier
from airflow_lake_provider.manager.supervision.writers_and_sinks import EVERY_MS, WriterChecks, recorded_report
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.timeline_server.server import TimelineServer
from airflow_lake_provider.ui.app import create_pages
from tests.support.checked_writes import MULTI_WRITER, write
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import (
    CALLBACK_TOKEN,
    LOCK_OPTIONS,
    SERVICE_TOKEN,
    FakeClock,
    FakeInstanceGateway,
    FakeRunGateway,
)

POLICY = TablePolicy(compaction=CompactionPolicy(delta_commits=3), hudi_options=LOCK_OPTIONS)


class Inbox(NoNotifier):
    def __init__(self) -> None:
        self.messages: list[TableProblem] = []

    def problem(self, problem: TableProblem, on_notified: Callable[[], None]) -> None:
        self.messages.append(problem)
        on_notified()


class World:
    """Two loops of one registry, with checks of writers."""

    def __init__(
        self,
        settings: LakeSettings,
        registry: Registry,
        server: TimelineServer,
        gateway: FakeRunGateway,
        clock: FakeClock,
    ) -> None:
        self.inbox, self.policy, self.registry, self.clock = Inbox(), POLICY, registry, clock
        self.views = TableViewCache(server.timelines)
        self.sweep = DeadlineSweep(registry, FakeInstanceGateway(), notifier=self.inbox)
        self.loops = [
            ManagerLoop(
                settings,
                registry,
                TimelineServerGateway(server),
                self.views,
                gateway,
                lambda: TablesConfig(defaults=self.policy),
                writers=WriterChecks(registry, self.views, FakeInstanceGateway()),
            )
            for _ in range(2)
        ]

    def evaluate(self, table: HandMadeTable, *instants: str, pause_s: float = EVERY_MS / 1000) -> None:
        self.clock.advance(pause_s)
        notice = Notice(str(table.path), "orders", Source.COMMIT_CALLBACK, instants)
        for loop in self.loops:
            loop.notify(notice)
            loop.drain()
            self.sweep.sweep()

    def broken(self, table: HandMadeTable) -> dict[str, tuple[str, ...]]:
        report, _ = recorded_report(self.registry.get(table_id_of(str(table.path))))
        return {row.requirement.value: row.settings for row in report.broken()}


@pytest.fixture
def world(
    settings: LakeSettings,
    registry: Registry,
    timeline_server: TimelineServer,
    gateway: FakeRunGateway,
    clock: FakeClock,
) -> World:
    return World(settings, registry, timeline_server, gateway, clock)


@pytest.fixture
def table(lake: Path) -> HandMadeTable:
    return HandMadeTable.create(lake / "orders")


def test_people_are_notified_once_when_a_writer_that_conformed_does_not_any_more(
    world: World, table: HandMadeTable
) -> None:
    world.evaluate(table, write(table, 1, is_guarded=True))
    assert (world.broken(table), world.inbox.messages) == ({}, [])
    world.evaluate(table, write(table, 12, is_guarded=False))
    assert world.broken(table) == {"heartbeat": (MULTI_WRITER,), "lock": (MULTI_WRITER,)}
    for second in (23, 34):
        world.evaluate(table, write(table, second, is_guarded=False))
    (message,) = world.inbox.messages
    assert message.service == "conformance"
    assert MULTI_WRITER in message.reason
    world.evaluate(table, write(table, 45, is_guarded=True))
    assert world.broken(table) == {}
    world.evaluate(table, write(table, 56, is_guarded=False))
    assert len(world.inbox.messages) == 2


def test_a_writer_that_never_conformed_is_one_message_and_blocks_with_the_setting(
    world: World, table: HandMadeTable, gateway: FakeRunGateway
) -> None:
    for second in (1, 12, 23):
        world.evaluate(table, write(table, second, is_guarded=False))
    assert [message.service for message in world.inbox.messages] == ["conformance"]
    assert gateway.runs == []
    decisions = str(world.registry.get(table_id_of(str(table.path))).decisions)
    assert '"verdict": "blocked"' in decisions
    assert MULTI_WRITER in decisions
    world.evaluate(table, write(table, 34, is_guarded=True))
    assert [run.run_id.split(".")[1] for run in gateway.runs] == ["compaction"]


def test_conformance_report_in_the_tables_file_starts_services_all_the_same(
    world: World, table: HandMadeTable, gateway: FakeRunGateway
) -> None:
    world.policy = POLICY.model_copy(update={"conformance": "report"})
    for second in (1, 12, 23):
        world.evaluate(table, write(table, second, is_guarded=False))
    assert set(world.broken(table)) == {"heartbeat", "lock"}
    assert len(gateway.runs) == 1


def test_quiet_table_costs_nothing_and_a_busy_one_one_check_in_ten_minutes(
    world: World, table: HandMadeTable, timeline_server: TimelineServer
) -> None:
    world.evaluate(table, write(table, 1, is_guarded=True))
    storage = timeline_server.timelines.memory.get(str(table.path)).storage
    checks: list[int] = []
    load = world.views.load_signs

    def counted(*args: object, **kwargs: object) -> object:
        checks.append(1)
        return load(*args, **kwargs)  # type: ignore[arg-type]

    world.views.load_signs = counted  # type: ignore[method-assign, assignment]
    for _ in range(3):
        world.evaluate(table)
    assert checks == []
    view = world.views.refresh(str(table.path))
    before = (storage.calls.lists, storage.calls.stats)
    world.views.load_signs(view, (), reads_headers=False)
    after = (storage.calls.lists, storage.calls.stats)
    assert (after[0] - before[0], after[1] - before[1]) <= (2, 3)
    checks.clear()
    for second in (12, 14, 16, 18):
        world.evaluate(table, write(table, second, is_guarded=True), pause_s=100)
    assert len(checks) == 1


def test_store_that_fails_a_check_stops_no_service(
    world: World, table: HandMadeTable, gateway: FakeRunGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_lake_provider.errors import StorageError

    def fail(*_: object, **__: object) -> None:
        raise StorageError("metadata: permission denied")

    monkeypatch.setattr(world.views, "load_signs", fail)
    for second in (1, 12, 23):
        world.evaluate(table, write(table, second, is_guarded=True))
    assert len(gateway.runs) == 1


def test_registry_lists_the_newest_announced_commits_and_reported_instants(
    services: ManagerServices, lake: Path, registry: Registry
) -> None:
    client = TestClient(create_app(lambda: services), raise_server_exceptions=False)
    path = str(lake / "orders")
    times = [f"20261121{n:09d}" for n in range(120)]
    headers = {"HUDI-CALLBACK-KEY": CALLBACK_TOKEN}
    for time in times:
        body = {"commitTime": time, "tableName": "orders", "basePath": path, "hoodieWriteStat": []}
        assert client.post("/callback", json=body, headers=headers).is_success
    row = registry.get(table_id_of(path))
    listed = parse_instants(row.announced)
    assert listed.issuperset(times[-20:])
    assert listed.isdisjoint(times[:60])
    assert len(row.announced) <= 1000
    assert row.served == ""
    bearer = {"Authorization": f"Bearer {SERVICE_TOKEN}"}
    for is_own, instant in ((True, "20261122000000001"), (False, "20261122000000002")):
        hint = {"base_path": path, "table_name": "orders", "instants": [instant], "is_own": is_own}
        assert client.post("/hints", json={"hints": [hint]}, headers=bearer).is_success
    row = registry.get(table_id_of(path))
    assert "20261122000000001" in parse_instants(row.served)
    assert "20261122000000002" not in parse_instants(row.served)
    assert "20261122000000001" not in parse_instants(row.announced)


def test_route_and_page_show_the_report(
    world: World, services: ManagerServices, table: HandMadeTable, clock: FakeClock
) -> None:
    manager = TestClient(create_app(lambda: services))
    bearer = {"Authorization": f"Bearer {SERVICE_TOKEN}"}
    table_id = table_id_of(str(table.path))
    services.loop.notify(Notice(str(table.path), "orders", Source.HINT))
    answer: httpx.Response = manager.get(f"/tables/{table_id}/conformance", headers=bearer)
    assert answer.json() == {"checked_ms": None, "requirements": []}
    world.evaluate(table, write(table, 1, is_guarded=False))
    body = manager.get(f"/tables/{table_id}/conformance", headers=bearer).json()
    found = {row["requirement"]: row for row in body["requirements"]}
    assert body["checked_ms"] == services.registry.now_ms()
    assert (found["heartbeat"]["state"], found["heartbeat"]["settings"]) == ("broken", [MULTI_WRITER])
    assert "compaction" in found["heartbeat"]["blocks"]
    assert manager.get(f"/tables/{table_id}/conformance").status_code == 401
    page = TestClient(create_pages(lambda: services, lambda: None)).get(f"/api/tables/{table_id}").json()
    assert page["writers"] == body["requirements"]
    assert page["writers_checked_ms"] == body["checked_ms"]
