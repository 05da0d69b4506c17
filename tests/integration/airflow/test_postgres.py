"""The same claims about runs, instances, limits and leases, with Airflow's metadata on PostgreSQL."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import sessionmaker

from airflow_lake_provider.config.access import EVERYONE, Audience
from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.errors import ExecutorBusyError, LeaseHolder
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.db.bill import BillBy, load_bill
from airflow_lake_provider.manager.db.database import DatabaseClock
from airflow_lake_provider.manager.db.leases import Executors
from airflow_lake_provider.manager.db.notification_log import NotificationLog, report_id_of
from airflow_lake_provider.manager.db.operations import RunReport, record_run, report_run
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.db.schema import lake_bill, metadata
from airflow_lake_provider.manager.db.search import PAGE_SIZE
from airflow_lake_provider.manager.runs.holder_ids import holder_id
from airflow_lake_provider.manager.supervision.repair_round import RepairRound
from airflow_lake_provider.storage.table_storage import open_storage
from benchmarks import database
from local_stack.postgres import LocalPostgres

pytestmark = pytest.mark.integration

FOLDER = Path(__file__).parent
SAME_CLAIMS = ("test_service_runs.py", "test_run_gateway.py", "test_database.py")


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
    assert len(registry.acquire(5, 60)) == 1
    assert registry.acquire(5, 60) == []


def test_two_dags_with_one_schedule_race_for_one_lease(engine: Engine) -> None:
    """Two servers, two DAGs whose runs have one id: one executes; a retry of it, and no other task, takes over."""
    run_id = "scheduled__2026-11-28T00:00:00+00:00"
    holders = [holder_id(dag_id, run_id, "clean") for dag_id in ("shop", "bank")]
    got: list[str] = []
    refused: list[LeaseHolder | None] = []

    def take(holder: str) -> None:
        make = sessionmaker(engine)
        try:
            got.append(
                Executors(Registry(make, DatabaseClock(make)), 60).acquire("orders-1", Service.CLEAN, holder, 1).run_id
            )
        except ExecutorBusyError as error:
            refused.append(error.holder)

    threads = [threading.Thread(target=take, args=(holder,)) for holder in holders for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (first,) = got
    (other,) = set(holders) - {first}
    assert len(refused) == 7
    assert set(refused) <= {LeaseHolder(first, 1), None}
    make = sessionmaker(engine)
    executors = Executors(Registry(make, DatabaseClock(make)), 60)
    with pytest.raises(ExecutorBusyError):
        executors.acquire("orders-1", Service.CLEAN, other, 2, ended=LeaseHolder(other, 1))
    assert executors.acquire("orders-1", Service.CLEAN, first, 2, ended=LeaseHolder(first, 1)).run_id == first


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


def test_servers_that_sweep_at_once_notify_people_once_and_examine_a_table_once(engine: Engine) -> None:
    make, reported, examined = sessionmaker(engine), list[str](), list[bool]()
    first = Registry(make, DatabaseClock(make))
    table_id = first.mark_dirty(Notice("/lake/orders", "orders", Source.CONFIG)).table_id
    barrier = threading.Barrier(6)

    def sweep() -> None:
        registry = Registry(make, DatabaseClock(make))
        reports, rounds = NotificationLog(registry), RepairRound(registry, TablesConfig, open_storage)
        for number in range(20):
            barrier.wait(60)
            if reports.begin(report := report_id_of("/lake/orders", str(number))):
                reported.append(report)
                reports.end(report)
        barrier.wait(60)
        examined.append(rounds._take(table_id))

    threads = [threading.Thread(target=sweep) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(reported), len(set(reported)), sum(examined)) == (20, 20, 1)


def test_reports_at_once_are_billed_once_each_and_begin_one_day(engine: Engine) -> None:
    make = sessionmaker(engine)
    barrier = threading.Barrier(6)
    failed: list[SQLAlchemyError] = []
    runs = [f"run {number}" for number in range(3)]
    registry = Registry(make, DatabaseClock(make))
    table_id = registry.mark_dirty(Notice("/lake/orders", "orders", Source.HINT, owner="sales")).table_id
    services = [f"service {number}" for number in range(10)]
    with registry.transaction() as session:
        for service in services:
            for run in runs:
                record_run(session, table_id, f"{service} {run}", service, 0)

    def report(run: str) -> None:
        for service in services:
            barrier.wait(60)
            try:
                with registry.transaction() as session:
                    done = RunReport(1, "completed", job_ms=1000, files_in=3, files_out=1)
                    report_run(session, table_id, f"{service} {run}", service, done, 5)
            except SQLAlchemyError as error:
                failed.append(error)

    # Two reports of each run, as of a request that is sent again.
    threads = [threading.Thread(target=report, args=(run,)) for run in runs * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    with make() as session:
        billed = session.execute(select(lake_bill.c.runs, lake_bill.c.core_ms, lake_bill.c.files_in)).all()
        lines = {by: [(line.name, line.runs) for line in load_bill(session, by, 0, EVERYONE)] for by in BillBy}
        own = load_bill(session, BillBy.TABLE, 0, Audience(only=("/lake/other",)))
    assert [tuple(row) for row in billed] == [(3, 3000, 9)] * len(services)
    assert lines.pop(BillBy.SERVICE) == [(service, 3) for service in services]
    assert lines == {"table": [("orders", 30)], "owner": [("sales", 30)], "label": [("", 30)]}
    assert own == []


# --- What the manager's queries cost when the database is large: rows that scans visit, which no machine changes

RUNS, TABLES = 100_000, 5_000
WAITING = 1_000
"""Most tables that a query lists at once, and what is in the filled database of waiting tables and active runs."""
SEARCHES = {
    "page: tables by text", "page: tables of a state", "page: first tables", "page: tables of a team",
    "page: worst tables", "page: the lake in numbers",
}  # fmt: skip
"""They may read each table's short row twice (to count, and for the page), and no long one beyond a page."""


def test_no_query_of_the_manager_visits_the_history_of_runs_or_all_tables(url: str) -> None:
    server_engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with server_engine.connect() as connection:
        connection.exec_driver_sql("CREATE DATABASE scale")
    server_engine.dispose()
    engine = create_engine(f"{url.rpartition('/')[0]}/scale")
    database.create_tables(engine)
    database.fill(engine, RUNS, TABLES)
    costs = {name: database.measure(engine, run) for name, run in database.operations(engine).items()}
    engine.dispose()
    large = {"dag_run", "task_instance", "lake_run", "lake_table", "lake_search", "lake_sink"}
    for name, cost in costs.items():
        most, allowed = 2 * WAITING, set[str]()
        if name in SEARCHES:
            most, allowed = 2 * (TABLES + PAGE_SIZE), {"lake_search"}
        assert cost.visited <= most, f"{name} visits {cost.visited} rows"
        assert not cost.full_scans & large - allowed, f"{name} reads all of {cost.full_scans}"
        assert cost.statements <= 8, f"{name} sends {cost.statements} statements"
    assert len(costs) > 20
