"""Debezium's envelope, read back by its own schema as Kafka Connect's converter reads it."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from airflow_lake_provider.errors import ConfigError, RecordRefusedError, SourceRefusedError
from airflow_lake_provider.replication.change import Batch, Change, ChangeMode, Op
from airflow_lake_provider.replication.formats.debezium import DebeziumFormat
from airflow_lake_provider.replication.sink import SinkSettings, create_sink
from airflow_lake_provider.replication.sink_contract import SCHEMA, batch, commit_ref, delete, insert, read, update
from airflow_lake_provider.sink_options.kafka import take_kafka
from airflow_lake_provider.sink_options.options import TakenOptions
from tests.support.wide_changes import EMPTY_JSON, WIDE, WIDE_CHANGES, WIDE_JSON, WIDE_SCHEMA

NOW_NS = 1_767_225_601_234_567_890


def make_format(**options: str) -> DebeziumFormat:
    broker = {"topic": "lake.orders", "bootstrap_servers": "b", "format": "debezium"}
    taken = TakenOptions({**broker, **options}, "the sink")
    found = take_kafka(taken, ChangeMode.CHANGES, "orders").debezium
    taken.end()
    assert found is not None
    return DebeziumFormat(found, "9.9", lambda: NOW_NS)


def events(form: DebeziumFormat, given: Batch) -> list[tuple[Any, Any]]:
    """Return key and value of each record as a reader with schemas has them."""
    records: list[tuple[str | None, str | None]] = [*form.begin(given)]
    for change in given.changes:
        records += form.records_of(change, given)
    return [(decode(key), decode(value)) for key, value in records]


def decode(text: str | None) -> Any:
    if text is None:
        return None
    body = json.loads(text)
    assert body.keys() == {"schema", "payload"}
    return value_of(body["schema"], body["payload"])


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MEANINGS = {
    "io.debezium.time.Date": lambda value, _: date(1970, 1, 1) + timedelta(days=value),
    "io.debezium.time.ZonedTimestamp": lambda value, _: datetime.fromisoformat(value),
    "io.debezium.time.MicroTimestamp": lambda value, _: (EPOCH + timedelta(microseconds=value)).replace(tzinfo=None),
    "io.debezium.data.Json": lambda value, _: json.loads(value),
    "org.apache.kafka.connect.data.Decimal": lambda value, schema: Decimal(
        f"{int.from_bytes(base64.b64decode(value), signed=True)}E-{schema['parameters']['scale']}"
    ),
}
PYTHON = {"int32": int, "int64": int, "double": float, "float": float, "string": str, "boolean": bool, "bytes": str}


def value_of(schema: dict[str, Any], value: Any) -> Any:
    if value is None:
        assert schema["optional"], schema
        return None
    if schema["type"] == "struct":
        assert value.keys() == {field["field"] for field in schema["fields"]}
        return {field["field"]: value_of(field, value[field["field"]]) for field in schema["fields"]}
    if schema["type"] == "array":
        return [value_of(schema["items"], part) for part in value]
    assert type(value) is PYTHON[schema["type"]], schema
    meaning = MEANINGS.get(schema.get("name", ""))
    if meaning is not None:
        return meaning(value, schema)
    return base64.b64decode(value) if schema["type"] == "bytes" else value


def test_every_type_comes_back_by_the_schema_of_its_own_record() -> None:
    given = Batch(commit_ref(1), WIDE_CHANGES, 1, schema=WIDE_SCHEMA)
    found = [
        (key, value and (value["op"], value["before"], value["after"])) for key, value in events(make_format(), given)
    ]
    nothing = {"id": 8, **dict.fromkeys([name for name in WIDE if name != "id"])}
    assert found == [
        ({"id": 7}, ("c", None, WIDE)),
        ({"id": 8}, ("u", nothing, nothing)),
        ({"id": 7}, ("d", WIDE, None)),
        ({"id": 7}, None),
    ]


def test_source_says_of_which_table_commit_and_snapshot_an_event_is() -> None:
    form = make_format(database="sales")
    given = batch(3, [read(1, 10), read(2, 20)], generation=4, begins_snapshot=True)
    (_, first), (_, second) = events(form, given)
    schema_id = first["source"].pop("schema_id")
    assert len(schema_id) == 16
    assert first["source"] == {
        "version": "9.9",
        "connector": "hudi",
        "name": "lake.orders",
        "ts_ms": 1_767_225_610_003,
        "snapshot": "first",
        "db": "sales",
        "sequence": None,
        "ts_us": 1_767_225_610_003_000,
        "ts_ns": 1_767_225_610_003_000_000,
        "table": "orders",
        "commit": commit_ref(3).requested_time,
        "completed": commit_ref(3).completed_time,
        "generation": 4,
    }
    assert (first["op"], first["ts_ms"], first["ts_us"], first["ts_ns"]) == (
        "r",
        NOW_NS // 1_000_000,
        NOW_NS // 1000,
        NOW_NS,
    )
    assert first["transaction"] is None
    assert second["source"]["snapshot"] == "true"
    ((_, later),) = events(form, batch(3, [read(3, 30)]))
    ((_, change),) = events(form, batch(4, [update(1, 11)]))
    assert [each["source"]["snapshot"] for each in (later, change)] == ["true", "false"]


def test_names_of_schemas_are_those_that_readers_recognise() -> None:
    ((key, value),) = make_format().records_of(insert(1, 10), batch(1, []))
    assert value is not None
    schema = json.loads(value)["schema"]
    assert (json.loads(key)["schema"]["name"], schema["name"]) == ("lake.orders.Key", "lake.orders.Envelope")
    assert [field["field"] for field in schema["fields"]][:5] == ["before", "after", "source", "transaction", "op"]


def test_without_schemas_the_payload_stands_alone() -> None:
    records = make_format(**{"schemas.enable": "false"}).records_of(delete(1, 10), batch(1, []))
    assert records[0][0] == records[1][0] == '{"id":1}'
    assert json.loads(records[0][1] or "")["before"] == {"id": 1, "value": 10}
    assert records[1][1] is None


def test_tombstones_can_be_left_out() -> None:
    assert len(make_format(**{"tombstones.on.delete": "false"}).records_of(delete(1, 10), batch(1, []))) == 1


@pytest.mark.parametrize("changes", [[], [read(1, 10)]], ids=["empty-table", "rows"])
def test_new_snapshot_empties_its_target_where_that_is_asked_for(changes: list[Change]) -> None:
    given = batch(2, changes, generation=2, begins_snapshot=True)
    assert [value["op"] for _, value in events(make_format(), given)] == ["r"] * len(changes)
    found = events(make_format(**{"skipped.operations": "none"}), given)
    assert [(key, value["op"]) for key, value in found] == [(None, "t"), *[({"id": 1}, "r")] * len(changes)]
    assert (found[0][1]["before"], found[0][1]["after"]) == (None, None)
    assert events(make_format(**{"skipped.operations": "none"}), batch(3, [])) == []
    first = batch(1, changes, begins_snapshot=True)
    assert [value["op"] for _, value in events(make_format(**{"skipped.operations": "none"}), first)] == ["r"] * len(
        changes
    )


def test_transactions_have_a_begin_numbers_and_an_end() -> None:
    form = make_format(**{"provide.transaction.metadata": "true"})
    for number in (1, 2):
        commit = commit_ref(number)
        key, begin = map(decode, form.begin_transaction(commit))
        found = events(form, batch(number, [insert(1, 10), delete(1, 10)]))
        _, end = map(decode, form.end_transaction(commit))
        assert key == {"id": commit.requested_time}
        assert begin == {
            "status": "BEGIN",
            "id": commit.requested_time,
            "event_count": None,
            "data_collections": None,
            "ts_ms": 1_767_225_610_000 + number,
        }
        assert (end["status"], end["event_count"]) == ("END", 2)
        assert end["data_collections"] == [{"data_collection": "orders", "event_count": 2}]
        blocks = [value["transaction"] for _, value in found if value is not None]
        assert blocks == [
            {"id": commit.requested_time, "total_order": order, "data_collection_order": order} for order in (1, 2)
        ]


@pytest.mark.parametrize(
    ("mode", "kind", "price"),
    [("string", str, "1234567890123456789012345678901234.5678"), ("double", float, 1.2345678901234568e33)],
)
def test_decimals_as_readers_ask_for_them(mode: str, kind: type, price: Any) -> None:
    given = Batch(commit_ref(1), WIDE_CHANGES[:1], 1, schema=WIDE_SCHEMA)
    ((_, value),) = events(make_format(**{"decimal.handling.mode": mode}), given)
    assert value["after"]["price"] == price
    assert type(value["after"]["price"]) is kind


def test_decimals_inside_nested_columns_keep_their_digits() -> None:
    row = WIDE_JSON.replace('{"sku":"b","n":2}', '{"sku":"b","n":1234567890123456789.0123456789}')
    change = Change(Op.INSERT, '{"id":7}', None, row)
    ((_, value),) = make_format().records_of(change, Batch(commit_ref(1), (), 1, schema=WIDE_SCHEMA))
    assert value is not None
    assert json.loads(value)["payload"]["after"]["first"] == '{"sku":"b","n":1234567890123456789.0123456789}'


def test_column_that_was_added_is_in_the_schema_from_its_commit_on() -> None:
    form = make_format()
    wider = SCHEMA.removesuffix("]}") + ',{"name":"city","type":["null","string"],"default":null}]}'
    events(form, batch(1, [insert(1, 10)]))
    change = Change(Op.INSERT, '{"id":2}', None, '{"id":2,"value":20,"city":"Cork"}')
    ((_, value),) = events(form, Batch(commit_ref(2), (change,), 1, schema=wider))
    assert value["after"] == {"id": 2, "value": 20, "city": "Cork"}


@pytest.mark.parametrize(
    ("schema", "row", "error", "said"),
    [
        pytest.param(SCHEMA, '{"id":null,"value":1}', RecordRefusedError, "field id is null", id="null"),
        pytest.param(SCHEMA, '{"id":1,"value":"x"}', RecordRefusedError, "field value: 'x' is not of", id="type"),
        pytest.param(SCHEMA, '{"id":1,"value":true}', RecordRefusedError, "field value: True is not", id="boolean"),
        pytest.param(SCHEMA, '{"id":1,"city":"Cork"}', RecordRefusedError, "city has a value and is not", id="unknown"),
        pytest.param(
            WIDE_SCHEMA, EMPTY_JSON.replace('"tax": null', '"tax":1.005'), RecordRefusedError, "tax", id="digits"
        ),
        pytest.param(
            WIDE_SCHEMA, EMPTY_JSON.replace('"ratio": null', '"ratio":"NaN"'), RecordRefusedError, "ratio", id="nan"
        ),
        pytest.param("", '{"id":1}', SourceRefusedError, "names no Avro schema", id="no-schema"),
        pytest.param(
            SCHEMA.replace('"int"', '"int","string"'), '{"id":1}', SourceRefusedError, "several types", id="union"
        ),
    ],
)
def test_what_does_not_fit_is_named(schema: str, row: str, error: type[Exception], said: str) -> None:
    change = Change(Op.INSERT, '{"id":1}', None, row)
    with pytest.raises(error, match=said):
        make_format().records_of(change, Batch(commit_ref(1), (), 1, schema=schema))


@pytest.mark.parametrize(
    ("options", "mode", "said"),
    [
        ({"decimal.handling.mode": "exact"}, ChangeMode.CHANGES, "decimal.handling.mode is 'exact', allowed: precise"),
        ({"schemas.enable": "ja"}, ChangeMode.CHANGES, "schemas.enable is 'ja', allowed: true, false"),
        ({"skipped.operations": "c"}, ChangeMode.CHANGES, "skipped.operations is 'c', allowed: t, none"),
        ({}, ChangeMode.LATEST, "format: debezium is for mode: changes"),
        ({"format": "json", "schemas.enable": "true"}, ChangeMode.CHANGES, "knows no setting 'schemas.enable'"),
    ],
)
def test_settings_that_cannot_be(options: dict[str, str], mode: ChangeMode, said: str) -> None:
    settings = {"topic": "t", "bootstrap_servers": "b", "format": "debezium", **options}
    with pytest.raises(ConfigError, match=said):
        create_sink("kafka", SinkSettings("orders.kafka", "orders", mode, settings))


def test_json_and_debezium_need_no_avro_library() -> None:
    """A driver may lack it: only format avro asks for it."""
    code = (
        "import sys; sys.modules['fastavro'] = None\n"
        "from airflow_lake_provider.replication.sink import SinkSettings, create_sink\n"
        "for form in ('json', 'debezium', 'avro'):\n"
        "    options = {'topic': 't', 'bootstrap_servers': 'b', 'format': form}\n"
        "    try:\n"
        "        create_sink('kafka', SinkSettings('s', 't', options=options))\n"
        "    except Exception as error:\n"
        "        print(form, error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "avro format: avro needs fastavro on Spark's driver: install fastavro\n"
