"""Large commits of real tables, sent to a real broker by tasks of Spark, side by side.

A consumer of committed records has each change once, in order per key, as the table's own rows say: when all goes well,
when a task dies, when the driver is killed between two buckets, and when a second run takes over.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka.admin as kafka_admin
import pytest
from bucket_deaths import DEATH, Death
from pyspark.sql import functions as F
from replication_histories import Kind
from test_replicate_as_process import end, submit
from test_replication_kills import ON_SERVERS, play
from test_replication_on_hudi import Lake, _time_zone  # noqa: F401 - the fixture holds here as well
from test_replication_workload import FIRST_SEED, Servers, Topic, servers  # noqa: F401 - a fixture

from airflow_lake_provider.execution.engines.packaging import find_package
from airflow_lake_provider.job_contract import FailureKind, from_json
from airflow_lake_provider.replication.change import Change, Op, checksum_of
from airflow_lake_provider.replication.checkpoint import Checkpoint, from_text
from airflow_lake_provider.replication.job import ReplicationRequest, ReplicationResult
from airflow_lake_provider.replication.spread import bucket_stream, owner_of
from airflow_lake_provider.replication.transactions import Order
from airflow_lake_provider.sink_options.run import Reader
from lake_jobs.replication import commit_spreader
from local_stack import kafka
from local_stack.kafka import LocalKafka
from local_stack.kafka_consumer import Record, read_topic
from replicate import replicate
from tests.support.spark_session import ONE_TASK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PATIENCE_S = 120 * float(os.environ.get("LAKE_PATIENCE", "1"))
BUCKETS = 3


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    if not kafka.LIB.is_dir() and shutil.which("mvn") is None:
        pytest.skip("Kafka needs Maven and Java 17: `make kafka`")
    started = LocalKafka(tmp_path_factory.mktemp("kafka"))
    started.start()
    yield started
    started.stop()


@pytest.fixture(autouse=True)
def _tasks_have_the_package(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """As spark-submit's `--py-files` and PYSPARK_PYTHON give it to them."""
    monkeypatch.setattr(spark.sparkContext, "pythonExec", sys.executable)
    spark.sparkContext.addPyFile(str(find_package()))


@dataclass
class Stream:
    """A topic that follows a table."""

    lake: Lake
    bootstrap: str
    more: dict[str, str] = field(default_factory=dict)
    key: tuple[str, ...] = ()

    @property
    def topic(self) -> str:
        return self.lake.folder.name.replace("_", "-")

    @property
    def name(self) -> str:
        return f"{self.topic}.kafka"

    def request(self, **order: Any) -> ReplicationRequest:
        options = {
            "bootstrap_servers": self.bootstrap,
            "topic": self.topic,
            "create_topics": "true",
            "partitions": "3",
            "control_records": "true",
            "buckets": str(BUCKETS),
            "buckets_from_rows": "4",
            **self.more,
        }
        path, result = self.lake.path, str(self.lake.folder / "result.json")
        return ReplicationRequest(
            path, "events", "kafka", Order(self.name, **order), result, key=self.key, options=options
        )

    def run(self, **order: Any) -> ReplicationResult:
        result = replicate(self.lake.spark, self.request(**order))
        assert result.message == ""
        return result

    def records(self) -> list[Record]:
        return read_topic(self.bootstrap, self.topic)

    def checkpoints(self) -> dict[str, list[Checkpoint]]:
        """Return the checkpoints of the stream and of its buckets, by stream."""
        found = defaultdict(list)
        for record in read_topic(self.bootstrap, f"{self.topic}.checkpoints"):
            assert owner_of(record.key) == self.name
            found[record.key].append(from_text(json.dumps(record.value)))
        return found

    def spread_commits(self) -> list[str]:
        own = [found for found in self.checkpoints()[self.name] if found.spread is not None and found.snapshot is None]
        return [found.commit.requested_time for found in own if found.commit is not None]

    def chunks(self) -> list[str]:
        """Return the last keys of the chunks of snapshots that came in buckets."""
        return [found.spread.until for found in self.checkpoints()[self.name] if found.spread and found.snapshot]

    def verify(self) -> None:
        """Compare what a consumer of committed records has with the table's rows; and the checkpoints with that."""
        changes = self.read_changes()
        whole = [found for found in self.checkpoints()[self.name] if not found.is_within_commit and not found.snapshot]
        reported = {found.commit.requested_time: (found.rows, found.checksum) for found in whole if found.commit}
        for commit, found in changes.items():
            assert reported[commit] == (len(found), f"{checksum_of(found):016x}")

    def read_changes(self) -> dict[str, list[Change]]:
        """Return the changes by commit, each of which fits the row that the ones before it left."""
        rows: dict[str, Any] = {}
        changes = defaultdict(list)
        for record in self.records():
            if "control" in record.headers:
                continue
            key, value = json.dumps(record.key), record.value
            if value["op"] == "r":
                assert key not in rows
            else:
                changes[record.headers["commit"]].append(as_change(record))
                assert value["before"] == rows.get(key), f"key {key} is doubled, missing or out of order"
            if value["after"] is None:
                del rows[key]
            else:
                rows[key] = value["after"]
        assert {row["id"]: row for row in rows.values()} == self.lake.table()
        return changes


def as_change(record: Record) -> Change:
    def text(body: Any) -> str | None:
        return None if body is None else json.dumps(body, separators=(",", ":"), ensure_ascii=False)

    body = record.value
    return Change(Op(body["op"]), str(text(record.key)), text(body["before"]), text(body["after"]))


def rows_of(lake: Lake, ids: Any, ts: int) -> DataFrame:
    """Without the double, which Java and Python print in different ways."""
    return lake.rows(ids, ts).drop("ratio")


_written: dict[str, Path] = {}
"""The tables with one commit that were written, by type: a table is copied in a moment."""


def table_with_a_large_commit(spark: SparkSession, folder: Path, broker: LocalKafka, type: str = "MOR") -> Stream:
    """Return a stream that has its table's snapshot, and lacks a commit of updates and inserts."""
    lake = Lake(spark, folder, type, **ONE_TASK)
    if type in _written:
        shutil.copytree(_written[type], lake.path)
    else:
        lake.write(rows_of(lake, range(20), 1))
        _written[type] = folder / "first"
        shutil.copytree(lake.path, _written[type])
    # Its snapshot comes from the driver, so that buckets have checkpoints of commits alone.
    Stream(lake, broker.bootstrap, {"buckets": "1"}).run()
    lake.write(rows_of(lake, range(10, 40), 2))
    return Stream(lake, broker.bootstrap)


@pytest.mark.parametrize("type", [pytest.param("COW", marks=pytest.mark.soak), "MOR"])
def test_commits_of_every_kind_are_in_the_topic_once_in_order_per_key(
    spark: SparkSession, tmp_path: Path, broker: LocalKafka, type: str
) -> None:
    stream = table_with_a_large_commit(spark, tmp_path, broker, type)
    lake = stream.lake
    lake.write(rows_of(lake, range(5, 15), 3), "delete")
    lake.write(rows_of(lake, [0, 1], 4))
    lake.write(rows_of(lake, range(30, 50), 5))
    result = stream.run()
    assert (result.commits, result.rows) == (4, 62)
    commits = [commit.requested_time for commit in lake.commits()]
    assert stream.spread_commits() == [commits[1], commits[2], commits[4]]
    stream.verify()
    checkpoints = stream.checkpoints()
    for bucket in range(BUCKETS):
        found = checkpoints[bucket_stream(stream.name, bucket)]
        assert [each.commit.requested_time for each in found if each.commit] == stream.spread_commits()
        assert all(each.rows for each in found)
    kinds = [record.headers.get("control", record.headers.get("commit", "")) for record in stream.records()]
    assert Counter(kinds)["resolved"] == 3 * 5


def test_row_that_moves_to_another_partition_is_deleted_before_it_is_inserted(
    spark: SparkSession, tmp_path: Path, broker: LocalKafka
) -> None:
    lake = Lake(
        spark,
        tmp_path,
        "COW",
        **ONE_TASK | {"hoodie.index.type": "GLOBAL_SIMPLE", "hoodie.simple.index.update.partition.path": "true"},
    )
    lake.write(rows_of(lake, range(12), 1))
    stream = Stream(lake, broker.bootstrap, key=("id",))
    stream.run()
    lake.write(rows_of(lake, range(12), 2).withColumn("part", F.lit("p2")))
    stream.run()
    assert len(stream.spread_commits()) == 1
    ops = defaultdict(list)
    for record in stream.records():
        if "control" not in record.headers:
            ops[record.key["id"]].append(record.value["op"])
    assert set(map(tuple, ops.values())) == {("r", "d", "i")}
    stream.verify()


def test_commit_that_was_read_in_part_reaches_no_bucket_and_without_able_executors_the_driver_sends_it(
    spark: SparkSession,
    tmp_path: Path,
    broker: LocalKafka,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream = table_with_a_large_commit(spark, tmp_path, broker)
    before = stream.checkpoints()
    whole = commit_spreader.open_alone

    class InPart:
        """A reading that loses rows, as a file that was deleted meanwhile."""

        def __init__(self, reading: Any) -> None:
            self._reading = reading
            self.find_differences = reading.find_differences

        def changes(self) -> Any:
            return self._reading.changes().where("key not like '%:12,%'")

    monkeypatch.setattr(commit_spreader, "open_alone", lambda *given: InPart(whole(*given)))
    result = replicate(spark, stream.request())
    assert "was not read as it was written" in result.message
    assert stream.checkpoints() == before
    # As where executors have another Python, without the sink's client.
    monkeypatch.setattr(commit_spreader, "open_alone", whole)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/usr/bin/false")
    stream.run()
    assert "is sent by the driver alone: an executor cannot run its part" in caplog.text
    assert stream.spread_commits() == []
    stream.verify()


def test_error_of_a_bucket_is_the_runs_and_the_next_run_sends_the_others(
    spark: SparkSession, tmp_path: Path, broker: LocalKafka
) -> None:
    """A record is too large for the topic: one bucket is refused, the others are durable."""
    lake = Lake(spark, tmp_path, "COW", **ONE_TASK)
    lake.write(rows_of(lake, range(20), 1))
    stream = Stream(lake, broker.bootstrap)
    Stream(lake, broker.bootstrap, {"buckets": "1"}).run()
    lake.write(rows_of(lake, range(20), 2).withColumn("name", F.expr("if(id = 7, repeat('x', 900000), name)")))
    set_topic(broker, stream.topic, "500000")
    result = replicate(spark, stream.request())
    assert result.failure_kind is FailureKind.REFUSED
    assert result.message.startswith("record ")
    assert '"id":7' in result.message
    done = [name for name, found in stream.checkpoints().items() if name != stream.name and found]
    assert len(done) == BUCKETS - 1
    set_topic(broker, stream.topic, "5000000")
    # Another number of buckets, or none, changes nothing for a commit that has begun.
    stream.more = {"buckets": "1"}
    stream.run()
    stream.verify()


def set_topic(broker: LocalKafka, topic: str, most_bytes: str) -> None:
    admin = kafka_admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    entry = kafka_admin.ConfigEntry(
        "max.message.bytes", most_bytes, incremental_operation=kafka_admin.AlterConfigOpType.SET
    )
    resource = kafka_admin.ConfigResource(kafka_admin.ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(10)


@pytest.mark.soak
def test_change_data_comes_in_buckets_as_well(spark: SparkSession, tmp_path: Path, broker: LocalKafka) -> None:
    stream = table_with_a_large_commit(spark, tmp_path, broker, "COW")
    stream.more = {"reader": Reader.CDC.value}
    result = stream.run()
    assert list(result.readers) == ["cdc: reader: cdc"]
    assert len(stream.spread_commits()) == 1
    stream.verify()


def test_task_that_dies_is_repeated_and_the_run_after_a_killed_driver_ends_its_last_task(
    spark: SparkSession, tmp_path: Path, broker: LocalKafka
) -> None:
    stream = table_with_a_large_commit(spark, tmp_path, broker)
    # Each task four times, as on a cluster.
    process = submit_with(tmp_path, stream, Death(str(tmp_path), task_of=0, pause_of=2, driver_after=1), "local[3,4]")
    try:
        assert process.wait(PATIENCE_S) == -9, log_of(tmp_path)
        found = stream.checkpoints()
        assert found[stream.name][-1].spread is not None
        assert {name for name in found if name != stream.name} == {bucket_stream(stream.name, at) for at in (0, 1)}
        stream.lake.write(rows_of(stream.lake, range(8, 30), 3))
        assert stream.run().commits == 2
        stream.verify()
    finally:
        end(process)
        # The task of the third bucket has outlived its driver, with all of its changes in a transaction.
        (tmp_path / "go").touch()
    wait_until((tmp_path / "refused").exists, tmp_path)
    assert (tmp_path / "refused").read_text() == "SinkFencedError"
    stream.verify()


@pytest.mark.soak
def test_run_that_was_overtaken_sends_nothing_more(spark: SparkSession, tmp_path: Path, broker: LocalKafka) -> None:
    stream = table_with_a_large_commit(spark, tmp_path, broker)
    process = submit_with(tmp_path, stream, Death(str(tmp_path), pause_of=2), "local[3,4]")
    try:
        wait_until((tmp_path / "paused").exists, tmp_path)
        wait_until(lambda: len(stream.checkpoints()) == BUCKETS, tmp_path)
        assert process.poll() is None
        # The sink is this run's from here on.
        stream.lake.write(rows_of(stream.lake, range(8, 30), 3))
        stream.run()
        stream.verify()
        (tmp_path / "go").touch()
        process.wait(PATIENCE_S)
    finally:
        end(process)
    result = from_json(ReplicationResult, (tmp_path / "result.json").read_text())
    assert result.message.startswith("another run has gone on with stream"), result.message
    stream.verify()


@pytest.mark.soak
@pytest.mark.parametrize("kind", [Kind("MOR", 9), Kind("COW", 9), Kind("MOR", 6)], ids=str)
def test_random_histories_in_buckets_are_their_tables_though_driver_executor_and_broker_died(
    spark: SparkSession,
    tmp_path: Path,
    servers: Servers,  # noqa: F811
    kind: Kind,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options, topics = Topic.options, set[str]()

    def in_buckets(topic: Topic) -> dict[str, str]:
        topics.add(topic.topic)
        return {**options(topic), "buckets": "3", "buckets_from_rows": "2"}

    monkeypatch.setattr(Topic, "options", in_buckets)
    play(spark, tmp_path, kind, FIRST_SEED + 6, ON_SERVERS, servers)
    (topic,) = topics
    checkpoints = read_topic(servers.broker.bootstrap, f"{topic}.checkpoints")
    assert any(owner_of(record.key) != record.key for record in checkpoints)


def submit_with(folder: Path, stream: Stream, death: Death, master: str) -> Any:
    # A folder of its own: the second run of a test writes its result next to the first one's.
    request = replace(stream.request(), result_path=str(folder / "result.json"))
    application = Path(__file__).with_name("bucket_deaths.py")
    return submit(folder, request, application, master, **{DEATH: json.dumps(asdict(death))})


def wait_until(is_so: Any, folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, log_of(folder)
        time.sleep(0.1)


def log_of(folder: Path) -> str:
    return (folder / "driver.log").read_text(errors="replace")[-4000:]


@pytest.fixture
def _many_ranges(spark: SparkSession) -> Iterator[None]:
    """Give a snapshot of a few rows as many ranges of keys as that of a large table has."""
    wanted = {"spark.sql.shuffle.partitions": "8", "spark.sql.adaptive.coalescePartitions.enabled": "false"}
    before = {name: spark.conf.get(name) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, str(value))


@pytest.mark.usefixtures("_many_ranges")
@pytest.mark.parametrize("type", ["COW", pytest.param("MOR", marks=pytest.mark.soak)])
def test_snapshot_comes_in_chunks_of_buckets_and_commits_pass_it(
    spark: SparkSession, tmp_path: Path, broker: LocalKafka, monkeypatch: pytest.MonkeyPatch, type: str
) -> None:
    lake = Lake(spark, tmp_path, type, **ONE_TASK)
    lake.write(rows_of(lake, range(20), 1))
    stream, writes = Stream(lake, broker.bootstrap), iter([2, 3])
    monkeypatch.setattr(commit_spreader, "_BUCKET_ROWS", 1)
    send = commit_spreader._KeptChanges.send

    def next_to_a_writer(self: Any, begun: Checkpoint, schema: str) -> Any:
        sent = send(self, begun, schema)
        if begun.snapshot is not None and (ts := next(writes, None)) is not None:
            lake.write(rows_of(lake, range(ts, 24, 3), ts))
            lake.write(rows_of(lake, [ts, 21 - ts], ts), "delete")
        return sent

    monkeypatch.setattr(commit_spreader._KeptChanges, "send", next_to_a_writer)
    stream.run(snapshot_pause_s=0.0)
    chunks = stream.chunks()
    assert len(chunks) >= 3
    assert chunks == sorted(chunks)
    found = [change.op for changes in stream.read_changes().values() for change in changes]
    assert {Op.UPDATE, Op.DELETE} <= {*found}
    assert {record.headers["generation"] for record in stream.records()} == {"1"}
