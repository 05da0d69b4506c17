"""Commits that come to a real broker in buckets: what a consumer of committed records sees, and who may write there."""

from __future__ import annotations

import json
import time
import uuid
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import count

import pytest

from airflow_lake_provider.errors import SinkFencedError, SinkRefusedError, StreamOvertakenError
from airflow_lake_provider.replication.change import Batch, Change, CommitRef, Op, checksum_of
from airflow_lake_provider.replication.checkpoint import Checkpoint, from_text, to_text
from airflow_lake_provider.replication.pump import Pump
from airflow_lake_provider.replication.sink import ReadableSink, Sink, SinkSettings, create_sink
from airflow_lake_provider.replication.sinks.kafka import KafkaSink
from airflow_lake_provider.replication.spread import Sent, bucket_stream, send_bucket
from airflow_lake_provider.replication.transactions import Order, Report
from local_stack.kafka import LocalKafka
from local_stack.kafka_consumer import Record, read_topic
from tests.support.patience import patient
from tests.unit.replication.bucket_model import ModelChanges, ModelSpreader
from tests.unit.replication.table_model import ModelTable, time_of

PARTITIONS, BUCKETS = 3, 4
LARGE = {key: key + 10 for key in range(40)}


@dataclass
class Stream:
    """A table, the topic that it goes to, and runs that send large commits from several threads at once."""

    bootstrap: str
    table: ModelTable = field(default_factory=ModelTable)
    topic: str = field(default_factory=lambda: f"events-{uuid.uuid4().hex[:12]}")
    more: dict[str, str] = field(default_factory=dict)
    attempts: count[int] = field(default_factory=count)

    @property
    def settings(self) -> SinkSettings:
        options = {
            "bootstrap_servers": self.bootstrap,
            "topic": self.topic,
            "create_topics": "true",
            "partitions": str(PARTITIONS),
            "timeout_s": "30",
            **self.more,
        }
        return SinkSettings(f"{self.topic}.kafka", "orders", options=options)

    def sink(self, bucket: int | None = None) -> KafkaSink:
        settings = self.settings
        if bucket is not None:
            settings = replace(settings, stream=bucket_stream(settings.stream, bucket))
        found = create_sink("kafka", settings)
        assert isinstance(found, KafkaSink)
        return found

    def spreader(self, buckets: int = BUCKETS) -> ModelSpreader:
        names = (f"attempt-{number}" for number in self.attempts)
        return ModelSpreader(self.table, None, buckets, attempts=names, settings=self.settings, make=make_sink)

    def run(self, spreader: ModelSpreader | None = None, **order: object) -> Report:
        given = Order(self.settings.stream, **order)  # type: ignore[arg-type]
        return Pump(self.table, self.sink(), given, spreader=spreader or self.spreader()).run()

    def records(self) -> list[Record]:
        return read_topic(self.bootstrap, self.topic)

    def checkpoints(self, stream: str = "") -> list[Checkpoint]:
        found = read_topic(self.bootstrap, f"{self.topic}.checkpoints")
        wanted = stream or self.settings.stream
        return [from_text(json.dumps(record.value)) for record in found if record.key == wanted]

    def verify(self) -> None:
        """Each change once, in order per key, with its count and checksum in the stream's checkpoint."""
        changes = [record for record in self.records() if "control" not in record.headers]
        seen = [(record.headers["commit"], record.headers["generation"], record.key["id"]) for record in changes]
        assert len(seen) == len(set(seen))
        rows: dict[int, int] = {}
        by_commit = defaultdict(list)
        for record in changes:
            key, after = record.key["id"], record.value["after"]
            if record.value["op"] != "r":
                assert (record.value["before"] or {}).get("value") == rows.get(key)
                by_commit[record.headers["commit"]].append(as_change(record))
            if after is None:
                rows.pop(key)
            else:
                rows[key] = after["value"]
        assert rows == self.table.rows()
        whole = [found for found in self.checkpoints() if not found.is_within_commit and found.snapshot is None]
        reported = {found.commit.requested_time: (found.rows, found.checksum) for found in whole if found.commit}
        for commit, found in by_commit.items():
            assert reported[commit] == (len(found), f"{checksum_of(found):016x}")


def make_sink(settings: SinkSettings) -> Sink:
    return create_sink("kafka", settings)


def as_change(record: Record) -> Change:
    def text(body: object) -> str | None:
        return None if body is None else json.dumps(body, separators=(",", ":"))

    body = record.value
    return Change(Op(body["op"]), str(text(record.key)), text(body["before"]), text(body["after"]))


@pytest.fixture
def stream(broker: LocalKafka) -> Stream:
    stream = Stream(broker.bootstrap)
    stream.table.complete(1, 2, {0: 0, 1: 1, 2: 2})
    return stream


class Died(Exception):
    """The process of a run is gone."""


def die_after(stream: Stream, buckets: int) -> Checkpoint:
    """Let a run die when so many buckets of the next commit are durable; return the stream's checkpoint."""
    spreader = stream.spreader()

    def die(changes: ModelChanges, begun: Checkpoint, schema: str) -> Sent:
        for bucket in sorted(changes.found)[:buckets]:
            changes.task(begun, bucket)
        raise Died

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelChanges, "send", die)
        with pytest.raises(Died):
            stream.run(spreader)
    return stream.checkpoints()[-1]


def changes_of(stream: Stream, commit: CommitRef, begun: Checkpoint) -> ModelChanges:
    assert begun.spread is not None
    with stream.spreader().read(commit, begun.spread) as changes:
        return changes


def test_consumer_sees_each_change_once_and_resolved_only_behind_all_buckets(stream: Stream) -> None:
    stream.more = {"control_records": "true"}
    stream.run()
    stream.table.complete(3, 4, LARGE)
    stream.table.complete(5, 6, {0: 100, 1: None, 41: 41})
    report = stream.run()
    assert (report.commits, report.rows) == (2, 43)
    stream.verify()
    for partition in range(PARTITIONS):
        kinds = [
            (record.headers.get("control", "row"), record.headers.get("commit") or record.value["commit"])
            for record in stream.records()
            if record.partition == partition
        ]
        rest = [kind for kind in kinds if kind[1] == time_of(3)]
        assert rest == [("row", time_of(3))] * (len(rest) - 1) + [("resolved", time_of(3))]
    buckets = [stream.checkpoints(bucket_stream(stream.settings.stream, at)) for at in range(BUCKETS)]
    assert sum(found.rows for (found,) in buckets) == 40
    found = stream.sink()
    assert isinstance(found, ReadableSink)
    assert report.checkpoint is not None
    rows = dict(found.read_rows(("id",), report.checkpoint))
    assert {row["id"]: row["value"] for row in rows.values() if row is not None} == stream.table.rows()


@pytest.mark.parametrize("next_buckets", [pytest.param(BUCKETS, marks=pytest.mark.soak), 1])
def test_run_that_died_between_buckets_is_continued(stream: Stream, next_buckets: int) -> None:
    stream.run()
    stream.table.complete(3, 4, LARGE)
    begun = die_after(stream, 2)
    assert 0 < len([record for record in stream.records() if record.value["op"] != "r"]) < 40
    stream.table.complete(5, 6, {0: 100, 1: None})
    stream.run(stream.spreader(next_buckets))
    stream.verify()
    assert [found.spread for found in stream.checkpoints()].count(begun.spread) == 2


def test_run_after_a_death_in_a_buckets_commit_does_not_wait_for_the_broker_to_end_it(stream: Stream) -> None:
    stream.run()
    stream.table.complete(3, 4, LARGE)
    begun = die_after(stream, 1)
    # Its checkpoint is with the broker, and the transaction is open: nothing behind it can be read.
    dead = stream.sink(2)
    dead.open()
    dead._begin()
    checkpoint = replace(begun, stream=bucket_stream(begun.stream, 2), sequence=1)
    dead._send(f"{stream.topic}.checkpoints", checkpoint.stream.encode(), to_text(checkpoint).encode(), [])
    assert dead._producer.flush(10) == 0
    began_s = time.monotonic()
    stream.run()
    assert time.monotonic() - began_s < patient(15)
    stream.verify()


def test_process_that_was_ended_commits_nothing_and_one_that_is_late_opens_nothing(stream: Stream) -> None:
    stream.run()
    large = stream.table.complete(3, 4, LARGE)
    begun = die_after(stream, 1)
    changes = changes_of(stream, large, begun)
    slow, written = stream.sink(3), changes.found[3]
    slow.open()
    slow.write(Batch(large, written, begun.generation))
    # It goes on without buckets, so this one's producer ends for no other reason.
    stream.run(stream.spreader(1), request="back", seek_until=time_of(2))
    with pytest.raises(SinkFencedError):
        slow.commit(replace(begun, stream=bucket_stream(begun.stream, 3), sequence=1))
    slow.close()
    sent = len(stream.records())
    with pytest.raises(StreamOvertakenError):
        changes.task(begun, 2)
    assert len(stream.records()) == sent
    # All of the commit once more, and what was there of it before the seek.
    versions = [record for record in stream.records() if record.value["op"] != "r"]
    assert len(versions) == 40 + len(changes.found[0])


def test_of_two_tasks_the_later_one_has_the_bucket(stream: Stream) -> None:
    stream.run()
    large = stream.table.complete(3, 4, LARGE)
    begun = die_after(stream, 0)
    changes = changes_of(stream, large, begun)

    def slowly():  # type: ignore[no-untyped-def]
        yield changes.found[1]
        changes.task(begun, 1)

    with pytest.raises(SinkFencedError):
        send_bucket(changes.order(begun, 1), make_sink, slowly())
    stream.run()
    stream.verify()


def test_topic_is_its_streams_and_its_buckets_alone(stream: Stream) -> None:
    stream.run()
    stream.table.complete(3, 4, LARGE)
    stream.run()
    own = stream.settings
    for name in ("customers.kafka", "customers.kafka#1", f"{own.stream}2", f"{own.stream}#x"):
        other = create_sink("kafka", replace(own, stream=name))
        with pytest.raises(SinkRefusedError, match=f"is stream {own.stream}'s"):
            other.open()
        other.close()
