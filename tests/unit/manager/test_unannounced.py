"""What a heartbeat found is marked, although the database was away when it was found."""

from __future__ import annotations

import pytest
from sqlalchemy.engine import Engine
from sqlalchemy.exc import OperationalError

from airflow_lake_provider.manager.notice import Notice, Source
from airflow_lake_provider.manager.registry import Registry
from airflow_lake_provider.manager.timeline_feed import RegistryFeed
from airflow_lake_provider.manager.unannounced import UnannouncedCommits
from airflow_lake_provider.table_id import table_id_of
from airflow_lake_provider.tables_config import TablesConfig
from airflow_lake_provider.timeline.instant import Action, Instant, State

PATH = "/lake/orders"
COMMIT = Instant("20261121120001000", Action("deltacommit"), State.COMPLETED, "20261121120002000", "")


def test_found_commit_is_marked_again_after_a_database_error(registry: Registry, engine: Engine) -> None:
    registry.mark_dirty(Notice(PATH, "orders", Source.CONFIG))
    (claim,) = registry.claim(1, 60)
    unannounced = UnannouncedCommits(registry)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE lake_table RENAME TO away")
    unannounced.tell(PATH, (COMMIT,))
    feed = RegistryFeed(registry, TablesConfig, unannounced)
    with pytest.raises(OperationalError):
        feed.poll()
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE away RENAME TO lake_table")
    feed.poll()
    row = registry.get(table_id_of(PATH))
    assert (row["last_notice_source"], row["last_notice_instant"]) == ("heartbeat", COMMIT.requested_time)
    assert row["dirty_seq"] == claim.dirty_seq + 1
    feed.poll()
    assert registry.get(table_id_of(PATH))["dirty_seq"] == claim.dirty_seq + 1
    assert not unannounced.is_waiting


def test_table_that_is_only_watched_is_not_registered(registry: Registry) -> None:
    unannounced = UnannouncedCommits(registry)
    unannounced.tell(PATH, (COMMIT,))
    assert registry.list_tables() == []
    assert not unannounced.is_waiting
