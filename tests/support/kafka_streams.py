"""A stream of its own to a topic of Kafka."""

from __future__ import annotations

import uuid

from airflow_lake_provider.replication.change import ChangeMode
from airflow_lake_provider.replication.sink import Sink, SinkSettings, create_sink
from local_stack.kafka import LocalKafka


def kafka_sink(broker: LocalKafka, stream: str, mode: ChangeMode = ChangeMode.CHANGES, **options: str) -> Sink:
    settings = {
        "bootstrap_servers": broker.bootstrap,
        "topic": stream,
        "create_topics": "true",
        "partitions": "3",
        "timeout_s": "30",
        **options,
    }
    return create_sink("kafka", SinkSettings(stream, "orders", mode, settings))


def new_stream() -> str:
    return f"orders-{uuid.uuid4().hex[:12]}.kafka"
