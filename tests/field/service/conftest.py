"""Public reports about Airflow and services, tried without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from local_stack.postgres import LocalPostgres


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.integration)


@pytest.fixture(scope="session")
def postgres() -> Iterator[LocalPostgres]:
    server = LocalPostgres()
    server.start()
    yield server
    server.stop()
