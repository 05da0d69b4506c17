"""Avro in a real topic: alone, and with a schema registry over HTTP."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest

from airflow_lake_provider.errors import SinkRefusedError, SinkUnavailableError
from airflow_lake_provider.replication.change import Batch, ChangeMode
from airflow_lake_provider.replication.sink import Sink
from airflow_lake_provider.replication.sink_contract import SinkContract, batch, checkpoint, commit_ref, delete, insert
from local_stack.kafka import LocalKafka
from local_stack.kafka_consumer import Record, read_topic
from local_stack.processes import free_port
from tests.integration.replication.registry_server import Registry, serve
from tests.support.kafka_streams import kafka_sink, new_stream
from tests.support.wide_changes import EXPECTED, WIDE_CHANGES, WIDE_SCHEMA


def read_container(content: bytes | None) -> Any:
    if content is None:
        return None
    (record,) = fastavro.reader(io.BytesIO(content))
    return record


class TestKafkaSinkInAvro(SinkContract):
    @pytest.fixture(autouse=True)
    def _broker(self, broker: LocalKafka) -> None:
        self.broker = broker

    def make_sink(self, stream: str) -> Sink:
        return kafka_sink(self.broker, stream, format="avro", partitions="1")

    def read_back(self, stream: str) -> list[tuple[int, int | None]]:
        records = read_topic(self.broker.bootstrap, stream, parse=read_container)
        return [(record.key["id"], (record.value["after"] or {}).get("value")) for record in records]


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serve(Registry(login="lake:secret")) as served:
        yield served


def sink_with(
    registry: Registry, broker: LocalKafka, stream: str, mode: ChangeMode = ChangeMode.CHANGES, **options: str
) -> Sink:
    login = {"schema_registry_user": "lake", "schema_registry_password": "secret"}
    return kafka_sink(broker, stream, mode, format="avro", schema_registry=registry.url, **(login | options))


def read_by_number(registry: Registry, content: bytes | None) -> Any:
    if content is None:
        return None
    assert content[0] == 0
    schema = registry.schema(int.from_bytes(content[1:5], "big"))
    return fastavro.schemaless_reader(io.BytesIO(content[5:]), schema, None)


def read_by_registry(registry: Registry, broker: LocalKafka, stream: str) -> list[Record]:
    def parse(content: bytes | None) -> Any:
        return read_by_number(registry, content)

    return read_topic(broker.bootstrap, stream, parse=parse, parse_key=parse)


def test_every_type_comes_back_by_the_registry_s_schema(broker: LocalKafka, registry: Registry) -> None:
    stream = new_stream()
    sink = sink_with(registry, broker, stream, partitions="1")
    sink.open()
    sink.write(Batch(commit_ref(1), WIDE_CHANGES, 1, schema=WIDE_SCHEMA))
    sink.commit(checkpoint(stream, 1))
    sink.close()
    records = read_by_registry(registry, broker, stream)
    values = [record.value for record in records]
    assert [(value["op"], value["key"], value["before"], value["after"]) for value in values] == EXPECTED
    assert registry.subjects == {f"{stream}-value": [1], f"{stream}-key": [2]}


def test_latest_has_tombstones_and_runs_share_a_schema(broker: LocalKafka, registry: Registry) -> None:
    stream = new_stream()
    for number, change in enumerate((insert(1, 10), delete(1, 10)), 1):
        sink = sink_with(registry, broker, stream, ChangeMode.LATEST)
        sink.open()
        sink.write(batch(number, [change, insert(2, 20 + number)]))
        sink.commit(checkpoint(stream, number))
        sink.close()
    records = read_by_registry(registry, broker, stream)
    assert [record.value for record in records if record.key == {"id": 1}] == [{"id": 1, "value": 10}, None]
    assert len(registry.schemas) == 2


def test_schema_that_the_registry_forbids_stops_the_stream(broker: LocalKafka, registry: Registry) -> None:
    registry.refuse_new = True
    stream = new_stream()
    sink = sink_with(registry, broker, stream)
    sink.open()
    with pytest.raises(SinkRefusedError, match=f"409 for .*/subjects/{stream}-value/versions: .*incompatible"):
        sink.write(batch(1, [insert(1, 10)]))
    sink.close()
    assert read_topic(broker.bootstrap, stream) == []


def test_registry_refuses_a_wrong_login(broker: LocalKafka, registry: Registry) -> None:
    sink = sink_with(registry, broker, new_stream(), schema_registry_password="wrong")
    sink.open()
    with pytest.raises(SinkRefusedError, match="401"):
        sink.write(batch(1, [insert(1, 10)]))
    sink.close()


def test_registry_that_is_away_is_said_and_may_come_back(broker: LocalKafka) -> None:
    away = Registry(url=f"http://127.0.0.1:{free_port()}")
    sink = sink_with(away, broker, new_stream())
    sink.open()
    with pytest.raises(SinkUnavailableError, match="the schema registry does not answer at http://127"):
        sink.write(batch(1, [insert(1, 10)]))
    sink.close()
