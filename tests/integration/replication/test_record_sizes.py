"""Records and batches at the sizes that a topic of a real Kafka takes, from some KB to more than a client can send."""

from __future__ import annotations

import random
import uuid

import confluent_kafka.admin
import pytest

from airflow_lake_provider.errors import RecordRefusedError
from airflow_lake_provider.replication.change import Change, ChangeMode
from airflow_lake_provider.replication.sink import Sink, SinkSettings, create_sink
from airflow_lake_provider.replication.sink_contract import batch, checkpoint, insert
from local_stack.kafka import LocalKafka
from local_stack.kafka_consumer import read_topic


def open_sink(broker: LocalKafka, topic_bytes: int, **options: str) -> tuple[str, Sink]:
    """Make a topic that takes records of this size, and open a sink to it."""
    stream = f"t{uuid.uuid4().hex[:12]}.s"
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    topic = confluent_kafka.admin.NewTopic(stream, 1, 1, config={"max.message.bytes": str(topic_bytes)})
    admin.create_topics([topic])[stream].result(30)
    settings = {"bootstrap_servers": broker.bootstrap, "topic": stream, "create_topics": "true", "timeout_s": "30"}
    sink = create_sink("kafka", SinkSettings(stream, "orders", ChangeMode.CHANGES, {**settings, **options}))
    sink.open()
    return stream, sink


def row(number: int, size: int) -> Change:
    text = random.Random(number).randbytes(size // 2).hex()  # no codec makes it much smaller
    return insert(number, 1)._replace(after=f'{{"id":{number},"value":"{text}"}}')


def test_many_small_records_to_a_topic_that_takes_small_batches(broker: LocalKafka) -> None:
    stream, sink = open_sink(broker, 20_000)
    sink.write(batch(1, [row(number, 1000) for number in range(500)]))
    sink.commit(checkpoint(stream, 1))
    sink.close()
    assert len(read_topic(broker.bootstrap, stream)) == 500


def test_topic_may_take_more_than_a_client_can_send(broker: LocalKafka) -> None:
    stream, sink = open_sink(broker, 2**31 - 1)
    sink.write(batch(1, [row(1, 2_000_000)]))
    sink.commit(checkpoint(stream, 1))
    sink.close()
    assert len(read_topic(broker.bootstrap, stream)) == 1


def test_client_may_be_set_to_take_less_than_its_topic(broker: LocalKafka) -> None:
    options = {"kafka.message.max.bytes": "20000", "on_record_error": "skip"}
    stream, sink = open_sink(broker, 1_000_000, **options)
    sink.write(batch(1, [row(1, 1000), row(2, 30_000), row(3, 1000)]))
    sink.commit(checkpoint(stream, 1))
    sink.close()
    assert [record.key["id"] for record in read_topic(broker.bootstrap, stream)] == [1, 3]
    stream, sink = open_sink(broker, 1_000_000, **options | {"on_record_error": "stop"})
    with pytest.raises(RecordRefusedError, match=r'record \{"id":2\} has 30\d+ bytes, .* takes 20000 '):
        sink.write(batch(1, [row(2, 30_000)]))
    sink.close()
