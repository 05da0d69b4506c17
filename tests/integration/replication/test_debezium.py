"""Debezium's events in a real topic, in the transactions of their commits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_lake_provider.errors import SinkRefusedError
from airflow_lake_provider.replication.checkpoint import CommitPart
from airflow_lake_provider.replication.sink import Sink
from airflow_lake_provider.replication.sink_contract import SinkContract, batch, checkpoint, delete, insert, read
from local_stack.kafka import LocalKafka
from local_stack.kafka_consumer import read_topic
from tests.support.kafka_streams import kafka_sink, new_stream


class TestKafkaSinkInDebezium(SinkContract):
    @pytest.fixture(autouse=True)
    def _broker(self, broker: LocalKafka) -> None:
        self.broker = broker

    def make_sink(self, stream: str) -> Sink:
        return kafka_sink(self.broker, stream, format="debezium", partitions="1")

    def read_back(self, stream: str) -> list[tuple[int, int | None]]:
        records = read_topic(self.broker.bootstrap, stream)
        events = [(record.key["payload"], record.value["payload"]) for record in records if record.value is not None]
        return [(key["id"], (event["after"] or {}).get("value")) for key, event in events]


def test_events_tombstones_and_boundaries_are_one_transaction(broker: LocalKafka) -> None:
    stream = new_stream()
    options = {"skipped.operations": "none", "provide.transaction.metadata": "true", "schemas.enable": "false"}
    sink = kafka_sink(broker, stream, format="debezium", partitions="1", **options)
    sink.open()
    sink.write(batch(1, [read(1, 10)], generation=2, begins_snapshot=True))
    sink.write(batch(1, [read(2, 20)], generation=2))
    sink.commit(checkpoint(stream, 1))
    sink.write(batch(2, [insert(3, 30)]))
    # An aborted commit leaves no boundary either.
    sink.close()
    sink = kafka_sink(broker, stream, format="debezium", partitions="1", **options)
    sink.open()
    sink.write(batch(2, [delete(1, 10)]))
    sink.commit(checkpoint(stream, 2))
    sink.commit(checkpoint(stream, 3))
    sink.close()
    records = read_topic(broker.bootstrap, stream)
    assert [(record.key, record.value and record.value["op"]) for record in records] == [
        (None, "t"),
        ({"id": 1}, "r"),
        ({"id": 2}, "r"),
        ({"id": 1}, "d"),
        ({"id": 1}, None),
    ]
    boundaries = [record.value for record in read_topic(broker.bootstrap, f"{stream}.transaction")]
    assert [(found["status"], found["event_count"]) for found in boundaries] == [
        ("BEGIN", None),
        ("END", 3),
        ("BEGIN", None),
        ("END", 1),
    ]


def test_transaction_of_a_large_commit_ends_once_with_all_its_events_whatever_run_writes_its_parts(
    broker: LocalKafka,
) -> None:
    stream = new_stream()
    options = {"provide.transaction.metadata": "true", "schemas.enable": "false"}

    def opened() -> Sink:
        sink = kafka_sink(broker, stream, format="debezium", partitions="1", **options)
        sink.open()
        return sink

    sink = opened()
    sink.write(batch(1, [insert(1, 10), insert(2, 20)]))
    sink.commit(replace(checkpoint(stream, 1), part=CommitPart('{"id":2}', 2)))
    sink.write(batch(1, [insert(3, 30)]))
    sink.commit(replace(checkpoint(stream, 1), part=CommitPart('{"id":3}', 3)))
    sink.write(batch(1, [insert(4, 40)]))
    sink.close()
    sink = opened()
    sink.write(batch(1, [insert(4, 40)]))
    sink.commit(checkpoint(stream, 1))
    sink.write(batch(2, [insert(5, 50)]))
    sink.commit(checkpoint(stream, 2))
    sink.close()
    boundaries = [record.value for record in read_topic(broker.bootstrap, f"{stream}.transaction")]
    assert [(found["status"], found["event_count"]) for found in boundaries] == [
        ("BEGIN", None),
        ("END", 4),
        ("BEGIN", None),
        ("END", 1),
    ]
    orders = [record.value["transaction"]["total_order"] for record in read_topic(broker.bootstrap, stream)]
    assert orders == [1, 2, 3, 4, 1]


def test_truncate_events_are_refused_where_partitions_could_overtake_one_another(broker: LocalKafka) -> None:
    stream = new_stream()
    options = {"format": "debezium", "skipped.operations": "none"}
    message = f"topic {stream} has 3 partitions, and a truncate event"
    refused = kafka_sink(broker, stream, partitions="3", **options)
    with pytest.raises(SinkRefusedError, match=message):
        refused.open()
    other = kafka_sink(broker, stream, partitions="3", format="debezium")
    other.open()
    other.close()
    # What the topic has counts, and not what the entry says.
    with pytest.raises(SinkRefusedError, match=message):
        kafka_sink(broker, stream, partitions="1", **options).open()
