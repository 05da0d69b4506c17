"""What a table sets of its own policy: within the bounds of the tables file, and nothing else."""

from __future__ import annotations

import pytest

from airflow_lake_provider.config.own_settings import SOURCE, apply_own, settings_with_own
from airflow_lake_provider.config.tables_file import parse_tables_file
from airflow_lake_provider.config.tables_source import settings_in_force
from airflow_lake_provider.errors import ConfigError

ALLOWED = """
defaults:
  compaction: {delta_commits: 5}
  table_may_set:
    - compaction.delta_commits 2..50
    - clean.retained_commits 3..15
    - weight 0.5..2
    - clustering.enabled
    - clustering.sort_columns
"""
TABLES = parse_tables_file(ALLOWED, "t.yaml")
POLICY = TABLES.policy_for("/lake/orders", "orders")


def test_values_within_bounds_are_those_of_the_policy() -> None:
    own = apply_own(
        POLICY,
        {
            "hoodie.table.name": "orders",
            "lake.compaction.delta_commits": "10",
            "lake.weight": "1.5",
            "lake.clustering.enabled": "true",
            "lake.clustering.sort_columns": "city, amount",
        },
    )
    assert own.problems == ()
    assert (own.policy.compaction.delta_commits, own.policy.weight) == (10, 1.5)
    assert (own.policy.clustering.enabled, own.policy.clustering.sort_columns) == (True, ("city", "amount"))
    assert own.policy.compaction.log_to_base_ratio == POLICY.compaction.log_to_base_ratio
    shown = {one.name: one for one in settings_with_own(settings_in_force(TABLES, "/lake/orders", "orders"), own)}
    assert (shown["compaction.delta_commits"].value, shown["compaction.delta_commits"].source) == ("10", SOURCE)
    assert shown["compaction.log_to_base_ratio"].source != SOURCE


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("compaction.delta_commits", "51", "table_may_set allows 2 to 50"),
        ("compaction.delta_commits", "1", "table_may_set allows 2 to 50"),
        ("compaction.delta_commits", "many", "it is no number"),
        ("compaction.delta_commits", "10.5", "valid integer"),
        ("compaction.delta_commits", "1e1", "it is no number"),
        ("clean.retained_hours", "1", "table_may_set of the tables file names no clean.retained_hours"),
        ("hudi_options.hoodie.metrics.on", "true", "names no hudi_options.hoodie.metrics.on"),
        ("spark_conf", "x", "names no spark_conf"),
        ("table_may_set", "weight 0..99", "names no table_may_set"),
        ("clustering.enabled", "yes", "allowed: true or false"),
        ("clustering.sort_columns", "a;drop", "a column of the table"),
        ("weight", "\u0663", "it is no number"),
    ],
)
def test_what_is_not_allowed_is_left_out_with_its_reason(key: str, value: str, says: str) -> None:
    own = apply_own(POLICY, {f"lake.{key}": value})
    assert own.policy == POLICY
    (problem,) = own.problems
    assert problem.startswith(f"lake.{key}={value} of hoodie.properties is left out: ")
    assert says in problem


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("clustering.sort_columns", ",".join(f"column_{n}" for n in range(100_000))),
        ("clustering.sort_columns", "c" * 1_000_000),
        ("k" * 500_000, "v"),
        ("\x1b[31mred\n", "\x1b[2J\u202e\nlake.weight=9"),
    ],
)
def test_text_of_any_size_and_kind_costs_little_and_is_shown_in_short_plain_words(key: str, value: str) -> None:
    own = apply_own(POLICY, {f"lake.{key}": value})
    assert own.policy == POLICY
    (problem,) = own.problems
    assert len(problem) < 500
    assert problem.isprintable()


def test_value_that_contradicts_another_is_left_out() -> None:
    tables = parse_tables_file("defaults: {table_may_set: [clean.retained_commits 1..100]}\n", "t.yaml")
    own = apply_own(tables.policy_for("/lake/orders", "orders"), {"lake.clean.retained_commits": "25"})
    assert own.policy.clean.retained_commits == 10
    assert "archive.min_commits (20) must be greater than clean.retained_commits (25)" in own.problems[0]


def test_nothing_is_taken_where_the_file_allows_nothing() -> None:
    plain = parse_tables_file("tables: []\n", "t.yaml").policy_for("/lake/orders", "orders")
    own = apply_own(plain, {"lake.weight": "2", "lake.compaction.delta_commits": "10"})
    assert own.policy is plain
    assert len(own.problems) == 2
    assert apply_own(plain, {"hoodie.table.name": "orders"}).problems == ()


@pytest.mark.parametrize("entry", ["spark_conf", "compaction.delta_commits", "clean.policy", "weight 1-2", "queue"])
def test_file_names_only_what_a_table_may_ever_set(entry: str) -> None:
    with pytest.raises(ConfigError, match="a number with its bounds"):
        parse_tables_file(f"defaults: {{table_may_set: ['{entry}']}}\n", "t.yaml")
