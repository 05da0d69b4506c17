"""A tables file finds a table in whatever spelling it names the path (identity is the path, not its letters)."""

from __future__ import annotations

import pytest

from airflow_lake_provider.config.tables_file import build_config, parse_tables, parse_tables_file
from airflow_lake_provider.hudi.base_path import normalise_base_path


@pytest.mark.parametrize(
    ("written", "announced"),
    [
        ("file:///lake/x", "/lake/x"),
        ("/lake//x/", "/lake/x"),
        ("S3A://bucket/lake/x", "s3a://bucket/lake/x"),
        ("s3://bucket/lake/x", "s3a://bucket/lake/x"),
        ("s3a://bucket/lake/*", "s3://bucket/lake/x"),
        ("s3n://bucket//lake/[wxy]", "s3://bucket/lake/x"),
        ("hdfs://NN:8020/lake/x", "hdfs://nn/lake/x"),
        ("*/lake/x", "s3a://bucket/lake/x"),
    ],
)
def test_policy_is_found_in_each_spelling(written: str, announced: str) -> None:
    tables = parse_tables_file(f"tables: [{{base_path: '{written}', clean: {{enabled: false}}}}]", "t.yaml")
    assert not tables.policy_for(normalise_base_path(announced), "x").clean.enabled
    assert tables.policy_for(normalise_base_path(announced + "y/z"), "x").clean.enabled or "*" in written


def test_path_of_an_entry_is_registered_in_its_one_spelling() -> None:
    tables = parse_tables_file("tables: [{base_path: 'file:///lake//x/'}, {base_path: 'S3A://b/y'}]", "t.yaml")
    assert list(tables.named_tables()) == [("/lake/x", "x"), ("s3a://b/y", "y")]


def test_override_lies_over_an_entry_in_another_spelling() -> None:
    file = parse_tables("tables: [{base_path: 's3://b/x', ttl: {retained_days: 500}}]", "t.yaml")
    over = parse_tables("tables: [{base_path: 's3a://B/x', archive: {enabled: false}}]", "Variable")
    policy = build_config(file, over).policy_for("s3n://b/x", "x")
    assert (policy.ttl.retained_days, policy.archive.enabled) == (500, False)
