"""Columns of a real PostgreSQL whose types the owner chose: values arrive whole, and keys are found again."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from airflow_lake_provider.errors import RecordRefusedError
from airflow_lake_provider.replication.change import Batch, Change, Op
from airflow_lake_provider.replication.sink_contract import checkpoint, commit_ref
from local_stack.postgres import LocalPostgres
from tests.support.postgres_target import LONG, MICROS, TEXT, Target

UUID = "6f1c2a34-0000-4000-8000-123456789abc"


def array(kind: Any) -> dict[str, Any]:
    return {"type": "array", "items": kind}


@pytest.mark.parametrize(
    ("column", "kind", "value", "shown"),
    [
        ("text[]", array(TEXT), ["a", 'b"', "{c,d}", None, ""], '{a,"b\\"","{c,d}",NULL,""}'),
        ("bigint[]", array(LONG), [1, 2**62], "{1,4611686018427387904}"),
        ("int[]", array(array(LONG)), [[1, 2], [3, 4]], "{{1,2},{3,4}}"),
        ("timestamptz[]", array(MICROS), ["2026-03-01T10:00:00.123456Z"], '{"2026-03-01 10:00:00.123456+00"}'),
        ("text[]", array(TEXT), [], "{}"),
        ("uuid", TEXT, UUID, UUID),
        ("jsonb", array(LONG), [1, 2], "[1, 2]"),
    ],
)
def test_value_is_there_as_it_was(postgres: LocalPostgres, column: str, kind: Any, value: Any, shown: str) -> None:
    target = Target(postgres)
    target.sql(f"create table {target.name} (id bigint primary key, v {column})")
    for _ in range(2):
        target.send({"id": LONG, "v": kind}, {"id": 1, "v": value})
        assert target.sql(f"set time zone 'UTC'; select cast(v as text) from {target.name}") == [(shown,)]


def test_text_is_no_array_of_its_characters(postgres: LocalPostgres) -> None:
    target = Target(postgres)
    target.sql(f"create table {target.name} (id bigint primary key, v text[])")
    with pytest.raises(RecordRefusedError, match=r"column v .* cannot have this text of 3 .*: the column has arrays"):
        target.send({"id": LONG, "v": TEXT}, {"id": 1, "v": "abc"})


@pytest.mark.parametrize("has_schema", [True, False], ids=["in blocks", "by value"])
@pytest.mark.parametrize(
    ("column", "kind", "value", "other"),
    [
        ("uuid", TEXT, UUID, str(uuid.uuid4())),
        ("text", LONG, 12, 120),
        ("varchar(9)", "boolean", True, False),
        ("real", "double", 0.1, 0.2),
        ("numeric", "double", 0.1, 0.2),
        ("char(5)", TEXT, "ab", "abc"),
    ],
)
def test_deleted_row_goes_whatever_the_type_of_the_key(
    postgres: LocalPostgres, column: str, kind: Any, value: Any, other: Any, has_schema: bool
) -> None:
    target = Target(postgres)
    target.sql(f"create table {target.name} (id {column} primary key, n bigint)")
    fields = {"id": kind, "n": LONG}
    target.send(fields, {"id": value, "n": 1}, {"id": other, "n": 2})
    sink = target.open()
    schema = json.dumps({"type": "record", "name": "r", "fields": [{"name": "id", "type": ["null", kind]}]})
    gone = Change(Op.DELETE, json.dumps({"id": value}), None, None)
    sink.write(Batch(commit_ref(9), [gone], 1, schema=schema if has_schema else ""))
    sink.commit(checkpoint(target.stream, 9))
    sink.close()
    assert target.sql(f"select n from {target.name}") == [(2,)]
