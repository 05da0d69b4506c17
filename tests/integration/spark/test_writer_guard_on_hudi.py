"""The writer guard's forecast next to real writers: Hudi decides at each commit whether it was right.

`LAKE_GUARD_SCHEDULES` sets how many random schedules the long form plays.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import MakeTable, Table
from held_writers import HeldWriter, start_writer_of
from pyspark.sql import functions as F

from airflow_lake_provider.conflict.activity import ConflictTable
from airflow_lake_provider.conflict.contention import INDEX_TYPE
from airflow_lake_provider.conflict.guard import GuardWatch, Outlook
from airflow_lake_provider.job_contract import CONCURRENCY_MODE
from airflow_lake_provider.storage.table_storage import open_storage
from airflow_lake_provider.timeline_server.refresh import Depth, refresh
from local_stack import lake_writer

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyspark.sql import DataFrame, SparkSession

SCHEDULES = int(os.environ.get("LAKE_GUARD_SCHEDULES", "200"))
DIRECT = {"hoodie.write.markers.type": "DIRECT", "hoodie.embed.timeline.server": "false"}
SERVER = {"hoodie.write.markers.type": "TIMELINE_SERVER_BASED", "hoodie.embed.timeline.server": "true"}
BUCKET = {INDEX_TYPE: "BUCKET", "hoodie.bucket.index.num.buckets": "1"}
REJECTED = "HoodieWriteConflictException"


def now_ms() -> int:
    return int(time.time() * 1000)


class Guarded:
    """A real writer that is held before its commit, and its guard."""

    def __init__(
        self, orders: DataFrame, table: Table, folder: Path, cities: Collection[str], options: Mapping[str, str]
    ) -> None:
        self.cities = frozenset(cities)
        self.writer: HeldWriter = start_writer_of(orders, table, folder, options)
        storage = open_storage(str(table.path))

        def read() -> object:
            return refresh(storage, None, Depth.LIST, now_ms()).snapshot

        opened = ConflictTable(storage, read, hudi_options=options)
        self.watch = GuardWatch(opened, read, lambda _: self.writer.instant, 120.0)
        self.check()

    def check(self) -> Outlook:
        self.forecast = self.watch.check(now_ms())
        return self.forecast.outlook


def orders_of(spark: SparkSession, table: Table, cities: Collection[str]) -> DataFrame:
    orders = lake_writer.orders_of_commit(spark, table.written, table.written.commits)
    return orders.where(F.col("city").isin(*cities) & (F.col("id") < table.written.keys))


def find_survivors(writers: list[Guarded], committed: list[Guarded]) -> set[str]:
    """Return the instants of those that can win: the oldest of each city that no commit has taken."""
    winners = list(committed)
    for guarded in sorted(writers, key=lambda guarded: guarded.writer.instant):
        if guarded not in committed and not any(guarded.cities & other.cities for other in winners):
            winners.append(guarded)
    return {guarded.writer.instant for guarded in winners if guarded not in committed}


def play(spark: SparkSession, table: Table, folder: Path, seed: int, most: int) -> None:
    """Start writers, compare each forecast with the writers of the same city, and let Hudi decide on each."""
    draw = random.Random(seed)
    writers, committed = [], []
    for number in range(draw.randint(2, most)):
        cities = draw.sample(lake_writer.CITIES, draw.randint(1, 2))
        options = draw.choice((DIRECT, SERVER))
        orders = orders_of(spark, table, cities)
        writers.append(Guarded(orders, table, folder / f"{seed}-{number}", cities, options))
    if draw.random() < 0.4:
        # One of them is quicker than all others, whatever its age.
        first = draw.choice(writers)
        assert first.writer.release() == "", "the first commit is always let through"
        committed.append(first)
    survivors = find_survivors(writers, committed)
    for guarded in writers:
        if guarded not in committed:
            expected = Outlook.CAN_WIN if guarded.writer.instant in survivors else Outlook.LOSES
            assert not guarded.writer.outcome.done(), (seed, guarded.writer.outcome.exception())
            assert guarded.check() is expected, (seed, guarded.forecast)
    rest = [guarded for guarded in writers if guarded not in committed]
    winners = [guarded for guarded in rest if guarded.writer.instant in survivors]
    for guarded in draw.sample(winners, len(winners)):
        assert guarded.writer.release() == "", f"seed {seed}: a write that can win was rejected"
    for guarded in rest:
        if guarded not in winners:
            assert guarded.check() is Outlook.LOSES
            assert guarded.writer.release() == REJECTED, f"seed {seed}: a false alarm"


@pytest.mark.parametrize(("type", "seed"), [("COW", 3), ("MOR", 8)])
def test_hudi_rejects_those_that_the_guard_would_end_and_no_other(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path, type: str, seed: int
) -> None:
    play(spark, make_table(type=type), tmp_path, seed, 3)


@pytest.mark.soak
@pytest.mark.parametrize("type", ["COW", "MOR"])
def test_hudi_agrees_in_many_random_schedules(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path, type: str
) -> None:
    for seed in range(SCHEDULES // 2):
        # The table's name is in its properties, so only its folder is another one.
        written = replace(make_table(f"orders-{seed}", type=type).written, name="orders")
        play(spark, Table(written), tmp_path, seed, 6)


def test_two_new_file_groups_of_one_bucket_conflict_as_in_hudi(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    table = make_table(type="COW", **BUCKET)
    orders = orders_of(spark, table, ["Bilbao"]).withColumn("city", F.lit("Oslo"))
    options = {**DIRECT, **BUCKET}
    older, younger = (Guarded(orders, table, tmp_path / str(n), ["Oslo"], options) for n in range(2))
    assert [older.check(), younger.check()] == [Outlook.CAN_WIN, Outlook.LOSES]
    assert [older.writer.release(), younger.writer.release()] == ["", REJECTED]


def test_writers_of_non_blocking_concurrency_are_left_alone_and_commit(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    table = make_table(type="MOR", **BUCKET)
    options = {**DIRECT, **BUCKET, CONCURRENCY_MODE: "NON_BLOCKING_CONCURRENCY_CONTROL"}
    orders = orders_of(spark, table, ["Bilbao"])
    writers = [Guarded(orders, table, tmp_path / str(n), ["Bilbao"], options) for n in range(2)]
    assert [(guarded.check(), guarded.forecast.clashes) for guarded in writers] == [(Outlook.UNKNOWN, ())] * 2
    assert [guarded.writer.release() for guarded in writers] == ["", ""]
