"""Records that another producer wrote into a stream's topics: the stream goes on, or says what they are."""

from __future__ import annotations

import json
import uuid

import confluent_kafka
import pytest

from airflow_lake_provider.errors import CheckpointDamagedError, SinkRefusedError
from airflow_lake_provider.replication.pump import Pump
from airflow_lake_provider.replication.sink import ReadableSink, Sink, SinkSettings, create_sink
from airflow_lake_provider.replication.transactions import Order
from local_stack.kafka import LocalKafka
from local_stack.kafka_consumer import read_topic
from tests.unit.replication.table_model import ModelTable

NAME = 'orders\u202e\n\x1b[2J"}{{ 7 * 7 }}'
"""Nothing of it is obeyed in the header that names the table."""


def sink_of(broker: LocalKafka, topic: str) -> Sink:
    options = {
        "bootstrap_servers": broker.bootstrap, "topic": topic, "checkpoint_topic": f"{topic}.checkpoints",
        "create_topics": "true", "timeout_s": "20",
    }  # fmt: skip
    return create_sink("kafka", SinkSettings(topic, NAME, options=options))


def send(broker: LocalKafka, topic: str, key: bytes, value: bytes, headers: dict[str, bytes]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, key=key, value=value, headers=list(headers.items()))
    assert producer.flush(20) == 0


def test_record_of_another_producer_is_named_and_stops_no_write(broker: LocalKafka) -> None:
    foreign: list[tuple[bytes, bytes, dict[str, bytes]]] = [
        (b"\xff\xfe", b"{}", {"generation": b"9"}),
        (b'{"id":1}', b"[" * 100_000, {"generation": b"9"}),
        (b'{"id":1}', b"[1]", {"generation": b"9"}),
        (b'{"id":1}', b"{}", {"generation": b"9" * 5_000}),
        (b'{"id":1}', b"{}", {"generation": b"\x1b[2Jten"}),
    ]
    for key, value, headers in foreign:
        topic = f"foreign-{uuid.uuid4().hex[:12]}"
        table = ModelTable()
        table.complete(1, 2, {1: 1, 2: 2})
        Pump(table, sink_of(broker, topic), Order(topic)).run()
        send(broker, topic, key, value, headers)
        table.complete(3, 4, {1: 11})
        checkpoint = Pump(table, sink_of(broker, topic), Order(topic)).run().checkpoint
        assert checkpoint is not None
        assert checkpoint.commit is not None
        sink = sink_of(broker, topic)
        assert isinstance(sink, ReadableSink)
        with pytest.raises(
            SinkRefusedError, match=rf"topic {topic}, partition 0, offset \d+: a record that"
        ) as refused:
            list(sink.read_rows(("id",), checkpoint))
        assert str(refused.value).isprintable()
    sources = [record.headers["source"] for record in read_topic(broker.bootstrap, topic) if "source" in record.headers]
    assert {json.loads(source)["table"] for source in sources} == {NAME}


def test_checkpoint_of_another_producer_is_damage_with_a_name(broker: LocalKafka) -> None:
    for text in (b"[" * 100_000, b"\xff{", b"null", b'{"stream":5}'):
        topic = f"foreign-{uuid.uuid4().hex[:12]}"
        table = ModelTable()
        table.complete(1, 2, {1: 1})
        Pump(table, sink_of(broker, topic), Order(topic)).run()
        send(broker, f"{topic}.checkpoints", topic.encode(), text, {})
        with pytest.raises(CheckpointDamagedError, match="is not a checkpoint"):
            Pump(table, sink_of(broker, topic), Order(topic)).run()
