"""The whole corridor of replication: a stock writer's changes in a topic of a real Kafka.

In the long form the broker goes away meanwhile; then runs are killed, doubled, and cleared by hand:
`LAKE_REPLICATION_KILLS` of them.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import yaml

from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.shared.actions import Action
from demo.changes import Version
from local_stack.airflow import LocalAirflow
from local_stack.kafka import LocalKafka
from local_stack.kafka_consumer import Record, read_topic
from local_stack.writer_process import StandingWriter
from tests.system.conftest import LOCK_OPTIONS, Stand
from tests.system.crashes.driver_watch import DriverWatch, kill_all, members_of_session, parent_of
from tests.system.crashes.faults import Victim
from tests.system.replicated_rows import require_as_in_the_table

pytestmark = pytest.mark.system

KEYS, ROWS = 200, 40
NAME = "visits"
TOPIC = f"{NAME}.changes"
KILLS = int(os.environ.get("LAKE_REPLICATION_KILLS", "1"))
# Each commit changes ROWS orders and adds a tenth as many.
CHANGES = ROWS + ROWS // 10
VICTIMS = (Victim.TASK, Victim.SUPERVISOR, Victim.DRIVER, Victim.MACHINE, Victim.API_SERVER)
FIRST_VICTIMS = (Victim.TASK, Victim.API_SERVER)
"""Of the first kills: the worker's process that has the run, and the manager that has its lease."""


@dataclass
class Corridor:
    airflow: LocalAirflow
    broker: LocalKafka
    watch: DriverWatch
    writer: StandingWriter
    commits: int = 0

    @property
    def table_id(self) -> str:
        return table_id_of(self.base_path)

    @property
    def stream(self) -> str:
        return f"{self.table_id}.kafka"

    @property
    def base_path(self) -> str:
        return str(self.airflow.allowed_roots[0] / NAME)

    def write(self, commits: int) -> None:
        table: dict[str, Any] = {
            "name": NAME,
            "base_path": self.base_path,
            "type": "COW",
            "keys": KEYS,
            "rows": ROWS,
            "hudi_options": {"hoodie.table.cdc.enabled": "true"},
        }
        callback = {"url": self.airflow.callback_url, "token": self.airflow.callback_token}
        for commit in range(self.commits, self.commits + commits):
            self.writer.write(table, commit, callback, LOCK_OPTIONS)
        self.commits += commits

    def sink(self) -> dict[str, Any]:
        answer = self.airflow.get(f"/v1/hoodie/tables/{self.table_id}/sinks")
        sinks = [] if answer is None else answer["sinks"]
        return sinks[0] if sinks else {}

    def safepoint(self) -> Any:
        answer = self.airflow.get(f"/v1/hoodie/tables/{self.table_id}/safepoint")
        return None if answer is None else answer["instant"]

    def records(self) -> list[Record]:
        """Return what is in the topic; nothing while it, or its broker, is not there."""
        try:
            return read_topic(self.broker.bootstrap, TOPIC, 10)
        except (KeyError, AssertionError):
            return []

    def all_records(self) -> list[Record]:
        """Return what is in the topic, from a broker that may be slow."""
        return read_topic(self.broker.bootstrap, TOPIC)

    def last_commits(self, count: int) -> list[str]:
        """Return the writer's last commits by their requested times, in the order of completion."""
        writes = TableViewCache().refresh(self.base_path).timeline.completed_writes
        return [write.requested_time for write in writes if write.action is Action.COMMIT][-count:]

    def versions(self, commits: list[str]) -> dict[str, Version]:
        """Return the table's rows after each of the commits, by stock Spark's time travel."""
        found = self.writer.travel(self.base_path, commits)
        return {instant: {row["id"]: row for row in rows} for instant, rows in found.items()}

    def require_last_commits_as_in_the_table(self, records: list[Record], count: int) -> None:
        commits = self.last_commits(count + 1)
        require_as_in_the_table(records, commits, self.versions(commits))

    def wait(self, ready: Any, what: str) -> None:
        self.airflow.wait_until(ready, 400, what)

    def pause_sink(self, *, paused: bool) -> None:
        """The schedule leaves a paused sink alone; runs by hand do not."""
        headers = {"Authorization": f"Bearer {self.airflow.service_token}"}
        url = f"{self.airflow.url}/v1/hoodie/tables/{self.table_id}/sinks/kafka/pause"
        httpx.post(url, json={"paused": paused}, headers=headers, timeout=20).raise_for_status()

    def replicate_by_hand(self, run_id: str) -> None:
        options = {"topic": TOPIC, "bootstrap_servers": self.broker.bootstrap, "timeout_s": "20"}
        conf = {"action": "replicate", "base_path": self.base_path, "sink": "kafka", "options": options}
        self._post("dagRuns", {"dag_run_id": run_id, "logical_date": None, "conf": conf})

    def clear(self, run_id: str) -> None:
        body = {"dry_run": False, "dag_run_id": run_id, "only_failed": False, "task_ids": ["replicate"]}
        self._post("clearTaskInstances", body)

    def states(self, run_ids: list[str]) -> set[str]:
        paths = [f"/api/v2/dags/lake_replication/dagRuns/{run_id}" for run_id in run_ids]
        return {(self.airflow.airflow_get(path) or {"state": "unknown"})["state"] for path in paths}

    def kill(self, victim: Victim) -> None:
        """Kill -9 of one process of the living run, of the manager, or of the scheduler and all that it started."""
        if victim is Victim.API_SERVER:
            self.airflow.servers["api-server"].kill()
            self.airflow.start_component("api-server")
            self.airflow.wait_for_manager()
            return
        if victim is Victim.MACHINE:
            server = self.airflow.servers["scheduler"]
            kill_all(members_of_session(server.process.pid))
            server.process.wait()
            self.airflow.start_component("scheduler")
            return
        drivers = self.watch.living(self.stream)
        task = parent_of(drivers[0].pid) if drivers else None
        if task is None or task == 1:
            return
        wanted = {Victim.DRIVER: drivers[0].pid, Victim.TASK: task, Victim.SUPERVISOR: parent_of(task)}[victim]
        if wanted is not None and wanted != 1:
            kill_all([wanted])

    def _post(self, path: str, body: dict[str, Any]) -> None:
        self.airflow.change("POST", f"/api/v2/dags/lake_replication/{path}", body)


@pytest.fixture(scope="module")
def corridor(stand: Stand, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corridor]:
    broker = LocalKafka(tmp_path_factory.mktemp("kafka"))
    airflow = stand.airflow
    watch = DriverWatch(airflow.home / "lake" / "jobs")
    assert airflow.tables_file is not None
    tables = yaml.safe_load(airflow.tables_file.read_text())
    sink = {
        "sink": "kafka",
        "topic": TOPIC,
        "bootstrap_servers": broker.bootstrap,
        "create_topics": True,
        "timeout_s": 20,
    }
    tables["tables"].append({"name": NAME, "replication": [sink]})
    airflow.tables_file.write_text(yaml.safe_dump(tables, allow_unicode=True))
    try:
        broker.start()
        yield Corridor(airflow, broker, watch, stand.writer)
    finally:
        airflow.pause("lake_replication")
        broker.stop()
        watch.close()


def test_changes_arrive_in_the_topic_and_let_the_table_go_on(corridor: Corridor) -> None:
    corridor.write(2)
    corridor.airflow.pause("lake_replication", is_paused=False)
    corridor.wait(lambda: len(corridor.records()) == KEYS + 4, "the snapshot in the topic")
    corridor.wait(lambda: corridor.sink()["hold"] != "0", "the sink's hold")
    held = corridor.safepoint()
    assert held == corridor.sink()["checkpoint"]["commit"]["requested_time"]

    corridor.write(2)
    corridor.wait(lambda: len(corridor.records()) == KEYS + 4 + 2 * CHANGES, "the changes in the topic")
    require_each_once(corridor.all_records())
    corridor.require_last_commits_as_in_the_table(corridor.all_records(), 2)
    corridor.wait(lambda: (corridor.safepoint() or "") > held, "the table's release")
    assert corridor.sink()["problem"] == ""


@pytest.mark.soak(covered_by="tests/integration/replication/test_sinks.py")
def test_a_broker_that_is_away_holds_the_table(corridor: Corridor) -> None:
    before, held = len(corridor.all_records()), corridor.safepoint()
    corridor.broker.kill()
    corridor.write(2)
    corridor.wait(lambda: "Kafka at" in corridor.sink()["problem"], "the error on the sink")
    assert corridor.safepoint() == held

    corridor.broker.start()
    corridor.wait(lambda: len(corridor.records()) == before + 2 * CHANGES, "the changes in the topic")
    require_each_once(corridor.all_records())
    corridor.require_last_commits_as_in_the_table(corridor.all_records(), 2)
    corridor.wait(lambda: corridor.sink()["problem"] == "", "the sink without an error")
    assert corridor.safepoint() > held


@pytest.mark.soak(covered_by="tests/integration/replication/test_kill_matrix.py")
@pytest.mark.parametrize("number", range(KILLS))
def test_runs_that_are_killed_doubled_and_cleared_deliver_each_version_once(corridor: Corridor, number: int) -> None:
    rng = random.Random(number)
    victim = FIRST_VICTIMS[number] if number < len(FIRST_VICTIMS) else rng.choice(VICTIMS)
    before = len(corridor.all_records())
    assert before > 0
    corridor.pause_sink(paused=True)
    corridor.wait(lambda: not corridor.watch.living(corridor.stream), "the end of the schedule's last driver")
    corridor.write(2)
    runs = [f"by-hand-{number}-{one}" for one in "ab"]
    for run in runs:
        corridor.replicate_by_hand(run)
    corridor.wait(lambda: bool(corridor.watch.living(corridor.stream)), "a driver")
    if number:
        time.sleep(rng.uniform(0, 8))
    corridor.kill(victim)
    corridor.clear(runs[1])
    # Should the two have shut each other out until their tries were over, the schedule does it.
    corridor.pause_sink(paused=False)
    corridor.wait(lambda: len(corridor.records()) >= before + 2 * CHANGES, f"the changes, after a kill of the {victim}")
    corridor.wait(lambda: corridor.states(runs) <= {"success", "failed"}, "the runs' end")
    corridor.wait(lambda: not corridor.watch.living(corridor.stream), "the drivers' end")
    records = corridor.all_records()
    assert len(records) == before + 2 * CHANGES
    require_each_once(records)
    corridor.require_last_commits_as_in_the_table(records, 2)


def require_each_once(records: list[Record]) -> None:
    seen = [(record.headers["commit"], record.key["id"]) for record in records]
    assert len(seen) == len(set(seen))
    assert {record.headers["generation"] for record in records} == {"1"}
