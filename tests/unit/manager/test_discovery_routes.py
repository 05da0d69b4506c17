"""The manager says which roots to search and registers what was found there, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.config.tables_source import TablesSource
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.manager.api.app import create_app
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from airflow_lake_provider.manager.loop.timeline_feed import TimelineServerGateway
from airflow_lake_provider.manager.supervision.repair_round import RepairRound
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import SERVICE_TOKEN, FakeRunGateway, serve

BEARER = {"Authorization": f"Bearer {SERVICE_TOKEN}"}


@pytest.fixture
def tables_file(tmp_path: Path, lake: Path) -> Path:
    path = tmp_path / "tables.yaml"
    path.write_text(
        f"tables: [{{discover: '{lake}', discover_depth: 2}}, {{discover: /elsewhere}}]\n", encoding="utf-8"
    )
    return path


@pytest.fixture
def client(services: ManagerServices, tables_file: Path) -> TestClient:
    services = replace(
        services, tables=TablesSource(str(tables_file)), settings=services.settings.replace(loop_enabled=False)
    )
    return TestClient(serve(lambda: services))


def test_roots_are_those_of_the_tables_file_with_what_forbids_them(client: TestClient, lake: Path) -> None:
    assert client.get("/discovery/roots").status_code == 401
    allowed, refused = client.get("/discovery/roots", headers=BEARER).json()["roots"]
    listed = {"metastore": "", "databases": ["*"]}
    assert allowed == {"root": str(lake), "depth": 2, **listed, "problem": ""}
    assert refused["root"] == "/elsewhere"
    assert "lies outside the configured roots" in refused["problem"]


def test_found_tables_are_registered_once_and_evaluated(client: TestClient, registry: Registry, lake: Path) -> None:
    table = HandMadeTable.create(lake / "orders")
    body = {"tables": [{"base_path": f"{table.path}/", "table_name": "orders"}]}
    assert client.post("/discovery/tables", json=body, headers=BEARER).json() == {"registered": 1, "known": 0}
    assert client.post("/discovery/tables", json=body, headers=BEARER).json() == {"registered": 0, "known": 1}
    row = registry.get(table_id_of(str(table.path)))
    assert (row.last_notice_source, row.notices) == ("discovery", 1)
    assert row.dirty_since_ms is not None


def test_tables_outside_the_allowed_roots_are_refused(client: TestClient, registry: Registry, lake: Path) -> None:
    tables = [{"base_path": str(lake / "a"), "table_name": "a"}, {"base_path": "/elsewhere/b", "table_name": "b"}]
    assert client.post("/discovery/tables", json={"tables": tables}, headers=BEARER).status_code == 403
    assert registry.list_tables() == []


def test_health_and_config_show_wrong_settings_and_the_last_good_ones_hold(
    client: TestClient, tables_file: Path
) -> None:
    assert client.get("/health").json()["tables_config"] == "ok"
    tables_file.write_text("defaults: {polol: 1}", encoding="utf-8")
    assert client.get("/health").json()["tables_config"] == "last_good"
    assert client.get("/config").status_code == 401
    config = client.get("/config", headers=BEARER).json()
    assert (config["tables_config"], config["entries"]) == ("last_good", 2)
    assert "tables.yaml:1: unknown setting 'polol'" in config["problem"]
    assert len(client.get("/discovery/roots", headers=BEARER).json()["roots"]) == 2


def test_wrong_settings_from_the_start_stop_decisions_only_and_are_named(
    services: ManagerServices,
    settings: LakeSettings,
    registry: Registry,
    gateway: FakeRunGateway,
    tmp_path: Path,
    lake: Path,
) -> None:
    file = tmp_path / "tables.yaml"
    file.write_text("defaults: {polol: 1}", encoding="utf-8")
    source = TablesSource(str(file))
    timelines = services.timeline_server.timelines
    loop = ManagerLoop(
        settings, registry, TimelineServerGateway(services.timeline_server), services.views, gateway, source.load
    )
    broken = replace(
        services, tables=source, loop=loop, repairs=RepairRound(registry, source.load, timelines.memory.open)
    )
    client = TestClient(create_app(lambda: broken))
    table = HandMadeTable.create(lake / "orders")
    table_id = table_id_of(str(table.path))
    hint = {"base_path": str(table.path), "table_name": "orders", "instants": []}
    hints = {"hints": [hint], "unchanged_table_ids": [table_id]}
    assert client.post("/hints", json=hints, headers=BEARER).json() == {"marked": 1, "postponed": 1}
    assert registry.get(table_id).dirty_since_ms is not None
    swept = client.post("/sweep", headers=BEARER)
    assert (swept.status_code, swept.json()["waiting"]) == (200, 1)
    assert loop.wait_until_idle(30)
    assert "unknown setting 'polol'" in registry.get(table_id).problem
    health = client.get("/health").json()
    assert (health["status"], health["tables_config"]) == ("failing", "none")
    assert "settings are wrong, so no table is decided" in health["problems"][0]
    policy = {"base_path": str(table.path), "table_name": "orders", "service": "clean"}
    for path, params in (("/policy", policy), ("/discovery/roots", {}), (f"/tables/{table_id}/safepoint", {})):
        refused = client.get(path, params=params, headers=BEARER)
        assert refused.status_code == 503
        assert "tables.yaml:1: unknown setting 'polol'" in refused.json()["detail"]
    file.write_text("tables: []", encoding="utf-8")
    assert client.get("/policy", params=policy, headers=BEARER).status_code == 200
    assert client.get("/health").json()["status"] == "ok"
