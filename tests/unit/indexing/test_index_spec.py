"""The spelling of indexes, and how a wish travels to the Spark job."""

from __future__ import annotations

import json
import re

import pytest
from pydantic import ValidationError

from airflow_lake_provider.config.service_policies import IndexingPolicy
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.indexing.index_spec import parse_index, parse_indexes, requested_options
from airflow_lake_provider.job_contract import INDEX_WANTED


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
    # The tables file accepts the same spelling.
    assert IndexingPolicy.model_validate({"indexes": [text]}).indexes == (text,)


@pytest.mark.parametrize("text", ["", "bloom", "record_index:id", "secondary_index", "expression_index:x:ts"])
def test_unknown_spelling_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_index(text)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("vector_index:embedding", "leave it out, and search with its table function hudi_vector_search"),
        ("record_index:partitioned", "set hoodie.metadata.record.level.index.enable=true in all writers"),
        ("partitioned_record_index", "write record_index where a key is in one partition only"),
        ("record_level_index", "write record_index where a key is in one partition only"),
        ("expression_index:e:lower(city):type=bloom_filters", "write bloom_filters for those of the record keys"),
        ("expression_index:e:lower(city):index_type=BLOOM_FILTERS,format=x", "have Spark SQL build it"),
    ],
)
def test_kind_that_the_provider_does_not_build_is_refused_with_what_to_do(text: str, advice: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(advice)) as refused:
        parse_index(text)
    assert str(refused.value).startswith(f"{text!r}: ")
    with pytest.raises(ValidationError, match=re.escape(advice)):
        IndexingPolicy.model_validate({"indexes": [text]})


def test_indexes_come_in_the_order_in_which_hudi_can_build_them_and_once() -> None:
    specs = parse_indexes(["secondary_index:city", "partition_stats", "record_index", "column_stats", "record_index"])
    assert [spec.partition for spec in specs] == [
        "column_stats",
        "partition_stats",
        "record_index",
        "secondary_index_city",
    ]


def test_two_spellings_of_one_index_that_differ_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'column_stats:amount' and 'column_stats:ts' are one index"):
        parse_indexes(["column_stats:amount", "record_index", "column_stats:ts"])
    assert len(parse_indexes(["column_stats:amount", "column_stats:amount"])) == 1


def test_wish_names_partition_type_and_settings() -> None:
    (wish,) = json.loads(requested_options(parse_indexes(["secondary_index:city"]))[INDEX_WANTED])
    assert wish == {
        "partition": "secondary_index_city",
        "hudi_type": "SECONDARY_INDEX",
        "settings": {"hoodie.metadata.index.secondary.column": "city"},
    }
