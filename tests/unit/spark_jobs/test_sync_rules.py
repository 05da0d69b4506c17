"""What a sync with a catalog is asked for, what Hudi's tool gets, and what its failures say and call for."""

from __future__ import annotations

import pytest

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.job_contract import FailureKind
from airflow_lake_provider.shared.catalog_names import find_name_problem, name_in_catalog, names_of, number_of
from lake_jobs.driver.failure import Cause
from lake_jobs.services.sync_rules import explain_failure, find_stranger, read_registration, tool_settings

METASTORE = "thrift://hive:9083"
ORDERS = {"lake.sync.metastore": METASTORE, "lake.sync.database": "Shop"}


def test_registration_is_named_for_the_path_unless_the_policy_names_it() -> None:
    found = read_registration("s3a://lake/Orders/", ORDERS)
    assert (found.database, found.name, found.metastore) == ("shop", "orders", METASTORE)
    assert read_registration("s3a://lake/a b", {**ORDERS, "lake.sync.table": "ab"}).name == "ab"
    assert read_registration("/lake/orders", {}).database == "default"
    assert names_of("orders", is_merge_on_read=True) == ("orders", "orders_ro", "orders_rt")


@pytest.mark.parametrize("name", ["", "a-b", "a b", "a.b", "a`; drop table b", "a\n", "ä", "x" * 129, "../b"])
def test_what_is_no_name_is_refused_and_never_replaced(name: str) -> None:
    assert find_name_problem(name)
    with pytest.raises(
        ServiceRefusedError, match=r"table /lake/t: .* is no table name for a catalog .*: set sync.table"
    ):
        read_registration("/lake/t", {"lake.sync.table": name or "-"})
    assert name_in_catalog(f"/lake/{name}", "") == name.lower().rpartition("/")[2] or not name


def test_tool_gets_the_tables_own_columns_whatever_the_options_say() -> None:
    table = {"hoodie.table.partition.fields": "city:SIMPLE,ts:TIMESTAMP", "hoodie.table.base.file.format": "PARQUET"}
    options = {**ORDERS, "hoodie.datasource.hive_sync.support_timestamp": "true"}
    settings = tool_settings(read_registration("/lake/orders", options), table)
    assert settings["hoodie.datasource.hive_sync.partition_fields"] == "city,ts"
    assert settings["hoodie.datasource.hive_sync.table"] == "orders"
    assert settings["hoodie.datasource.hive_sync.database"] == "shop"
    assert settings["hoodie.datasource.hive_sync.support_timestamp"] == "true"
    assert settings["hoodie.meta.sync.incremental"] == "false"
    assert not [key for key in settings if key.startswith("lake.")]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hoodie.datasource.hive_sync.partition_extractor_class", "evil.Extractor"),
        ("hoodie.datasource.hive_sync.metastore.uris", "thrift://evil:9083"),
        ("hoodie.datasource.hive_sync.create_managed_table", "true"),
        ("hoodie.datasource.hive_sync.table_properties", "owner=root"),
        ("hoodie.datasource.hive_sync.ignore_exceptions", "true"),
        ("hoodie.datasource.meta.sync.glue.catalogId", "4711"),
        ("hoodie.meta.sync.sync_snapshot_with_table_name", "false"),
        ("hive.metastore.uris", "thrift://evil:9083"),
    ],
)
def test_file_of_a_table_sets_nothing_of_the_tool(key: str, value: str) -> None:
    """A writer of the table chooses what is in its hoodie.properties."""
    table = {
        "hoodie.table.partition.fields": "city",
        "hoodie.datasource.write.hive_style_partitioning": "true",
        "hoodie.datasource.write.partitionpath.urlencode": "true",
        key: value,
    }
    settings = tool_settings(read_registration("/lake/orders", {}), table)
    assert settings.get(key) != value
    assert settings["hoodie.datasource.write.hive_style_partitioning"] == "true"
    assert settings["hoodie.datasource.write.partitionpath.urlencode"] == "true"
    assert tool_settings(read_registration("/lake/orders", {key: value}), {})[key] == value, "the tables file may"


def test_name_of_a_table_elsewhere_is_a_strangers() -> None:
    registration = read_registration("s3a://lake/orders", ORDERS)
    assert find_stranger(registration, "orders", "", "/lake/orders") == ""
    assert find_stranger(registration, "orders", "/lake/orders/", "/lake/orders") == ""
    problem = find_stranger(registration, "orders", "/warehouse/orders", "/lake/orders")
    for part in ("table s3a://lake/orders", "shop.orders", METASTORE, "/warehouse/orders", "set sync.table"):
        assert part in problem


@pytest.mark.parametrize(
    ("cause", "kind", "advice"),
    [
        (
            Cause("MetaException", "Could not connect to meta store using any of the URIs"),
            "infrastructure",
            "sync.metastore",
        ),
        (Cause("java.net.SocketTimeoutException", "Read timed out"), "infrastructure", "client.socket.timeout"),
        (Cause("MetaException", "Permission denied: user=lake"), "refused", "grant"),
        (
            Cause("InvalidOperationException", "types incompatible with the existing columns : id"),
            "refused",
            "drop the table",
        ),
        (Cause("MetaException", "Invalid partition key & values; keys [d]"), "refused", "partition_extractor_class"),
        (Cause("MetaException", "disk full"), "other", "tried again"),
    ],
)
def test_failure_names_table_catalog_cause_and_what_to_do(cause: Cause, kind: str, advice: str) -> None:
    registration = read_registration("/lake/orders", ORDERS)
    found, message = explain_failure(registration, [Cause("HoodieException", "Got runtime exception"), cause])
    assert found is FailureKind(kind)
    for part in ("table /lake/orders", "shop.orders", METASTORE, cause.message[:30], advice):
        assert part in message


def test_number_is_of_where_and_how_a_table_is_registered_and_of_nothing_else() -> None:
    same = {number_of(ORDERS, {}), number_of(dict(reversed(ORDERS.items())), {"hoodie.write.lock.provider": "x"})}
    assert len(same) == 1
    assert len(next(iter(same))) == 10
    assert number_of(ORDERS, {"hoodie.meta.sync.client.tool.class": "x"}) not in same
    assert number_of({**ORDERS, "lake.sync.table": "b"}, {}) not in same
