"""The files between task and driver, how a message reads, and the tables file's entry."""

from __future__ import annotations

import json
import re
from decimal import Decimal

import pytest

from airflow_lake_provider.config.tables_file import parse_tables_file
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.job_contract import ContractError, FailureKind, Submitter, from_json, to_json
from airflow_lake_provider.replication.change import (
    Change,
    ChangeMode,
    CommitRef,
    Op,
    canonical,
    checksum_of,
    message_of,
)
from airflow_lake_provider.replication.job import (
    ReplicationRequest,
    ReplicationResult,
)
from airflow_lake_provider.replication.transactions import Order

COMMIT = CommitRef("20260101000000001", "20260101000000002")


def test_request_and_result_survive_printing() -> None:
    request = ReplicationRequest(
        "/lake/orders", "orders", "kafka", Order("t.kafka", "r1", True, "", 7), "/w/result.json",
        ChangeMode.LATEST, ("id",), {"topic": "t", "kafka.sasl.password": "geheim"}, Submitter("h", 1, 2),
    )  # fmt: skip
    assert from_json(ReplicationRequest, to_json(request)) == request
    result = ReplicationResult("t.kafka", True, "{}", 3, 4, "asked for", FailureKind.LOCK, "no lock")
    assert from_json(ReplicationResult, to_json(result)) == result
    for damaged in ("", "[]", "{}", '{"order": 1}'):
        with pytest.raises(ContractError):
            from_json(ReplicationRequest, damaged)
    with pytest.raises(ContractError):
        from_json(ReplicationResult, '{"a": 1}')


def test_request_of_replication_names_the_field_that_does_not_fit() -> None:
    request = ReplicationRequest("/lake/orders", "orders", "kafka", Order("t.kafka"), "/w/result.json")
    body = json.loads(to_json(request))
    for change, named in (
        ({"order": body["order"] | {"batch_rows": "many"}}, "'order.batch_rows' is 'many', expected a whole number"),
        ({"order": body["order"] | {"rows": 1}}, "'order.rows' is unknown"),
        ({"mode": "both"}, "'mode' is 'both', allowed: changes, latest"),
        ({"key": ["id", 7]}, "'key[1]' is 7, expected a text"),
    ):
        with pytest.raises(ContractError, match=re.escape(named)):
            from_json(ReplicationRequest, json.dumps(body | change))


@pytest.mark.parametrize(
    ("change", "mode", "expected"),
    [
        pytest.param(Change(Op.INSERT, '{"id":1}', None, '{"id":1}'), ChangeMode.LATEST, {"id": 1}, id="latest"),
        pytest.param(Change(Op.DELETE, '{"id":1}', '{"id":1}', None), ChangeMode.LATEST, None, id="tombstone"),
        pytest.param(
            Change(Op.UPDATE, '{"id":1}', '{"id":1,"v":"a"}', '{"id":1,"v":"b"}'),
            ChangeMode.CHANGES,
            {
                "op": "u",
                "commit": COMMIT.requested_time,
                "completed": COMMIT.completed_time,
                "key": {"id": 1},
                "before": {"id": 1, "v": "a"},
                "after": {"id": 1, "v": "b"},
            },
            id="changes",
        ),
    ],
)
def test_message(change: Change, mode: ChangeMode, expected: object) -> None:
    text = message_of(change, COMMIT, mode)
    assert (None if text is None else json.loads(text)) == expected


def test_rows_that_differ_in_the_last_of_38_digits_are_not_equal() -> None:
    long = "12345678901234567890123456789012345678"
    assert canonical({"price": Decimal(long)}) != canonical({"price": Decimal(long[:-1] + "9")})
    assert canonical({"price": Decimal(f"{long}.50")}) == canonical({"price": Decimal(f"{long}.5")})
    assert canonical({"price": 0.1, "small": 5e-324}) == canonical({"price": Decimal("0.10"), "small": 5e-324})


def test_checksum_does_not_depend_on_order_or_on_batches_and_distinguishes_rows() -> None:
    rows = [Change(Op.INSERT, f'{{"id":{i}}}', None, f'{{"id":{i}}}') for i in range(100)]
    whole = checksum_of(rows)
    assert checksum_of(reversed(rows)) == whole
    assert checksum_of(rows[50:], checksum_of(rows[:50])) == whole
    assert checksum_of(rows[1:]) != whole
    assert checksum_of([*rows, rows[0]]) != whole
    assert checksum_of([Change(Op.INSERT, "k", None, "v")]) != checksum_of([Change(Op.INSERT, "k", "v", None)])


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        pytest.param("{mode: changes}", "mapping with sink", id="no-sink"),
        pytest.param("{sink: kafka, mode: both}", "mode is 'both', allowed: changes, latest", id="mode"),
        pytest.param("{sink: kafka, format: xml}", "format is 'xml', allowed: json, avro", id="format"),
        pytest.param("{sink: file, format: avro}", "format is 'avro', allowed: json, parquet", id="format-of-file"),
        pytest.param("{sink: hudi, format: avro}", "format is 'avro', allowed: json", id="format-of-hudi"),
        pytest.param("{sink: database, format: avro}", "format is 'avro', allowed: json", id="format-of-database"),
        pytest.param("{sink: kafka, ttl_s: 0}", "ttl_s is '0', allowed: seconds above 0", id="ttl"),
        pytest.param("{sink: kafka, key: id}", "key must be a list", id="key"),
        pytest.param("{sink: kafka, topic: [a]}", "topic is 'a structure'", id="option"),
        pytest.param("{sink: noop}, {sink: noop}", "two sinks are named 'noop'", id="twice"),
    ],
)
def test_wrong_entry_is_named_with_its_line(entry: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        parse_tables_file(f"tables:\n  - base_path: /lake/x\n    replication: [{entry}]\n", "tables.yaml")
    assert "tables.yaml:3" in str(raised.value)


@pytest.mark.parametrize("form", ["avro", "debezium", "json"])
def test_formats_of_kafka_are_accepted_in_the_tables_file(form: str) -> None:
    text = (
        f"tables:\n  - base_path: /lake/x\n    replication: [{{sink: kafka, topic: t, conn_id: k, format: {form}}}]\n"
    )
    (sink,) = parse_tables_file(text, "tables.yaml").policy_for("/lake/x", "x").replication
    assert dict(sink.options).get("format", "json") == form


def named(database: str = "sales", **options: str) -> dict[str, str]:
    request = ReplicationRequest(
        "/lake/sales/orders", "orders", "kafka", Order("t.kafka"), "/w/r.json", options=options, database=database
    )
    return dict(request.sink_settings.options)


def test_names_of_the_table_stand_in_the_options_of_an_entry_for_many_tables() -> None:
    options = {
        "topic": "lake.{database}.{table}",
        "checkpoint_topic": "{database}.checkpoints",
        "path": "s3a://copies/{table}",
        "table": "{database}.{table}_copy",
        "kafka.client.id": "{table}",
    }
    assert named(**options) == {
        "topic": "lake.sales.orders",
        "checkpoint_topic": "sales.checkpoints",
        "path": "s3a://copies/orders",
        "table": "sales.orders_copy",
        "kafka.client.id": "{table}",
    }


def test_name_that_the_table_lacks_or_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"topic is '\{database\}.x', and table /lake/sales/orders has no database"):
        named("", topic="{database}.x")
    with pytest.raises(
        ConfigError, match=r"path is '/x/\{tabel\}', and \{tabel\} is no name: allowed are \{database\}"
    ):
        named(path="/x/{tabel}")


def test_settings_of_columns_are_the_runs_and_not_the_sinks() -> None:
    assert named(**{"topic": "t", "column.exclude.list": "email", "reader": "slices"}) == {"topic": "t"}
