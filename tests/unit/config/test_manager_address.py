"""Tasks and the command find the manager where Airflow is, below a path as well."""

from __future__ import annotations

import pytest

from airflow_lake_provider.config.manager_address import find_manager_url


@pytest.mark.parametrize(
    ("execution_api_url", "base_url", "expected"),
    [
        ("", "", "http://localhost:8080"),
        ("http://api:8080/execution/", "", "http://api:8080"),
        ("http://api:8080/execution", "https://company/airflow", "http://api:8080"),
        ("https://company/airflow/execution/", "", "https://company/airflow"),
        ("https://company/execution/airflow/execution", "", "https://company/execution/airflow"),
        ("", "https://company/airflow/", "https://company/airflow"),
        ("", "http://localhost:8080", "http://localhost:8080"),
        ("no address", "https://company/a/b", "https://company/a/b"),
        ("http://[::1]:8080/execution/", "", "http://[::1]:8080"),
    ],
)
def test_address_keeps_the_path_below_which_airflow_is(execution_api_url: str, base_url: str, expected: str) -> None:
    assert find_manager_url(execution_api_url, base_url) == expected
