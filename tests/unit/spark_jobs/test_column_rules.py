"""Which columns leave a table, without Spark: schemas, and the settings that are refused."""

from __future__ import annotations

import json

import pytest

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.sink_options.options import TakenOptions
from airflow_lake_provider.sink_options.run import take_columns
from lake_jobs.replication.column_rules import ColumnRules, rules_of

COLUMNS = ("id", "email", "price", "tags", "part")
SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "orders",
        "namespace": "n",
        "fields": [
            {"name": "_hoodie_record_key", "type": ["null", "string"]},
            {"name": "id", "type": "long"},
            {"name": "email", "type": "string"},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 5}},
        ],
    }
)


def rules(**options: str) -> ColumnRules:
    names = {"include": "column.include.list", "exclude": "column.exclude.list", "hash": "column.mask.hash.SHA-256"}
    names |= {"salt": "column.mask.hash.salt", "stars": "column.mask.with.3.chars"}
    taken = TakenOptions({names[key]: text for key, text in options.items()}, "the sink")
    return rules_of(take_columns(taken), "orders").for_key(("id",), COLUMNS)


def test_schema_has_the_types_of_what_leaves() -> None:
    found = json.loads(rules(exclude="price", hash="email", salt="s").schema(SCHEMA))
    assert {field["name"]: field["type"] for field in found["fields"][1:]} == {
        "id": "long",
        "email": ["null", "string"],
    }
    assert rules().schema(SCHEMA) == SCHEMA
    assert rules(exclude="price").schema("") == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"exclude": "id"}, "column.exclude.list names 'id', a column of the key of table orders"),
        ({"hash": "id", "salt": "s"}, "column.mask.hash.SHA-256 names 'id', a column of the key"),
        ({"stars": "id"}, "column.mask.with.<n>.chars names 'id', a column of the key"),
        ({"exclude": "emial"}, "table orders has no column 'emial', which column.exclude.list names: it has id, email"),
        ({"include": "emial"}, "table orders has no column 'emial', which column.include.list names"),
        ({"include": "email", "exclude": "price"}, "both column.include.list and column.exclude.list"),
        ({"hash": "email"}, "without column.mask.hash.salt"),
        ({"hash": "email", "salt": "s", "stars": "email"}, "two masks of column 'email'"),
    ],
)
def test_rules_that_would_let_out_or_lose_something_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        rules(**options)


def test_unknown_rule_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"knows no setting column.exclude, allowed: column.include.list, column"):
        take_columns(TakenOptions({"column.exclude": "email", "topic": "t"}, "the sink"))
