"""Each sink, format and setting of the docs goes from the tables file to a real server, and a batch arrives there."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_stack.kafka import LocalKafka
from local_stack.kafka_consumer import read_topic
from local_stack.postgres import LocalPostgres
from tests.integration.replication.registry_server import Registry, serve
from tests.support.configured_streams import send
from tests.support.plain_sql import run_sql
from tests.support.private_ca import load, sign


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serve(Registry(login="lake:s3cret")) as served:
        yield served


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param({}, id="as it is"),
        pytest.param({"mode": "latest", "partitions": "2", "replication_factor": "1"}, id="latest"),
        pytest.param({"control_records": "yes", "timeout_s": "30"}, id="control records"),
        pytest.param(
            {"on_record_error": "skip", "kafka.linger.ms": "5", "kafka.compression.type": "gzip"}, id="client"
        ),
        pytest.param({"dead_letter_topic": "{table}.dead", "checkpoint_topic": "{database}.marks"}, id="topics"),
        pytest.param({"format": "avro"}, id="avro"),
        pytest.param({"format": "avro", "schema_registry": "REGISTRY"}, id="avro by a registry"),
        pytest.param({"format": "protobuf", "schema_registry": "REGISTRY"}, id="protobuf"),
        pytest.param({"format": "debezium"}, id="debezium"),
        pytest.param(
            {
                "format": "debezium",
                "schemas.enable": "off",
                "tombstones.on.delete": "no",
                "decimal.handling.mode": "string",
                "skipped.operations": "none",
                "provide.transaction.metadata": "on",
                "topic.transaction": "{table}.ends",
                "database": "shop",
            },
            id="all of debezium",
        ),
        pytest.param(
            {"buckets": "4", "buckets_from_rows": "9", "max_transaction_rows": "7", "start": "now"}, id="of the run"
        ),
        pytest.param(
            {
                "where": "id > 0 and value is not null",
                "heartbeat_s": "60",
                "column.include.list": "value, mail, phone",
                "column.mask.hash.SHA-256": "mail",
                "column.mask.hash.salt": "secret://variable/salt",
                "column.mask.with.4.chars": "phone",
                "source.hoodie.write.lock.provider": "org.example.Lock",
            },
            id="rows and columns",
        ),
    ],
)
def test_kafka(broker: LocalKafka, registry: Registry, entry: dict[str, str]) -> None:
    topic = f"t{uuid.uuid4().hex[:12]}.{{table}}"
    address = {
        "schema_registry": registry.url,
        "schema_registry_user": "lake",
        "schema_registry_password": "secret://variable/registry",
    }
    found = entry | (address if "schema_registry" in entry else {})
    send(sink="kafka", topic=topic, bootstrap_servers=broker.bootstrap, create_topics="yes", **found)
    records = read_topic(broker.bootstrap, topic.format(table="orders"), parse=lambda content: content, parse_key=bytes)
    assert any(record.value is not None for record in records)


def test_registry_of_a_private_authority_that_takes_a_token(broker: LocalKafka, tmp_path: Path) -> None:
    authority = sign("authority", None, tmp_path)
    with serve(Registry(token="ey.J0.x"), sign("server", load(authority), tmp_path)) as registry:
        entry = {
            "sink": "kafka",
            "topic": f"t{uuid.uuid4().hex[:12]}",
            "bootstrap_servers": broker.bootstrap,
            "create_topics": "yes",
            "format": "avro",
            "schema_registry": registry.url,
            "schema_registry_ca": str(authority),
            "schema_registry_token": "secret://variable/token",
        }
        send(**entry)
    assert list(registry.subjects) == [f"{entry['topic']}-value", f"{entry['topic']}-key"]


@pytest.mark.parametrize("entry", [{}, {"format": "parquet"}, {"mode": "latest", "on_record_error": "dead_letter"}])
def test_file(tmp_path: Path, entry: dict[str, str]) -> None:
    send(sink="file", path=f"{tmp_path}/{{table}}", **{"storage.auto_mkdir": "true"}, **entry)
    assert [path.suffix for path in (tmp_path / "orders").iterdir()] in ([".jsonl"], [".parquet"])


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"columns": "id, value", "on_record_error": "dead_letter", "timeout_s": "5", "statement_timeout_s": "60"},
        {"on_record_error": "skip", "column.exclude.list": "secret", "reader": "slices", "snapshot_savepoint": "never"},
    ],
)
def test_database(postgres: LocalPostgres, entry: dict[str, str]) -> None:
    schema = f"s{uuid.uuid4().hex[:12]}"
    run_sql(postgres.url, f"create schema {schema}; create table {schema}.orders (id bigint primary key, value int)")
    send(sink="database", url=postgres.url, table=f"{schema}.{{table}}", mode="latest", **entry)
    assert run_sql(postgres.url, f"select id, value from {schema}.orders") == [(1, 10)]


@pytest.mark.parametrize("evolve", ["strict", "add", "widen"])
def test_database_that_gets_its_table(postgres: LocalPostgres, evolve: str) -> None:
    table = f"t{uuid.uuid4().hex[:12]}"
    send(sink="database", url=postgres.url, table=f"{table}_{{table}}", mode="latest", create="yes", evolve=evolve)
    assert run_sql(postgres.url, f"select id, value from {table}_orders") == [(1, 10)]


def test_noop() -> None:
    send(sink="noop")
