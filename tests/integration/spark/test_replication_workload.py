"""Random histories of real tables, replicated as they go: each sink's state is the table's, at each quiet point.

A history is a seed: operations of writers, plans and services in random order. After a few of them the sinks catch up.
Each change must fit the state that the ones before it left, so none is missing, doubled or out of order; after each
commit the state must be what an ordinary query found when that commit had completed, and at the end the table itself.
LAKE_REPLICATION_WORKLOAD_S=7200 runs new seeds for so long; LAKE_REPLICATION_WORKLOAD_SEED begins at another one.

The faults that replication once had are planted again, and the same histories must find each one: with the comparison
of what was read and the commit's statistics switched off, so that it is the workload that finds it.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from pyspark import SparkContext
from pyspark.sql import functions as F
from replication_histories import ADDED, History, Kind, Rows, as_json, begin, exact
from test_replication_on_hudi import _time_zone  # noqa: F401 - the fixture holds here as well

from airflow_lake_provider.replication import feed
from airflow_lake_provider.replication.change import ChangeMode
from airflow_lake_provider.replication.checkpoint import from_text
from airflow_lake_provider.replication.job import ReplicationRequest, ReplicationResult
from airflow_lake_provider.replication.sinks import database
from airflow_lake_provider.replication.transactions import Order
from airflow_lake_provider.sink_options.run import Reader
from lake_jobs.hudi.table import list_times, read_table_state, requested_times
from lake_jobs.replication import change_columns, source
from lake_jobs.replication.change_columns import key_json
from lake_jobs.replication.commit_reading import ChangeDataReading, SliceReading
from lake_jobs.replication.reader_choice import Choice, TableTraits, find_obstacle
from lake_jobs.replication.slice_changes import ChangeQuery, TouchedGroup
from lake_jobs.replication.slice_reader import GROUP, LAST_INSTANT
from lake_jobs.replication.source import HudiSource
from lake_jobs.replication.timeline_reader import TimelineReader
from local_stack import kafka, lake_writer
from local_stack.kafka import LocalKafka
from local_stack.kafka_consumer import read_topic
from local_stack.postgres import LocalPostgres, find_programs
from replicate import replicate
from tests.support.spark_session import ONE_TASK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from replication_kills import Kills

    from airflow_lake_provider.replication.feed import SourceTimeline

FIRST_SEED = int(os.environ.get("LAKE_REPLICATION_WORKLOAD_SEED", "1"))
PATIENCE_S = float(os.environ.get("LAKE_REPLICATION_WORKLOAD_S", "0"))
STEPS, STEPS_PER_ROUND = 6, 3
Plant = Callable[[pytest.MonkeyPatch], None]


class Wrong(AssertionError):
    """A stream is not what the table says."""


@dataclass
class Stream:
    """One sink of a history's table; `plant` brings a fault back while it runs."""

    history: History
    name: str
    reader: Reader = Reader.AUTO
    plant: Plant | None = None
    checkpoint: str = ""
    servers: Servers | None = None
    has_sought: bool = False
    """Whether it has some commits twice, so that a row may be deleted again."""
    kills: Kills | None = None

    mode: ClassVar[ChangeMode] = ChangeMode.CHANGES
    kind: ClassVar[str] = "file"

    @property
    def folder(self) -> Path:
        return self.history.lake.folder

    @property
    def servers_name(self) -> str:
        """What topics and tables of this history begin with, in servers that several histories use."""
        return f"{self.history.kind}-{self.folder.name}".lower().replace("_", "-")

    def options(self) -> dict[str, str]:
        return {"path": str(self.folder / self.name)}

    def request(self, **order_of: Any) -> ReplicationRequest:
        options = {**self.options(), "reader": self.reader.value}
        result_path, order = str(self.folder / f"{self.name}.json"), Order(f"events.{self.name}", **order_of)
        path = self.history.lake.path
        return ReplicationRequest(path, "events", self.kind, order, result_path, self.mode, options=options)

    def run(self, **order_of: Any) -> ReplicationResult:
        lake, request = self.history.lake, self.request(**order_of)
        if self.plant is None:
            return replicate(lake.spark, request)
        with pytest.MonkeyPatch.context() as patch:
            # Its own guard is off: what is asked is whether the workload sees the fault.
            for reading in (SliceReading, ChangeDataReading):
                patch.setattr(reading, "find_differences", lambda *_: [])
            self.plant(patch)
            return replicate(lake.spark, request)

    def seek_back(self) -> None:
        """Let the sink get the last few commits once more, and compare. Raises Wrong."""
        self.has_sought = True
        done = from_text(self.checkpoint).done
        self.catch_up(request="seek", seek_until=done[max(0, len(done) - 3)])

    def catch_up(self, **order_of: Any) -> None:
        """Replicate, and compare what is in the sink. Raises Wrong."""
        if self.kills is not None:
            # In several calls of the sink, and several transactions of each larger commit.
            self.kills.strike(self.request(batch_rows=2, snapshot_part_rows=5, **order_of))
        result = self.run(**order_of)
        self.require((result.message, result.waits_for) == ("", ""), result.message or result.waits_for)
        self.checkpoint = result.checkpoint or self.checkpoint
        self.compare()

    def compare(self) -> None:
        """Compare the sink with the table."""
        raise NotImplementedError

    def require(self, is_right: bool, *found: object) -> None:
        if not is_right:
            raise Wrong(f"{self.name} of {self.history.kind}, after {self.history.said}: {found}")

    def require_rows(self, state: Rows, expected: Rows, where: str) -> None:
        """Compare the columns that the table has; one that was added later is null in a row that lacks it."""
        names = {name for row in expected.values() for name in row}
        found = {key: {name: exact(row.get(name)) for name in names} for key, row in state.items()}
        known, have = {_frozen(row): row for row in expected.values()}, {_frozen(row): row for row in found.values()}
        lacks = [row for text, row in known.items() if text not in have]
        more = [row for text, row in have.items() if text not in known]
        self.require(not lacks and not more, where, "lacks", lacks[:2], "and has", more[:2])

    def require_before(self, before: dict[str, Any], known: dict[str, Any], record: object) -> None:
        """Compare the row before a change with the one that an earlier change left."""
        # A change knows columns that were added or dropped between the two as little as the row before does.
        pairs = ((before.get(name), known.get(name)) for name in set(before) & set(known))
        self.require(all(one == other for one, other in pairs), "the row before was another one", record, known)


@dataclass
class Changes(Stream):
    """A reader of mode `changes`, which obeys the key of each message and the generation."""

    state: dict[str, dict[str, Any]] = field(default_factory=dict)
    generation: int = 0
    read: int = 0

    def compare(self) -> None:
        for checkpoint, records in self.history.lake.delivered(self.name)[self.read :]:
            self.read += 1
            if checkpoint.generation > self.generation:
                self.generation, self.state = checkpoint.generation, {}
            for record in records:
                self.apply(record)
            at = checkpoint.commit.requested_time if checkpoint.commit is not None else ""
            is_whole = checkpoint.snapshot is None and checkpoint.part is None
            is_commit = is_whole and "r" not in {record["op"] for record in records}
            # A sink that is sent some commits once more holds later rows next to earlier ones until it has them all.
            if is_commit and records and not self.has_sought:
                expected = self.history.rows_after.get(at)
                if expected is not None:
                    self.require_rows(self.state, expected, f"after commit {at}")
        self.require_rows(self.state, self.history.table, "at the end")

    def apply(self, record: dict[str, Any]) -> None:
        key, op = json.dumps(record["key"], sort_keys=True), record["op"]
        known = self.state.get(key)
        if not self.has_sought:
            self.require((known is None) is (op in "ir"), "no such change fits", record, known)
            if op in "ud":
                self.require_before(record["before"], known or {}, record)
        if op == "d":
            self.state.pop(key, None)
        else:
            self.state[key] = record["after"]


@dataclass
class Mirror(Stream):
    """A database table of mode `latest`. Its price is a text: SQLite's own numbers are floats."""

    mode: ClassVar[ChangeMode] = ChangeMode.LATEST
    kind: ClassVar[str] = "database"

    def options(self) -> dict[str, str]:
        file = self.folder / f"{self.name}.db"
        with closing(sqlite3.connect(file)) as connection:
            connection.execute(
                "create table if not exists mirror (id integer, name text, price text, tags text, day text, moment "
                f"text, blob blob, ts integer, part text, {ADDED} text, primary key (id, part))"
            )
        return {"url": f"sqlite:///{file}", "table": "mirror"}

    def compare(self) -> None:
        with closing(sqlite3.connect(self.folder / f"{self.name}.db")) as connection:
            connection.row_factory = sqlite3.Row
            rows = [dict(row) for row in connection.execute("select * from mirror")]
        for row in rows:
            row["price"] = row["price"] and Decimal(row["price"])
            row["tags"] = row["tags"] and json.loads(row["tags"])
            row["blob"] = row["blob"] and base64.b64encode(row["blob"]).decode()
        self.require_rows({(row["id"], row["part"]): row for row in rows}, self.history.table, "at the end")


@dataclass
class OtherLake(Stream):
    """A Hudi table that follows, with columns of the same types."""

    kind: ClassVar[str] = "hudi"

    @property
    def path(self) -> str:
        return str(self.folder / "other" / self.name)

    def options(self) -> dict[str, str]:
        type = lake_writer.TABLE_TYPES[self.history.kind.type]
        return {"path": self.path, "hoodie.datasource.write.table.type": type, **ONE_TASK}

    def compare(self) -> None:
        rows = self.history.lake.spark.read.format("hudi").load(self.path)
        names = [name for name in rows.columns if not name.startswith("_hoodie_")]
        found = rows.select(*names).collect()
        state = {(row["id"], row["part"]): {name: as_json(row[name]) for name in names} for row in found}
        self.require(len(state) == len(found), "a row is there twice")
        self.require_rows(state, self.history.table, "at the end")


@dataclass
class Topic(Stream):
    """A topic of three partitions, and a reader of it that knows the control records alone."""

    kind: ClassVar[str] = "kafka"

    def options(self) -> dict[str, str]:
        assert self.servers is not None
        return {
            "bootstrap_servers": self.servers.broker.bootstrap,
            "topic": self.topic,
            "create_topics": "true",
            "partitions": "3",
            "control_records": "true",
        }

    @property
    def topic(self) -> str:
        return f"{self.servers_name}.{self.name}"

    def compare(self) -> None:
        assert self.servers is not None
        partitions: dict[int, Rows] = {}
        seen = set[tuple[str, ...]]()
        for record in read_topic(self.servers.broker.bootstrap, self.topic, parse=exact_json):
            rows, kind = partitions.setdefault(record.partition, {}), record.headers.get("control")
            if kind == "snapshot_begins":
                rows.clear()
            elif kind is None:
                key = (record.key["id"], record.key["part"])
                change = (record.headers["generation"], record.headers["commit"], record.value["op"], str(key))
                self.require(self.has_sought or change not in seen, "a change is there twice", record)
                seen.add(change)
                after, before, known = record.value["after"], record.value["before"], rows.get(key)
                if not self.has_sought and record.value["op"] in "ud":
                    self.require(known is not None, "no such change fits", record)
                    self.require_before(before, known or {}, record)
                if after is None:
                    was_there = rows.pop(key, None) is not None
                    self.require(was_there or self.has_sought, "a row is deleted that is not there", record)
                else:
                    rows[key] = after
        state = {key: row for rows in partitions.values() for key, row in rows.items()}
        self.require(len(state) == sum(map(len, partitions.values())), "a key is in two partitions")
        self.require_rows(state, self.history.table, "at the end")


@dataclass
class Warehouse(Stream):
    """A table of PostgreSQL with columns of the rows' own types; the one that is added later is added by the sink."""

    mode: ClassVar[ChangeMode] = ChangeMode.LATEST
    kind: ClassVar[str] = "database"

    @property
    def table(self) -> str:
        return f"{self.servers_name}_{self.name}".replace("-", "_")

    def options(self) -> dict[str, str]:
        assert self.servers is not None
        self.servers.postgres.query(
            f"create table if not exists {self.table} (id bigint, name text, price numeric(24, 4), tags jsonb, day "
            "date, moment timestamptz, blob bytea, ts bigint, part text, primary key (id, part))"
        )
        return {"url": self.servers.postgres.url, "table": self.table}

    def compare(self) -> None:
        assert self.servers is not None
        found = self.servers.postgres.query(f"select row_to_json(mirror) from {self.table} mirror")
        rows = [json.loads(row, parse_float=Decimal) for row in found]
        state = {(row["id"], row["part"]): {name: as_history(name, row[name]) for name in row} for row in rows}
        self.require_rows(state, self.history.table, "at the end")


def exact_json(content: bytes | None) -> Any:
    return None if content is None else json.loads(content, parse_float=Decimal)


def as_history(name: str, value: Any) -> Any:
    """Return what PostgreSQL prints of a column as the history has it."""
    if name == "moment" and value is not None:
        moment = datetime.fromisoformat(value).astimezone(UTC)
        return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if name == "blob" and value is not None:
        # As PostgreSQL prints bytes: hexadecimal digits.
        return base64.b64encode(bytes.fromhex(value.removeprefix("\\x"))).decode()
    return exact(value)


def _frozen(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True, default=str)


@dataclass
class Servers:
    """A broker and a PostgreSQL server."""

    broker: LocalKafka
    postgres: LocalPostgres


@dataclass
class Workload:
    """A history and the streams that follow it. `plants` are faults, by name, each in a stream of its own."""

    spark: SparkSession
    folder: Path
    kind: Kind
    seed: int
    plants: dict[str, Fault] = field(default_factory=dict)
    found: dict[str, str] = field(default_factory=dict)
    """What showed each planted fault."""
    operations: tuple[str, ...] = ()
    snapshots: int = 0
    has_other_lake: bool = False
    servers: Servers | None = None
    kills: Kills | None = None

    def __post_init__(self) -> None:
        self.streams: list[Stream] = []
        self.history = begin(self.spark, self.folder, self.kind, self.seed, self.hold)
        self.timeline = TimelineReader(self.spark, self.history.lake.path)
        self.history.quiet, self.history.only = self.catch_up, self.operations
        makes = [("files", Changes, Reader.AUTO), ("mirror", Mirror, Reader.AUTO)]
        if self.plants:
            del makes[1]
        elif self.kind.has_change_data and self.kind.type == "COW":
            makes.append(("change-data", Changes, Reader.CDC))
        if self.has_other_lake:
            makes.append(("lake", OtherLake, Reader.AUTO))
        if self.servers is not None:
            # In the place of those that need no server.
            makes[:2] = [("topic", Topic, Reader.AUTO), ("warehouse", Warehouse, Reader.AUTO)]
        more = {"servers": self.servers, "kills": self.kills}
        self.streams += [make(self.history, name, reader, **more) for name, make, reader in makes]
        for name, fault in self.plants.items():
            if fault.stream is not Snapshot:
                self.streams.append(fault.stream(self.history, f"plant-{name}", plant=fault.plant))
        self.catch_up()

    def hold(self) -> str:
        """Return what all streams still need; a stream of a planted fault needs nothing once that is found."""
        return min(from_text(stream.checkpoint).hold for stream in self.streams)

    def catch_up(self) -> None:
        """Bring all streams up to date; where writes and compactions overlap, one more begins with a snapshot."""
        for stream in list(self.streams):
            try:
                stream.catch_up()
            except Wrong as wrong:
                if stream.plant is None:
                    raise
                self.found[stream.name.removeprefix("plant-")] = str(wrong)
                self.streams.remove(stream)
        self.require_timeline()
        if self.history.lake.plans() and not self.history.dead:
            self.begin_streams()

    def require_timeline(self) -> None:
        """Compare what a reader that is kept through the whole history says with the answers of Hudi's own filters."""
        seen, timeline = self.timeline.read(), read_table_state(self.spark, self.history.lake.path).timeline
        writes, compactions = timeline.getCommitsTimeline(), timeline.filterPendingCompactionTimeline()
        services = (timeline.filterPendingClusteringTimeline(), timeline.filterPendingLogCompactionTimeline())
        pending = set(requested_times(writes.filterPendingExcludingCompaction())).difference(
            *map(requested_times, services)
        )
        completed = {requested: at or requested for requested, at in list_times(writes.filterCompletedInstants())}
        assert self.timeline.times.completed == completed
        assert seen.known == completed.keys()
        assert seen.pending == tuple(sorted(pending))
        assert seen.earliest == min(requested_times(writes))
        assert seen.compactions - seen.silent == set(requested_times(compactions))
        assert seen.has_savepoints is not timeline.getSavePointTimeline().empty()
        assert seen.restored == max(requested_times(timeline.getRestoreTimeline()), default="")

    def begin_streams(self) -> None:
        self.snapshots += 1
        Snapshot(self.history, f"fresh-{self.snapshots}", kills=self.kills).catch_up()
        for name, fault in self.plants.items():
            if fault.stream is Snapshot and name not in self.found:
                try:
                    Snapshot(self.history, f"fresh-{name}-{self.snapshots}", plant=fault.plant).catch_up()
                except Wrong as wrong:
                    self.found[name] = str(wrong)

    def play(self, steps: int) -> None:
        for number in range(steps):
            self.history.step()
            if number % STEPS_PER_ROUND == STEPS_PER_ROUND - 1:
                self.catch_up()
        self.catch_up()


class Snapshot(Changes):
    """A sink that is added in the middle of the history, and begins with a snapshot."""


# --- The faults that replication once had


@dataclass(frozen=True)
class Fault:
    """How a fault comes back, and the kind of stream that it spoils."""

    plant: Plant
    stream: type[Stream]


def lose_overtaken_writes(patch: pytest.MonkeyPatch) -> None:
    """D1: a slice "as of" a commit's requested time lacks its log files where a compaction was planned meanwhile."""
    find = source.find_groups

    def planted(*given: Any) -> tuple[TouchedGroup, ...]:
        _, table, commit, *_ = given
        client, jvm = table.meta_client, SparkContext._active_spark_context._jvm
        pending = client.getActiveTimeline().filterPendingCompactionTimeline().getInstants()
        planned = set()
        for instant in pending:
            at = str(instant.requestedTime())
            if commit.requested_time < at <= commit.completed_time:
                plan = jvm.org.apache.hudi.common.util.CompactionUtils.getCompactionPlan(client, at)
                planned |= {str(operation.getFileId()) for operation in plan.getOperations()}
        return tuple(
            replace(group, after=group.before) if group.statistics.file_id in planned else group
            for group in find(*given)
        )

    patch.setattr(source, "find_groups", planted)


def send_records_unmerged(patch: pytest.MonkeyPatch) -> None:
    """D2: a commit's log files alone, merged with nothing: late records and partial ones seem the newest row."""
    changes = ChangeQuery.changes

    def planted(self: ChangeQuery, numbered: Sequence[tuple[int, TouchedGroup]]) -> DataFrame | None:
        logs = [(at, group) for at, group in numbered if group.own_logs and not group.statistics.deletes]
        others = changes(self, [(at, group) for at, group in numbered if (at, group) not in logs])
        if not logs:
            return others
        until = LAST_INSTANT if self.version >= 8 else self.commit.requested_time
        slices = [[(at, group.statistics.partition, group.own_logs)] for at, group in logs]
        rows = self.reader.read(slices, self.layout, until, ["_hoodie_commit_time"])
        rows = rows.where(F.col("_hoodie_commit_time") == self._time_of_group())
        none = F.lit(None).cast("string")
        own = rows.select(
            F.lit("u").alias("op"), key_json(self.key).alias("key"), none.alias("before"),
            self._image().alias("after"), GROUP,
        )  # fmt: skip
        return own if others is None else own.unionByName(others)

    patch.setattr(ChangeQuery, "changes", planted)


def snapshot_at_the_last_write(patch: pytest.MonkeyPatch) -> None:
    """D3: a snapshot at the last completed write, whatever compaction is planned."""

    def planted(timeline: SourceTimeline) -> str | None:
        first = min(timeline.pending, default="9")
        return max((known for known in timeline.known if known < first), default=None)

    patch.setattr(feed, "_find_snapshot_instant", planted)
    patch.setattr(feed, "_find_cut", lambda *_: None)


def make_floats_of_decimals(patch: pytest.MonkeyPatch) -> None:
    """D4: JSON's numbers as Python reads them."""
    patch.setattr(database, "load_json", json.loads)


def leave_the_partition_out_of_the_key(patch: pytest.MonkeyPatch) -> None:
    """D5: the record key alone names a row."""
    opened = HudiSource.__init__

    def planted(self: HudiSource, *given: Any) -> None:
        opened(self, *given)
        self._key = self._record_key

    patch.setattr(HudiSource, "__init__", planted)


def parse_with_the_newest_schema(patch: pytest.MonkeyPatch) -> None:
    """D8: change data of every commit as the newest schema has it, and what does not parse is null."""

    def choose(_: Reader, traits: TableTraits, *__: object) -> Choice:
        obstacle = find_obstacle(traits)
        return Choice(Reader.SLICES, obstacle) if obstacle else Choice(Reader.CDC, "planted")

    def read_schema(self: HudiSource, _: object) -> object:
        return self._schema()

    patch.setattr(source, "choose_reader", choose)
    patch.setattr(HudiSource, "_schema_at", read_schema)
    patch.setattr(change_columns, "_STRICT", {"mode": "PERMISSIVE"})


AT_LOGS = ("upsert_that_is_late", "both_partitions", "merge_into", "overtaken")
AT_CHANGE_DATA = ("delete", "add_column", "drop_column")
ON_LOGS = {
    "D1": Fault(lose_overtaken_writes, Changes),
    "D2": Fault(send_records_unmerged, Mirror),
    "D3": Fault(snapshot_at_the_last_write, Snapshot),
    "D4": Fault(make_floats_of_decimals, Mirror),
    "D5": Fault(leave_the_partition_out_of_the_key, Mirror),
}
ON_CHANGE_DATA = {"D8": Fault(parse_with_the_newest_schema, Changes)}

KINDS = (
    Kind("MOR", 9), Kind("COW", 8), Kind("COW", 9, has_change_data=True), Kind("MOR", 6), Kind("COW", 9, is_plain=True)
)  # fmt: skip
SEEDS = (1, 2, 4, 3, 5)
ALL_KINDS = tuple(Kind(*each) for each in (
    ("COW", 6), ("COW", 8), ("COW", 9), ("MOR", 6), ("MOR", 8), ("MOR", 9), ("COW", 9, True), ("MOR", 9, True),
    ("COW", 9, False, True), ("COW", 6, False, True)
))  # fmt: skip


# In `make test`: a merge-on-read table to Kafka and PostgreSQL, with kills (`test_replication_kills.py`), and below a
# short history with change data.
@pytest.mark.soak
@pytest.mark.parametrize(("kind", "seed"), [*zip(KINDS, SEEDS, strict=True)], ids=map(str, KINDS))
def test_streams_of_a_random_history_are_the_table(spark: SparkSession, tmp_path: Path, kind: Kind, seed: int) -> None:
    Workload(spark, tmp_path, kind, seed).play(STEPS)


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    if not kafka.LIB.is_dir() and shutil.which("mvn") is None:
        pytest.skip("Kafka needs Maven and Java 17: `make kafka`")
    if find_programs() is None:
        pytest.skip("PostgreSQL's programs are missing: `make postgres`")
    found = Servers(LocalKafka(tmp_path_factory.mktemp("kafka")), LocalPostgres())
    found.postgres.start()
    try:
        found.broker.start()
        yield found
    finally:
        found.broker.stop()
        found.postgres.stop()


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        pytest.param(kind, 3 * STEPS, id=str(kind), marks=pytest.mark.soak)
        for kind in (Kind("MOR", 9), Kind("COW", 9), Kind("MOR", 6))
    ],
)
def test_topic_and_warehouse_of_a_random_history_are_the_table(
    spark: SparkSession, tmp_path: Path, servers: Servers, kind: Kind, steps: int
) -> None:
    workload = Workload(spark, tmp_path, kind, FIRST_SEED + 4, servers=servers)
    workload.play(steps)
    for stream in workload.streams:
        generation = from_text(stream.checkpoint).generation
        stream.seek_back()
        assert from_text(stream.checkpoint).generation == generation


@pytest.mark.soak
@pytest.mark.parametrize("kind", [Kind("MOR", 9), Kind("COW", 9)], ids=str)
def test_lake_that_follows_a_random_history_is_the_table(spark: SparkSession, tmp_path: Path, kind: Kind) -> None:
    Workload(spark, tmp_path, kind, FIRST_SEED, has_other_lake=True).play(3 * STEPS)


@pytest.mark.parametrize(
    ("kind", "plants", "operations"),
    [
        pytest.param(Kind("MOR", 9), ON_LOGS, AT_LOGS, id="merge-on-read", marks=pytest.mark.soak),
        pytest.param(Kind("COW", 9, has_change_data=True), ON_CHANGE_DATA, AT_CHANGE_DATA, id="change-data"),
    ],
)
def test_history_finds_each_fault_that_replication_once_had(
    spark: SparkSession, tmp_path: Path, kind: Kind, plants: dict[str, Fault], operations: tuple[str, ...]
) -> None:
    """A short deck, each operation once. The stream without a fault goes on through the same history, and is right."""
    workload = Workload(spark, tmp_path, kind, FIRST_SEED, dict(plants), operations=operations)
    for _ in operations:
        if set(plants) <= set(workload.found):
            break
        workload.history.step()
        workload.catch_up()
    assert set(workload.found) == set(plants), (workload.found, workload.history.said)


@pytest.mark.soak
def test_streams_of_many_random_histories_are_their_tables(
    spark: SparkSession, tmp_path: Path, servers: Servers
) -> None:
    """Plays new histories of all kinds of tables until the time is over; the seed of a failed one is in its folder."""
    end, seed = time.monotonic() + max(PATIENCE_S, 60), FIRST_SEED
    while time.monotonic() < end:
        kind = ALL_KINDS[seed % len(ALL_KINDS)]
        folder = tmp_path / f"{kind}-{seed}"
        folder.mkdir()
        try:
            # Servers take turns with files and SQLite.
            of_turn = servers if seed // len(ALL_KINDS) % 2 else None
            Workload(spark, folder, kind, seed, has_other_lake=True, servers=of_turn).play(6 * STEPS)
        except Exception as error:
            raise AssertionError(f"seed {seed} on {kind}") from error
        shutil.rmtree(folder)
        seed += 1
