"""A slow reader of a real table, and a clean that keeps one commit: with a hold it reads all, without it fails."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from conftest import MakeTable, Table, rows, run, write
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.errors import HoldRefusedError
from airflow_lake_provider.job_contract import SAFEPOINT, Mode, Outcome, Service
from airflow_lake_provider.manager.db.database import ProcessClock
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.db.schema import metadata
from airflow_lake_provider.manager.db.sinks import Sinks
from airflow_lake_provider.manager.supervision.reader_holds import HoldKeeper, WantedHold
from airflow_lake_provider.planner.table_view import TableViewCache

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark import RDD
    from pyspark.sql import SparkSession

KEEP_ONE_COMMIT = {"hoodie.clean.policy": "KEEP_LATEST_COMMITS", "hoodie.clean.commits.retained": "1"}


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    engine = create_engine(f"sqlite:///{tmp_path}/airflow.db")
    metadata.create_all(engine)
    yield Registry(sessionmaker(engine), ProcessClock(lambda: datetime.now(UTC)))
    engine.dispose()


def open_slowly(spark: SparkSession, table: Table) -> RDD[tuple[object, ...]]:
    """Open the table as it is now: the reader has chosen its files, and has read none."""
    reader = spark.read.format("hudi").load(str(table.path)).select("id", "city", "amount", "ts").rdd.map(tuple)
    reader.getNumPartitions()
    return reader


def rewrite_all_and_clean(spark: SparkSession, table: Table, safepoint: str | None) -> None:
    """Replace every file that a reader of the table has opened, and clean."""
    rewrites = Service.COMPACTION if table.written.type == "MOR" else Service.CLUSTERING
    for commit in (3, 4):
        write(spark, table.written, commit)
    rewritten = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE, service=rewrites))
    assert rewritten.outcome is Outcome.COMPLETED, rewritten.message
    for commit in (5, 6):
        write(spark, table.written, commit)
    clean(spark, table, safepoint)


def clean(spark: SparkSession, table: Table, safepoint: str | None) -> Outcome:
    options = KEEP_ONE_COMMIT | ({} if safepoint is None else {SAFEPOINT: safepoint})
    request = table.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.CLEAN, service_options=options)
    return run(spark, request).outcome


@pytest.mark.parametrize("type", [pytest.param("COW", marks=pytest.mark.soak), "MOR"])
def test_slow_reader_with_a_hold_reads_what_it_opened_and_without_one_fails(
    spark: SparkSession, make_table: MakeTable, registry: Registry, type: str
) -> None:
    held = make_table(type=type)
    bare = Table(replace(held.written, base_path=str(shutil.copytree(held.path, held.path.with_name("bare")))))
    table_id = registry.mark_dirty(Notice(str(held.path), "orders", Source.CONFIG)).table_id
    keeper = HoldKeeper(registry, TablesConfig, TableViewCache())
    sinks = Sinks(registry)
    hold = keeper.add(table_id, WantedHold("ann", "slow query", ttl_s=3600))
    assert hold.row.is_firm
    reader, reader_without = open_slowly(spark, held), open_slowly(spark, bare)
    expected = rows(spark, held)

    rewrite_all_and_clean(spark, held, sinks.safepoint(table_id).instant)
    assert sorted(reader.collect()) == expected
    rewrite_all_and_clean(spark, bare, None)
    with pytest.raises(Exception, match=r"(?i)not ?found|does not exist|no such file"):
        reader_without.collect()

    assert clean(spark, held, sinks.safepoint(table_id).instant) is Outcome.NOTHING_TO_DO
    keeper.holds.release(table_id, hold.row.hold_id)
    assert clean(spark, held, sinks.safepoint(table_id).instant) is Outcome.COMPLETED
    # What is gone can be held no more, and what is still there can.
    first, *_, last = sorted(held.completed("deltacommit" if type == "MOR" else "commit"))
    with pytest.raises(HoldRefusedError, match="may be cleaned already"):
        keeper.add(table_id, WantedHold("ann", at_instant=first))
    assert keeper.add(table_id, WantedHold("ann", at_instant=last)).row.is_firm
