"""A null arrived as its column's default, in the target's table or an event's schema.

Report: https://github.com/airbytehq/airbyte/issues/28968
Report: https://github.com/debezium/debezium/pull/6039
Report: https://github.com/confluentinc/kafka-connect-jdbc/pull/1433
Verdict: right
"""

from __future__ import annotations

import json

import pytest

from airflow_lake_provider.replication.change import Batch, Change, Op
from airflow_lake_provider.replication.formats.debezium import DebeziumFormat
from airflow_lake_provider.replication.sink_contract import commit_ref
from airflow_lake_provider.sink_options.kafka import DebeziumOptions
from local_stack.postgres import LocalPostgres
from tests.support.postgres_target import INT, LONG, NESTED, Target


@pytest.mark.parametrize("is_nested", [False, True], ids=["in blocks", "by value"])
def test_null_stays_null_in_a_column_with_a_default(postgres: LocalPostgres, is_nested: bool) -> None:
    target = Target(postgres)
    target.sql(f"create table {target.name} (id bigint primary key, n int default 1234, st jsonb, other int default 5)")
    fields = {"id": LONG, "n": INT} | ({"st": NESTED} if is_nested else {})
    more = {"st": {"a": 1}} if is_nested else {}
    target.send(fields, {"id": 1, "n": None, **more}, {"id": 2, "n": 7, **more})
    target.send(fields, {"id": 2, "n": None, **more}, {"id": 3, "n": None, **more})
    # A column that the rows do not have is the target's own.
    assert target.sql(f"select id, n, other from {target.name} order by id") == [
        (1, None, 5),
        (2, None, 5),
        (3, None, 5),
    ]


def test_schema_of_an_event_has_no_default_that_a_converter_would_take_for_a_null() -> None:
    schema = {
        "type": "record",
        "name": "r",
        "fields": [{"name": "id", "type": "long"}, {"name": "n", "type": ["int", "null"], "default": 1234}],
    }
    row = json.dumps({"id": 1, "n": None})
    batch = Batch(commit_ref(1), [Change(Op.INSERT, '{"id":1}', None, row)], 1, schema=json.dumps(schema))
    ((_, value), *_) = DebeziumFormat(DebeziumOptions("t", "t"), "1").records_of(batch.changes[0], batch)
    assert value is not None
    event = json.loads(value)
    assert event["payload"]["after"] == {"id": 1, "n": None}
    assert "1234" not in json.dumps(event["schema"])
