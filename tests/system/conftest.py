"""Whole Airflows as processes, on SQLite or PostgreSQL.

The database is migrated once per run, with all DAGs in it, and copied. Two files share one Airflow, `stand`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from local_stack.airflow import LocalAirflow, MigratedHome, ended_by_themselves
from local_stack.hudi_bundle import quick_conf
from local_stack.postgres import LocalPostgres
from local_stack.webhook_receiver import WebhookReceiver, webhook_receiver
from local_stack.writer_process import StandingWriter
from tests.system.crashes.driver_watch import kill_all, members_of_session

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".work" / "system-tests"

LOCK_OPTIONS = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider",
    "hoodie.write.lock.filesystem.expire": "2",
}

# Airflow's own deadlines for the dead, short enough for a test. Retries are those of the shipped DAG.
SETTINGS = {
    "AIRFLOW__LAKE__EXECUTOR_LEASE_S": "60",
    "AIRFLOW__LAKE__RETRY_DELAY_S": "3",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
}
USERS_DAGS = {"users": Path(__file__).parent / "dags"}
"""Sensors in DAGs of a user's own, for `LocalAirflow.more_dags`."""

migrated: dict[str, MigratedHome] = {}
"""What each kind of database was once migrated to; every other Airflow gets a copy of it."""


def make_airflow(
    name: str, *, postgres: LocalPostgres | None = None, claim_lease_s: int = 5, more_tables: str = ""
) -> LocalAirflow:
    """Prepare an Airflow in a clean home with its own lake and a tables file: compaction after 3 delta commits.

    It has an SQLite file, or a database of its own in the server.
    """
    home = WORK / name
    shutil.rmtree(home, ignore_errors=True)
    lake = home / "lake"
    lake.mkdir(parents=True)
    options = "".join(f"    {key}: '{value}'\n" for key, value in LOCK_OPTIONS.items())
    conf = json.dumps(quick_conf())
    tables_file = home / "tables.yaml"
    tables_file.write_text(
        "defaults:\n  heartbeat_timeout_s: 5\n"
        "  compaction: {delta_commits: 3, log_to_base_ratio: null}\n"
        f"  hudi_options:\n{options}  spark_conf: {conf}\n"
        "tables:\n  - name: unlocked\n    hudi_options: {hoodie.write.lock.provider: ''}\n"
        # Clustering would hold the writer's updates back, so it is due with the last commit only.
        "  - name: served\n    clustering: {enabled: true, small_files: null, commits: 6}\n"
        "    clean: {commits: 2, retained_commits: 2}\n    archive: {min_commits: 4, max_commits: 6}\n"
        f"{more_tables}",
        encoding="utf-8",
    )
    airflow = LocalAirflow(home / "airflow", (lake,), tables_file=tables_file)
    airflow.collects_seldom = True
    airflow.settings = {
        "AIRFLOW__LAKE__CLAIM_LEASE_S": str(claim_lease_s),
        # A scheduler that has nothing to do asks its database five times a second otherwise: a tenth of a core.
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
    }
    airflow.database_url = template = postgres.url if postgres else ""
    if template not in migrated:
        airflow.more_dags = USERS_DAGS
        airflow.migrate(with_dags=True)
        airflow.more_dags = {}
        migrated[template] = MigratedHome.of(airflow)
    else:
        airflow.copy_migrated(migrated[template])
    if postgres:
        # What the URL above names stays untouched, to be copied.
        airflow.database_url = postgres.create_database(name.replace("-", "_"), template="airflow")
    return airflow


@contextmanager
def started_api_server(
    name: str, request: pytest.FixtureRequest, settings: Mapping[str, str] | None = None
) -> Iterator[LocalAirflow]:
    """Yield an Airflow of an API server alone, with the DAGs in its database, which is of the kind `request.param`."""
    postgres = request.getfixturevalue("postgres") if request.param == "postgres" else None
    airflow = make_airflow(f"{name}-{request.param}", postgres=postgres)
    airflow.settings |= settings or {}
    try:
        airflow.start(("api-server",))
        airflow.wait_for_dags()
        yield airflow
    finally:
        airflow.stop()


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.soak)])
def airflow(request: pytest.FixtureRequest) -> Iterator[LocalAirflow]:
    """Yield an API server of the module's own; a module with more processes has a fixture of this name."""
    name = request.module.__name__.rpartition("test_")[2].replace("_", "-")
    with started_api_server(name, request) as airflow:
        yield airflow


@dataclass(frozen=True)
class Stand:
    """All of an Airflow's processes, a stock Hudi writer, and the receiver of what people are notified of."""

    airflow: LocalAirflow
    writer: StandingWriter
    receiver: WebhookReceiver

    @property
    def lineage_file(self) -> Path:
        """Where Airflow's OpenLineage provider writes its events."""
        return self.airflow.home / "lineage.jsonl"


VICTIM = "victim; $(touch x) ü"
QUICK_OPTIONS = LOCK_OPTIONS | {"hoodie.client.heartbeat.interval_in_ms": "5000"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests on the stand come last: what none of the others needs would take their processor meanwhile."""
    items.sort(key=lambda item: "stand" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def stand(request: pytest.FixtureRequest) -> Iterator[Stand]:
    # No writer of the victim's lives when its executor is killed: it may count as dead sooner than after two minutes.
    quick = "".join(f"\n      {key}: '{value}'" for key, value in QUICK_OPTIONS.items())
    airflow = make_airflow("stand", more_tables=f"  - name: '{VICTIM}'\n    hudi_options:{quick}\n")
    airflow.more_dags = USERS_DAGS
    if any(item.get_closest_marker("soak") for item in request.session.items):
        # For the test that kills the scheduler.
        airflow.settings |= SETTINGS
    with webhook_receiver() as receiver:
        stand = Stand(airflow, StandingWriter(airflow.home), receiver)
        airflow.settings |= {
            "AIRFLOW__LAKE__EXECUTOR_LEASE_S": "12",
            "AIRFLOW__LAKE__RETRY_DELAY_S": "3",
            "AIRFLOW__LAKE__NOTIFIERS": "airflow_lake_provider.notifications.webhook.LakeWebhookNotifier",
            "AIRFLOW_CONN_LAKE_WEBHOOK": receiver.connection(password="s3cret"),
            "AIRFLOW__OPENLINEAGE__NAMESPACE": "lake-airflow",
            "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(
                {"type": "file", "log_file_path": str(stand.lineage_file), "append": True}
            ),
        }
        try:
            airflow.start()
            stand.writer.wait_until_ready()
            airflow.wait_for_dags()
            yield stand
        finally:
            stand.writer.stop()
            sessions = [server.process.pid for server in airflow.servers.values()]
            airflow.stop()
            for session in sessions:
                kill_all(members_of_session(session))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which servers had to be started again, and what they said last."""
    if ended_by_themselves:
        terminalreporter.section("servers that ended by themselves, and were started again")
        terminalreporter.write_line("\n\n".join(ended_by_themselves))


@pytest.fixture(scope="session")
def postgres() -> Iterator[LocalPostgres]:
    server = LocalPostgres()
    server.start()
    yield server
    server.stop()
