"""A table that discovery found is observed until its owner agrees: decisions are made and shown, nothing starts."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_lake_provider.config.policies import DoctorPolicy, StuckKind, TablePolicy
from airflow_lake_provider.config.service_policies import CompactionPolicy
from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.config.tables_config import TableEntry, TablesConfig
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from airflow_lake_provider.manager.loop.timeline_feed import TimelineServerGateway
from airflow_lake_provider.manager.supervision.repair_round import RepairRound
from airflow_lake_provider.planner.rules import Decision, Verdict
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.storage.table_storage import open_storage
from airflow_lake_provider.timeline_server.server import TimelineServer
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import LOCK_OPTIONS, FakeRunGateway

MakeLoop = Callable[[], ManagerLoop]
LONG_AGO_S = 1_000_000_000


@pytest.fixture
def table(lake: Path) -> HandMadeTable:
    table = HandMadeTable.create(lake / "orders")
    for second in (1, 2, 3):
        table.commit(second)
    return table


def mark(registry: Registry, table: HandMadeTable, source: Source) -> str:
    return registry.mark_dirty(Notice(str(table.path), "orders", source)).table_id


def test_discovered_table_shows_what_is_due_and_starts_nothing_until_its_writer_announces_a_commit(
    registry: Registry, make_loop: MakeLoop, gateway: FakeRunGateway, table: HandMadeTable
) -> None:
    table_id = mark(registry, table, Source.DISCOVERY)
    # What watches all tables says nothing of the owner's will.
    for source in (Source.HEARTBEAT, Source.HINT):
        make_loop().drain()
        assert gateway.runs == []
        mark(registry, table, source)
    decisions = registry.get(table_id).decisions
    assert "only observed, else due: 3 delta commits and no compaction yet" in decisions
    assert "mode: manage" in decisions
    mark(registry, table, Source.COMMIT_CALLBACK)
    make_loop().drain()
    assert len(gateway.runs) == 1


def test_paused_service_is_decided_and_never_started_until_it_is_resumed(
    registry: Registry, settings: LakeSettings, timeline_server: TimelineServer, gateway: FakeRunGateway,
    tables: TablesConfig, table: HandMadeTable,
) -> None:  # fmt: skip
    known = {"tables": paused_in(tables, "ada: a backfill")}
    views = TableViewCache(timeline_server.timelines)
    loop = ManagerLoop(
        settings, registry, TimelineServerGateway(timeline_server), views, gateway, lambda: known["tables"]
    )
    table_id = mark(registry, table, Source.COMMIT_CALLBACK)
    loop.drain()
    assert gateway.runs == []
    assert "paused by ada: a backfill; else due: 3 delta commits" in registry.get(table_id).decisions
    known["tables"] = paused_in(tables, None)
    mark(registry, table, Source.COMMIT_CALLBACK)
    loop.drain()
    assert len(gateway.runs) == 1


def paused_in(tables: TablesConfig, by: str | None) -> TablesConfig:
    compaction = tables.defaults.compaction.replace(paused=by)
    return replace(tables, defaults=tables.defaults.replace(compaction=compaction))


def test_observed_table_is_not_asked_for_its_writers(
    registry: Registry,
    settings: LakeSettings,
    timeline_server: TimelineServer,
    gateway: FakeRunGateway,
    tables: TablesConfig,
    table: HandMadeTable,
) -> None:
    """Admission lists heartbeats and markers of tables, each time that something is due."""
    asked: list[Service] = []

    def admit(_view: object, _policy: TablePolicy, decision: Decision, _now_ms: int) -> Decision:
        if decision.verdict is Verdict.DUE:
            asked.append(decision.service)
        return decision

    views = TableViewCache(timeline_server.timelines)
    feed = TimelineServerGateway(timeline_server)
    loop = ManagerLoop(settings, registry, feed, views, gateway, lambda: tables, admit=admit)
    mark(registry, table, Source.DISCOVERY)
    loop.drain()
    assert asked == []
    mark(registry, table, Source.COMMIT_CALLBACK)
    loop.drain()
    assert asked == [Service.COMPACTION]


@pytest.mark.parametrize(
    ("pattern", "policy", "runs"),
    [
        pytest.param("{path}", TablePolicy(), 1, id="named-by-its-path"),
        pytest.param("{lake}/*", TablePolicy(), 0, id="pattern"),
        pytest.param("{lake}/*", TablePolicy(mode="manage"), 1, id="managed-by-a-pattern"),
        pytest.param("{path}", TablePolicy(mode="observe"), 0, id="observed-by-its-path"),
    ],
)
def test_tables_file_agrees_by_an_entry_that_names_the_table_or_by_its_mode(
    registry: Registry,
    settings: LakeSettings,
    timeline_server: TimelineServer,
    gateway: FakeRunGateway,
    table: HandMadeTable,
    lake: Path,
    pattern: str,
    policy: TablePolicy,
    runs: int,
) -> None:
    due = policy.replace(hudi_options=LOCK_OPTIONS, compaction=CompactionPolicy(delta_commits=3))
    config = TablesConfig(entries=(TableEntry(pattern.format(path=table.path, lake=lake), "", due),))
    views = TableViewCache(timeline_server.timelines)
    loop = ManagerLoop(settings, registry, TimelineServerGateway(timeline_server), views, gateway, lambda: config)
    mark(registry, table, Source.DISCOVERY)
    loop.drain()
    assert len(gateway.runs) == runs
    # Also where its writer announces commits.
    mark(registry, table, Source.COMMIT_CALLBACK)
    loop.drain()
    assert len(gateway.runs) == (0 if policy.mode == "observe" else 1)


def test_doctor_repairs_nothing_on_an_observed_table(registry: Registry, table: HandMadeTable) -> None:
    config = TablesConfig(defaults=TablePolicy(doctor=DoctorPolicy(repairs=(StuckKind.ORPHANED_LOCK,))))
    mark(registry, table, Source.DISCOVERY)
    lock = table.path / ".hoodie" / "lock"
    lock.write_bytes(b"")
    os.utime(lock, (LONG_AGO_S, LONG_AGO_S))
    assert RepairRound(registry, lambda: config, open_storage).run() == 0
    assert lock.exists()
