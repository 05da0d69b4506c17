"""A reader of a topic that knows the documentation of the control records, and nothing else of the provider."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from airflow_lake_provider.replication.pump import Pump
from airflow_lake_provider.replication.sink import ReadableSink, Sink, SinkSettings, create_sink
from airflow_lake_provider.replication.transactions import Order, Report
from local_stack.kafka import LocalKafka
from local_stack.kafka_consumer import Record, read_topic
from tests.unit.replication.table_model import ModelTable, time_of

PARTITIONS = 3
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


@dataclass
class Obedient:
    """Forgets a partition's rows where a snapshot begins, applies what follows, and takes `resolved` at its word."""

    partitions: dict[int, dict[int, int]] = field(default_factory=lambda: {at: {} for at in range(PARTITIONS)})
    until: dict[int, str] = field(default_factory=dict)
    at: dict[int, str] = field(default_factory=dict)
    """When the stream last said that it lives."""
    is_whole: dict[int, bool] = field(default_factory=dict)

    def read(self, record: Record) -> None:
        rows, kind = self.partitions[record.partition], record.headers.get("control")
        if kind == "snapshot_begins":
            rows.clear()
            self.is_whole[record.partition] = False
        elif kind == "snapshot_ends":
            self.is_whole[record.partition] = True
        elif kind == "resolved":
            self.until[record.partition] = record.value["floor"]
            self.at[record.partition] = record.value.get("at", "")
        elif kind is None and record.value["after"] is None:
            rows.pop(record.key["id"], None)
        elif kind is None:
            rows[record.key["id"]] = record.value["after"]["value"]

    def rows(self) -> dict[int, int]:
        return {key: value for rows in self.partitions.values() for key, value in rows.items()}


@dataclass
class Stream:
    """One table, its topic, and the runs between both."""

    bootstrap: str
    topic: str = field(default_factory=lambda: f"orders-{uuid.uuid4().hex[:12]}.kafka")
    checkpoints: str = "one"
    table: ModelTable = field(default_factory=ModelTable)

    def sink(self) -> Sink:
        options = {
            "bootstrap_servers": self.bootstrap,
            "topic": self.topic,
            "checkpoint_topic": f"{self.topic}.{self.checkpoints}",
            "create_topics": "true",
            "partitions": str(PARTITIONS),
            "control_records": "true",
        }
        return create_sink("kafka", SinkSettings(self.topic, "orders", options=options))

    def run(self, *, now: datetime = NOON, **order: object) -> Report:
        order = {"snapshot_part_rows": 4, **order}
        return Pump(self.table, self.sink(), Order(self.topic, **order), clock=lambda: now).run()  # type: ignore[arg-type]

    def verified(self, report: Report) -> dict[int, int]:
        """Return the rows that `verify` reads back."""
        sink, found = self.sink(), dict[str, Mapping[str, int] | None]()
        assert isinstance(sink, ReadableSink)
        assert report.checkpoint is not None
        found |= dict(sink.read_rows(("id",), report.checkpoint))
        return {row["id"]: row["value"] for row in found.values() if row is not None}

    def reader(self) -> Obedient:
        reader = Obedient()
        for record in read_topic(self.bootstrap, self.topic):
            reader.read(record)
        assert set(reader.is_whole.values()) == {True}
        return reader


def resnapshot(stream: Stream) -> Report:
    """The sink was behind, and what it needed is archived: rows were deleted that no record says of."""
    stream.table.complete(11, 12, {1: None, 2: 21})
    stream.table.complete(13, 14, {3: 33})
    stream.table.archived = {time_of(number) for number in (1, 3, 5, 11)}
    return stream.run()


def seek(stream: Stream) -> Report:
    return stream.run(request="by hand", seek_until=time_of(4))


def empty(stream: Stream) -> Report:
    """Another table under the same path, whose first commit wrote no row."""
    stream.table = ModelTable()
    stream.table.complete(21, 22, {})
    return stream.run()


def lose_the_checkpoint(stream: Stream) -> Report:
    known = stream.run().checkpoint
    assert known is not None
    stream.checkpoints = "two"
    stream.table.complete(11, 12, {1: None, 2: 21})
    return stream.run(generation=known.generation)


def test_reader_of_a_quiet_table_learns_that_the_stream_lives(broker: LocalKafka) -> None:
    stream = Stream(broker.bootstrap)
    stream.table.complete(1, 2, {key: key for key in range(10)})
    stream.run(heartbeat_s=60.0)
    before = stream.reader()
    assert set(before.at.values()) == {"2026-06-01T12:00:00.000Z"}
    for after_s in (30, 90):
        stream.run(heartbeat_s=60.0, now=NOON + timedelta(seconds=after_s))
    later = stream.reader()
    assert later.at == dict.fromkeys(range(PARTITIONS), "2026-06-01T12:01:30.000Z")
    assert (later.until, later.rows()) == (before.until, stream.table.rows())


def test_large_commit_is_resolved_with_its_last_part_alone(broker: LocalKafka) -> None:
    stream = Stream(broker.bootstrap)
    stream.table.most_rows = 3
    stream.table.complete(1, 2, {0: 0})
    stream.run()
    stream.table.complete(3, 4, {key: key for key in range(1, 10)})
    stream.run(max_transaction_rows=3)
    records = read_topic(stream.bootstrap, stream.topic)
    for partition in range(PARTITIONS):
        kinds = [record.headers.get("control", "row") for record in records if record.partition == partition]
        rest = kinds[kinds.index("resolved") + 1 :]
        assert rest == ["row"] * (len(rest) - 1) + ["resolved"]
    assert stream.reader().until == dict.fromkeys(range(PARTITIONS), time_of(4))


@pytest.mark.parametrize(
    ("what", "generation"),
    [(resnapshot, 2), (seek, 1), (empty, 2), (lose_the_checkpoint, 2)],
    ids=["resnapshot", "seek", "emptied", "lost-checkpoint"],
)
def test_reader_that_obeys_the_control_records_alone_ends_with_the_tables_rows(
    broker: LocalKafka, what: Callable[[Stream], Report], generation: int
) -> None:
    stream = Stream(broker.bootstrap)
    stream.table.complete(1, 2, {key: key for key in range(10)})
    stream.run()
    stream.table.complete(3, 4, {1: 11, 2: None})
    stream.table.complete(5, 6, {2: 20, 10: 100, 0: None})
    stream.run()
    assert stream.reader().rows() == stream.table.rows()
    report = what(stream)
    assert report.checkpoint is not None
    assert report.checkpoint.generation == generation
    assert stream.reader().rows() == stream.verified(report) == stream.table.rows()
    stream.table.complete(31, 32, {7: 77, 8: None if what is not empty else 88})
    stream.run()
    reader = stream.reader()
    assert reader.rows() == stream.table.rows()
    assert reader.until == dict.fromkeys(range(PARTITIONS), time_of(32))
