"""What Hudi 1.2.0's own early conflict detection does and does not: each hole that we close, seen in Hudi itself."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import MakeTable, Table, run
from held_writers import PATIENCE_S, start_writer, start_writer_of
from py4j.protocol import Py4JJavaError

from airflow_lake_provider.conflict.activity import open_conflict_table
from airflow_lake_provider.conflict.claims import Reservation
from airflow_lake_provider.conflict.contention import ClashCheck, WriteIntent
from airflow_lake_provider.conflict.strategies import StrategySettings, make_strategy
from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.storage.table_storage import open_storage
from local_stack import lake_writer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

EARLY = {"hoodie.write.concurrency.early.conflict.detection.enable": "true"}
DIRECT = {"hoodie.write.markers.type": "DIRECT", "hoodie.embed.timeline.server": "false"}
SERVER = {"hoodie.write.markers.type": "TIMELINE_SERVER_BASED", "hoodie.embed.timeline.server": "true"}
REJECTED = "HoodieWriteConflictException"
ENDLESS_MS = 10**12
LONG_AGO, FROM_NOW_ON = "19700101000000000", "9"


def marker(partition: str, file_id: str = "f1-0") -> str:
    return f"{partition}/{file_id}_0-1-2_20261121100000001.parquet.marker.MERGE"


def marker_utils(spark: SparkSession) -> Any:
    return spark._jvm.org.apache.hudi.common.util.MarkerUtils


def active_timeline(spark: SparkSession, table: Table) -> tuple[Any, Any]:
    hudi = spark._jvm.org.apache.hudi
    conf = hudi.storage.hadoop.HadoopStorageConfiguration(spark._jsc.hadoopConfiguration())
    builder = hudi.common.table.HoodieTableMetaClient.builder().setConf(conf).setBasePath(str(table.path))
    client = builder.setLoadActiveTimelineOnLoad(True).build()
    return client.getActiveTimeline(), client.getStorage()


def update(spark: SparkSession, table: Table, city: str, options: Mapping[str, str]) -> None:
    commit = table.written.commits
    orders = lake_writer.orders_of_commit(spark, table.written, commit).where(f"city = '{city}' and id < 400")
    settings = lake_writer.write_options(table.written, commit, None, options)
    orders.write.format("hudi").options(**settings).mode("append").save(str(table.path))


def test_it_takes_partitions_that_begin_alike_for_one_file_group(spark: SparkSession) -> None:
    cut = marker_utils(spark).makerToPartitionAndFileID
    assert cut(marker("event_date=2026-01-01", "f1-0")) == cut(marker("event_date=2026-12-31", "f2-0")) == "event"


@pytest.mark.soak
def test_it_leaves_clusterings_and_compactions_out(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table()
    bilbao = {
        "hoodie.clustering.plan.partition.filter.mode": "SELECTED_PARTITIONS",
        "hoodie.clustering.plan.strategy.partition.selected": "Bilbao",
    }
    (plan,) = run(
        spark, table.request(Mode.SCHEDULE, service=Service.CLUSTERING, service_options=bilbao)
    ).scheduled_instants
    (compaction,) = run(spark, table.request(Mode.SCHEDULE)).scheduled_instants
    writer = f"{int(plan) - 1}"
    for instant in (plan, compaction, writer):
        reservation = Reservation(open_storage(str(table.path)), instant)
        reservation.beat()
        reservation.plant([b"Bilbao/f1-0"])
    timeline, storage = active_timeline(spark, table)
    temp = spark._jvm.org.apache.hudi.storage.StoragePath(f"{table.path}/.hoodie/.temp")
    folders = marker_utils(spark).getAllMarkerDir(temp, storage)
    found = marker_utils(spark).getCandidateInstants(
        timeline, folders, "29991231000000000", ENDLESS_MS, storage, str(table.path)
    )
    assert [Path(folder).name for folder in found] == [writer]


@pytest.mark.soak
def test_its_commit_check_cannot_match_with_partitions(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(type="COW")
    timeline, _ = active_timeline(spark, table)
    file_name = min(path.name for path in (table.path / "Bilbao").glob("*.parquet"))
    written = spark._jvm.java.util.HashSet()
    # As the checker of timeline-server markers asks: every commit counts as new, and the file group is in them.
    written.add(marker_utils(spark).makerToPartitionAndFileID(f"Bilbao/{file_name}.marker.MERGE"))
    assert not marker_utils(spark).hasCommitConflict(timeline, written, spark._jvm.java.util.HashSet())
    bare = spark._jvm.java.util.HashSet()
    bare.add(file_name.split("_")[0])
    assert marker_utils(spark).hasCommitConflict(timeline, bare, spark._jvm.java.util.HashSet())


@pytest.mark.soak
def test_its_transactional_strategy_needs_zookeeper(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(type="COW")
    strategy = {
        "hoodie.write.concurrency.early.conflict.detection.strategy": (
            "org.apache.hudi.table.marker.SimpleTransactionDirectMarkerBasedDetectionStrategy"
        )
    }
    with pytest.raises(Py4JJavaError, match="Only Support ZK-based lock"):
        update(spark, table, "Bilbao", {**EARLY, **strategy})


def test_stock_writer_respects_our_reservation_and_only_its_file_groups(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table(type="COW")
    groups = {path.name.split("_")[0] for path in (table.path / "Bilbao").glob("*.parquet")}
    storage = open_storage(str(table.path))
    reservation = Reservation(storage, LONG_AGO)
    assert reserve(table, frozenset(f"Bilbao/{group}".encode() for group in groups)).is_free
    with pytest.raises(Py4JJavaError, match="HoodieEarlyConflictDetectionException"):
        update(spark, table, "Bilbao", EARLY)
    update(spark, table, "Aachen", EARLY)
    reservation.release()
    update(spark, table, "Bilbao", EARLY)
    assert not (table.path / ".hoodie" / ".heartbeat" / reservation.instant).exists()


def reserve(table: Table, file_groups: frozenset[bytes]) -> ClashCheck:
    """Claim file groups in the name of an instant that is older than every writer's."""
    storage = open_storage(str(table.path))
    settings = StrategySettings(reserve=lambda instant: Reservation(storage, instant))
    strategy = make_strategy("SimpleTransactionDirectMarkerBased", settings)
    now_ms = int(time.time() * 1000)
    return strategy.check(
        open_conflict_table(storage, {}, {}), WriteIntent(LONG_AGO, file_groups, since=FROM_NOW_ON), now_ms
    )


@pytest.mark.soak
def test_with_direct_markers_the_younger_of_two_writers_fails_at_its_first_marker(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    table = make_table(type="COW")
    older = start_writer(spark, table, "Bilbao", tmp_path / "lock-0", {**DIRECT, **EARLY})
    (file_group, *_) = {path.name.split("_")[0] for path in older.marker_folder.rglob("*.marker.MERGE")}
    assert reserve(table, frozenset({f"Bilbao/{file_group}".encode()})).clashes, "the first keeps it"
    younger = start_writer(spark, table, "Bilbao", tmp_path / "lock-1", {**DIRECT, **EARLY})
    assert "HoodieEarlyConflictDetectionException" in str(younger.outcome.exception(PATIENCE_S))
    elsewhere = start_writer(spark, table, "Aachen", tmp_path / "lock-2", {**DIRECT, **EARLY})
    assert [older.release(), elsewhere.release()] == ["", ""]


def test_writers_with_other_markers_and_short_ones_with_a_timeline_server_reach_their_commit(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    table = make_table(type="COW")
    # The checker runs with the first marker, which may come too early or not, and then each 30 s. Between two runs:
    between = {**SERVER, "hoodie.write.concurrency.async.conflict.detector.initial_delay_ms": "30000"}
    first, *younger = [
        start_writer(spark, table, "Bilbao", tmp_path / f"lock-{n}", {**markers, **EARLY})
        for n, markers in enumerate((SERVER, DIRECT, between))
    ]
    assert all(writer.marker_folder.exists() for writer in younger), "none was stopped at its marker"
    assert [first.release(), *(writer.release() for writer in younger)] == ["", REJECTED, REJECTED]


def test_with_a_timeline_server_the_younger_fails_at_a_marker_after_a_run_of_the_checker(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    table = make_table(type="COW")
    detector = "hoodie.write.concurrency.async.conflict.detector"
    often = {**SERVER, **EARLY, f"{detector}.initial_delay_ms": "0", f"{detector}.period_ms": "10"}
    # In all partitions: more file groups than tasks run at once, so that markers come after the checker's run.
    orders = lake_writer.orders_of_commit(spark, table.written, table.written.commits)
    older, younger = (
        start_writer_of(orders.where(f"id < {table.written.keys}"), table, tmp_path / f"lock-{n}", often)
        for n in range(2)
    )
    # Both are held as soon as they have one marker.
    assert "HoodieEarlyConflictDetectionException" in str(younger.outcome.exception(PATIENCE_S))
    assert older.release() == ""
