"""Rows go through Protobuf and are read by what `protoc` makes of the registered file, not by our own classes."""

from __future__ import annotations

import json
import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format, message_factory
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_lake_provider.errors import ConfigError, RecordRefusedError, SinkRefusedError, SourceRefusedError
from airflow_lake_provider.replication.change import Change, ChangeMode, Op, as_single, canonical, load_json
from airflow_lake_provider.replication.formats.protobuf import ProtobufFormat
from airflow_lake_provider.replication.sink import SinkSettings, create_sink
from airflow_lake_provider.replication.sink_contract import SCHEMA, commit_ref, delete, insert
from tests.support.protobuf_columns import columns, compile_file
from tests.support.schema_subject import Subject
from tests.support.wide_changes import WIDE_CHANGES, WIDE_SCHEMA


def read_message(content: bytes | None, subject: Subject, name: str) -> dict[str, Any]:
    """Return the fields of a message that are there, as Protobuf's own JSON."""
    assert content is not None
    assert (content[0], content[5]) == (0, 0), "Confluent's zero byte, and the first message of the file"
    pool = compile_file(subject.find(int.from_bytes(content[1:5], "big")))
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName(name)).FromString(content[6:])
    found: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return found


def open_format(mode: ChangeMode = ChangeMode.CHANGES) -> tuple[ProtobufFormat, Subject, Subject]:
    values, keys = Subject(), Subject()
    return ProtobufFormat(mode, values, keys), values, keys


def test_rows_come_back_with_their_types() -> None:
    form, values, keys = open_format()
    inserted, empty, deleted = (form.message_of(change, commit_ref(1), WIDE_SCHEMA) for change in WIDE_CHANGES)
    row = {
        # 64 bits are texts in Protobuf's JSON.
        "id": "7",
        "name": 'Zoë 漢字 🚀 "q"',
        "price": {"value": "1234567890123456789012345678901234.5678"},
        "tax": {"value": "-0.10"},
        "at": "1969-12-31T23:59:59.999999Z",
        "wall": "2026-03-29T02:30:00.000001",
        "day": "2026-02-28",
        "raw": "AP9A",
        "ratio": 0.1,
        "ok": False,
        "lines": {"items": [{"value": {"sku": "a", "n": 1}}, {}]},
        "first": {"sku": "b", "n": 2},
        "notes": {"items": {"k": {"value": "v"}, "none": {}}},
    }
    head = dict(zip(("commit", "completed"), commit_ref(1).order[::-1], strict=True))
    read = {content: read_message(content, values, "hoodie.orders.Change") for content in (inserted, empty, deleted)}
    assert read[inserted] == {"op": "i", **head, "key": {"id": "7"}, "after": row}
    assert read[empty] == {"op": "u", **head, "key": {"id": "8"}, "before": {"id": "8"}, "after": {"id": "8"}}
    assert read[deleted] == {"op": "d", **head, "key": {"id": "7"}, "before": row}
    assert read_message(form.key_of(WIDE_CHANGES[0], WIDE_SCHEMA), keys, "hoodie.orders.key.Key") == {"id": "7"}
    for change, content in zip(WIDE_CHANGES, (inserted, empty, deleted), strict=True):
        assert content is not None
        after = form.reader.after(content)
        assert (after is None) == (change.after is None)
        assert canonical(after or {}) == canonical(load_json(change.after or "{}"))


def test_latest_is_the_row_itself_and_a_tombstone() -> None:
    form, values, _ = open_format(ChangeMode.LATEST)
    row = read_message(form.message_of(insert(1, 10), commit_ref(1), SCHEMA), values, "lake.Row")
    assert {name: int(value) for name, value in row.items()} == {"id": 1, "value": 10}
    assert form.message_of(delete(1, 10), commit_ref(1), SCHEMA) is None


def nested(*kinds: Any) -> str:
    fields = [{"name": "id", "type": "long"}]
    fields += [{"name": f"f{at}", "type": ["null", kind]} for at, kind in enumerate(kinds)]
    return json.dumps({"type": "record", "name": "r", "namespace": "hoodie.google", "fields": fields})


def test_lists_and_maps_that_are_empty_or_nested_are_not_nothing() -> None:
    points = {"type": "record", "name": "p", "fields": [{"name": "items", "type": ["null", "float"]}]}
    schema = nested(
        {"type": "array", "items": {"type": "array", "items": ["null", "int"]}},
        {"type": "map", "values": {"type": "array", "items": "long"}},
        {"type": "map", "values": "int"},
        {"type": "array", "items": points},
        {"type": "map", "values": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"type": "map", "values": {"type": "long", "logicalType": "timestamp-micros"}},
    )
    full = (
        '{"id":1,"f0":[[1,null],[]],"f1":{"a":[1],"b":[]},"f2":{"a":0},"f3":[{"items":0.1},{"items":null}],'
        '"f4":{"a":"2026-01-01T00:00:00.000001Z","b":null},"f5":{"a":"9999-12-31T23:59:59.999999Z"}}'
    )
    bare = '{"id":2,"f0":[],"f1":{},"f2":{},"f3":[],"f4":{},"f5":null}'
    form, values, _ = open_format(ChangeMode.LATEST)
    contents = [
        form.message_of(Change(Op.READ, '{"id":1}', None, text), commit_ref(1), schema) for text in (full, bare)
    ]
    read = [read_message(content, values, "hoodie.google.Row") for content in contents]
    assert read[0]["f0"] == {"items": [{"items": [{"value": 1}, {}]}, {}]}
    assert read[0]["f1"] == {"items": {"a": {"items": ["1"]}, "b": {}}}
    assert read[0]["f3"] == {"items": [{"items": 0.1}, {}]}
    assert read[0]["f5"] == {"items": {"a": "9999-12-31T23:59:59.999999Z"}}
    assert read[1] == {"id": "2", "f0": {}, "f1": {}, "f2": {}, "f3": {}, "f4": {}}
    for text, content in zip((full, bare), contents, strict=True):
        assert content is not None
        assert canonical(form.reader.after(content) or {}) == canonical(load_json(text))


def test_a_field_keeps_its_number_whatever_the_table_does() -> None:
    def line(*names: str) -> dict[str, Any]:
        return {"type": "record", "name": "l", "fields": [{"name": name, "type": "string"} for name in names]}

    values, keys = Subject(), Subject()
    texts = []
    for schema, row in (
        (columns(id="long", b="string", line=line("x", "y")), '{"id":1,"b":"b","line":{"x":"x","y":"y"}}'),
        # A column in front, one gone, the same in a nested record.
        (columns(a="string", id="long", line=line("z", "y")), '{"a":"a","id":1,"line":{"z":"z","y":"y"}}'),
        (columns(c="string", b="string", id="long"), '{"c":"c","b":"b","id":1}'),
    ):
        # Each in a process of its own: only the registry remembers.
        form = ProtobufFormat(ChangeMode.LATEST, values, keys)
        content = form.message_of(Change(Op.READ, '{"id":1}', None, row), commit_ref(1), schema)
        assert content is not None
        texts.append(content)
        again = ProtobufFormat(ChangeMode.LATEST, values, keys)
        assert again.message_of(Change(Op.READ, '{"id":1}', None, row), commit_ref(1), schema) == content
    assert len(values.versions) == 3
    # The newest file reads every message, also the earliest.
    row = compile_file(values.versions[-1]).FindMessageTypeByName("lake.Row")
    assert {field.name: field.number for field in row.fields} == {"id": 1, "b": 2, "line": 3, "a": 4, "c": 5}
    inner = row.fields_by_name["line"].message_type
    assert {field.name: field.number for field in inner.fields} == {"x": 1, "y": 2, "z": 3}
    read = [json_format.MessageToDict(message_factory.GetMessageClass(row).FromString(text[6:])) for text in texts]
    assert read == [
        {"id": "1", "b": "b", "line": {"x": "x", "y": "y"}},
        {"a": "a", "id": "1", "line": {"z": "z", "y": "y"}},
        {"c": "c", "b": "b", "id": "1"},
    ]


def test_a_key_keeps_its_bytes_when_the_row_s_schema_changes() -> None:
    form, _, keys = open_format()
    first = form.key_of(insert(1, 10), SCHEMA)
    wider = SCHEMA.removesuffix("]}") + ',{"name":"city","type":["null","string"],"default":null}]}'
    assert form.key_of(insert(1, 11), wider) == first
    assert form.key_of(insert(2, 10), wider) != first
    assert len(keys.versions) == 1


@pytest.mark.parametrize(
    ("schema", "row", "error", "said"),
    [
        pytest.param(SCHEMA, '{"id":1,"value":"x"}', RecordRefusedError, "field value: 'x' is not of", id="type"),
        pytest.param(SCHEMA, '{"id":1,"value":99999999999}', RecordRefusedError, 'record {"id":1}', id="too-large"),
        pytest.param("", '{"id":1}', SourceRefusedError, "names no Avro schema", id="no-schema"),
        pytest.param(
            SCHEMA.replace('"int"', '"int","string"'), '{"id":1}', SourceRefusedError, "several types", id="union"
        ),
        pytest.param(
            columns(id="long", a="long", A="string"), '{"id":1}', None, "", id="names-that-differ-in-case-are-two"
        ),
        pytest.param(columns(id="long", none="null"), '{"id":1}', SourceRefusedError, "no form here", id="only-null"),
    ],
)
def test_what_does_not_fit_is_named(schema: str, row: str, error: type[Exception] | None, said: str) -> None:
    change = Change(Op.INSERT, '{"id":1}', None, row)
    if error is None:
        full = '{"id":1,"a":1,"A":"x"}'
        assert open_format()[0].message_of(change._replace(after=full), commit_ref(1), schema)
        return
    with pytest.raises(error, match=said):
        open_format()[0].message_of(change, commit_ref(1), schema)


@pytest.mark.parametrize("text", ['{"type": "record"}', "message Row { int64 id = 1; string b = ", "message Row { % }"])
def test_a_subject_of_something_else_is_refused_and_not_overwritten(text: str) -> None:
    values, keys = Subject(), Subject()
    values.register(text)
    with pytest.raises(SinkRefusedError, match="something else than a Protobuf file for this subject"):
        ProtobufFormat(ChangeMode.CHANGES, values, keys).message_of(insert(1, 10), commit_ref(1), SCHEMA)
    assert values.versions == [text]


@pytest.mark.parametrize("text", ["", 'syntax = "proto3";', "message A { B b = 1; }"])
def test_a_subject_without_our_messages_has_nothing_to_keep(text: str) -> None:
    values, keys = Subject(), Subject()
    values.register(text)
    form = ProtobufFormat(ChangeMode.CHANGES, values, keys)
    assert read_message(form.message_of(insert(1, 10), commit_ref(1), SCHEMA), values, "lake.Change")["op"] == "i"


def test_protobuf_needs_a_registry() -> None:
    options = {"bootstrap_servers": "127.0.0.1:1", "topic": "t", "format": "protobuf"}
    with pytest.raises(ConfigError, match="needs schema_registry or schema_registry_conn_id for"):
        create_sink("kafka", SinkSettings("s", "orders", options=options))
    with pytest.raises(ConfigError, match="schema_registry is 'registry:8081', allowed: an address that begins with"):
        create_sink("kafka", SinkSettings("s", "orders", options=options | {"schema_registry": "registry:8081"}))
    with pytest.raises(ConfigError, match="schema_registry is for format: avro or protobuf"):
        create_sink(
            "kafka", SinkSettings("s", "orders", options=options | {"schema_registry": "http://r", "format": "json"})
        )


@example(1.1650742422751296e-29)  # it needs nine digits
@given(st.floats(width=32))
def test_a_single_has_its_shortest_text(value: float) -> None:
    found = as_single(value)
    assert struct.pack("f", found) == struct.pack("f", value)
    assert repr(found) == repr(float(str(np.float32(value))))


@given(st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)), st.decimals(allow_nan=False, allow_infinity=False))  # noqa: DTZ001
def test_times_and_decimals_of_all_sizes_come_back(at: datetime, price: Decimal) -> None:
    at = at.replace(tzinfo=UTC)
    types = {"at": {"type": "long", "logicalType": "timestamp-micros"}, "day": {"type": "int", "logicalType": "date"}}
    types["price"] = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10}
    schema = columns(id="long", **types)
    text = f"{at.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
    row = f'{{"id":1,"at":"{text}","day":"{at.date().isoformat()}","price":{price:f}}}'
    form, _, _ = open_format(ChangeMode.LATEST)
    content = form.message_of(Change(Op.READ, '{"id":1}', None, row), commit_ref(1), schema)
    assert content is not None
    assert canonical(form.reader.after(content) or {}) == canonical(load_json(row))
