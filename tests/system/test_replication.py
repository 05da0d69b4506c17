"""The whole corridor of replication: a stock writer's changes in a topic of a real Kafka, which goes away meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from local_stack.airflow import HUDI_JAR, LocalAirflow, scratch_env
from local_stack.hudi_bundle import SPARK_PYTHON, spark_env
from local_stack.kafka import LocalKafka
from local_stack.kafka_consumer import Record, read_topic
from local_stack.processes import start, wait_until
from tests.system.conftest import LOCK_OPTIONS, ROOT, make_airflow

pytestmark = pytest.mark.system

KEYS, ROWS = 200, 40
TOPIC = "orders.changes"


@dataclass
class Corridor:
    airflow: LocalAirflow
    broker: LocalKafka

    @property
    def base_path(self) -> str:
        return str(self.airflow.allowed_roots[0] / "orders")

    def write(self, first_commit: int, commits: int) -> None:
        table: dict[str, Any] = {
            "name": "orders",
            "base_path": self.base_path,
            "type": "COW",
            "commits": commits,
            "first_commit": first_commit,
            "keys": KEYS,
            "rows": ROWS,
            "pause_s": 0,
            "hudi_options": {"hoodie.table.cdc.enabled": "true"},
        }
        settings = {
            "tables": [table],
            "callback": {"url": self.airflow.callback_url, "token": self.airflow.callback_token},
            "hudi_options": LOCK_OPTIONS,
            "spark_conf": {"spark.jars": str(HUDI_JAR)},
        }
        path = self.airflow.home / "writer.json"
        path.write_text(json.dumps(settings), encoding="utf-8")
        writer = start(
            "writer",
            [str(SPARK_PYTHON), str(ROOT / "local_stack" / "lake_writer.py"), str(path)],
            self.airflow.home / "logs" / "writer.log",
            env=spark_env() | scratch_env(self.airflow.home / "tmp"),
        )
        try:
            assert writer.process.wait(timeout=300) == 0, writer.log_tail()
        finally:
            writer.stop()

    def sink(self) -> dict[str, Any]:
        table_id = self.airflow.tables()[0]["table_id"]
        answer = self.airflow.get(f"/v1/hoodie/tables/{table_id}/sinks")
        sinks = [] if answer is None else answer["sinks"]
        return sinks[0] if sinks else {}

    def safepoint(self) -> Any:
        answer = self.airflow.get(f"/v1/hoodie/tables/{self.airflow.tables()[0]['table_id']}/safepoint")
        return None if answer is None else answer["instant"]

    def records(self) -> list[Record]:
        try:
            return read_topic(self.broker.bootstrap, TOPIC, 10)
        except (KeyError, AssertionError):
            return []

    def wait(self, ready: Any, what: str) -> None:
        wait_until(ready, 400, what, [self.airflow.servers["scheduler"]])


@pytest.fixture(scope="module")
def corridor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corridor]:
    broker = LocalKafka(tmp_path_factory.mktemp("kafka"))
    airflow = make_airflow("replication")
    assert airflow.tables_file is not None
    tables = yaml.safe_load(airflow.tables_file.read_text())
    sink = {
        "sink": "kafka",
        "topic": TOPIC,
        "bootstrap_servers": broker.bootstrap,
        "create_topics": True,
        "timeout_s": 20,
    }
    tables["tables"] = [{"name": "orders", "replication": [sink]}]
    airflow.tables_file.write_text(yaml.safe_dump(tables))
    try:
        broker.start()
        airflow.start()
        airflow.wait_for_dags()
        yield Corridor(airflow, broker)
    finally:
        airflow.stop()
        broker.stop()


def test_changes_arrive_and_a_broker_that_is_away_holds_the_table(corridor: Corridor) -> None:
    corridor.write(0, 2)
    corridor.airflow.pause("lake_replication", is_paused=False)
    corridor.wait(lambda: len(corridor.records()) == KEYS + 4, "the snapshot in the topic")
    corridor.wait(lambda: corridor.sink()["hold"] != "0", "the sink's hold")
    held = corridor.safepoint()
    assert held == corridor.sink()["checkpoint"]["commit"]["requested_time"]

    corridor.broker.kill()
    corridor.write(2, 2)
    corridor.wait(lambda: "Kafka at" in corridor.sink()["problem"], "the error on the sink")
    assert corridor.safepoint() == held

    corridor.broker.start()
    # Each commit changes ROWS orders and adds a tenth as many.
    corridor.wait(lambda: len(corridor.records()) == KEYS + 4 + 2 * (ROWS + ROWS // 10), "the changes in the topic")
    records = corridor.records()
    seen = [(record.headers["commit"], record.key["id"]) for record in records]
    assert len(seen) == len(set(seen))
    assert {record.headers["generation"] for record in records} == {"1"}
    corridor.wait(lambda: corridor.sink()["problem"] == "", "the sink without an error")
    assert corridor.safepoint() > held
