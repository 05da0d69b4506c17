"""A deployment as people run it: Airflow in a path, nginx with TLS of a private authority, PgBouncer, two API servers.

Each API server has two workers. A stock writer announces its commits through nginx, services run by spark-submit and in
a warm application, a sensor waits, changes reach a sink, the `lake` command asks; an API server, nginx and PgBouncer
are killed meanwhile.
"""

from __future__ import annotations

import json
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from airflow_lake_provider.hudi.base_path import table_id_of
from local_stack.airflow import LocalAirflow
from local_stack.gateway import Authority, Gateway
from local_stack.pgbouncer import PgBouncer
from local_stack.postgres import LocalPostgres
from local_stack.processes import free_port, wait_until
from local_stack.writer_process import StandingWriter
from tests.support.tables import HandMadeTable
from tests.system.conftest import LOCK_OPTIONS, USERS_DAGS, make_airflow
from tests.system.crashes.driver_watch import kill_all, members_of_session
from tests.system.writers import notice_body

pytestmark = [pytest.mark.system, pytest.mark.soak(covered_by="tests/system/test_end_to_end.py")]

PATH = "/airflow"
KEYS, ROWS = 500, 100
PLAIN, WARM, LATE = "orders", "clicks", "users"


@dataclass
class InAPath(LocalAirflow):
    """An Airflow whose pages and routes are below a path; its own address is without nginx."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{PATH}"


@dataclass
class Deployment:
    """Two nodes behind one gateway; the first one has the scheduler and the triggerer, too."""

    nodes: tuple[InAPath, InAPath]
    gateway: Gateway
    pool: PgBouncer
    writer: StandingWriter
    folder: Path

    @property
    def url(self) -> str:
        return f"{self.gateway.url}{PATH}"

    def ask(self, method: str, path: str, **request: Any) -> Any:
        """Ask through nginx; None while nothing sensible answers."""
        trust = ssl.create_default_context(cafile=str(self.gateway.authority.certificate))
        # Airflow's own API is open in this set-up, and would refuse a token that it has not made.
        is_ours = path.startswith("/v1/hoodie")
        headers = {"Authorization": f"Bearer {self.nodes[0].service_token}"} if is_ours else {}
        headers |= request.pop("headers", {})
        try:
            answer = httpx.request(method, self.url + path, headers=headers, timeout=30, verify=trust, **request)
            return answer.json() if answer.is_success else None
        except (httpx.HTTPError, ValueError):
            return None

    def write(self, name: str, commits: range) -> None:
        callback = {"url": f"{self.url}/v1/hoodie/callback", "token": self.nodes[0].callback_token, "headers": {}}
        for commit in commits:
            table = {
                "name": name,
                "type": "MOR",
                "version": 9,
                "keys": KEYS,
                "rows": ROWS,
                "base_path": self.path(name),
            }
            self.writer.write(table, commit, callback, LOCK_OPTIONS)

    def path(self, name: str) -> str:
        return str(self.nodes[0].allowed_roots[0] / name)

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        answer = self.ask("GET", f"/api/v2/dags/{dag_id}/dagRuns", params={"limit": 100})
        return [] if answer is None else list(answer["dag_runs"])

    def services(self, name: str, state: str) -> list[str]:
        """Return the services of a table whose runs have a state."""
        return [
            run["conf"]["service"]
            for run in self.runs("lake_table_service")
            if run["conf"].get("base_path") == self.path(name) and run["state"] == state
        ]

    def state_of(self, task: str) -> str:
        return str((self.ask("GET", task) or {}).get("state"))

    def wait(self, ready: Any, timeout_s: float, what: str) -> None:
        def poll() -> bool:
            for node in self.nodes:
                node.revive()
            return bool(ready())

        wait_until(poll, timeout_s, what)

    def sinks(self, name: str) -> list[dict[str, Any]]:
        answer = self.ask("GET", f"/v1/hoodie/tables/{table_id_of(self.path(name))}/sinks")
        return [] if answer is None else list(answer["sinks"])

    def lake(self, *words: str) -> str:
        """Return what the command prints, with Airflow's own settings alone."""
        ran = subprocess.run(
            [str(self.nodes[0].bin() / "lake"), *words],
            env=self.nodes[0].env(),
            cwd=self.nodes[0].home,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout


@pytest.fixture(scope="module")
def deployment(postgres: LocalPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("gateway")
    # The user of PgBouncer must be able to enter it.
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(0o755)
    sink = folder / "sink"
    more = (
        f"  - name: {PLAIN}\n    replication: [{{sink: file, mode: latest, path: '{sink}'}}]\n"
        f"  - name: {WARM}\n    engine: warm\n"
    )
    made = make_airflow("behind-a-proxy", postgres=postgres, more_tables=more)
    first = InAPath(**{field.name: getattr(made, field.name) for field in fields(made)})
    ports = (first.port, free_port())
    gateway = Gateway(make_folder(folder / "nginx"), Authority.create(folder), ports)
    pool = PgBouncer(make_folder(folder / "pgbouncer"), postgres.port, made.database_url.rpartition("/")[2])
    first.more_dags = USERS_DAGS
    first.settings |= {
        "AIRFLOW__API__BASE_URL": f"{gateway.url}{PATH}",
        "AIRFLOW__API__WORKERS": "2",
        "AIRFLOW__API__SSL_CA_FILE": str(gateway.authority.certificate),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{gateway.url}{PATH}/execution/",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": pool.url("psycopg2"),
        # asyncpg prepares statements under names, which a pool by transactions mixes up.
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": made.database_url.replace("psycopg2", "asyncpg"),
        "AIRFLOW__LAKE__SINK_ROOTS": str(sink),
        "AIRFLOW__LAKE__RETRY_DELAY_S": "3",
    }
    second = replace(first, port=ports[1], servers={})
    trust = f"-Djavax.net.ssl.trustStore={gateway.authority.trust_store()} -Djavax.net.ssl.trustStorePassword=changeit"
    writer = StandingWriter(first.home, {"spark.driver.extraJavaOptions": trust})
    deployment = Deployment((first, second), gateway, pool, writer, folder)
    try:
        pool.start()
        gateway.start()
        # Before the scheduler: one of Airflow 3.3 ends when nginx answers a task's start with 502.
        for node in (first, second):
            node.start(("api-server",))
        first.start(("scheduler", "dag-processor", "triggerer"))
        writer.wait_until_ready()
        first.wait_for_dags()
        yield deployment
    finally:
        writer.stop()
        sessions = [server.process.pid for node in deployment.nodes for server in node.servers.values()]
        for node in reversed(deployment.nodes):
            node.stop()
        for session in sessions:
            kill_all(members_of_session(session))
        gateway.kill()
        pool.kill()


def make_folder(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_everything_works_through_the_gateway_and_survives_what_is_killed(deployment: Deployment) -> None:
    first, second = deployment.nodes
    assert deployment.ask("GET", "/v1/hoodie/health") is not None
    unpaused = deployment.ask("PATCH", "/api/v2/dags/lake_replication", json={"is_paused": False})
    assert unpaused is not None, "Airflow's own API answers below the path"
    deployment.write(PLAIN, range(3))
    deployment.write(WARM, range(3))
    deployment.wait(lambda: deployment.services(PLAIN, "success"), 300, "a compaction by spark-submit")
    deployment.wait(lambda: deployment.services(WARM, "success"), 300, "a compaction in a warm application")
    assert deployment.runs("lake_warm"), "no standing application was asked for"

    late = HandMadeTable.create(Path(deployment.path(LATE)), name=LATE)
    waits = {"dag_run_id": "waits", "logical_date": None, "conf": {"base_path": deployment.path(LATE)}}
    assert deployment.ask("POST", "/api/v2/dags/wait_for_push/dagRuns", json=waits) is not None
    task = "/api/v2/dags/wait_for_push/dagRuns/waits/taskInstances/wait"
    deployment.wait(
        lambda: (deployment.ask("GET", task) or {}).get("state") == "deferred", 120, "the sensor's deferral"
    )
    first.servers["api-server"].kill()
    instant = late.commit(1)
    key = {"HUDI-CALLBACK-KEY": first.callback_token}
    noticed = deployment.ask("POST", "/v1/hoodie/callback", json=notice_body(late.path, instant), headers=key)
    assert noticed is not None, "the other API server answers"
    deployment.wait(lambda: deployment.state_of(task) == "success", 120, "the sensor's push")
    first.start_component("api-server")

    deployment.pool.kill()
    deployment.pool.start()
    deployment.gateway.kill()
    deployment.gateway.start()
    deployment.write(PLAIN, range(3, 6))
    deployment.wait(lambda: len(deployment.services(PLAIN, "success")) >= 2, 300, "the compaction after the kills")
    assert not deployment.services(PLAIN, "failed")

    rows = deployment.writer.read(deployment.path(PLAIN))
    assert rows["rows"] == rows["ids"] > KEYS

    def is_replicated() -> bool:
        (sink,) = deployment.sinks(PLAIN) or [{}]
        return (
            bool(sink)
            and not sink["problem"]
            and sink["checkpoint_text"] != ""
            and count_keys(deployment) == rows["ids"]
        )

    deployment.wait(is_replicated, 300, "all rows in the sink")
    listed = json.loads(deployment.lake("tables", "-o", "json"))
    assert {row["table"] for row in listed} == {PLAIN, WARM, LATE}
    assert "compaction" in deployment.lake("explain", deployment.path(PLAIN))
    assert second.servers["api-server"].alive()


def count_keys(deployment: Deployment) -> int:
    """Return how many keys the sink's files have, by plain reading of their lines; the writer deletes none."""
    lines = [
        json.loads(line)
        for file in (deployment.folder / "sink").rglob("*.jsonl")
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    return len({line["id"] for line in lines if "id" in line})
