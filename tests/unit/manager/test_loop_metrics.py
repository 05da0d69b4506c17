from __future__ import annotations

from pathlib import Path

import pytest

from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from airflow_lake_provider.manager.loop.timeline_feed import TimelineServerGateway
from airflow_lake_provider.planner.decide import DECIDED
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.timeline_server.server import TimelineServer
from tests.support.fake_metrics import FakeMetrics
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import FakeClock, FakeRunGateway


@pytest.fixture
def metrics() -> FakeMetrics:
    return FakeMetrics()


@pytest.fixture
def loop(
    settings: LakeSettings,
    registry: Registry,
    timeline_server: TimelineServer,
    gateway: FakeRunGateway,
    tables: TablesConfig,
    metrics: FakeMetrics,
) -> ManagerLoop:
    views = TableViewCache(timeline_server.timelines)
    return ManagerLoop(
        settings, registry, TimelineServerGateway(timeline_server), views, gateway, lambda: tables, metrics
    )


def test_loop_measures_notices_evaluations_decisions_runs_and_latency(
    loop: ManagerLoop, lake: Path, metrics: FakeMetrics, clock: FakeClock
) -> None:
    table = HandMadeTable.create(lake / "orders")
    for second in (1, 2, 3):
        loop.notify(Notice(str(table.path), "orders", Source.COMMIT_CALLBACK, (table.commit(second),)))
    clock.advance(0.75)
    loop.drain()
    assert metrics.counts == {
        "lake.notices": 3,
        "lake.evaluations": 1,
        "lake.compaction.due": 1,
        "lake.compaction.runs_started": 1,
        **{f"lake.{service}.not_due": 1 for service in DECIDED - {Service.COMPACTION}},
    }
    assert metrics.timings == {"lake.decision_latency": 750}


def test_holes_are_counted_over_all_tables_whichever_server_evaluated_and_the_time_between_evaluations_is_measured(
    loop: ManagerLoop, lake: Path, metrics: FakeMetrics, clock: FakeClock, registry: Registry
) -> None:
    def evaluate(table: HandMadeTable) -> None:
        loop.notify(Notice(str(table.path), table.path.name, Source.HINT))
        loop.drain()

    tables = [HandMadeTable.create(lake / name) for name in ("orders", "clicks")]
    for table in tables:
        table.plan(1)
        table.commit(2)
        evaluate(table)
    assert registry.count_holes() == 2
    (tables[0].path / ".hoodie" / "timeline" / "20261121120001000_20261121120003000.commit").write_text("{}")
    clock.advance(7)
    evaluate(tables[0])
    assert registry.count_holes() == 1
    assert metrics.timings["lake.heartbeat_age"] == 7000


def test_loop_counts_evaluations_that_fail(loop: ManagerLoop, lake: Path, metrics: FakeMetrics) -> None:
    loop.notify(Notice(str(lake / "nothing"), "nothing", Source.HINT))
    loop.drain()
    assert (metrics.counts["lake.failed_evaluations"], metrics.counts["lake.evaluations"]) == (1, 0)
