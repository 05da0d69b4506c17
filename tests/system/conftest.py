"""Whole Airflows as processes: one on SQLite, one on PostgreSQL, each started once per run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_stack.airflow import LocalAirflow, ended_by_themselves
from local_stack.postgres import LocalPostgres

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".work" / "system-tests"

LOCK_OPTIONS = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider",
    "hoodie.write.lock.filesystem.expire": "2",
}


def make_airflow(name: str, *, database_url: str = "", claim_lease_s: int = 5, more_tables: str = "") -> LocalAirflow:
    """Prepare an Airflow in a clean home with its own lake and a tables file: compaction after 3 delta commits."""
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
        "    clean: {commits: 2, retained_commits: 2}\n    archive: {min_commits: 3, max_commits: 4}\n"
        f"{more_tables}",
        encoding="utf-8",
    )
    airflow = LocalAirflow(home / "airflow", (lake,), tables_file=tables_file, database_url=database_url)
    airflow.settings = {"AIRFLOW__LAKE__CLAIM_LEASE_S": str(claim_lease_s)}
    airflow.migrate()
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
