"""Avro and Protobuf by a registry that is not ours: its rules, its numbers, its memory of the fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from airflow_lake_provider.errors import SinkRefusedError
from airflow_lake_provider.replication.change import Batch, Change, ChangeMode, Op, canonical
from airflow_lake_provider.replication.sink import ReadableSink
from airflow_lake_provider.replication.sink_contract import checkpoint, commit_ref
from local_stack.kafka import LocalKafka
from local_stack.kafka_consumer import read_topic
from local_stack.schema_registry import LocalSchemaRegistry
from tests.support.kafka_streams import kafka_sink, new_stream
from tests.support.protobuf_columns import columns, compile_file
from tests.support.wide_changes import WIDE_CHANGES, WIDE_SCHEMA

pytestmark = [pytest.mark.integration, pytest.mark.soak(covered_by="tests/unit/replication/test_protobuf.py")]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSchemaRegistry]:
    server = LocalSchemaRegistry(tmp_path_factory.mktemp("registry"))
    server.start()
    yield server
    server.stop()


def ask(registry: LocalSchemaRegistry, path: str) -> Any:
    answer = httpx.get(f"{registry.address}/{path}")
    answer.raise_for_status()
    return answer.json()


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_rows_come_back_by_what_the_registry_holds(
    broker: LocalKafka, registry: LocalSchemaRegistry, form: str
) -> None:
    stream = new_stream()
    for number in (1, 2):
        # The second run finds its schemas registered.
        sink = kafka_sink(broker, stream, format=form, schema_registry=registry.address)
        sink.open()
        sink.write(Batch(commit_ref(number), WIDE_CHANGES[:2], 1, schema=WIDE_SCHEMA))
        sink.commit(checkpoint(stream, number))
        assert isinstance(sink, ReadableSink)
        rows = dict(sink.read_rows(("id",), checkpoint(stream, number)))
        sink.close()
    expected = dict(map(sink.as_read, WIDE_CHANGES[:2]))
    assert {key: canonical(row or {}) for key, row in rows.items()} == {
        key: canonical(row or {}) for key, row in expected.items()
    }
    for part in ("key", "value"):
        assert ask(registry, f"subjects/{stream}-{part}/versions") == [1]
        latest = ask(registry, f"subjects/{stream}-{part}/versions/latest")
        assert latest.get("schemaType", "AVRO") == form.upper()
    numbers = {
        record.value for record in read_topic(broker.bootstrap, stream, parse=lambda content: (content or b"")[:5])
    }
    assert numbers == {b"\0" + latest["id"].to_bytes(4, "big")}


def test_fields_keep_their_numbers_in_the_registry(broker: LocalKafka, registry: LocalSchemaRegistry) -> None:
    stream = new_stream()
    schemas = (columns(id="long", b="string"), columns(a="string", id="long"), columns(c="int", b="string", id="long"))
    for number, schema in enumerate(schemas, 1):
        sink = kafka_sink(broker, stream, ChangeMode.LATEST, format="protobuf", schema_registry=registry.address)
        sink.open()
        row = {1: '{"id":1,"b":"b"}', 2: '{"a":"a","id":1}', 3: '{"c":3,"b":"b","id":1}'}[number]
        sink.write(Batch(commit_ref(number), [Change(Op.INSERT, '{"id":1}', None, row)], 1, schema=schema))
        sink.commit(checkpoint(stream, number))
        sink.close()
    assert ask(registry, f"subjects/{stream}-value/versions") == [1, 2, 3]
    assert ask(registry, f"subjects/{stream}-key/versions") == [1]
    text = ask(registry, f"subjects/{stream}-value/versions/latest")["schema"]
    row = compile_file(text).FindMessageTypeByName("lake.Row")
    assert {field.name: field.number for field in row.fields} == {"id": 1, "b": 2, "a": 3, "c": 4}


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_what_its_rule_forbids_stops_the_stream(broker: LocalKafka, registry: LocalSchemaRegistry, form: str) -> None:
    stream = new_stream()
    options = {"format": form, "schema_registry": registry.address}
    sink = kafka_sink(broker, stream, ChangeMode.LATEST, **options)
    sink.open()
    first = Change(Op.INSERT, '{"id":1}', None, '{"id":1,"b":"b"}')
    sink.write(Batch(commit_ref(1), [first], 1, schema=columns(id="long", b="string")))
    sink.commit(checkpoint(stream, 1))
    sink.close()
    rule = httpx.put(f"{registry.address}/config/{stream}-value", json={"compatibility": "BACKWARD"})
    rule.raise_for_status()
    sink = kafka_sink(broker, stream, ChangeMode.LATEST, **options)
    sink.open()
    other = Change(Op.INSERT, '{"id":1}', None, '{"id":1,"b":7}')
    with pytest.raises(SinkRefusedError, match=f"409 for .*/subjects/{stream}-value/versions"):
        sink.write(Batch(commit_ref(2), [other], 1, schema=columns(id="long", b="long")))
    sink.close()
    assert len(read_topic(broker.bootstrap, stream, parse=lambda content: content)) == 1
