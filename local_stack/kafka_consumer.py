"""Read a topic like a consumer of committed records; nothing of the provider is used."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import confluent_kafka


@dataclass(frozen=True, slots=True)
class Record:
    """One record as it was read."""

    partition: int
    key: Any
    value: Any
    headers: dict[str, str]


def json_of(content: bytes | None) -> Any:
    """Parse a key or a value; return a text that is not JSON unchanged."""
    if content is None:
        return None
    text = content.decode()
    return json.loads(text) if text[:1] in "{[" else text


def read_topic(
    bootstrap: str,
    topic: str,
    timeout_s: float = 60,
    parse: Callable[[bytes | None], Any] = json_of,
    parse_key: Callable[[bytes | None], Any] = json_of,
) -> list[Record]:
    """Return all committed records, partition by partition in their order; `parse` reads their values."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "check",
            "isolation.level": "read_committed",
            "enable.auto.commit": "false",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": "true",
            "log_level": "2",
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=timeout_s).topics[topic].partitions
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in partitions])
        left, records = set(partitions), []
        while left:
            message = consumer.poll(timeout_s)
            assert message is not None, f"topic {topic} was not read to its end"
            if message.error() is None:
                headers = {name: value.decode() for name, value in message.headers() or ()}
                records.append(Record(message.partition(), parse_key(message.key()), parse(message.value()), headers))
            else:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                left.discard(message.partition())
    finally:
        consumer.close()
    return sorted(records, key=lambda record: record.partition)
