"""Builds next to writers that do not update the index: what they commit meanwhile is in it when readers may use it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from conftest import MakeTable, Table, run
from paused_writers import insert, new_orders, start_paused_writer, wait_until
from pyspark.sql import functions as F
from test_indexing_on_hudi import InThread, complete, found_by_key, found_by_keys, indexing, missing, plans

from airflow_lake_provider.job_contract import Mode, Outcome, Service
from lake_jobs.indexing import catch_up
from lake_jobs.indexing.hudi_writer import IndexWriter
from local_stack import lake_writer

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

BOTH = Mode.SCHEDULE_AND_EXECUTE
OPERATION = "hoodie.datasource.write.operation"
INDEXES = ("column_stats", "bloom_filters", "partition_stats", "record_index")
IN_EVERY_RUN = ("MOR", "record_index")
"""The other combinations take the same way through Hudi, with other entries."""
Work = Callable[["SparkSession", Table], None]


def write(
    spark: SparkSession, table: Table, first_id: int, operation: str, rows: int = 20, amount: float = 7.5
) -> None:
    """Write orders that may be there already, as a writer with Hudi's defaults does."""
    options = lake_writer.write_options(table.written, 1, None, {OPERATION: operation})
    orders = new_orders(spark, table, first_id, rows)
    orders = orders.withColumn("amount", F.lit(amount).cast(orders.schema["amount"].dataType))
    orders.write.format("hudi").options(**options).mode("append").save(str(table.path))


def clean(spark: SparkSession, table: Table) -> None:
    """Delete every file that the newest one of its file group replaces."""
    options = {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.clean.fileversions.retained": "1"}
    result = run(spark, table.request(BOTH, service=Service.CLEAN, service_options=options))
    assert result.outcome is Outcome.COMPLETED, result.message


def write_next_to(monkeypatch: pytest.MonkeyPatch, *works: Callable[[], Any]) -> list[str]:
    """Do this when Hudi has built an index, and before its builder goes on; return which index each build was of."""
    build, built = IndexWriter.build, []

    def build_and_work(self: IndexWriter) -> None:
        build(self)
        built.append(self._plan.partition)
        if len(built) == 1:
            for work in works:
                work()

    monkeypatch.setattr(IndexWriter, "build", build_and_work)
    return built


@pytest.mark.parametrize(
    ("type", "index"),
    [
        pytest.param(type, index, marks=[] if (type, index) == IN_EVERY_RUN else pytest.mark.soak)
        for type in ("COW", "MOR")
        for index in INDEXES
    ],
)
def test_what_streaming_writers_commit_during_a_build_is_in_the_index(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch, type: str, index: str
) -> None:
    """Were the lock held during the build, these writes would wait for it without end."""
    table = make_table(type=type)
    if index == "partition_stats":
        run(spark, indexing(table, BOTH, "column_stats"))
    service = Service.COMPACTION if type == "MOR" else Service.CLUSTERING
    works = [
        lambda: insert(spark, table, 70_000),
        lambda: insert(spark, table, 71_000),
        lambda: write(spark, table, 70_000, "upsert", amount=1_000_000.0),
        lambda: write(spark, table, 71_000, "delete", rows=10),
        lambda: run(spark, table.request(BOTH, service=service)),
        lambda: write(spark, table, 71_000, "upsert", rows=5),
    ]
    if index != "record_index":
        works.append(lambda: clean(spark, table))
    built = write_next_to(monkeypatch, *works)
    result = run(spark, indexing(table, BOTH, index, lake__index__check="full"))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert (built, plans(table)) == ([index], set())
    assert index in complete(table)
    # From here on writers update it.
    insert(spark, table, 72_000)
    assert missing(spark, table, index) == []
    # All but 71_008, which was deleted.
    assert found_by_keys(spark, table, [70_003, 71_003, 71_008, 71_015, 72_003]) == 4


def test_writes_whose_files_were_cleaned_since_are_in_the_index(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(type="COW")
    built = write_next_to(
        monkeypatch,
        lambda: insert(spark, table, 70_000),
        lambda: write(spark, table, 70_000, "upsert", rows=40),
        lambda: run(spark, table.request(BOTH, service=Service.CLUSTERING)),
        lambda: write(spark, table, 71_000, "upsert"),
        lambda: write(spark, table, 71_000, "upsert", amount=9.5),
        lambda: clean(spark, table),
    )
    result = run(spark, indexing(table, BOTH, "record_index", lake__index__check="full"))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert built == ["record_index"]
    assert missing(spark, table) == []


@pytest.mark.soak
def test_archived_writes_make_the_build_begin_anew_with_the_lock_held(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(type="COW")
    archive = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3", "hoodie.clean.commits.retained": "1"}

    def work() -> None:
        for number in range(5):
            insert(spark, table, 70_000 + 100 * number)
        clean(spark, table)
        run(spark, table.request(BOTH, service=Service.METACOMPACTION))
        result = run(spark, table.request(BOTH, service=Service.ARCHIVE, service_options=archive))
        assert result.outcome is Outcome.COMPLETED, result.message

    built = write_next_to(monkeypatch, work)
    result = run(spark, indexing(table, BOTH, "record_index", lake__index__check="full"))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert built == ["record_index", "record_index"]
    assert missing(spark, table) == []


def test_streaming_writer_in_flight_when_a_build_ends_is_waited_for_and_is_in_the_index(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It settled what it updates before the index was listed, so its rows would be missing."""
    table, writers = make_table(), []
    built = write_next_to(monkeypatch, lambda: writers.append(start_paused_writer(spark, table, tmp_path, 70_000)))
    job = InThread(spark, indexing(table, BOTH, "record_index"))
    wait_until(lambda: bool(writers) or job.outcome.done(), "the writer next to the build")
    time.sleep(2)
    assert (complete(table), job.outcome.done()) == ({"files"}, False)
    writers[0].finish()
    result = job.result()
    assert result.outcome is Outcome.COMPLETED, result.message
    assert (built, plans(table)) == (["record_index"], set())
    assert missing(spark, table) == []
    assert found_by_key(spark, table, 70_003) == 1


@pytest.mark.parametrize(
    "operation",
    [
        "delete_partition",
        pytest.param("insert_overwrite", marks=pytest.mark.soak),
        pytest.param("clean", marks=pytest.mark.soak),
    ],
)
def test_write_that_cannot_be_repeated_makes_the_build_begin_anew_with_the_lock_held(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    table = make_table(type="COW")
    partitions = {
        row[0]
        for row in spark.read.format("hudi").load(str(table.path)).select("_hoodie_partition_path").distinct().collect()
    }
    option = {"hoodie.datasource.write.partitions.to.delete": sorted(partitions)[0]}

    def replace() -> None:
        if operation == "clean":
            # Which rows a commit deleted shows by the file that it replaced, which is gone then.
            insert(spark, table, 70_000)
            write(spark, table, 70_000, "delete", rows=10)
            return clean(spark, table)
        if operation == "insert_overwrite":
            return write(spark, table, 70_000, operation)
        options = lake_writer.write_options(table.written, 1, None, {OPERATION: operation, **option})
        orders = new_orders(spark, table, 0, 1)
        return orders.write.format("hudi").options(**options).mode("append").save(str(table.path))

    built = write_next_to(monkeypatch, replace)
    result = run(spark, indexing(table, BOTH, "record_index", lake__index__check="full"))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert built == ["record_index", "record_index"]
    assert (complete(table) >= {"record_index"}, plans(table)) == (True, set())
    assert missing(spark, table) == []


def test_short_holds_write_some_of_what_was_committed_and_the_last_one_the_rest(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, wrote = make_table(), []
    write_late = catch_up.write_late

    def note(*arguments: Any) -> frozenset[str]:
        done: frozenset[str] = write_late(*arguments)
        wrote.append((len(done), len(arguments[3]), "record_index" in complete(table)))
        return done

    monkeypatch.setattr(catch_up, "write_late", note)
    monkeypatch.setattr(catch_up, "HOLD_S", 0.0)
    write_next_to(
        monkeypatch,
        lambda: insert(spark, table, 70_000),
        lambda: write(spark, table, 70_000, "delete", rows=10),
        lambda: insert(spark, table, 71_000),
    )
    result = run(spark, indexing(table, BOTH, "record_index"))
    assert result.outcome is Outcome.COMPLETED, result.message
    # Each hold writes one delta commit, and readers do not know of the index before the last one has ended.
    assert wrote == [(1, 3, False), (1, 2, False), (1, 1, False)]
    assert missing(spark, table) == []
