"""Commits of random concurrent writers, slow ones among them, start DAG runs: each commit exactly one, whatever dies.

Writers write timelines; API server (with the manager's loop), scheduler and triggerer are killed with -9 meanwhile, and
notices are lost. `LAKE_EVENT_ROUNDS` is the number of rounds.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from local_stack.airflow import LocalAirflow
from local_stack.postgres import LocalPostgres
from tests.support.tables import HandMadeTable
from tests.system.conftest import SETTINGS, make_airflow
from tests.system.crashes.driver_watch import kill_all, members_of_session
from tests.system.writers import send_notice

pytestmark = [pytest.mark.system, pytest.mark.soak(covered_by="tests/integration/airflow/test_commit_events.py")]

ROUNDS = int(os.environ.get("LAKE_EVENT_ROUNDS", "2"))
SEED = int(os.environ.get("LAKE_EVENT_SEED", "1"))
TABLES = 2
WRITERS = 3
ROUND_S = 25.0
VICTIMS = ("api-server", "triggerer", "scheduler")


def now() -> str:
    return datetime.now(UTC).strftime("%Y%m%d%H%M%S%f")[:17]


@dataclass
class Written:
    """What the writers of a table did. The lock is that of Hudi's writers: it orders completed times."""

    table: HandMadeTable
    lock: threading.Lock = field(default_factory=threading.Lock)
    completed: dict[str, str] = field(default_factory=dict)
    """Completed times by requested times."""

    def write(self, rng: random.Random) -> str:
        """Write one commit; return its requested time, or nothing of one that is rolled back."""
        with self.lock:
            time.sleep(0.002)
            requested = now()
            self.table.begin(requested)
        time.sleep(rng.choice((0.01, 0.1, 0.5, 0.5, 6.0)))
        if rng.random() < 0.05:
            self.table.roll_back(requested)
            return ""
        with self.lock:
            time.sleep(0.002)
            completed = now()
            self.table.complete(requested, completed)
            self.completed[requested] = completed
        return requested


@dataclass
class Stand:
    """One Airflow, and what its DAGs noted."""

    airflow: LocalAirflow
    journal: Path
    tables: list[Written]

    def lines_of(self, dag_id: str) -> list[dict[str, Any]]:
        text = self.journal.read_text(encoding="utf-8") if self.journal.exists() else ""
        return [line for line in map(json.loads, text.splitlines()) if line["dag"] == dag_id]

    def noted(self, dag_id: str) -> dict[str, set[str]]:
        """Return by instant the runs that had it."""
        runs = defaultdict(set)
        for line in self.lines_of(dag_id):
            for instant in line["instants"]:
                runs[instant].add(line["run"])
        return runs

    def play(self, rng: random.Random) -> None:
        """Write and kill for one round."""
        until_s = time.monotonic() + ROUND_S
        writers = [
            threading.Thread(target=self._write, args=(written, random.Random(rng.random()), until_s))
            for written in self.tables
            for _ in range(WRITERS)
        ]
        for thread in writers:
            thread.start()
        while time.monotonic() < until_s - 8:
            time.sleep(rng.uniform(1, 5))
            self._kill(rng.choice(VICTIMS), rng.uniform(0, 3))
        for thread in writers:
            thread.join()
        self.airflow.wait_for_manager()

    def announce(self, written: Written, requested: str) -> None:
        """Send the notice of a commit; it may be lost."""
        if requested:
            with suppress(httpx.HTTPError):
                send_notice(self.airflow, written.table.path, requested)

    def _write(self, written: Written, rng: random.Random, until_s: float) -> None:
        while time.monotonic() < until_s:
            requested = written.write(rng)
            if rng.random() < 0.7:
                self.announce(written, requested)
            time.sleep(rng.choice((0.0, 0.2, 1.0)))

    def _kill(self, component: str, down_s: float) -> None:
        server = self.airflow.servers[component]
        kill_all(members_of_session(server.process.pid))
        server.process.wait()
        time.sleep(down_s)
        self.airflow.start_component(component)


@pytest.fixture(scope="module")
def stand(postgres: LocalPostgres) -> Iterator[Stand]:
    # A loop that seems to hang on a busy machine would leave its table alone for ten minutes.
    airflow = make_airflow("new-data", postgres=postgres, claim_lease_s=30)
    lake = airflow.allowed_roots[0]
    tables = [Written(HandMadeTable.create(lake / f"t{number}", name=f"t{number}")) for number in range(TABLES)]
    airflow.more_dags = {"events": Path(__file__).parent / "event_dags"}
    journal = airflow.home / "journal.jsonl"
    airflow.settings |= SETTINGS | {"LAKE_EVENTS_ROOT": str(lake), "LAKE_EVENTS_JOURNAL": str(journal)}
    assert airflow.tables_file is not None
    off = "".join(f"  {service}: {{enabled: false}}\n" for service in ("compaction", "clean", "archive"))
    entries = "".join(f"  - base_path: {written.table.path}\n" for written in tables)
    airflow.tables_file.write_text(
        f"defaults:\n  heartbeat_timeout_s: 5\n  asset_events: commits\n{off}tables:\n{entries}", encoding="utf-8"
    )
    stand = Stand(airflow, journal, tables)
    try:
        airflow.start()
        airflow.wait_for_dags()
        yield stand
    finally:
        sessions = [server.process.pid for server in airflow.servers.values()]
        airflow.stop()
        for session in sessions:
            kill_all(members_of_session(session))


def begin(stand: Stand) -> None:
    """Wait until every DAG gets events: the first commits only say where events begin."""

    def is_begun() -> bool:
        for written in stand.tables:
            stand.announce(written, written.write(random.Random(3)))
        time.sleep(2)
        kinds = ("by_manager", "by_watcher")
        return all(stand.lines_of(f"{kind}_{number}") for kind in kinds for number in range(TABLES))

    stand.airflow.wait_until(is_begun, 240, "the first events of every DAG")


def test_each_commit_is_in_exactly_one_run_and_the_watchers_lose_none(stand: Stand) -> None:
    begin(stand)
    by_manager, by_watcher = ([f"{kind}_{n}" for n in range(TABLES)] for kind in ("by_manager", "by_watcher"))
    first = {id: min(line["after"] for line in stand.lines_of(id)) for id in (*by_manager, *by_watcher)}
    for number in range(ROUNDS):
        stand.play(random.Random(SEED + number))

    def lacking(dag_ids: list[str]) -> list[tuple[str, str]]:
        return [
            (dag_id, requested)
            for dag_id in dag_ids
            for requested, completed in stand.tables[int(dag_id[-1])].completed.items()
            if completed > first[dag_id] and requested not in stand.noted(dag_id)
        ]

    stand.airflow.wait_until(lambda: not lacking(by_manager), 300, "every commit in a run by the manager's events")
    left_behind = len(lacking(by_watcher))

    def is_handed_over() -> bool:
        """Airflow gives a run the events up to the first one that queued it, the others with the next event."""
        before = lacking(by_watcher)
        if before:
            for written in stand.tables:
                written.write(random.Random(3))
            time.sleep(10)
        return not set(before) & set(lacking(by_watcher))

    stand.airflow.wait_until(is_handed_over, 300, "every commit in a run by the watchers' events")
    made = sum(len(written.completed) for written in stand.tables)
    twice = {instant: runs for id in by_watcher for instant, runs in stand.noted(id).items() if len(runs) > 1}
    for written, id in zip(stand.tables, by_manager, strict=True):
        assert [instant for instant, runs in stand.noted(id).items() if len(runs) > 1] == []
        for line in stand.lines_of(id):
            # What began by then completed by the end of the range: a reader up to here misses no older write.
            late = [
                requested
                for requested, completed in written.completed.items()
                if requested <= line["complete_until"] and completed > line["until"]
            ]
            assert late == [], line
    runs = {line["run"] for id in by_manager for line in stand.lines_of(id)}
    print(
        f"{made} commits: the manager's events gave each to one of {len(runs)} runs. Airflow left {left_behind} of the "
        f"watchers' behind until the next event; {len(twice)} came twice"
    )
