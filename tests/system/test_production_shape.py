"""The production shape: PostgreSQL, two API servers and two schedulers at once, and any of them killed under load.

Many tables become due at the same time, every notice goes to both API servers, and schedulers, servers and tasks are
killed while runs are started and executed. Execution itself is pretended, so that many runs fit on a small machine;
with real Spark: test_crashes.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from local_stack.airflow import LocalAirflow
from local_stack.postgres import LocalPostgres
from local_stack.processes import free_port, wait_until
from tests.support.tables import HandMadeTable
from tests.system import pretend_spark_submit
from tests.system.conftest import SETTINGS, make_airflow
from tests.system.crashes.driver_watch import kill_all, members_of_session, parent_of
from tests.system.writers import send_notice

pytestmark = pytest.mark.system

TABLES = int(os.environ.get("LAKE_TABLES", "6"))
SEED = int(os.environ.get("LAKE_SHAPE_SEED", "1"))


@dataclass
class Shape:
    """Two nodes, each with an API server and a scheduler. One lake, and one database, which has the DAGs."""

    nodes: tuple[LocalAirflow, LocalAirflow]
    journal: Path

    def said(self) -> list[dict[str, Any]]:
        """Return the lines of all executors so far."""
        text = self.journal.read_text(encoding="utf-8") if self.journal.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def running_executors(self) -> list[int]:
        ended = {line["pid"] for line in self.said() if line["what"] == "end"}
        pids = [line["pid"] for line in self.said() if line["what"] == "begin" and line["pid"] not in ended]
        return [pid for pid in pids if Path(f"/proc/{pid}").exists()]

    def ask(self, work: Callable[[LocalAirflow], Any]) -> Any:
        """Ask the node that answers; None while none does."""
        return next((answer for node in self.nodes if (answer := work(node)) is not None), None)

    def wait_until(self, ready: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait under supervision, as `LocalAirflow` does for one node."""

        def is_reached() -> bool:
            for node in self.nodes:
                node.revive()
            return ready()

        wait_until(is_reached, timeout_s, what)


@pytest.fixture
def shape(postgres: LocalPostgres) -> Iterator[Shape]:
    first = make_airflow("production-shape", postgres=postgres)
    programs, journal = first.home / "pretend", first.home / "journal.jsonl"
    pretend_spark_submit.install(programs, journal)
    first.settings |= SETTINGS | {
        "AIRFLOW__LAKE__MAX_ACTIVE_SERVICES": "8",
        "PATH": f"{programs}{os.pathsep}{first.env()['PATH']}",
    }
    second = replace(first, port=free_port(), servers={})
    try:
        first.start(("api-server", "scheduler", "triggerer"))
        second.start(("api-server", "scheduler"))
        first.wait_for_dags()
        yield Shape((first, second), journal)
    finally:
        for node in (second, first):
            sessions = [server.process.pid for server in node.servers.values()]
            node.stop()
            for session in sessions:
                kill_all(members_of_session(session))


def test_servers_schedulers_and_tasks_die_and_every_table_gets_its_plan_completed_once(shape: Shape) -> None:
    rng = random.Random(SEED)
    lake = shape.nodes[0].allowed_roots[0]
    tables = [HandMadeTable.create(lake / f"table-{number}", name=f"table-{number}") for number in range(TABLES)]
    for table in tables:
        instant = [table.commit(second) for second in (1, 2, 3)][-1]
        announce(shape, table, instant)
    for kill in (kill_an_api_server, kill_a_task, kill_a_machine, kill_an_executor, kill_a_task):
        # Where a kill takes long, the few tables may have been completed meanwhile.
        shape.wait_until(
            lambda: bool(shape.running_executors()) or all(is_completed(table) for table in tables),
            120,
            "an executor at work",
        )
        time.sleep(rng.uniform(0, 3))
        kill(shape, rng)
    shape.wait_until(lambda: all(is_completed(table) for table in tables), 400, "the completion of every table's plan")
    shape.wait_until(lambda: not active_runs(shape), 120, "the end of all runs")

    completions = Counter(line["table"] for line in shape.said() if line["what"] == "completed")
    assert completions == {table.path.name: 1 for table in tables}
    assert all(len(list((table.path / ".hoodie" / "timeline").glob("*.commit"))) == 1 for table in tables)
    assert not find_meetings(shape.said())
    tries = Counter(line["what"] for line in shape.said())
    print(f"{TABLES} tables: {dict(tries)}, tries that were not alone with their plan: 0")
    assert tries["begin"] > TABLES, "no kill hit anything"


def announce(shape: Shape, table: HandMadeTable, instant: str) -> None:
    """Send a notice to both API servers, again and again until one of them has answered."""
    answered = False
    while not answered:
        for node in shape.nodes:
            with contextlib.suppress(httpx.HTTPError):
                answered |= send_notice(node, table.path, instant).status_code == httpx.codes.OK


def find_meetings(lines: list[dict[str, Any]]) -> list[str]:
    """Return where an executor began while another one of its table had said its last word only later."""
    last = {line["pid"]: line["at_s"] for line in lines}
    begins = [line for line in lines if line["what"] == "begin"]
    return [
        f"{second} while {first} was at work until {last[first['pid']]:.2f}"
        for first in begins
        for second in begins
        if first["table"] == second["table"] and first["at_s"] < second["at_s"] < last[first["pid"]]
    ]


def kill_an_api_server(shape: Shape, rng: random.Random) -> None:
    node = rng.choice(shape.nodes)
    node.servers["api-server"].kill()
    node.start_component("api-server")


def kill_a_machine(shape: Shape, rng: random.Random) -> None:
    """A scheduler with its workers, their tasks and what these started."""
    node = rng.choice(shape.nodes)
    kill_all(members_of_session(node.servers["scheduler"].process.pid))
    node.servers["scheduler"].process.wait()
    node.start_component("scheduler")


def kill_a_task(shape: Shape, rng: random.Random) -> None:
    executors = shape.running_executors()
    tasks = [task for pid in executors if (task := parent_of(pid)) not in (None, 1)]
    if tasks:
        kill_all([rng.choice(tasks)])


def kill_an_executor(shape: Shape, rng: random.Random) -> None:
    if executors := shape.running_executors():
        kill_all([rng.choice(executors)])


def is_completed(table: HandMadeTable) -> bool:
    return any(True for _ in (table.path / ".hoodie" / "timeline").glob("*.commit"))


def active_runs(shape: Shape) -> list[str]:
    def ask(node: LocalAirflow) -> list[str] | None:
        found = [node.airflow_get("/api/v2/dags/lake_table_service/dagRuns", state=s) for s in ("queued", "running")]
        return (
            None if None in found else [run["dag_run_id"] for answer in found if answer for run in answer["dag_runs"]]
        )

    runs = shape.ask(ask)
    return ["no server answers"] if runs is None else runs
