"""A table's own rules decide about it, and are shown with their source."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.config.tables_file import parse_tables_file
from airflow_lake_provider.config.tables_source import TablesSource
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.health.health import FoundBy, parse_health
from airflow_lake_provider.ui.answers import Viewer
from airflow_lake_provider.ui.app import create_pages
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import LOCK_OPTIONS, SERVICE_TOKEN, FakeRunGateway, serve

FILE = f"""
defaults:
  compaction: {{delta_commits: 3, log_to_base_ratio: null}}
  hudi_options: {json.dumps(LOCK_OPTIONS)}
  table_may_set: [compaction.delta_commits 2..50, clustering.sort_columns]
"""


@pytest.fixture
def tables() -> TablesConfig:
    return parse_tables_file(FILE, "tables.yaml")


@pytest.mark.parametrize(("own", "runs"), [("10", 0), ("51", 1), ("", 1)])
def test_rule_of_the_table_decides_within_its_bounds_and_is_shown(
    services: ManagerServices, gateway: FakeRunGateway, lake: Path, tmp_path: Path, own: str, runs: int
) -> None:
    table = HandMadeTable.create(lake / "orders")
    for second in (1, 2, 3):
        table.commit(second)
    if own:
        with (table.path / ".hoodie" / "hoodie.properties").open("a") as properties:
            properties.write(f"\nlake.compaction.delta_commits={own}\nlake.clustering.sort_columns=city\n")
    services.loop.notify(Notice(str(table.path), "orders", Source.CONFIG))
    services.loop.drain()
    assert len(gateway.runs) == runs
    health = parse_health(services.registry.get(table_id_of(str(table.path))).health)
    said = [one.cause for one in health.problems if one.source is FoundBy.SETTINGS]
    assert [cause.partition(" of hoodie.properties is left out")[0] for cause in said] == (
        ["lake.compaction.delta_commits=51"] if own == "51" else []
    )

    (tmp_path / "tables.yaml").write_text(FILE)
    shown = replace(services, tables=TablesSource(str(tmp_path / "tables.yaml")))
    client = TestClient(serve(lambda: shown), headers={"Authorization": f"Bearer {SERVICE_TOKEN}"})
    explained = client.get("/reports/explanation", params={"table": str(table.path)}).json()
    in_force = {one["name"]: one for one in explained["settings"]}
    assert in_force["compaction.delta_commits"]["value"] == ("10" if own == "10" else "3")
    pages = TestClient(create_pages(lambda: shown, lambda: Viewer("ann")))
    on_page = {
        one["name"]: one for one in pages.get(f"/api/tables/{table_id_of(str(table.path))}/policy").json()["settings"]
    }
    assert on_page["compaction.delta_commits"]["value"] == in_force["compaction.delta_commits"]["value"]
    query = {"base_path": str(table.path), "table_name": "orders", "service": "clustering"}
    options = client.get("/policy", params=query).json()["hudi_options"]
    assert options.get("hoodie.clustering.plan.strategy.sort.columns") == ("city" if own else None)
    if own == "10":
        assert on_page["compaction.delta_commits"]["source"] == "hoodie.properties of the table"
        assert explained["own_problems"] == []
    if own == "51":
        assert "table_may_set allows 2 to 50" in explained["own_problems"][0]
