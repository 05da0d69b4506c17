"""Replication of real tables, run inside the test's own Spark session, into files that are read back without Hudi."""

from __future__ import annotations

import datetime
import decimal
import json
import sqlite3
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import LOCK, run
from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as F
from pyspark.sql import types as T
from sqlalchemy import NullPool, create_engine
from sqlalchemy.orm import sessionmaker

from airflow_lake_provider.errors import ReplicationGapError
from airflow_lake_provider.job_contract import (
    SAFEPOINT,
    FailureKind,
    JobRequest,
    Outcome,
    Service,
    ServiceRequest,
    ServiceResult,
)
from airflow_lake_provider.job_contract import Mode as ServiceMode
from airflow_lake_provider.manager.db.database import ProcessClock
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.schema import metadata
from airflow_lake_provider.manager.db.sinks import RunProgress, Sinks
from airflow_lake_provider.replication import snapshot_run
from airflow_lake_provider.replication.change import Change, ChangeMode, CommitRef, Op, checksum_of
from airflow_lake_provider.replication.checkpoint import Checkpoint, SnapshotProgress, from_text
from airflow_lake_provider.replication.job import ReplicationRequest, ReplicationResult
from airflow_lake_provider.replication.sinks.file import FileSink
from airflow_lake_provider.replication.transactions import Order
from airflow_lake_provider.sink_options.run import Reader
from lake_jobs.replication.change_columns import cdc_changes, data_schema, row_json
from lake_jobs.replication.commit_reading import SliceReading
from lake_jobs.replication.source import HudiSource, one_ms_before
from local_stack import lake_writer
from replicate import replicate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HISTORY = Path(__file__).parents[2] / "fixtures" / "history" / "history_200.zip"
TTL_S = 3600.0
SCHEMA = T.StructType(
    [
        T.StructField("id", T.LongType()),
        T.StructField("name", T.StringType()),
        T.StructField("day", T.DateType()),
        T.StructField("moment", T.TimestampType()),
        T.StructField("blob", T.BinaryType()),
        T.StructField("ratio", T.DoubleType()),
        T.StructField("inner", T.StructType([T.StructField("x", T.IntegerType()), T.StructField("at", T.DateType())])),
        T.StructField("days", T.ArrayType(T.DateType())),
        T.StructField("ts", T.LongType()),
        T.StructField("part", T.StringType()),
    ]
)


@pytest.fixture(autouse=True)
def _time_zone(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get("spark.sql.session.timeZone")
    yield
    spark.conf.set("spark.sql.session.timeZone", before)


class Lake:
    """One table with change data, its writer, and what it must have been replicated as."""

    parse_float: Callable[[str], Any] = float

    def __init__(self, spark: SparkSession, folder: Path, type: str = "COW", version: int = 9, **options: str) -> None:
        self.spark = spark
        self.folder = folder
        self.path = str(folder / "lake" / "events")
        self.options = {
            "hoodie.table.name": "events",
            "hoodie.datasource.write.table.type": lake_writer.TABLE_TYPES[type],
            "hoodie.datasource.write.recordkey.field": "id",
            "hoodie.datasource.write.partitionpath.field": "part",
            "hoodie.datasource.write.precombine.field": "ts",
            "hoodie.write.table.version": str(version),
            "hoodie.write.auto.upgrade": "false",
            "hoodie.upsert.shuffle.parallelism": "2",
            "hoodie.embed.timeline.server": "false",
            "hoodie.write.markers.type": "DIRECT",
            "hoodie.metadata.index.column.stats.enable": "false",
            "hoodie.table.cdc.enabled": "true",
            **lake_writer.MANAGED_LAKE,
            **options,
        }

    @property
    def timeline(self) -> Path:
        folder = Path(self.path) / ".hoodie"
        return folder / "timeline" if (folder / "timeline").exists() else folder

    def rows(self, ids: Any, ts: int) -> DataFrame:
        moment = datetime.datetime(2026, 3, 1, 10, 0, 0, 123456, tzinfo=datetime.UTC)
        day = datetime.date(2026, 3, 1)
        found = [
            (i, f'zö"{i}-{ts}', day, moment, b"ab\x00\xff", i / 3, (i, day), [day, day], ts, f"p{i % 2}") for i in ids
        ]
        return self.spark.createDataFrame(found, SCHEMA)

    def write(self, rows: DataFrame, operation: str = "upsert", **options: str) -> None:
        settings = {**self.options, "hoodie.datasource.write.operation": operation, **options}
        rows.write.format("hudi").options(**settings).mode("append").save(self.path)

    def commits(self) -> list[CommitRef]:
        timeline = self.source().read_timeline()
        return sorted(timeline.completed, key=lambda commit: commit.order)

    def source(self, mode: ChangeMode = ChangeMode.CHANGES) -> HudiSource:
        return HudiSource(self.spark, self.path, mode)

    def replicate(
        self,
        mode: ChangeMode = ChangeMode.CHANGES,
        sink: str = "files",
        reader: Reader = Reader.AUTO,
        most_rows: int = 0,
        **order: Any,
    ) -> ReplicationResult:
        bound = {"max_transaction_rows": str(most_rows)} if most_rows else {}
        return replicate(
            self.spark,
            ReplicationRequest(
                self.path,
                "events",
                "file",
                Order(f"events.{sink}", **order),
                str(self.folder / "result.json"),
                mode,
                options={"path": str(self.folder / sink), "reader": reader.value, **bound},
            ),
        )

    def delivered(self, sink: str = "files") -> list[tuple[Checkpoint, list[dict[str, Any]]]]:
        """Return each transaction's checkpoint and records."""
        found = []
        for path in sorted((self.folder / sink).glob("[0-9]*.jsonl")):
            *lines, last = path.read_text(encoding="utf-8").splitlines()
            records = [json.loads(line, parse_float=self.parse_float) for line in lines]
            found.append((from_text(json.dumps(json.loads(last)["checkpoint"])), records))
        return found

    def replica(self, sink: str = "files") -> dict[int, dict[str, Any]]:
        """Return the rows that a reader of the newest generation has."""
        rows: dict[int, dict[str, Any]] = {}
        delivered = self.delivered(sink)
        newest = delivered[-1][0].generation
        for checkpoint, records in delivered:
            if checkpoint.generation < newest:
                continue
            for record in records:
                body = record if "op" not in record else record["after"]
                gone = body is None or record.get("deleted")
                key = record["key"]["id"] if "key" in record else record["id"]
                if gone:
                    rows.pop(key)
                else:
                    rows[key] = body
        return rows

    def table(self) -> dict[int, dict[str, Any]]:
        """Return the table's rows as a reader of the table sees them, through Spark's own JSON."""
        self.spark.conf.set("spark.sql.session.timeZone", "UTC")
        rows = self.spark.read.format("hudi").load(self.path)
        texts = [row[0] for row in rows.select(row_json(data_schema(rows.schema))).collect()]
        return {body["id"]: body for body in map(json.loads, texts)}

    def service(
        self, service: Service, mode: ServiceMode = ServiceMode.SCHEDULE_AND_EXECUTE, **options: str
    ) -> ServiceResult:
        request = JobRequest(
            "job-1",
            self.path,
            "events",
            (ServiceRequest(service, mode, (), options),),
            str(self.folder / "service.json"),
            LOCK,
        )
        return run(self.spark, request)


def slow_write(lake: Lake, ids: list[int], ts: int) -> threading.Thread:
    """Begin a commit that takes some seconds longer than others, and return once it is on the timeline."""

    @F.udf("string")
    def slowly(text: str) -> str:
        time.sleep(10)
        return text

    rows = lake.rows(ids, ts).coalesce(1).withColumn("name", slowly("name"))
    thread = threading.Thread(target=lake.write, args=(rows,))
    thread.start()
    timeline = Path(lake.path) / ".hoodie" / "timeline"
    deadline = time.monotonic() + 60
    while not any(path.name.endswith("commit.requested") and _is_pending(path) for path in timeline.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return thread


def _is_pending(requested: Path) -> bool:
    instant = requested.name.split(".")[0]
    return not any(path.name.startswith(f"{instant}_") for path in requested.parent.iterdir())


@pytest.mark.parametrize("type", [pytest.param("COW", marks=pytest.mark.soak), "MOR"])
def test_slow_writer_is_lost_by_a_checkpoint_of_completion_time_and_not_by_ours(
    spark: SparkSession, tmp_path: Path, type: str
) -> None:
    lake = Lake(spark, tmp_path, type)
    lake.write(lake.rows(range(6), 1))
    assert lake.replicate().message == ""
    slow = slow_write(lake, [0], 100)
    lake.write(lake.rows([3], 101))
    assert lake.replicate().commits == 1
    slow.join()
    _, fast_commit, slow_commit = lake.commits()
    assert slow_commit.requested_time < fast_commit.requested_time

    # What a reader gets that keeps the completion time of what it has, as Hudi's documents say.
    reader = spark.read.format("hudi").option("hoodie.datasource.query.type", "incremental")
    reader = reader.option("hoodie.datasource.query.incremental.format", "cdc")
    reader = reader.option("hoodie.datasource.read.begin.instanttime", fast_commit.completed_time)
    assert reader.load(lake.path).count() == 0

    result = lake.replicate()
    assert (result.message, result.commits, result.rows) == ("", 1, 1)
    _, (record,) = lake.delivered()[-1]
    assert (record["op"], record["commit"], record["after"]["ts"]) == ("u", slow_commit.requested_time, 100)
    assert lake.replica() == lake.table()


@pytest.mark.parametrize("type", [pytest.param("COW", marks=pytest.mark.soak), "MOR"])
def test_every_kind_of_commit_arrives_as_the_table_has_it(spark: SparkSession, tmp_path: Path, type: str) -> None:
    lake = Lake(spark, tmp_path, type)
    lake.write(lake.rows(range(8), 1))
    # Only the first run's snapshot; from here on, changes of both dialects.
    assert lake.replicate().message == ""
    lake.write(lake.rows([0, 1, 9], 2))
    lake.write(lake.rows([1, 2], 3))
    lake.write(lake.rows([3], 4), "delete")
    if type == "MOR":
        done = lake.service(Service.COMPACTION, **{"hoodie.compact.inline.max.delta.commits": "1"})
        assert done.outcome is Outcome.COMPLETED, done.message
    lake.write(lake.rows([2, 10], 5))
    done = lake.service(
        Service.CLUSTERING,
        **{
            "hoodie.clustering.async.max.commits": "1",
            "hoodie.clustering.plan.strategy.single.group.clustering.enabled": "true",
            "hoodie.clustering.plan.strategy.sort.columns": "id",
        },
    )
    assert done.outcome is Outcome.COMPLETED, done.message
    lake.write(lake.rows([0, 12], 6))
    lake.write(lake.rows([20, 22], 7), "insert_overwrite")
    assert lake.replicate().message == ""
    assert lake.replica() == lake.table()

    delivered = [entry for entry in lake.delivered() if entry[0].snapshot is None and entry[0].rows]
    assert [Counter(record["op"] for record in records) for _, records in delivered] == [
        {"u": 2, "i": 1},
        {"u": 2},
        {"d": 1},
        {"u": 1, "i": 1},
        {"u": 1, "i": 1},
        {"d": 6, "i": 2},
    ]
    # Each row before is what the replica had, so both dialects read alike.
    rows: dict[int, Any] = {}
    for _, records in lake.delivered():
        for record in records:
            if record["op"] != "r":
                assert record["before"] == rows.get(record["key"]["id"]), record
            rows[record["key"]["id"]] = record["after"]
    # Count and checksum of each commit are those of the table's own rows.
    commits = {commit.requested_time: commit for commit in lake.commits()}
    for checkpoint, records in delivered:
        assert checkpoint.commit is not None
        assert commits.pop(checkpoint.commit.requested_time) == checkpoint.commit
        assert checkpoint.rows == len(records)
        written = written_rows(lake, checkpoint.commit)
        assert {record["key"]["id"]: record["after"] for record in records if record["op"] != "d"} == written
        changes = lake.source().read(checkpoint.commit)
        assert checkpoint.checksum == f"{checksum_of(changes):016x}"


def test_image_that_does_not_parse_is_an_error_and_not_a_row_of_nulls(spark: SparkSession) -> None:
    schema = T.StructType([T.StructField("id", T.LongType()), T.StructField("at", T.DateType())])
    images = [("i", "null", '{"id":1,"at":2}'), ("i", "null", '{"id":1,"at":"x"}')]
    read = [cdc_changes(spark.createDataFrame([image], "op string, before string, after string"), schema, ["id"])
            for image in images]  # fmt: skip
    assert [tuple(row) for row in read[0].collect()] == [("i", '{"id":1}', None, '{"id":1,"at":"1970-01-03"}')]
    with pytest.raises(Py4JJavaError, match="MALFORMED_RECORD_IN_PARSING"):
        read[1].collect()


def written_rows(lake: Lake, commit: CommitRef) -> dict[int, Any]:
    """Return the rows that a commit wrote, by Hudi's typed query and not by its change data."""
    lake.spark.conf.set("spark.sql.session.timeZone", "UTC")
    reader = lake.spark.read.format("hudi").option("hoodie.datasource.query.type", "incremental")
    reader = reader.option("hoodie.datasource.read.begin.instanttime", one_ms_before(commit.completed_time))
    rows = reader.option("hoodie.datasource.read.end.instanttime", commit.completed_time).load(lake.path)
    rows = rows.where(F.col("_hoodie_commit_time") == commit.requested_time)
    texts = [row[0] for row in rows.select(row_json(data_schema(rows.schema))).collect()]
    return {body["id"]: body for body in map(json.loads, texts)}


# Of type and version, those two in which both differ.
@pytest.mark.parametrize(
    ("type", "version"),
    [
        ("COW", 6),
        ("MOR", 9),
        pytest.param("COW", 9, marks=pytest.mark.soak),
        pytest.param("MOR", 6, marks=pytest.mark.soak),
    ],
)
def test_mode_latest_without_change_data_has_tombstones_and_decimals(
    spark: SparkSession, tmp_path: Path, type: str, version: int
) -> None:
    lake = Lake(spark, tmp_path, type, version, **{"hoodie.table.cdc.enabled": "false"})
    price = F.lit(decimal.Decimal("12.50")).cast("decimal(12,2)")
    lake.write(lake.rows(range(6), 1).withColumn("price", price))
    assert lake.replicate(ChangeMode.LATEST).message == ""
    lake.write(lake.rows([0, 7], 2).withColumn("price", price))
    lake.write(lake.rows([1, 2], 3).withColumn("price", price), "delete")
    result = lake.replicate(ChangeMode.LATEST)
    assert (result.message, result.commits, result.rows) == ("", 2, 4)
    assert lake.replica() == lake.table()
    assert lake.replica()[7]["price"] == 12.5
    gone = [record["key"] for record in lake.delivered()[-1][1] if record.get("deleted")]
    assert sorted(key["id"] for key in gone) == [1, 2]
    # The same id may be a row of another partition: the key says which one is gone.
    assert {key["part"] for key in gone} == {"p0", "p1"}


@pytest.mark.parametrize("type", [pytest.param("COW", marks=pytest.mark.soak), "MOR"])
def test_commits_pass_a_snapshot_that_takes_long(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type: str
) -> None:
    lake = Lake(spark, tmp_path, type)
    lake.write(lake.rows(range(0, 40, 2), 1))
    read, writes, stretches = HudiSource.read_snapshot, iter(range(2, 5)), list[str]()

    def next_to_writers(self: HudiSource, progress: SnapshotProgress) -> Iterator[Change]:
        stretches.append(progress.instant)
        for number, row in enumerate(read(self, progress)):
            if number == 3 and (ts := next(writes, None)) is not None:
                # Of rows that the sink has, of others, of new ones, and deletes among both.
                lake.write(lake.rows(range(ts, 40, 5), ts))
                lake.write(lake.rows([10 * (ts - 2), 40 - ts], ts), "delete")
            yield row

    monkeypatch.setattr(HudiSource, "read_snapshot", next_to_writers)
    monkeypatch.setattr(snapshot_run, "COUNTED_AFTER_S", 0.0)
    result = lake.replicate(snapshot_part_rows=2, snapshot_pause_s=0.0)
    assert result.message == ""
    assert len(set(stretches)) > 2
    assert lake.replica() == lake.table()
    delivered = lake.delivered()
    assert {checkpoint.generation for checkpoint, _ in delivered} == {1}
    totals = {checkpoint.snapshot.total for checkpoint, _ in delivered if checkpoint.snapshot is not None} - {None}
    reader = spark.read.format("hudi")
    seen = [
        reader.option("as.of.instant", instant).load(lake.path).select("id").collect() for instant in set(stretches)
    ]
    assert totals
    assert totals <= {len({row["id"] for row in rows}) for rows in seen}
    rows: dict[int, Any] = {}
    for _, records in delivered:
        for record in records:
            key = record["key"]["id"]
            # Each change follows from the state that the one before it left, and each row is read once.
            assert record["op"] != "r" or key not in rows
            assert record["op"] == "r" or record["before"] == rows.get(key)
            rows[key] = record["after"]
    ops = [record["op"] for _, records in delivered for record in records]
    assert {"u", "i", "d"} <= {*ops[: len(ops) - ops[::-1].index("r")]}


def test_insert_into_small_files_that_logs_no_change_data_is_read_from_slices(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(spark, tmp_path)
    lake.write(lake.rows(range(40), 1))
    assert lake.replicate(reader=Reader.CDC).message == ""
    lake.write(lake.rows(range(40, 42), 2), "insert")
    (_, commit) = lake.commits()
    with pytest.raises(Py4JJavaError, match="There should be a cdc log file"):
        lake.source().change_data(commit).collect()
    result = lake.replicate(reader=Reader.CDC)
    assert (result.message, result.rows) == ("", 2)
    assert [reader.partition(":")[0] for reader in result.readers] == ["slices"]
    assert lake.replica() == lake.table()


def test_snapshot_is_resumed_by_part_and_changes_go_on_from_exactly_there(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, "MOR")
    lake.write(lake.rows(range(20), 1))
    lake.write(lake.rows(range(0, 20, 3), 2))

    class Died(Exception):
        pass

    source = lake.source()
    parts = source.read_snapshot

    def dies(progress: Any) -> Iterator[Change]:
        for number, entry in enumerate(parts(progress)):
            if number == 12:
                raise Died
            yield entry

    from airflow_lake_provider.replication.pump import Pump
    from airflow_lake_provider.replication.sink import SinkSettings, create_sink

    settings = SinkSettings("events.files", "events", ChangeMode.CHANGES, {"path": str(tmp_path / "files")})
    source.read_snapshot = dies  # type: ignore[method-assign]
    with pytest.raises(Died):
        Pump(source, create_sink("file", settings), Order("events.files", snapshot_part_rows=5)).run()
    assert [len(records) for _, records in lake.delivered()] == [5, 5]
    # What is written meanwhile is not in the snapshot, and nothing is missing or doubled.
    lake.write(lake.rows([1, 2, 30], 3))
    lake.write(lake.rows([4], 4), "delete")
    assert lake.replicate(snapshot_part_rows=5).message == ""
    read = [record for _, records in lake.delivered() for record in records if record["op"] == "r"]
    assert sorted(record["key"]["id"] for record in read) == list(range(20))
    assert {record["after"]["ts"] for record in read} == {1, 2}
    assert lake.replica() == lake.table()


def test_writers_clean_that_passed_the_checkpoint_is_answered_with_a_snapshot(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(spark, tmp_path, "COW")
    lake.write(lake.rows(range(6), 1))
    assert lake.replicate().message == ""
    for ts in range(2, 6):
        lake.write(lake.rows([0, 1, ts], ts))
    lake.write(lake.rows([2], 6), "delete")
    lake.write(
        lake.rows([0], 7),
        **{
            "hoodie.table.services.enabled": "true",
            "hoodie.clean.automatic": "true",
            "hoodie.clean.commits.retained": "1",
        },
    )
    assert any(path.name.endswith(".clean") for path in (Path(lake.path) / ".hoodie" / "timeline").iterdir())
    result = lake.replicate()
    assert result.message == ""
    assert "a clean kept only what readers since" in result.snapshot_reason
    assert lake.replica() == lake.table()
    assert lake.delivered()[-1][0].generation == 2


FILE_VERSIONS = {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.clean.fileversions.retained": "1"}


@pytest.mark.soak  # the two claims that it needs: the test before this one, and the test after it
def test_table_that_is_cleaned_by_file_versions_is_bootstrapped_and_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(spark, tmp_path, "MOR")
    for ts in range(1, 4):
        lake.write(lake.rows(range(0, 8, ts), ts))
    # The clean takes the files that the last commit wrote to: what is there is the compaction's.
    compacted = lake.service(Service.COMPACTION, **{"hoodie.compact.inline.max.delta.commits": "1"})
    assert compacted.outcome is Outcome.COMPLETED, compacted.message
    cleaned = lake.service(Service.CLEAN, **FILE_VERSIONS)
    assert cleaned.outcome is Outcome.COMPLETED, cleaned.message
    timeline = lake.source().read_timeline()
    assert timeline.cleaned_without_bound > max(timeline.known)
    result = lake.replicate(snapshot_part_rows=3)
    assert (result.message, result.rows) == ("", 8)
    assert lake.replica() == lake.table()

    lake.write(lake.rows([1, 9], 4))
    result = lake.replicate()
    assert (result.message, result.commits, result.snapshot_reason) == ("", 1, "")
    assert lake.replica() == lake.table()


def test_clean_by_file_versions_counts_as_passed_from_when_it_was_begun(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, "COW")
    lake.write(lake.rows(range(4), 1))
    assert lake.replicate().message == ""
    lake.write(lake.rows(range(4), 2))
    planned = lake.service(Service.CLEAN, ServiceMode.SCHEDULE, **FILE_VERSIONS)
    assert planned.outcome is Outcome.SCHEDULED, planned.message
    # A plan deletes nothing, and no snapshot is needed for it.
    result = lake.replicate()
    assert (result.message, result.commits, result.snapshot_reason) == ("", 1, "")
    lake.write(lake.rows(range(4), 3))
    (plan,) = (Path(lake.path) / ".hoodie" / "timeline").glob("*.clean.requested")
    late = lake.commits()[-1].requested_time
    for ending in ("requested", "inflight"):
        plan.with_name(f"{int(late) + 1}.clean.{ending}").write_bytes(plan.read_bytes())
    result = lake.replicate()
    assert result.message == ""
    assert "was not replicated before clean" in result.snapshot_reason
    assert lake.replica() == lake.table()


def test_restore_that_leaves_the_checkpoints_own_commit_is_answered_with_a_snapshot(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(spark, tmp_path, "COW")
    lake.write(lake.rows(range(6), 1))
    slow = slow_write(lake, [0], 100)
    lake.write(lake.rows([3], 101))
    slow.join()
    assert lake.replicate().message == ""
    _, last, undone = lake.commits()
    # A restore undoes what completed later; a snapshot's checkpoint names the commit that was requested last.
    assert undone.requested_time < last.requested_time
    assert lake.delivered()[-1][0].commit == last

    # As in each table with several writers: or Hudi refuses to undo a commit before one that stays.
    settings = {"hoodie.clean.failed.writes.policy": "LAZY", "hoodie.metadata.index.column.stats.enable": "false"}
    for name, value in settings.items():
        spark.conf.set(name, value)
    for procedure, name in (("create_savepoint", "commit_time"), ("rollback_to_savepoint", "instant_time")):
        spark.sql(f"call {procedure}(path => '{lake.path}', {name} => '{last.requested_time}')").collect()
    for name in settings:
        spark.conf.unset(name)
    assert undone not in lake.commits()
    assert last in lake.commits()
    result = lake.replicate()
    assert result.message == ""
    assert f"commit {undone.requested_time}, which was replicated, is no longer" in result.snapshot_reason
    assert lake.replica() == lake.table()
    assert (lake.replica()[0]["ts"], lake.replica()[3]["ts"]) == (1, 101)


@pytest.mark.parametrize("is_over", [False, True], ids=["within-its-time-to-live", "past-it"])
def test_our_clean_and_archive_leave_what_a_sink_needs_until_its_time_to_live_is_over(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, is_over: bool
) -> None:
    # Without a metadata table nothing but the retention limits Hudi's archiver.
    lake = Lake(spark, tmp_path, "COW", **{"hoodie.metadata.enable": "false"})
    clock = SetClock()
    sinks = sinks_in(tmp_path, clock)
    sinks.configure("t", {"files": TTL_S})
    lake.write(lake.rows(range(4), 1))
    report(sinks, lake.replicate())
    # The sink is away from here on.
    for ts in range(2, 7):
        lake.write(lake.rows([0, 1], ts))
    sinks.record_progress("t", "files", RunProgress("run", problem="Kafka is away", ended=True))
    clock.now += datetime.timedelta(seconds=TTL_S + 1 if is_over else TTL_S - 1)

    safepoint = sinks.safepoint("t")
    assert safepoint.released == (("files",) if is_over else ())
    assert ("sink files of table t: its time to live has ended" in caplog.text) is is_over
    retention = {"hoodie.clean.commits.retained": "1", "hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"}
    held = {} if safepoint.instant is None else {SAFEPOINT: safepoint.instant}
    expected = Outcome.COMPLETED if is_over else Outcome.NOTHING_TO_DO
    for service in (Service.CLEAN, Service.ARCHIVE):
        done = lake.service(service, **retention, **held)
        assert done.outcome is expected, done.message

    needs_snapshot = bool(sinks.begin_run("t", "files", TTL_S, "run").needs_snapshot)
    assert needs_snapshot is is_over
    result = lake.replicate(request="released" if is_over else "", snapshot=is_over)
    report(sinks, result)
    assert bool(result.snapshot_reason) is is_over
    assert lake.delivered()[-1][0].generation == (2 if is_over else 1)
    assert lake.replica() == lake.table()
    after = sinks.get("t", "files")
    assert (after.needs_snapshot, after.problem) == (False, "")
    assert sinks.safepoint("t").instant == lake.commits()[-1].requested_time


@pytest.mark.parametrize("type", [pytest.param("COW", marks=pytest.mark.soak), "MOR"])
def test_parts_of_large_commits_are_together_what_the_commits_bring_whole_also_after_a_death_between_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type: str
) -> None:
    lake = Lake(spark, tmp_path, type)
    lake.write(lake.rows(range(12), 1))
    for sink in ("whole", "parts"):
        assert lake.replicate(sink=sink).message == ""
    lake.write(lake.rows([*range(0, 12, 2), *range(20, 29)], 2))
    lake.write(lake.rows([1, 3, 5], 3), "delete")
    lake.write(lake.rows([30, 32], 4), "insert_overwrite")
    assert lake.replicate(sink="whole").message == ""
    commit, calls = FileSink.commit, []

    def dies(self: FileSink, checkpoint: Checkpoint) -> None:
        calls.append(checkpoint)
        if len(calls) == 3:
            raise ZeroDivisionError("within the first commit")
        commit(self, checkpoint)

    with monkeypatch.context() as planted:
        planted.setattr(FileSink, "commit", dies)
        assert "within the first commit" in lake.replicate(sink="parts", most_rows=4).message
    durable, _ = lake.delivered("parts")[-1]
    assert durable.part is not None
    assert durable.part.rows == 8
    result = lake.replicate(sink="parts", most_rows=4)
    assert (result.message, result.commits) == ("", 3)

    found = {sink: dict[CommitRef, list[tuple[Checkpoint, list[Any]]]]() for sink in ("whole", "parts")}
    for sink, commits in found.items():
        for checkpoint, records in lake.delivered(sink):
            if checkpoint.snapshot is None and checkpoint.rows:
                assert checkpoint.commit is not None
                commits.setdefault(checkpoint.commit, []).append((checkpoint, records))
    assert [len(parts) for parts in found["parts"].values()] == [4, 1, 4]
    for ref, parts in found["parts"].items():
        ((whole, expected),) = found["whole"][ref]
        records = [record for _, some in parts for record in some]
        assert sorted(records, key=json.dumps) == sorted(expected, key=json.dumps)
        assert sum(int(checkpoint.checksum, 16) for checkpoint, _ in parts) == int(whole.checksum, 16)
        keys = [[json.dumps(record["key"], separators=(",", ":")) for record in some] for _, some in parts]
        assert [key for some in keys for key in some] == sorted(key for some in keys for key in some)
        assert [checkpoint.part and checkpoint.part.after for checkpoint, _ in parts] == [
            *(some[-1] for some in keys[:-1]),
            None,
        ]
    assert lake.replica("parts") == lake.replica("whole") == lake.table()
    assert spark.sparkContext._jsc.getPersistentRDDs().isEmpty()


@pytest.mark.parametrize("most_rows", [0, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("type", [pytest.param("COW", marks=pytest.mark.soak), "MOR"])
def test_commit_that_was_not_read_whole_is_an_error_and_the_checkpoint_stays(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type: str, most_rows: int
) -> None:
    lake = Lake(spark, tmp_path, type, **{"hoodie.table.cdc.enabled": "false"})
    lake.write(lake.rows(range(6), 1))
    assert lake.replicate().message == ""
    # One of three loses by its ordering value, which is no shortfall.
    lake.write(lake.rows([0, 2], 5))
    lake.write(lake.rows([0], 3).union(lake.rows([2, 4], 6)))
    before, read = lake.delivered(), SliceReading.changes

    def without_a_row(self: SliceReading) -> DataFrame:
        found = read(self)
        assert found is not None
        return found.where(F.get_json_object("key", "$.id") != "4")

    with monkeypatch.context() as planted:
        planted.setattr(SliceReading, "changes", without_a_row)
        result = lake.replicate(most_rows=most_rows)
    commit = lake.commits()[-1]
    assert f"commit {commit.requested_time} of table {lake.path} was not read as it was written" in result.message
    assert "of partition 'p0': read 0 inserts, 1 updates, 0 deletes" in result.message
    assert (result.commits, len(lake.delivered())) == (1, len(before) + (2 if most_rows else 1))
    assert lake.replicate().message == ""
    assert lake.replica() == lake.table()
    assert {key: lake.replica()[key]["ts"] for key in (0, 2, 4)} == {0: 5, 2: 6, 4: 6}


@pytest.mark.parametrize("type", [pytest.param("COW", marks=pytest.mark.soak), "MOR"])
def test_commits_that_are_read_together_bring_what_each_brings_alone(
    spark: SparkSession, tmp_path: Path, type: str
) -> None:
    lake = Lake(spark, tmp_path, type, **{"hoodie.table.cdc.enabled": "false"})
    lake.write(lake.rows(range(8), 1))
    # Updates of the same rows again and again, inserts, one delete, and records that lose by their ordering value.
    for ts, ids in ((5, [0, 1]), (6, [0, 8]), (4, [0, 2]), (7, [1, 9, 3])):
        lake.write(lake.rows(ids, ts))
    lake.write(lake.rows([0], 8), "delete")
    lake.write(lake.rows([2, 3], 9))
    commits = lake.commits()[1:]
    alone, together, jobs = lake.source(), lake.source(), spark.sparkContext._jsc.sc().dagScheduler()
    counted = [jobs.numTotalJobs()]
    expected = [sorted(alone.read(commit)) for commit in commits]
    counted.append(jobs.numTotalJobs())
    together.expect(commits)
    found = [sorted(together.read(commit)) for commit in commits]
    counted.append(jobs.numTotalJobs())
    together.expect(())
    assert found == expected
    assert [len(changes) for changes in found] == [2, 2, 1, 3, 1, 2]
    assert counted[2] - counted[1] < counted[1] - counted[0]


def test_slices_are_read_by_column_also_after_a_query_of_change_data(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, "COW")
    for ts in (1, 2):
        lake.write(lake.rows(range(4), ts))
    source, commit = lake.source(), lake.commits()[-1]
    assert source.change_data(commit).count() == 4
    by_column = "spark.sql.parquet.enableVectorizedReader"
    assert spark.conf.get(by_column) == "false", "Hudi leaves the session as it is: the reader need not repair it"
    assert len(list(source.read(commit))) == 4
    assert spark.conf.get(by_column) == "true"


@pytest.mark.parametrize(
    "is_deleted", [True, pytest.param(False, marks=pytest.mark.soak)], ids=["deleted", "unreadable"]
)
def test_fault_in_one_of_commits_that_are_read_together_is_raised_at_that_one(
    spark: SparkSession, tmp_path: Path, is_deleted: bool
) -> None:
    lake = Lake(spark, tmp_path, "COW", **{"hoodie.table.cdc.enabled": "false"})
    for ts in range(1, 5):
        lake.write(lake.rows(range(4), ts))
    _, first, second, third = lake.commits()
    for file in Path(lake.path).glob(f"p*/*_{third.requested_time}.parquet"):
        if is_deleted:
            file.unlink()
        else:
            file.write_bytes(b"no Parquet")
    source = lake.source()
    source.expect([first, second, third])
    assert [len(list(source.read(commit))) for commit in (first, second)] == [4, 4]
    with pytest.raises(ReplicationGapError if is_deleted else Py4JJavaError):
        list(source.read(third))
    source.expect(())


@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "of-others"])
def test_clean_plan_that_passes_the_safepoint_is_not_executed(
    spark: SparkSession, tmp_path: Path, is_ours: bool
) -> None:
    lake = Lake(spark, tmp_path, "COW")
    lake.write(lake.rows(range(4), 1))
    assert lake.replicate().message == ""
    for ts in range(2, 5):
        lake.write(lake.rows([0, 1], ts))
    retention = {"hoodie.clean.commits.retained": "1"}
    # The maker of a plan knows no safepoint, or an older one.
    assert lake.service(Service.CLEAN, ServiceMode.SCHEDULE, **retention).outcome is Outcome.SCHEDULED
    hoodie = Path(lake.path) / ".hoodie"
    (plan,) = (path.name.split(".")[0] for path in hoodie.glob("timeline/*.clean.requested"))
    if not is_ours:
        (hoodie / ".heartbeat" / plan).unlink()
    files = set(Path(lake.path).rglob("p*/*.parquet"))

    held = {SAFEPOINT: lake.delivered()[-1][0].hold, **retention}
    done = lake.service(Service.CLEAN, ServiceMode.EXECUTE, **held)
    assert (done.outcome, done.failure_kind) == (Outcome.FAILED, FailureKind.CONFLICT)
    assert f"still needs those since {held[SAFEPOINT]}" in done.message
    assert set(Path(lake.path).rglob("p*/*.parquet")) == files
    assert bool(list(hoodie.glob("timeline/*.clean.requested"))) is not is_ours
    assert ("the plan is withdrawn" in done.message) is is_ours

    result = lake.replicate()
    assert result.message == ""
    assert (result.commits, result.snapshot_reason) == (3, "")
    assert lake.replica() == lake.table()
    held = {SAFEPOINT: lake.delivered()[-1][0].hold, **retention}
    if not is_ours:
        assert lake.service(Service.CLEAN, ServiceMode.EXECUTE, **held).outcome is Outcome.COMPLETED
        assert set(Path(lake.path).rglob("p*/*.parquet")) < files


@dataclass
class SetClock:
    now: datetime.datetime = datetime.datetime(2026, 11, 21, 12, 0, tzinfo=datetime.UTC)

    def __call__(self) -> datetime.datetime:
        return self.now


def sinks_in(folder: Path, clock: SetClock) -> Sinks:
    engine = create_engine(f"sqlite:///{folder}/airflow.db", poolclass=NullPool)
    metadata.create_all(engine)
    return Sinks(Registry(sessionmaker(engine), ProcessClock(clock)))


def report(sinks: Sinks, result: ReplicationResult) -> None:
    """Report what the operator reports at the end of a run."""
    assert result.message == ""
    sinks.record_progress("t", "files", RunProgress("run", result.checkpoint, "1", ended=True))


@pytest.mark.soak
def test_switch_set_on_a_table_with_200_commits_of_history_and_a_sink_added_later(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(spark, tmp_path, "COW", **{"hoodie.metadata.enable": "false"})
    with zipfile.ZipFile(HISTORY) as archive:
        archive.extractall(lake.path)
    commits = lake.commits()
    assert len(commits) < 200, "most of them are archived"
    first = lake.replicate()
    assert (first.message, first.commits) == ("", 0)
    assert lake.replica() == lake.table()
    assert max(row["ts"] for row in lake.replica().values()) == 200

    lake.write(lake.rows([0, 1, 500], 201))
    lake.write(lake.rows([2], 202), "delete")
    assert lake.replicate().commits == 2
    assert lake.replicate(sink="second").snapshot_reason == "the sink has nothing of this table yet"
    lake.write(lake.rows([3], 203))
    assert (lake.replicate().commits, lake.replicate(sink="second").commits) == (1, 1)
    assert lake.replica() == lake.replica("second") == lake.table()
    assert {lake.delivered(sink)[-1][0].generation for sink in ("files", "second")} == {1}


def test_table_made_anew_under_the_same_path_is_not_mixed_with_the_old_one(spark: SparkSession, tmp_path: Path) -> None:
    import shutil

    lake = Lake(spark, tmp_path, "COW")
    lake.write(lake.rows(range(6), 1))
    assert lake.replicate().message == ""
    shutil.rmtree(lake.path)
    lake.write(lake.rows([100], 2))
    result = lake.replicate()
    assert "this is another table" in result.snapshot_reason
    assert set(lake.replica()) == {100}
    assert lake.delivered()[-1][0].generation == 2


def test_new_column_passes_through_and_is_announced(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, "MOR")
    lake.write(lake.rows(range(4), 1))
    assert lake.replicate().message == ""
    wider = lake.rows([1, 9], 2).withColumn("city", F.when(F.col("id") >= 0, "Cork"))
    lake.write(wider)
    assert lake.replicate().message == ""
    checkpoint, records = lake.delivered()[-1]
    assert '"city"' in checkpoint.schema
    assert {record["after"]["city"] for record in records} == {"Cork"}
    lake.write(lake.rows([2], 3).withColumn("city", F.when(F.col("id") >= 0, "Bilbao")))
    assert lake.replicate().message == ""
    assert lake.delivered()[-1][0].schema == ""


@pytest.mark.parametrize(
    ("version", "options", "said"),
    [
        pytest.param(9, {"hoodie.table.cdc.enabled": "false"}, "the table has no change data", id="no-cdc"),
        pytest.param(6, {}, "Hudi 1.2 fails to read change data of table version 6", id="version-6"),
    ],
)
def test_reader_of_change_data_is_refused_where_hudi_would_garble(
    spark: SparkSession, tmp_path: Path, version: int, options: dict[str, str], said: str
) -> None:
    lake = Lake(spark, tmp_path, "MOR", version, **options)
    lake.write(lake.rows([1], 1))
    result = lake.replicate(reader=Reader.CDC)
    assert said in result.message
    assert "set reader: auto" in result.message
    assert result.failure_kind is FailureKind.REFUSED
    assert not (tmp_path / "files").exists()
    assert lake.replicate().message == ""


def test_both_readers_return_the_same_changes_and_the_result_says_which_was_chosen(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(spark, tmp_path, "COW")
    lake.write(lake.rows(range(40), 1))
    for sink in ("cdc", "slices", "auto"):
        assert lake.replicate(sink=sink).message == ""
    lake.write(lake.rows([0, 1], 2))
    lake.write(lake.rows([3], 3), "delete")
    lake.write(lake.rows(range(4, 30), 4))
    read = {reader: lake.replicate(sink=reader.value, reader=reader) for reader in Reader}
    changes = [
        {json.dumps(record, sort_keys=True) for _, records in lake.delivered(sink)[-3:] for record in records}
        for sink in ("cdc", "slices", "auto")
    ]
    assert changes[0] == changes[1] == changes[2]
    assert len(changes[0]) == 29
    assert read[Reader.AUTO].readers == {
        "cdc: it changed only 2 of 40 rewritten rows": 1,
        "cdc: it changed only 1 of 19 rewritten rows": 1,
        "slices: it changed 26 of 39 rewritten rows": 1,
    }


def test_one_millisecond_before_midnight() -> None:
    assert one_ms_before("20260301000000000") == "20260228235959999"
    assert Op("u") is Op.UPDATE


@pytest.mark.parametrize("mode", [ChangeMode.CHANGES, pytest.param(ChangeMode.LATEST, marks=pytest.mark.soak)])
def test_sink_is_compared_with_its_table_after_it_caught_up(
    spark: SparkSession, tmp_path: Path, mode: ChangeMode
) -> None:
    lake = Lake(spark, tmp_path, "MOR", **{"hoodie.table.cdc.enabled": "false"})

    def verify() -> ReplicationResult:
        path, order = str(tmp_path / "files"), Order("events.files")
        request = ReplicationRequest(lake.path, "events", "file", order, str(tmp_path / "result.json"), mode)
        return replicate(spark, replace(request, options={"path": path}, is_verification=True))

    lake.write(lake.rows(range(6), 1))
    assert lake.replicate(mode).message == ""
    lake.write(lake.rows([0, 7], 2))
    lake.write(lake.rows([1], 3), "delete")
    done = verify()
    last = lake.commits()[-1].requested_time
    assert (done.message, done.commits, done.rows) == ("", 2, 3)
    assert done.verified == f"the sink has the table's 6 rows as of commit {last}"

    # What a broken sink would have lost: the record of one row, and a value of another.
    first = min((tmp_path / "files").glob("*.jsonl"))
    lines = [line for line in first.read_text().splitlines(keepends=True) if '"id":3,' not in line]
    assert len(lines) == 6
    first.write_text("".join(lines).replace('zö\\"4-1', 'zö\\"4-9'))
    broken = verify()
    assert (broken.failure_kind, broken.verified) == (FailureKind.REFUSED, "")
    assert "6 rows and the sink 5: 1 are missing in the sink, 0 are in the sink alone, 1 differ" in broken.message
    assert 'missing: {"id":3,"part":"p1"}, different: {"id":4,"part":"p0"}' in broken.message


@pytest.mark.soak
def test_mirror_that_differs_from_its_table_is_repaired(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, "MOR", **{"hoodie.table.cdc.enabled": "false"})
    file = tmp_path / "mirror.db"
    with closing(sqlite3.connect(file)) as mirror, mirror:
        mirror.execute("create table mirror (id integer, name text, part text, primary key (id, part))")

    def run(**given: bool) -> ReplicationResult:
        order = Order("events.mirror")
        request = ReplicationRequest(
            lake.path, "events", "database", order, str(tmp_path / "result.json"), ChangeMode.LATEST,
            options={"url": f"sqlite:///{file}", "table": "mirror", "columns": "name"},
        )  # fmt: skip
        return replicate(spark, replace(request, **given))

    def rows() -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(file)) as mirror:
            return sorted(mirror.execute("select id, name, part from mirror"))

    lake.write(lake.rows(range(6), 1))
    lake.write(lake.rows([0, 7], 2))
    assert run().message == ""
    right = rows()
    with closing(sqlite3.connect(file)) as mirror, mirror:
        mirror.execute("delete from mirror where id = 0")
        mirror.execute("update mirror set name = 'other' where id = 7")
        mirror.execute("insert into mirror values (8, 'x', 'p0')")
    assert rows() != right
    assert run(is_verification=True).failure_kind is FailureKind.REFUSED
    done = run(is_verification=True, is_repair=True)
    assert (done.message, "3 keys differed, and their rows were sent again" in done.verified) == ("", True)
    assert rows() == right
