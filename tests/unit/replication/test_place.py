"""A table's name in the place of a sink: what would lead elsewhere is refused."""

from __future__ import annotations

import pytest

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.replication.job import ReplicationRequest
from airflow_lake_provider.replication.transactions import Order
from airflow_lake_provider.sink_options.run import NAMED_OPTIONS


def place(option: str, text: str, name: str, database: str = "shop") -> str:
    request = ReplicationRequest("/lake/t", name, "x", Order("s"), "/r", options={option: text}, database=database)
    return request.sink_settings.options[option]


@pytest.mark.parametrize("option", sorted(NAMED_OPTIONS))
@pytest.mark.parametrize(
    "name",
    [
        "../../other-team/x",
        "..",
        ".",
        "/abs",
        "a/b",
        "a\\b",
        "a?b#c",
        "x'; DROP TABLE y; --",
        "a b",
        "a\nb",
        "a%2fb",
        "{x}",
        *("s3://b/t", "a\x00", ".hidden", "*", "a:b", 'a"b', "$x", "~"),
    ],
)
def test_name_that_leads_out_of_its_place_is_refused(option: str, name: str) -> None:
    with pytest.raises(ConfigError, match="must not choose a place") as refused:
        place(option, "mirror/{table}", name)
    assert option in str(refused.value)
    assert "/lake/t" in str(refused.value)
    with pytest.raises(ConfigError, match="must not choose a place"):
        place(option, "mirror/{database}", "orders", name)


@pytest.mark.parametrize("option", sorted(NAMED_OPTIONS - {"path"}))
def test_dot_does_not_choose_another_schema_or_topic(option: str) -> None:
    with pytest.raises(ConfigError, match="must not choose a place"):
        place(option, "{table}", "bank.accounts")


@pytest.mark.parametrize("name", ["orders", "orders_2026-11", "Bestellungen_für"])
def test_plain_names_stand_in_every_place(name: str) -> None:
    for option in NAMED_OPTIONS:
        assert place(option, "lake.{database}.{table}", name) == f"lake.shop.{name}"
    assert place("path", "/m/{table}", "orders.v2") == "/m/orders.v2"


def test_name_is_not_asked_for_where_no_place_takes_it() -> None:
    assert place("path", "/mirror/own", "../x") == "/mirror/own"
