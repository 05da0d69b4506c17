"""Why not a plain asset-scheduled DAG: the same notices, kills and Airflow; one of the two loses commits.

Each notice that arrives is handed to both, as Airflow's asset event and as Hudi's callback. `LAKE_PEER_ROUNDS` is the
number of rounds. A commit counts as lost when everything has come to rest and no reader got it. Part of `make soak`:
before each landing tests/simulation says it of the queue, and the other files here of the manager.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from airflow_lake_provider.hudi.base_path import table_id_of
from local_stack.airflow import LocalAirflow
from local_stack.postgres import LocalPostgres
from tests.support.tables import HandMadeTable
from tests.system.conftest import SETTINGS, make_airflow
from tests.system.crashes.driver_watch import kill_all, members_of_session
from tests.system.crashes.faults import SERVERS, RoundPlan, Victim, draw
from tests.system.crashes.postman import Postman, to_url
from tests.system.crashes.stage import COMPONENT_OF
from tests.system.writers import notice_body

pytestmark = [pytest.mark.system, pytest.mark.soak(covered_by="tests/system/test_production_shape.py")]

ROUNDS = int(os.environ.get("LAKE_PEER_ROUNDS", "1"))
TABLES, COMMITS = 4, 6
REST_S = 20.0


@dataclass
class Contest:
    """One Airflow that has both queues, and the postman that serves both."""

    airflow: LocalAirflow
    journal: Path
    asset_id: int = 0

    def deliver(self, body: bytes, headers: Mapping[str, str]) -> int:
        """Hand a notice to both; what only one of them took was not delivered."""
        reported = json.loads(body)
        event = {"asset_id": self.asset_id, "extra": {"commit": f"{reported['tableName']}/{reported['commitTime']}"}}
        try:
            answer = httpx.post(f"{self.airflow.url}/api/v2/assets/events", json=event, timeout=10)
        except httpx.HTTPError:
            return 0
        ours = to_url(self.airflow.callback_url)(body, headers)
        return ours if answer.is_success else answer.status_code

    def consumed(self) -> set[str]:
        text = self.journal.read_text(encoding="utf-8") if self.journal.exists() else ""
        return {json.loads(line) for line in text.splitlines()}

    def evaluated_up_to(self, table: HandMadeTable) -> str:
        """Return the completed time up to which the manager knows a table."""
        row = self.airflow.get(f"/v1/hoodie/tables/{table_id_of(str(table.path))}")
        return "" if row is None or row["dirty"] else str(row["completed_time"])

    def has_active_run(self) -> bool:
        time.sleep(1)  # asked in loops, of a server that has other work
        answers = [self.airflow.airflow_get("/api/v2/dags/asset_queue/dagRuns", state=s) for s in ("queued", "running")]
        return any(answer is None or answer["dag_runs"] for answer in answers)


@pytest.fixture(scope="module")
def contest(postgres: LocalPostgres) -> Iterator[Contest]:
    # Asset events over REST hardly get through on SQLite.
    airflow = make_airflow("asset-queue", postgres=postgres)
    airflow.more_dags = {"peer": Path(__file__).parent / "peer_dags"}
    journal = airflow.home / "consumed.jsonl"
    airflow.settings |= SETTINGS | {"LAKE_PEER_JOURNAL": str(journal)}
    try:
        airflow.start()
        airflow.wait_for_dags()
        yield Contest(airflow, journal, find_asset(airflow))
    finally:
        sessions = [server.process.pid for server in airflow.servers.values()]
        airflow.stop()
        for session in sessions:
            kill_all(members_of_session(session))


def configure(airflow: LocalAirflow, tables: list[HandMadeTable]) -> None:
    """Name the tables, so that they are found if every notice is lost; no service may run, only evaluations count."""
    assert airflow.tables_file is not None
    entries = "\n".join(f"  - base_path: {table.path}" for table in tables)
    services = ("compaction", "clean", "archive")
    off = "".join(f"  {service}: {{enabled: false}}\n" for service in services)
    airflow.tables_file.write_text(f"defaults:\n  heartbeat_timeout_s: 5\n{off}tables:\n{entries}\n", encoding="utf-8")


def find_asset(airflow: LocalAirflow) -> int:
    found: list[int] = []

    def there() -> bool:
        answer = airflow.airflow_get("/api/v2/assets", name_pattern="lake_commits")
        found.extend(asset["id"] for asset in (answer or {"assets": []})["assets"])
        return bool(found)

    airflow.wait_until(there, 120, "the peer's asset")
    return found[0]


def test_asset_queue_loses_commits_where_the_manager_loses_none(contest: Contest) -> None:
    made = lost_by_queue = taken_and_lost = 0
    for seed in range(ROUNDS):
        plan = draw(seed, clocks=False)
        tables = [HandMadeTable.create(contest.airflow.allowed_roots[0] / f"t{seed}-{n}") for n in range(TABLES)]
        configure(contest.airflow, tables)
        commits, taken = play(contest, plan, tables)
        lost = commits - contest.consumed()
        print(
            f"seed {seed}: {len(commits)} commits; the asset queue lost {len(lost)}, {len(lost & taken)} of them taken"
        )
        made, lost_by_queue, taken_and_lost = (
            made + len(commits),
            lost_by_queue + len(lost),
            taken_and_lost + len(lost & taken),
        )
    print(
        f"{ROUNDS} rounds, {made} commits: the manager lost 0, the asset queue {lost_by_queue}; "
        f"{taken_and_lost} of these it had taken"
    )
    assert lost_by_queue > 0


def play(contest: Contest, plan: RoundPlan, tables: list[HandMadeTable]) -> tuple[set[str], set[str]]:
    """Commit, announce and kill; return all commits, and those that Airflow took, once nothing moves any more.

    Fails when the manager does not come to know each table's last commit.
    """
    rng = random.Random(plan.seed)
    postman = Postman(contest.deliver)
    postman.begin(plan)
    killer = threading.Timer(rng.uniform(1, 4), lambda: kill(contest.airflow, plan, rng))
    killer.start()
    commits = set()
    headers = {"HUDI-CALLBACK-KEY": contest.airflow.callback_token}
    for second in range(1, COMMITS + 1):
        for table in tables:
            instant = table.commit(second)
            commits.add(f"{table.path.name}/{instant}")
            httpx.post(postman.url, json=notice_body(table.path, instant), headers=headers, timeout=30)
            time.sleep(rng.choice((0.0, 0.1, 0.8)))
    killer.join()
    postman.close()
    contest.airflow.wait_for_manager()
    contest.airflow.wait_until(lambda: not contest.has_active_run(), 180, "the end of the peer's runs")
    contest.airflow.wait_until(
        lambda: all(contest.evaluated_up_to(table).endswith(f"{COMMITS:02d}500") for table in tables),
        180,
        "the manager's evaluation of each table's last commit",
    )
    rest_until = time.monotonic() + REST_S
    while time.monotonic() < rest_until:
        time.sleep(1)
        if contest.has_active_run():
            rest_until = time.monotonic() + REST_S
    taken = {f"{letter.table_name}/{letter.instant}" for letter in postman.letters if letter.status == httpx.codes.OK}
    return commits, taken


def kill(airflow: LocalAirflow, plan: RoundPlan, rng: random.Random) -> None:
    """Kill what the round's plan wants killed, or any server where it wants a Spark driver."""
    for fault in plan.faults:
        victim = fault.victim if fault.victim in SERVERS else rng.choice((Victim.API_SERVER, Victim.MACHINE))
        server = airflow.servers[COMPONENT_OF[victim]]
        kill_all(members_of_session(server.process.pid))
        server.process.wait()
        time.sleep(fault.down_s)
        airflow.start_component(COMPONENT_OF[victim])
