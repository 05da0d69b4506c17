"""The spelling of indexes, and how a wish travels to the Spark job."""

from __future__ import annotations

import json

import pytest

from airflow_lake_provider.config.policies import INDEXES
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.indexing.index_spec import WANTED, kind_of, parse_index, parse_indexes, wish_options


@pytest.mark.parametrize(
    ("text", "hudi_type", "partition", "settings"),
    [
        ("record_index", "RECORD_INDEX", "record_index", {}),
        ("files", "FILES", "files", {}),
        (
            "column_stats:amount,ts",
            "COLUMN_STATS",
            "column_stats",
            {"hoodie.metadata.index.column.stats.column.list": "amount,ts"},
        ),
        (
            "secondary_index:city",
            "SECONDARY_INDEX",
            "secondary_index_city",
            {"hoodie.metadata.index.secondary.column": "city"},
        ),
        (
            "expression_index:by_day:from_unixtime(ts):format=yyyy-MM-dd",
            "EXPRESSION_INDEX",
            "expr_index_by_day",
            {
                "hoodie.metadata.index.expression.column": "ts",
                "hoodie.metadata.index.expression.options": "expr=from_unixtime,format=yyyy-MM-dd",
                "hoodie.index.name": "by_day",
                "hoodie.expression.index.type": "column_stats",
            },
        ),
    ],
)
def test_spelling_becomes_what_hudi_calls_it(
    text: str, hudi_type: str, partition: str, settings: dict[str, str]
) -> None:
    spec = parse_index(text)
    assert (spec.hudi_type, spec.partition, dict(spec.settings)) == (hudi_type, partition, settings)
    assert kind_of(partition) is spec.kind
    # The tables file accepts the same spelling.
    assert INDEXES.schema()["items"]["pattern"]


@pytest.mark.parametrize("text", ["", "bloom", "record_index:id", "secondary_index", "expression_index:x:ts"])
def test_unknown_spelling_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_index(text)


def test_indexes_come_in_the_order_in_which_hudi_can_build_them_and_once() -> None:
    specs = parse_indexes(["secondary_index:city", "partition_stats", "record_index", "column_stats", "record_index"])
    assert [spec.partition for spec in specs] == [
        "column_stats",
        "partition_stats",
        "record_index",
        "secondary_index_city",
    ]


def test_wish_names_partition_type_and_settings() -> None:
    (wish,) = json.loads(wish_options(parse_indexes(["secondary_index:city"]))[WANTED])
    assert wish == {
        "partition": "secondary_index_city",
        "hudi_type": "SECONDARY_INDEX",
        "settings": {"hoodie.metadata.index.secondary.column": "city"},
    }


def test_foreign_partition_is_of_no_kind() -> None:
    assert kind_of("vector_index_x") is None
