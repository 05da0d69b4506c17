"""The layout of a clustering is the policy's, also for a plan that an earlier run left, and contradicts no option."""

from __future__ import annotations

import pytest

from airflow_lake_provider.config.tables_file import parse_tables_file
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.planner.small_files import clustering_options, layout_options, sorts
from airflow_lake_provider.shared.partition_filter import LAYOUT, SINGLE_GROUP, SMALL_FILE_LIMIT, SORT_COLUMNS


def parse(clustering: str, options: str = "{}") -> None:
    parse_tables_file(f"tables:\n  - {{name: orders, clustering: {clustering}, hudi_options: {options}}}\n", "t.yaml")


def test_options_of_a_layout() -> None:
    tables = parse_tables_file(
        "defaults: {clustering: {enabled: true, sort_columns: [city, amount], layout: z-order}}\n", "t.yaml"
    )
    policy = tables.policy_for("/lake/orders", "orders")
    layout = {SORT_COLUMNS: "city,amount", LAYOUT: "z-order"}
    assert layout_options(policy) == layout
    # A file alone is rewritten, because its rows have an order to gain.
    assert clustering_options(policy) == {**layout, SMALL_FILE_LIMIT: "104857600"}
    assert sorts(policy)
    plain = parse_tables_file("defaults: {clustering: {enabled: true}}\n", "t.yaml").policy_for(
        "/lake/orders", "orders"
    )
    assert layout_options(plain) == {}
    assert clustering_options(plain)[SINGLE_GROUP] == "false"
    assert not sorts(plain)


@pytest.mark.parametrize(
    ("clustering", "options", "says"),
    [
        (
            "{sort_columns: [city]}",
            f"{{{SORT_COLUMNS}: amount}}",
            f"{SORT_COLUMNS} contradicts",
        ),
        ("{sort_columns: [city]}", f"{{{LAYOUT}: z-order}}", f"{LAYOUT} contradicts"),
        ("{sort_columns: [address.city]}", "{}", "a column of the table, such as customer"),
        ("{layout: zorder}", "{}", "z-order"),
    ],
)
def test_what_contradicts_is_refused(clustering: str, options: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace(".", r"\.")):
        parse(clustering, options)
