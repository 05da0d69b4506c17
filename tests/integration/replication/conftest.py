"""One Kafka broker and one PostgreSQL for the tests of replication."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_stack import kafka
from local_stack.kafka import LocalKafka
from local_stack.postgres import LocalPostgres
from local_stack.processes import free_port


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.integration)


LOGIN_USER, LOGIN_PASSWORD = "lake", "s3cret"


def broker_with_a_login(folder: Path) -> tuple[LocalKafka, int]:
    """Return a broker that serves any client on its port, and on the second port only one that logs in."""
    broker, port = LocalKafka(folder), free_port()
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    broker.settings = {
        "listeners": f"PLAINTEXT://{broker.bootstrap},SASL_PLAINTEXT://127.0.0.1:{port},"
        f"CONTROLLER://127.0.0.1:{broker.controller_port}",
        "advertised.listeners": f"PLAINTEXT://{broker.bootstrap},SASL_PLAINTEXT://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{login} user_{LOGIN_USER}="{LOGIN_PASSWORD}";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "true",
        # How often it searches transactions that are overdue; ten seconds unless set.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    }
    return broker, port


@pytest.fixture(scope="session")
def login_address(brokers: tuple[LocalKafka, int]) -> str:
    """Where the broker asks for a login."""
    return f"127.0.0.1:{brokers[1]}"


@pytest.fixture(scope="session")
def broker(brokers: tuple[LocalKafka, int]) -> LocalKafka:
    return brokers[0]


@pytest.fixture(scope="session")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalKafka, int]]:
    if not kafka.LIB.is_dir() and (shutil.which("mvn") is None or shutil.which("java") is None):
        pytest.skip("Kafka needs Maven and Java 17")
    started, port = broker_with_a_login(tmp_path_factory.mktemp("kafka"))
    started.start()
    yield started, port
    started.stop()


@pytest.fixture(scope="session")
def postgres() -> Iterator[LocalPostgres]:
    server = LocalPostgres()
    server.start()
    yield server
    server.stop()
