"""A table in a real Hive metastore: what plain Spark SQL sees there is what a read of the path sees."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from conftest import MakeTable, Table
from pyspark.sql import functions as F
from test_real_processes import _kill_family, submit

from airflow_lake_provider.hudi.metastore import discover_in_metastore
from airflow_lake_provider.job_contract import FailureKind, Mode, Outcome, Service
from airflow_lake_provider.storage.table_storage import open_storage
from local_stack import lake_writer
from local_stack.processes import PATIENCE, free_port
from tests.support.catalog import DATABASE, CatalogReader, Registered, metastore, reader

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from local_stack.hive import LocalMetastore

__all__ = ["metastore", "reader", "submit"]

CITIES = sorted(lake_writer.CITIES)


def by_city(spark: SparkSession, table: Table) -> dict[str, int]:
    """Return how many rows each partition has, by a plain read of the path."""
    found = spark.read.format("hudi").load(str(table.path)).select("city").collect()
    return dict(Counter(row["city"] for row in found))


def change(table: Table, operation: str, rows: DataFrame, commit: int, **options: str) -> None:
    settings = lake_writer.write_options(table.written, commit, None, {})
    # A copy keeps the name that its original was written with.
    name = table.properties()["hoodie.table.name"]
    settings |= {"hoodie.table.name": name, "hoodie.datasource.write.operation": operation, **options}
    rows.write.format("hudi").options(**settings).mode("append").save(str(table.path))


@pytest.mark.parametrize(("type", "version"), [pytest.param("COW", 6, marks=pytest.mark.soak), ("MOR", 9)])
def test_reader_of_the_catalog_sees_partitions_come_and_go_and_new_columns(
    spark: SparkSession,
    make_table: MakeTable,
    metastore: LocalMetastore,
    reader: CatalogReader,
    type: str,
    version: int,
) -> None:
    table = make_table(f"orders_{type.lower()}", type=type, version=version)
    registered = Registered(spark, metastore, table)
    names = [registered.name, *([f"{registered.name}_ro", f"{registered.name}_rt"] if type == "MOR" else [])]
    files = table.files()
    first = registered.sync()
    assert first.outcome is Outcome.COMPLETED, first.message
    assert table.files() == files, "nothing is written to the table"
    assert set(names) <= set(registered.tables())
    assert reader.rows_by_city(registered.name) == by_city(spark, table)
    again = registered.sync()
    assert (again.outcome, "4 partitions" in again.message) == (Outcome.NOTHING_TO_DO, True), again.message

    orders = lake_writer.orders_of_commit(spark, table.written, 3)
    change(table, "delete_partition", orders.limit(0), 3, **{"hoodie.datasource.write.partitions.to.delete": "Cork"})
    gifts = orders.where("id % 4 = 0").withColumn("id", F.col("id") + 9000).withColumn("city", F.lit("Eger"))
    change(table, "upsert", gifts.withColumn("note", F.when(F.col("id") > 0, "gift")), 4)
    second = registered.sync()
    assert second.outcome is Outcome.COMPLETED, second.message
    for name in names:
        assert registered.partitions(name.removeprefix(registered.name)) == ["Aachen", "Bilbao", "Dublin", "Eger"]
    seen = reader.rows_by_city(registered.name)
    assert seen == by_city(spark, table)
    assert seen["Eger"] > 0
    assert "note" in registered.columns()
    assert reader.query(f"SELECT count(*) FROM {DATABASE}.{registered.name} WHERE note = 'gift'") == [(seen["Eger"],)]


@pytest.mark.soak
def test_partition_that_others_dropped_or_added_in_the_catalog_is_put_right(
    spark: SparkSession, make_table: MakeTable, metastore: LocalMetastore
) -> None:
    registered = Registered(spark, metastore, make_table("mended", type="COW"))
    registered.sync()
    values = spark._jvm.java.util.ArrayList()
    values.add("Bilbao")
    assert registered.ask(lambda client: client.dropPartition(DATABASE, registered.name, values, False))
    assert registered.partitions() == ["Aachen", "Cork", "Dublin"]
    assert registered.sync().outcome is Outcome.COMPLETED
    assert registered.partitions() == CITIES


def test_name_of_another_table_is_refused_and_that_table_stays(
    spark: SparkSession, make_table: MakeTable, metastore: LocalMetastore
) -> None:
    mine = Registered(spark, metastore, make_table("mine", type="COW"))
    theirs = Registered(spark, metastore, make_table("theirs", type="COW"))
    theirs.sync()
    location = theirs.ask(lambda client: client.getTable(DATABASE, "theirs").getSd().getLocation())
    refused = mine.sync(**{"lake.sync.table": "theirs"})
    assert (refused.outcome, refused.failure_kind) == (Outcome.FAILED, FailureKind.REFUSED)
    assert f"{DATABASE}.theirs" in refused.message
    assert str(theirs.table.path) in refused.message
    assert "set sync.table" in refused.message
    assert theirs.ask(lambda client: client.getTable(DATABASE, "theirs").getSd().getLocation()) == location


def test_tables_own_file_names_no_class_and_no_setting_of_the_sync(
    spark: SparkSession, make_table: MakeTable, metastore: LocalMetastore
) -> None:
    table = make_table("planted", type="COW")
    (table.path / ".hoodie" / ".hoodie.properties.crc").unlink()
    with (table.path / ".hoodie" / "hoodie.properties").open("a", encoding="utf-8") as file:
        file.write("\nhoodie.datasource.hive_sync.partition_extractor_class=com.evil.Extractor")
        file.write("\nhoodie.datasource.hive_sync.table_properties=planted=yes")
        file.write("\nhoodie.datasource.hive_sync.create_managed_table=true\n")
    registered = Registered(spark, metastore, table)
    result = registered.sync()
    assert result.outcome is Outcome.COMPLETED, result.message
    assert registered.partitions() == CITIES
    found = registered.ask(lambda client: client.getTable(DATABASE, "planted"))
    assert str(found.getTableType()) == "EXTERNAL_TABLE"
    assert not found.getParameters().containsKey("planted")


def test_refusals_name_the_metastore_the_table_and_what_to_do(
    spark: SparkSession, make_table: MakeTable, metastore: LocalMetastore
) -> None:
    table = make_table("odd-name", type="COW")
    registered = Registered(spark, metastore, table)
    named = registered.sync()
    assert (named.outcome, named.failure_kind) == (Outcome.FAILED, FailureKind.REFUSED)
    assert "'odd-name' is no table name for a catalog" in named.message
    away = f"thrift://127.0.0.1:{free_port()}"
    refused = registered.sync(**{"lake.sync.metastore": away, "lake.sync.table": "odd"})
    assert (refused.outcome, refused.failure_kind) == (Outcome.FAILED, FailureKind.INFRASTRUCTURE)
    for part in (str(table.path), f"{DATABASE}.odd", away, "does not answer", "sync.metastore"):
        assert part in refused.message
    assert registered.sync(**{"lake.sync.table": "odd"}).outcome is Outcome.COMPLETED


def test_run_that_is_killed_between_two_tables_is_completed_by_the_next(
    spark: SparkSession,
    make_table: MakeTable,
    metastore: LocalMetastore,
    reader: CatalogReader,
    submit: Callable[..., subprocess.Popen[str]],
) -> None:
    registered = Registered(spark, metastore, make_table("killed", type="MOR"))
    request = registered.table.request(
        Mode.EXECUTE, options={}, service=Service.SYNC, service_options=dict(registered.request().options)
    )
    process = submit(request)
    # The metastore stops within the run, so that the driver waits there until it is killed.
    server = metastore.server
    assert server is not None
    deadline = time.monotonic() + 60 * PATIENCE
    while "tableName:killed_ro" not in metastore.log.read_text(encoding="utf-8"):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.stdout and process.stdout.read()
        time.sleep(0.005)
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        _kill_family(process.pid)
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    process.wait()
    assert "killed" not in registered.tables(), "the run had not come to the last of its tables"
    result = registered.sync()
    assert result.outcome is Outcome.COMPLETED, result.message
    for suffix in ("", "_ro", "_rt"):
        assert registered.partitions(suffix) == CITIES
    assert reader.rows_by_city("killed") == by_city(spark, registered.table)


@pytest.mark.soak
def test_discovery_finds_the_tables_of_the_metastore_that_lie_below_the_root(
    spark: SparkSession, make_table: MakeTable, metastore: LocalMetastore, reader: CatalogReader, tmp_path: Path
) -> None:
    Registered(spark, metastore, make_table("found", type="MOR")).sync()
    elsewhere = tmp_path / "elsewhere" / "outside"
    shutil.copytree(make_table("outside", type="COW").path, elsewhere)
    outside = make_table("outside2", type="COW")
    Registered(spark, metastore, replace(outside, written=replace(outside.written, base_path=str(elsewhere)))).sync()
    reader.query(f"CREATE TABLE {DATABASE}.plain (x int) USING parquet LOCATION '{tmp_path}/lake/plain'")
    root = str(tmp_path / "lake")
    found = discover_in_metastore(metastore.address, [DATABASE], root, open_storage)
    assert [one.base_path for one in found.tables] == [str(tmp_path / "lake" / "found")]
    assert not found.problems
    assert discover_in_metastore(metastore.address, ["none*"], root, open_storage).tables == ()


@pytest.mark.soak
def test_column_of_another_type_in_the_catalog_is_refused_with_what_to_do(
    spark: SparkSession, make_table: MakeTable, metastore: LocalMetastore
) -> None:
    registered = Registered(spark, metastore, make_table("typed", type="COW"))
    registered.sync()

    def retype(client: Any) -> None:
        table = client.getTable(DATABASE, "typed")
        next(one for one in table.getSd().getCols() if one.getName() == "customer").setType("date")
        # The metastore changes no type either way.
        client.dropTable(DATABASE, "typed")
        client.createTable(table)

    registered.ask(retype)
    refused = registered.sync()
    assert (refused.outcome, refused.failure_kind) == (Outcome.FAILED, FailureKind.REFUSED), refused.message
    assert "drop the table in the catalog" in refused.message
    registered.ask(lambda client: client.dropTable(DATABASE, "typed"))
    assert registered.sync().outcome is Outcome.COMPLETED
    assert registered.partitions() == CITIES


@pytest.mark.soak
def test_folder_that_a_rolled_back_write_left_is_no_partition(
    spark: SparkSession, make_table: MakeTable, metastore: LocalMetastore
) -> None:
    table = make_table("left", type="COW", **{"hoodie.metadata.enable": "false"})
    left = table.path / "Eger"
    left.mkdir()
    shutil.copy(table.path / "Cork" / ".hoodie_partition_metadata", left)
    registered = Registered(spark, metastore, table)
    for expected in (Outcome.COMPLETED, Outcome.NOTHING_TO_DO):
        result = registered.sync()
        assert result.outcome is expected, result.message
        assert registered.partitions() == CITIES
