"""What a heartbeat found is marked, although the database was away when it was found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy.engine import Engine
from sqlalchemy.exc import OperationalError

from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.hudi.instant import Instant
from airflow_lake_provider.hudi.timeline import Timeline
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import EvaluationResult, Notice, Source
from airflow_lake_provider.manager.loop.timeline_feed import RegistryFeed, UnannouncedCommits
from airflow_lake_provider.shared.actions import Action, State
from airflow_lake_provider.timeline_server.views import FileSystemTimelineView
from tests.support.tables import HandMadeTable

PATH = "/lake/orders"
COMMIT = Instant("20261121120001000", Action("deltacommit"), State.COMPLETED, "20261121120002000", "")


def test_found_commit_is_marked_again_after_a_database_error(registry: Registry, engine: Engine) -> None:
    registry.mark_dirty(Notice(PATH, "orders", Source.CONFIG))
    (lease,) = registry.acquire(1, 60)
    unannounced = UnannouncedCommits(registry)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE lake_table RENAME TO away")
    unannounced.mark(PATH, (COMMIT,))
    feed = RegistryFeed(registry, TablesConfig, unannounced)
    with pytest.raises(OperationalError):
        feed.poll()
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE away RENAME TO lake_table")
    feed.poll()
    row = registry.get(table_id_of(PATH))
    assert (row.last_notice_source, row.last_notice_instant) == ("heartbeat", COMMIT.requested_time)
    assert row.dirty_seq == lease.dirty_seq + 1
    feed.poll()
    assert registry.get(table_id_of(PATH)).dirty_seq == lease.dirty_seq + 1


def test_table_that_is_only_watched_is_not_registered(registry: Registry) -> None:
    unannounced = UnannouncedCommits(registry)
    unannounced.mark(PATH, (COMMIT,))
    assert registry.list_tables() == []
    unannounced.retry()
    assert registry.list_tables() == []


def evaluated_at(registry: Registry, completed_time: str) -> int:
    registry.mark_dirty(Notice(PATH, "orders", Source.CONFIG))
    (lease,) = registry.acquire(1, 60)
    registry.release(
        lease, EvaluationResult(next_evaluation_ms=registry.now_ms() + 1000, completed_time=completed_time)
    )
    return lease.dirty_seq


@pytest.mark.parametrize(("known", "is_marked"), [("20261121120001900", True), ("20261121120002000", False)])
def test_table_that_went_on_while_no_server_ran_is_marked_when_it_is_loaded(
    registry: Registry, tmp_path: Path, known: str, is_marked: bool
) -> None:
    before = evaluated_at(registry, known)
    table = HandMadeTable.create(tmp_path / "orders")
    snapshot = FileSystemTimelineView(str(table.path)).snapshot()
    snapshot = replace(snapshot, timeline=Timeline((COMMIT,)))
    UnannouncedCommits(registry).compare(PATH, snapshot)
    assert registry.get(table_id_of(PATH)).dirty_seq == before + is_marked


def test_loaded_table_that_no_manager_serves_is_left_alone(registry: Registry, tmp_path: Path) -> None:
    table = HandMadeTable.create(tmp_path / "orders")
    table.commit(1)
    UnannouncedCommits(registry).compare(str(table.path), FileSystemTimelineView(str(table.path)).snapshot())
    assert registry.list_tables() == []
