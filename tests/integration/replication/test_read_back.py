"""What `verify` reads back of a topic, in each format: the table's rows, of every type, and what differs of them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.replication.change import Batch, Change, ChangeMode, Op, canonical
from airflow_lake_provider.replication.sink import ReadableSink, Sink, SinkSettings, create_sink
from airflow_lake_provider.replication.sink_contract import checkpoint, commit_ref
from local_stack.kafka import LocalKafka
from local_stack.kafka_consumer import read_topic
from tests.integration.replication.registry_server import Registry, serve
from tests.support.kafka_streams import kafka_sink, new_stream
from tests.support.wide_changes import EMPTY_JSON, WIDE_JSON, WIDE_SCHEMA

KEY = '{"id":%d,"day":"2026-02-28"}'


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with serve(Registry()) as served:
        yield served


def row(number: int, **changed: Any) -> str:
    """A row of every type, as the table's JSON has it, digit by digit."""
    text = WIDE_JSON.replace('"id":7', f'"id":{number}')
    for name, value in changed.items():
        text = text.replace(f'"{name}":0.1', f'"{name}":{value}')
    return text


def write(sink: Sink, stream: str) -> None:
    sink.open()
    first = [Change(Op.READ, KEY % number, None, row(number)) for number in (1, 2, 3, 4)]
    sink.write(Batch(commit_ref(1), first, 1, begins_snapshot=True, schema=WIDE_SCHEMA))
    sink.commit(checkpoint(stream, 1))
    empty = EMPTY_JSON.replace('"id": 8', '"id": 5')
    later = [
        Change(Op.UPDATE, KEY % 2, row(2), row(2, ratio=0.25)),
        Change(Op.DELETE, KEY % 3, row(3), None),
        Change(Op.INSERT, KEY % 5, None, empty),
    ]
    sink.write(Batch(commit_ref(2), later, 1, schema=WIDE_SCHEMA))
    sink.commit(checkpoint(stream, 2))
    sink.close()


def read_back(sink: Sink, stream: str) -> dict[str, str]:
    assert isinstance(sink, ReadableSink)
    rows = dict(sink.read_rows(("id", "day"), checkpoint(stream, 2)))
    return {key: canonical(found) for key, found in rows.items() if found is not None}


@pytest.mark.parametrize("mode", list(ChangeMode))
@pytest.mark.parametrize("form", ["json", "avro", "avro-registry", "protobuf-registry", "debezium"])
def test_rows_are_read_back_from_a_topic_of_any_format(
    broker: LocalKafka, registry: Registry, form: str, mode: ChangeMode
) -> None:
    if form == "debezium" and mode is ChangeMode.LATEST:
        with pytest.raises(ConfigError, match="format: debezium is for mode: changes"):
            kafka_sink(broker, "t", mode, format=form)
        return
    stream, options = new_stream(), {"format": form.partition("-")[0]}
    if form.endswith("-registry"):
        options["schema_registry"] = registry.url
    sink = kafka_sink(broker, stream, mode, **options)
    write(sink, stream)
    assert isinstance(sink, ReadableSink)
    table = [Change(Op.READ, KEY % number, None, row(number)) for number in (1, 4)]
    table += [Change(Op.READ, KEY % 2, None, row(2, ratio=0.25))]
    table += [Change(Op.READ, KEY % 5, None, EMPTY_JSON.replace('"id": 8', '"id": 5'))]
    expected = {key: canonical(found) for key, found in map(sink.as_read, table) if found is not None}
    assert read_back(sink, stream) == expected
    # It is no comparison of anything with anything.
    key, wrong = sink.as_read(table[0]._replace(after=row(1).replace(".5678", ".5679")))
    assert wrong is not None
    assert canonical(wrong) != expected[key]


def test_events_that_do_not_say_what_they_hold_are_not_read_back(broker: LocalKafka) -> None:
    for options in ({"schemas.enable": "false"}, {"decimal.handling.mode": "double"}):
        sink = kafka_sink(broker, "t", format="debezium", **options)
        with pytest.raises(ConfigError, match=r"topic t has Debezium's events without .*: rows are read back with"):
            read_back(sink, "t")


def test_keys_are_avro_by_the_registry_and_stay_the_same_bytes(broker: LocalKafka, registry: Registry) -> None:
    stream = new_stream()
    write(kafka_sink(broker, stream, format="avro", schema_registry=registry.url), stream)
    schema = registry.schema(registry.subjects[f"{stream}-key"][0])

    def parse_key(content: bytes | None) -> Any:
        assert content is not None
        assert (content[0], int.from_bytes(content[1:5], "big")) == (0, registry.subjects[f"{stream}-key"][0])
        return content, fastavro.schemaless_reader(io.BytesIO(content[5:]), schema, None)

    records = read_topic(broker.bootstrap, stream, parse=lambda content: content, parse_key=parse_key)
    of_2 = {(record.key[0], record.partition) for record in records if record.key[1]["id"] == 2}
    assert len(of_2) == 1
    assert sorted(record.key[1]["id"] for record in records) == [1, 2, 2, 3, 3, 4, 5]
    assert registry.subjects[f"{stream}-value"]


@pytest.mark.parametrize("form", ["json", "avro"])
def test_header_of_a_record_says_of_which_table_and_schema_it_is(broker: LocalKafka, form: str) -> None:
    stream = new_stream()
    settings = {"bootstrap_servers": broker.bootstrap, "topic": stream, "create_topics": "true", "format": form}
    sink = create_sink("kafka", SinkSettings(stream, "orders", options=settings, database="sales"))
    write(sink, stream)
    records = read_topic(broker.bootstrap, stream, parse=lambda content: content)
    (source,) = {record.headers["source"] for record in records}
    named = json.loads(source)
    assert (named["database"], named["table"]) == ("sales", "orders")
    assert len(named["schema_id"]) == 16
