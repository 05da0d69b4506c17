"""A standard reader of format debezium: Kafka Connect with Debezium's JDBC sink fills a table of PostgreSQL."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from replication_histories import History, Kind, begin
from test_replication_on_hudi import _time_zone  # noqa: F401 - the fixture holds here as well
from test_replication_workload import Stream, Wrong, as_history

from local_stack import kafka, kafka_connect
from local_stack.kafka import LocalKafka
from local_stack.kafka_connect import LocalKafkaConnect
from local_stack.kafka_consumer import read_topic
from local_stack.postgres import LocalPostgres, find_programs
from local_stack.processes import PATIENCE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC, TABLE = "lake.events", "lake_events"
PATIENCE_S = 60 * PATIENCE


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalKafka]:
    if not (kafka.LIB.is_dir() and kafka_connect.LIB.is_dir()) and shutil.which("mvn") is None:
        pytest.skip("Kafka Connect needs Maven and Java 17: `make kafka`")
    server = LocalKafka(tmp_path / "kafka")
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def postgres() -> Iterator[LocalPostgres]:
    if find_programs() is None:
        pytest.skip("PostgreSQL's programs are missing: `make postgres`")
    server = LocalPostgres()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def connect(tmp_path: Path, broker: LocalKafka, postgres: LocalPostgres) -> Iterator[LocalKafkaConnect]:
    """Return Connect's worker, not started: it reads a topic that is there."""
    connector = {
        "name": "mirror",
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "topics": TOPIC,
        "connection.url": f"jdbc:postgresql://127.0.0.1:{postgres.port}/airflow",
        "connection.username": "airflow",
        # The server asks for none, and the connector for one.
        "connection.password": "any",
        "insert.mode": "upsert",
        "primary.key.mode": "record_key",
        "schema.evolution": "basic",
        "delete.enabled": "true",
        "truncate.enabled": "true",
    }
    worker = LocalKafkaConnect(tmp_path / "connect", broker.bootstrap, connector)
    yield worker
    worker.stop()


@dataclass
class Connected(Stream):
    """What Connect made of the topic."""

    broker: LocalKafka | None = None
    postgres: LocalPostgres | None = None
    connect: LocalKafkaConnect | None = None

    kind: ClassVar[str] = "kafka"

    def options(self) -> dict[str, str]:
        assert self.broker is not None
        return {
            "bootstrap_servers": self.broker.bootstrap,
            "topic": TOPIC,
            "create_topics": "true",
            "format": "debezium",
            "skipped.operations": "none",
            "provide.transaction.metadata": "true",
        }

    def compare(self) -> None:
        assert self.connect is not None
        if self.connect.server is None:
            self.connect.start()
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.require_rows({str(row): row for row in self.rows()}, self.history.table, "in PostgreSQL")
            except Wrong:
                if time.monotonic() > deadline:
                    print((self.folder / "connect" / "connect.log").read_text(encoding="utf-8")[-6000:])
                    raise
                time.sleep(0.5)
            else:
                return

    def rows(self) -> list[dict[str, Any]]:
        """Return the table's rows as PostgreSQL has them, each value as the history has it."""
        found = self.query(f"select row_to_json(mirror) from {TABLE} mirror")
        return [
            {name: as_history(name, value) for name, value in json.loads(row, parse_float=Decimal).items()}
            for row in found
        ]

    def query(self, statement: str) -> list[str]:
        programs = find_programs()
        assert self.postgres is not None
        assert programs is not None
        command = [str(programs / "psql"), "-h", "127.0.0.1", "-p", str(self.postgres.port), "-U", "airflow", "-At"]
        run = subprocess.run([*command, "-c", statement, "airflow"], capture_output=True, text=True, check=False)
        return run.stdout.splitlines()


@pytest.mark.soak(
    covered_by="tests/integration/replication/test_debezium.py"
)  # the same events, read back by a consumer: tests/integration/replication/test_debezium.py
def test_connect_s_jdbc_sink_has_the_table_s_rows(
    spark: SparkSession, tmp_path: Path, broker: LocalKafka, postgres: LocalPostgres, connect: LocalKafkaConnect
) -> None:
    """Inserts, updates, deletes, a key in two partitions, a new column, and a snapshot after a restore."""
    history: History = begin(spark, tmp_path, Kind("MOR", 9), 1, lambda: "")
    stream = Connected(history, "connect", broker=broker, postgres=postgres, connect=connect)
    history.quiet = stream.catch_up
    stream.catch_up()
    types = dict(
        line.split("|")
        for line in stream.query(
            "select column_name, data_type || coalesce(numeric_precision || '.' || numeric_scale, '') "
            f"from information_schema.columns where table_name = '{TABLE}'"
        )
    )
    assert types["price"] == "numeric24.4"
    assert (types["day"], types["moment"], types["blob"], types["tags"]) == (
        "date",
        "timestamp with time zone",
        "bytea",
        "json",
    )
    for operation in (history.upsert, history.both_partitions, history.delete, history.add_column):
        history.step(operation)
    stream.catch_up()
    # The rows of before the restore are gone: the snapshot begins by emptying the target.
    history.step(history.restore)
    stream.catch_up()

    ends = [record.value["payload"] for record in read_topic(broker.bootstrap, f"{TOPIC}.transaction")]
    assert [end["status"] for end in ends] == ["BEGIN", "END"] * (len(ends) // 2)
    events = [record.value["payload"] for record in read_topic(broker.bootstrap, TOPIC) if record.value is not None]
    numbers = [event["transaction"]["total_order"] for event in events]
    assert numbers == [number + 1 for end in ends for number in range(end["event_count"] or 0)]
    assert [event["op"] for event in events].count("t") == 1
