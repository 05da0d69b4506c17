"""API servers next to one timeline server: its heartbeats follow each table, silent ones are left alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.errors import TimelineServerUnavailableError
from airflow_lake_provider.http import MOUNT_PATH
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from airflow_lake_provider.manager.loop.timeline_feed import RegistryFeed, TimelineServerGateway, UnannouncedCommits
from airflow_lake_provider.manager.runs.run_ids import run_id_of
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.client import TimelineClient
from airflow_lake_provider.timeline_server.routes import create_timeline_app
from airflow_lake_provider.timeline_server.server import ServerOptions, TimelineServer
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import SERVICE_TOKEN, FakeClock, FakeRunGateway

DAY_MIN = 24 * 60
STEP_MIN = 3


class LocalClient(TimelineClient):
    """The provider's client, whose requests reach the app without a network."""

    def __init__(self, server: TimelineServer) -> None:
        self._client = TestClient(
            create_timeline_app(lambda: server),
            base_url=f"http://timeline-server{MOUNT_PATH}/timeline",
            headers={"Authorization": f"Bearer {SERVICE_TOKEN}"},
        )


class AbsentClient(TimelineClient):
    def __init__(self) -> None:
        pass

    def list_known(self, base_paths: object) -> list[dict[str, object]]:
        raise TimelineServerUnavailableError("nothing listens there")


class Deployment:
    """An API server's manager, and the timeline server, whose work `pass_minutes` does minute by minute."""

    def __init__(
        self,
        settings: LakeSettings,
        registry: Registry,
        clock: FakeClock,
        gateway: FakeRunGateway,
        tables: TablesConfig,
        client: Callable[[TimelineServer], TimelineClient | None] = LocalClient,
    ) -> None:
        self.registry, self.clock, self.gateway = registry, clock, gateway
        options = ServerOptions(settings.allowed_roots, settings.service_tokens)
        unannounced, timelines = UnannouncedCommits(registry), SharedTimelines(now_ms=registry.now_ms)
        timelines.on_unannounced = unannounced.mark
        feed = RegistryFeed(registry, lambda: tables, unannounced)
        self.watching = TimelineServer(timelines, options, feed)
        own_options = ServerOptions(settings.allowed_roots, settings.service_tokens, is_watching=False)
        own = TimelineServer(SharedTimelines(now_ms=registry.now_ms), own_options)
        seen = TimelineServerGateway(own, client(self.watching))
        self.loop = ManagerLoop(settings, registry, seen, TableViewCache(own.timelines), gateway, lambda: tables)
        self.evaluated = self.found_silent = 0

    def announce(self, table: HandMadeTable) -> str:
        notice = Notice(str(table.path), "orders", Source.COMMIT_CALLBACK, ("20261121120001000",))
        mark = self.loop.notify(notice)
        self._read_feed()
        self.loop.drain()
        return mark.table_id

    def pass_minutes(self, minutes: int, *, is_server_up: bool = True) -> None:
        for _ in range(0, minutes, STEP_MIN):
            self.clock.advance(60 * STEP_MIN)
            if is_server_up:
                self._read_feed()
            # What one run of lake_watch does: its sensor finds no new commit.
            silent = [row.table_id for row in self.registry.list_silent()]
            self.found_silent += len(silent)
            self.loop.postpone(silent)
            self.evaluated += self.loop.drain()

    def _read_feed(self) -> None:
        timelines = self.watching.timelines
        self.watching._take_feed()
        for base_path, is_hinted in timelines.due.take(timelines.now_ms(), 100):
            timelines.refresh_if_due(base_path, is_hinted=is_hinted)


@pytest.fixture
def deployment(
    settings: LakeSettings, registry: Registry, clock: FakeClock, gateway: FakeRunGateway, tables: TablesConfig
) -> Deployment:
    return Deployment(settings, registry, clock, gateway, tables)


@pytest.fixture
def table(lake: Path) -> HandMadeTable:
    table = HandMadeTable.create(lake / "orders")
    table.commit(1)
    return table


def begin_and_die(table: HandMadeTable, begun: str) -> None:
    (table.path / ".hoodie" / "timeline" / f"{begun}.deltacommit.requested").touch()
    heartbeat = table.path / ".hoodie" / ".heartbeat" / begun
    heartbeat.parent.mkdir(exist_ok=True)
    heartbeat.touch()
    os.utime(heartbeat, (1, 1))


def test_quiet_table_is_not_evaluated_at_all_and_seldom_found_silent(
    deployment: Deployment, table: HandMadeTable
) -> None:
    deployment.announce(table)
    deployment.pass_minutes(DAY_MIN)
    # With a fixed heartbeat of ten minutes: some 140 evaluations, and as many readings by lake_watch.
    assert deployment.evaluated == 0
    assert deployment.found_silent <= 16


def test_write_whose_writer_died_is_rolled_back_though_no_notice_names_it(
    deployment: Deployment, table: HandMadeTable, gateway: FakeRunGateway
) -> None:
    table_id = deployment.announce(table)
    begin_and_die(table, "20261121120100000")
    deployment.pass_minutes(60)
    assert [run.run_id for run in gateway.runs] == [run_id_of(table_id, Service.ROLLBACK, "20261121120100000")]


def test_commit_without_notice_is_found_by_the_heartbeat_of_the_timeline_server(
    deployment: Deployment, table: HandMadeTable, registry: Registry
) -> None:
    table_id = deployment.announce(table)
    deployment.pass_minutes(20)
    before = registry.get(table_id).completed_time
    table.commit(600)
    deployment.pass_minutes(20)
    assert registry.get(table_id).completed_time > before


def test_silent_table_is_evaluated_while_the_timeline_server_does_not_answer(
    settings: LakeSettings,
    registry: Registry,
    clock: FakeClock,
    gateway: FakeRunGateway,
    tables: TablesConfig,
    table: HandMadeTable,
) -> None:
    deployment = Deployment(settings, registry, clock, gateway, tables, lambda _server: AbsentClient())
    table_id = deployment.announce(table)
    begin_and_die(table, "20261121120100000")
    deployment.pass_minutes(21)
    assert [run.run_id for run in gateway.runs] == [run_id_of(table_id, Service.ROLLBACK, "20261121120100000")]


def test_server_whose_heartbeat_does_not_return_is_not_believed(deployment: Deployment, table: HandMadeTable) -> None:
    deployment.announce(table)
    deployment.pass_minutes(30)
    assert deployment.evaluated == 0
    deployment.pass_minutes(120, is_server_up=False)
    assert deployment.evaluated > 0


def test_without_any_timeline_server_the_evaluations_themselves_follow_the_table(
    settings: LakeSettings,
    registry: Registry,
    clock: FakeClock,
    gateway: FakeRunGateway,
    tables: TablesConfig,
    table: HandMadeTable,
) -> None:
    deployment = Deployment(settings, registry, clock, gateway, tables, lambda _server: None)
    deployment.announce(table)
    deployment.pass_minutes(DAY_MIN)
    assert 4 <= deployment.evaluated <= 20
