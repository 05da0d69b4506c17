"""The same claims about runs, instances, limits and leases, with Airflow's metadata on PostgreSQL."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.engine import Engine
from sqlalchemy.orm import sessionmaker

from airflow_lake_provider.errors import ExecutorBusyError
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.clock import DatabaseClock
from airflow_lake_provider.manager.executors import Executors
from airflow_lake_provider.manager.notice import Notice, Source
from airflow_lake_provider.manager.registry import Registry
from airflow_lake_provider.manager.schema import metadata
from local_stack.postgres import LocalPostgres

pytestmark = pytest.mark.integration

FOLDER = Path(__file__).parent
SAME_CLAIMS = ("test_service_runs.py", "test_run_door.py", "test_database.py")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = LocalPostgres()
    server.start()
    yield server.url
    server.stop()


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = create_engine(url)
    metadata.drop_all(engine)
    metadata.create_all(engine)
    yield engine
    metadata.drop_all(engine)
    engine.dispose()


def test_leases_go_by_the_clock_of_postgresql(engine: Engine) -> None:
    make = sessionmaker(engine)
    clock = DatabaseClock(make)
    registry = Registry(make, clock)
    with make() as session:
        session.execute(metadata.tables["lake_limit"].select())  # the transaction begins here
        first_ms = clock.read_ms(session)
        for _ in range(200):
            last_ms = clock.read_ms(session)
    assert last_ms > first_ms, "not the time of the transaction's begin"
    executors = Executors(registry, 60)
    taken: list[str] = []

    def take(run_id: str) -> None:
        try:
            taken.append(executors.acquire("orders-1", Service.CLEAN, run_id, 1).run_id)
        except ExecutorBusyError:
            return

    threads = [threading.Thread(target=take, args=(f"run {number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 1
    registry.mark_dirty(Notice("/lake/orders", "orders", Source.HINT))
    assert len(registry.claim(5, 60)) == 1
    assert registry.claim(5, 60) == []


def test_airflow_on_postgresql_keeps_the_same_promises(url: str) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *(str(FOLDER / name) for name in SAME_CLAIMS),
    ]
    env = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "PYTEST"))}
    ended = subprocess.run(
        command, env=env | {"LAKE_DATABASE_URL": url}, capture_output=True, text=True, timeout=900, check=False
    )
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-2000:]
