"""A stream to a topic, and a reader that obeys the generation."""

from __future__ import annotations

import uuid

import confluent_kafka.admin

from airflow_lake_provider.replication.change import ChangeMode
from airflow_lake_provider.replication.pump import Pump
from airflow_lake_provider.replication.sink import SinkSettings, create_sink
from airflow_lake_provider.replication.transactions import Order, Report
from local_stack.kafka import LocalKafka
from local_stack.kafka_consumer import read_topic
from tests.unit.replication.table_model import ModelTable

MEANING = {"key": "id", "mode": "latest", "format": "json", "columns": "all"}


class Topic:
    """One stream to a topic; a reader obeys the generation."""

    def __init__(self, broker: LocalKafka) -> None:
        self.bootstrap, self.name = broker.bootstrap, f"t{uuid.uuid4().hex[:12]}"
        self.topic = self.name
        self.source = ModelTable()
        self.source.complete(10, 11, dict.fromkeys(range(10), 1))
        self.admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": self.bootstrap})

    def run(self, *, generation: int = 0, **more: str) -> Report:
        options = {"bootstrap_servers": self.bootstrap, "topic": self.topic, "create_topics": "true", "timeout_s": "30"}
        options |= {"checkpoint_topic": f"{self.name}.checkpoints", **more}
        settings = SinkSettings(f"{self.name}.kafka", "t", ChangeMode.LATEST, options)
        order = Order(settings.stream, meaning=MEANING, generation=generation)
        return Pump(self.source, create_sink("kafka", settings), order).run()

    def rows(self) -> dict[int, int]:
        records = read_topic(self.bootstrap, self.topic)
        newest = max((int(record.headers["generation"]) for record in records), default=0)
        state: dict[int, int] = {}
        for record in records:
            if int(record.headers["generation"]) < newest:
                continue
            if record.value is None:
                state.pop(record.key["id"], None)
            else:
                state[record.key["id"]] = record.value["value"]
        return state

    def partitions_of_keys(self) -> dict[int, set[int]]:
        records = read_topic(self.bootstrap, self.topic)
        newest = max(int(record.headers["generation"]) for record in records)
        found: dict[int, set[int]] = {}
        for record in records:
            if int(record.headers["generation"]) == newest:
                found.setdefault(record.key["id"], set()).add(record.partition)
        return found
