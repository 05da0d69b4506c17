from __future__ import annotations

import subprocess
import sys

import pytest

from airflow_lake_provider.execution.reporting import dataset_name, table_asset


@pytest.mark.parametrize(
    ("base_path", "expected"),
    [
        ("/lake/orders", ("file", "/lake/orders")),
        ("file:///lake/orders", ("file", "/lake/orders")),
        ("s3://bucket/lake/orders", ("s3://bucket", "lake/orders")),
        ("s3a://bucket/lake/orders", ("s3://bucket", "lake/orders")),
        ("gs://bucket/orders", ("gs://bucket", "orders")),
        ("hdfs://namenode:8020/lake/orders", ("hdfs://namenode:8020", "/lake/orders")),
    ],
)
def test_dataset_has_the_name_that_other_producers_give_it(base_path: str, expected: tuple[str, str]) -> None:
    assert dataset_name(base_path) == expected


@pytest.mark.parametrize(
    ("base_path", "uri"),
    [
        ("/lake/orders", "file:///lake/orders"),
        ("file:///lake/orders/", "file:///lake/orders"),
        ("s3a://lake/shop/orders", "s3://lake/shop/orders"),
        ("hdfs://nn:8020/lake/orders", "hdfs://nn:8020/lake/orders"),
        ("/lake/what? #1", "file:///lake/what%3F%20%231"),
    ],
)
def test_asset_of_a_table_is_its_dataset_as_a_uri(base_path: str, uri: str) -> None:
    asset = table_asset(base_path)
    assert (asset.name, asset.uri) == (uri, uri)


def test_operator_needs_no_openlineage() -> None:
    # Airflow first: it lists the installed providers, this one among them, and would miss it.
    code = (
        "import sys; import airflow\n"
        "sys.modules['openlineage'] = None; sys.modules['airflow.providers.openlineage'] = None\n"
        "import airflow_lake_provider.execution.reporting"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
