"""One Kafka broker and one PostgreSQL for the tests of replication."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_stack import kafka
from local_stack.kafka import LocalKafka
from local_stack.postgres import LocalPostgres


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.integration)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    if not kafka.LIB.is_dir() and (shutil.which("mvn") is None or shutil.which("java") is None):
        pytest.skip("Kafka needs Maven and Java 17")
    started = LocalKafka(tmp_path_factory.mktemp("kafka"))
    started.start()
    yield started
    started.stop()


@pytest.fixture(scope="session")
def postgres() -> Iterator[LocalPostgres]:
    server = LocalPostgres()
    server.start()
    yield server
    server.stop()
