"""A check of samples on real tables: healthy ones give no finding, also under a writer; planted damage is found."""

from __future__ import annotations

import json
import shutil
import threading
from typing import TYPE_CHECKING

import pytest
from conftest import MakeTable, Table, run, write

from airflow_lake_provider.job_contract import DAMAGE_FOLDER, DamageKind, FailureKind, Mode, Outcome, Service
from local_stack import lake_writer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from airflow_lake_provider.job_contract import ServiceResult

SOAK = pytest.mark.soak
KINDS = [("COW", 6), pytest.param("MOR", 6, marks=SOAK), pytest.param("COW", 9, marks=SOAK), ("MOR", 9)]


def check(spark: SparkSession, table: Table, **options: str) -> ServiceResult:
    """Run the service, without a lock."""
    own = {f"lake.integrity.{name}": value for name, value in options.items()}
    return run(spark, table.request(Mode.EXECUTE, options={}, service=Service.INTEGRITY, service_options=own))


def all_files(table: Table) -> Mapping[str, bytes]:
    """Return every file of a table, but what the service reports."""
    return {
        str(path.relative_to(table.path)): path.read_bytes()
        for path in table.path.rglob("*")
        if path.is_file() and "lake_integrity" not in path.name and DAMAGE_FOLDER not in str(path)
    }


def known(table: Table) -> dict[str, list[str]]:
    """Return what the table says of its damage, by kind, by a plain read of the files."""
    folder = table.path / DAMAGE_FOLDER
    return {
        path.stem: [each["what"] for each in json.loads(path.read_text(encoding="utf-8"))["found"]]
        for path in sorted(folder.glob("*.json"))
    }


def base_files(table: Table, city: str) -> list[Path]:
    return sorted((table.path / city).glob("*.parquet"), key=lambda path: path.name.rpartition("_")[2])


def change(table: Table, operation: str, rows: DataFrame, commit: int, **options: str) -> None:
    settings = lake_writer.write_options(table.written, commit, None, {})
    settings |= {"hoodie.datasource.write.operation": operation, **options}
    rows.write.format("hudi").options(**settings).mode("append").save(str(table.path))


@pytest.mark.parametrize(("type", "version"), KINDS)
def test_healthy_table_gives_no_finding_and_is_not_touched(
    spark: SparkSession, make_table: MakeTable, type: str, version: int
) -> None:
    table = make_table(type=type, version=version)
    # What a failed writer left is no damage: readers do not see it.
    write(spark, table.written, 3)
    newest = max(name for name in table.files() if name.endswith((".commit", ".deltacommit")))
    (table.timeline / newest).unlink()
    files = all_files(table)
    for scope in ("partition", "table"):
        found = check(spark, table, keys=scope)
        assert found.outcome is Outcome.NOTHING_TO_DO, found.message
        assert "compared 4 of 4 partitions" in found.message
        assert "the keys of" in found.message
    assert all_files(table) == files
    assert known(table) == {}


@pytest.mark.parametrize(("type", "version"), [("COW", 6), pytest.param("MOR", 9, marks=SOAK)])
def test_file_that_the_store_lost_is_found_until_it_is_back(
    spark: SparkSession, make_table: MakeTable, type: str, version: int
) -> None:
    table = make_table(type=type, version=version)
    lost = base_files(table, "Cork")[-1]
    kept = lost.read_bytes()
    lost.unlink()
    found = check(spark, table)
    assert found.outcome is Outcome.COMPLETED, found.message
    assert lost.name in found.message
    assert list(known(table)) == [DamageKind.GONE_FILES]
    lost.write_bytes(kept[:-10])
    cut = check(spark, table)
    assert f"{lost.name} ({len(kept) - 10:,} of {len(kept):,} bytes)" in cut.message
    lost.write_bytes(kept)
    assert check(spark, table).outcome is Outcome.NOTHING_TO_DO
    assert known(table) == {}


@pytest.mark.parametrize(("type", "version"), [("COW", 9), pytest.param("MOR", 6, marks=SOAK)])
def test_committed_file_that_the_metadata_table_lacks_is_found(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path, type: str, version: int
) -> None:
    table = make_table(type=type, version=version)
    shutil.copytree(table.path / ".hoodie" / "metadata", tmp_path / "older")
    before = {path for city in lake_writer.CITIES for path in (table.path / city).iterdir()}
    change(
        table,
        "insert",
        lake_writer.orders_of_commit(spark, table.written, 1).selectExpr(
            "id + 9000 AS id", "customer", "city", "day", "amount", "ts"
        ),
        3,
    )
    shutil.rmtree(table.path / ".hoodie" / "metadata")
    shutil.copytree(tmp_path / "older", table.path / ".hoodie" / "metadata")
    new = [path for city in lake_writer.CITIES for path in (table.path / city).glob("*.parquet") if path not in before]
    assert new
    found = check(spark, table)
    assert found.outcome is Outcome.COMPLETED, found.message
    for path in new:
        assert path.name in found.message
    assert list(known(table)) == [DamageKind.UNLISTED_FILES]

    # The repair, and what follows it.
    withdraw = table.request(Mode.WITHDRAW, service=Service.METACOMPACTION)
    rebuilt = run(spark, withdraw)
    assert rebuilt.outcome is Outcome.COMPLETED, rebuilt.message
    assert new[0].name in rebuilt.message
    write(spark, table.written, 4)
    after = check(spark, table)
    assert "the metadata table's list" in after.message
    assert after.outcome is Outcome.NOTHING_TO_DO, after.message
    assert known(table) == {}
    assert run(spark, withdraw).outcome is Outcome.NOTHING_TO_DO, "a list that is right stays"


@pytest.mark.parametrize(("type", "version"), [("MOR", 6), pytest.param("COW", 9, marks=SOAK)])
def test_keys_that_have_two_rows_are_found_with_their_files(
    spark: SparkSession, make_table: MakeTable, type: str, version: int
) -> None:
    table = make_table(type=type, version=version)
    twice = lake_writer.orders_of_commit(spark, table.written, 1).where("id IN (1, 5, 9, 13, 17, 21)")
    change(table, "bulk_insert", twice, 3)
    found = check(spark, table)
    assert found.outcome is Outcome.COMPLETED, found.message
    assert "6 record keys have several rows" in found.message
    (what,) = known(table)[DamageKind.DUPLICATE_KEYS]
    assert what.count("has 2 rows in Bilbao/") == 5
    assert base_files(table, "Bilbao")[-1].name in what

    elsewhere = twice.selectExpr("id", "customer", "'Cork' AS city", "day", "amount", "ts")
    change(table, "bulk_insert", elsewhere.where("id = 1"), 4)
    assert "2 rows in Bilbao/" in check(spark, table).message
    assert "1 has 3 rows in Bilbao/" in check(spark, table, keys="table").message
    assert check(spark, table, keys="off").outcome is Outcome.NOTHING_TO_DO
    assert known(table), "what was not compared stays known"
    change(table, "delete", twice, 5)
    gone = check(spark, table)
    assert gone.outcome is Outcome.NOTHING_TO_DO, gone.message
    assert known(table) == {}


@SOAK
def test_table_without_partitions_is_compared_as_one(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(type="COW", **{"hoodie.datasource.write.partitionpath.field": ""})
    healthy = check(spark, table)
    assert healthy.message.startswith("compared 1 of 1 partitions; their files"), healthy.message
    assert healthy.outcome is Outcome.NOTHING_TO_DO
    twice = lake_writer.orders_of_commit(spark, table.written, 1).where("id = 1")
    change(table, "bulk_insert", twice, 3)
    assert "1 record key has several rows: 1 has 2 rows in " in check(spark, table).message
    lost = base_files(table, "")[-1]
    lost.unlink()
    assert (
        f".hoodie/metadata lists 1 file of the table that the store lacks: {lost.name}" in check(spark, table).message
    )


@SOAK
@pytest.mark.parametrize(("type", "version"), [("COW", 9), ("MOR", 6)])
def test_no_false_alarm_while_a_writer_compacts_and_cleans(
    spark: SparkSession, make_table: MakeTable, type: str, version: int
) -> None:
    table = make_table(type=type, version=version)
    stop = threading.Event()
    wrong: list[Exception] = []
    inline = {
        "hoodie.table.services.enabled": "true",
        "hoodie.compact.inline": str(type == "MOR").lower(),
        "hoodie.compact.inline.max.delta.commits": "1",
        "hoodie.clean.automatic": "true",
        "hoodie.clean.commits.retained": "1",
    }

    def go_on() -> None:
        commit = 3
        try:
            while not stop.is_set():
                change(table, "upsert", lake_writer.orders_of_commit(spark, table.written, commit), commit, **inline)
                commit += 1
        except Exception as error:  # noqa: BLE001 - the test shows it
            wrong.append(error)

    writer = threading.Thread(target=go_on)
    writer.start()
    found = []
    try:
        while len(found) < 60 and len(table.completed("clean")) < 6 and not wrong:
            found.append(check(spark, table))
    finally:
        stop.set()
        writer.join()
    assert not wrong
    assert len(table.completed("clean")) >= 3
    # A clean may take away what is being read: the run says so, and is repeated.
    alarms = [each.message for each in found if each.failure_kind is not FailureKind.CONFLICT]
    assert [text for text in alarms if not text.endswith("no damage")] == []
    assert len(alarms) > 1
