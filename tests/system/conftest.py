"""Whole Airflows as processes, on SQLite or PostgreSQL; the database is migrated once per run, and copied."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_stack.airflow import LocalAirflow, MigratedHome, ended_by_themselves
from local_stack.postgres import LocalPostgres

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".work" / "system-tests"

LOCK_OPTIONS = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider",
    "hoodie.write.lock.filesystem.expire": "2",
}


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
    options = "\n".join(f"    {key}: '{value}'" for key, value in LOCK_OPTIONS.items())
    tables_file = home / "tables.yaml"
    tables_file.write_text(
        "defaults:\n  heartbeat_timeout_s: 5\n"
        "  compaction: {delta_commits: 3, log_to_base_ratio: null}\n"
        f"  hudi_options:\n{options}\n"
        "tables:\n  - name: unlocked\n    hudi_options: {hoodie.write.lock.provider: ''}\n"
        # Clustering would hold the writer's updates back, so it is due with the last commit only.
        "  - name: served\n    clustering: {enabled: true, small_files: null, commits: 6}\n"
        "    clean: {commits: 2, retained_commits: 2}\n    archive: {min_commits: 5, max_commits: 6}\n"
        f"{more_tables}",
        encoding="utf-8",
    )
    airflow = LocalAirflow(home / "airflow", (lake,), tables_file=tables_file)
    airflow.settings = {
        "AIRFLOW__LAKE__CLAIM_LEASE_S": str(claim_lease_s),
        # A scheduler that has nothing to do asks its database five times a second otherwise: a tenth of a core.
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
    }
    airflow.database_url = template = postgres.url if postgres else ""
    if template not in migrated:
        airflow.migrate()
        migrated[template] = MigratedHome.of(airflow)
    else:
        airflow.copy_migrated(migrated[template])
    if postgres:
        # What the URL above names stays untouched, to be copied.
        airflow.database_url = postgres.create_database(name.replace("-", "_"), template="airflow")
    return airflow


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
