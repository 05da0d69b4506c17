"""Several real tables through one standing application: a poisoned one, and applications that are killed with kill -9.

The judge is a second reader: all rows as they were written, and one completed commit for each plan.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest
from conftest import LOCK, MakeTable, Table, rows

from airflow_lake_provider.job_contract import (
    FailureKind,
    JobRequest,
    JobResult,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
    from_json,
)
from airflow_lake_provider.manager.db.work_item import ItemState, WorkState
from local_stack import lake_writer
from local_stack.hudi_bundle import HUDI_CLASSES as CLASSES
from tests.support.standing import LIVE, Application, Manager, serve_work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# An executor that was killed counts as dead after two seconds, its lock file after a minute.
QUICK = LOCK | {
    "hoodie.client.heartbeat.interval_in_ms": "1000",
    "hoodie.write.lock.filesystem.expire": "1",
    "hoodie.write.lock.client.wait_time_ms_between_retry": "200",
    "hoodie.write.lock.client.num_retries": "600",
}


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    with serve_work(tmp_path) as manager:
        yield manager


def request_of(table: Table, *services: Service) -> JobRequest:
    wanted = tuple(ServiceRequest(service, Mode.SCHEDULE_AND_EXECUTE) for service in services)
    request = table.request(Mode.SCHEDULE_AND_EXECUTE, options=QUICK)
    return replace(request, services=wanted, job_id=f"run-{table.written.name}")


def compactions(table: Table) -> list[str]:
    """Return the completed compactions, each once for every file on the timeline that completes it."""
    plans = {name.split(".")[0] for name in table.files() if name.endswith(".compaction.requested")}
    return sorted(
        name.split("_")[0] for name in table.files() if name.endswith(".commit") and name.split("_")[0] in plans
    )


def damage_log(table: Table) -> None:
    log = next(
        path for path in table.path.rglob(".*.log.*") if ".hoodie" not in path.parts and not path.name.endswith("crc")
    )
    log.write_bytes(b"#HUDI#" + os.urandom(2000))
    for checksum in log.parent.glob("*.crc"):
        checksum.unlink()


def lose_base_files(table: Table) -> None:
    for path in table.path.rglob("*.parquet"):
        if ".hoodie" not in path.parts:
            path.unlink()


def test_poisoned_tables_hurt_no_other_one_and_all_services_of_a_table_run_in_their_order(
    spark: SparkSession, make_table: MakeTable, manager: Manager, tmp_path: Path
) -> None:
    """One application for all of it. What is to run in order are items of runs of their own, as Airflow's runs are."""
    poisoned, ordered = Poisoned.prepare(spark, make_table, manager), Ordered.prepare(spark, make_table, manager)
    application = Application(manager, tmp_path, at_once=3, idle_s=3, classes=CLASSES)
    try:
        ended = manager.wait(*poisoned.items, *ordered.items.values())
        result = application.wait()
    finally:
        application.kill()
    results = {name: from_json(JobResult, item.result) for name, item in ended.items()}
    assert {item.state for item in ended.values()} == {WorkState.ENDED}
    poisoned.check(spark, ended, results)
    ordered.check(spark, results)
    # One process for all of them.
    assert {found.spark_application_id for found in results.values()} == {result.spark_application_id}


@dataclass
class Poisoned:
    """A table with a damaged log file and one without base files, among healthy ones."""

    healthy: list[Table]
    damaged: Table
    incomplete: Table
    before: dict[Path, list[tuple[object, ...]]]
    left: list[tuple[object, ...]]
    """What readers lose with the log file; they skip the damaged block, and so does Hudi's compaction."""
    items: list[str]

    @classmethod
    def prepare(cls, spark: SparkSession, make_table: MakeTable, manager: Manager) -> Poisoned:
        healthy = [make_table(f"orders_{number}") for number in range(3)]
        damaged, incomplete = make_table("damaged"), make_table("incomplete")
        before = {table.path: rows(spark, table) for table in healthy}
        damage_log(damaged)
        lose_base_files(incomplete)
        items = [
            manager.submit(request_of(table, Service.COMPACTION, Service.CLEAN))
            for table in (damaged, incomplete, *healthy)
        ]
        return cls(healthy, damaged, incomplete, before, rows(spark, damaged), items)

    def check(self, spark: SparkSession, ended: Mapping[str, ItemState], results: Mapping[str, JobResult]) -> None:
        for table in self.healthy:
            compaction, clean = results[f"lake-{table.written.name}-1"].services
            assert compaction.outcome is Outcome.COMPLETED, compaction.message
            assert clean.outcome in {Outcome.COMPLETED, Outcome.NOTHING_TO_DO}, clean.message
            assert rows(spark, table) == self.before[table.path]
            assert compactions(table) == list(compaction.completed_instants)
            assert any("compaction" in line for line in ended[f"lake-{table.written.name}-1"].lines)
        assert results["lake-incomplete-1"].services[0].outcome is Outcome.FAILED
        assert compactions(self.incomplete) == []
        # The verdict about the damaged table is what its timeline shows; services lose no row that readers had left.
        compaction, clean = results["lake-damaged-1"].services
        done = compactions(self.damaged)
        assert list(compaction.completed_instants) == done
        assert (compaction.outcome is Outcome.COMPLETED) == bool(done), compaction.message
        assert clean.outcome is not Outcome.FAILED or compaction.outcome is Outcome.FAILED, clean.message
        assert rows(spark, self.damaged) == self.left


@dataclass
class Ordered:
    """Two tables with several services each, asked for in the wrong order; the second one's clean is not asked for."""

    tables: tuple[Table, Table]
    before: dict[Path, list[tuple[object, ...]]]
    items: dict[tuple[Path, Service], str]

    ASKED: ClassVar = (Service.ARCHIVE, Service.CLEAN, Service.COMPACTION, Service.ROLLBACK)

    @classmethod
    def prepare(cls, spark: SparkSession, make_table: MakeTable, manager: Manager) -> Ordered:
        orders, users = make_table("orders"), make_table("users")
        items = {
            (table.path, service): manager.submit(
                replace(request_of(table, service), job_id=f"{table.written.name}-{service}"),
                name=f"{table.written.name}-{service}",
            )
            for table, services in ((orders, cls.ASKED), (users, (Service.ARCHIVE, Service.COMPACTION)))
            for service in services
        }
        return cls((orders, users), {table.path: rows(spark, table) for table in (orders, users)}, items)

    def check(self, spark: SparkSession, found: Mapping[str, JobResult]) -> None:
        results = {key: found[item] for key, item in self.items.items()}
        began = {key: result.services[0].started_at for key, result in results.items()}
        ends = {key: result.services[0].ended_at for key, result in results.items()}
        of_users = (Service.COMPACTION, Service.ARCHIVE)
        for table, services in zip(self.tables, (self.ASKED[::-1], of_users), strict=True):
            for first, second in pairwise(services):
                assert ends[table.path, first] <= began[table.path, second], f"{first} before {second}"
            assert all(results[table.path, service].job_id == f"{table.written.name}-{service}" for service in services)
            assert results[table.path, Service.COMPACTION].services[0].outcome is Outcome.COMPLETED
            assert not any(results[table.path, service].has_failed for service in services)
            assert rows(spark, table) == self.before[table.path]
            assert len(compactions(table)) == 1


@pytest.mark.soak
def test_cancelled_item_ends_and_the_next_one_gets_its_place(
    spark: SparkSession, make_table: MakeTable, manager: Manager, tmp_path: Path
) -> None:
    held, free = make_table("held"), make_table("free")
    before = rows(spark, free)
    # A lock that another holds: the item waits for it.
    (held.path / ".hoodie" / "lock").touch()
    item = manager.submit(request_of(held, Service.COMPACTION))
    application = Application(manager, tmp_path, at_once=1, idle_s=2, classes=CLASSES)
    try:
        deadline = time.monotonic() + 120
        while manager.ask(item)[item].state is WorkState.WAITING:
            assert time.monotonic() < deadline, application.log()
            time.sleep(0.1)
        other = manager.submit(request_of(free, Service.COMPACTION))
        manager.queue.cancel(item, "it was cleared")
        (held.path / ".hoodie" / "lock").unlink()
        ended = manager.wait(item, other)
        application.wait()
    finally:
        application.kill()
    assert ended[item].state is WorkState.ENDED
    assert from_json(JobResult, ended[other].result).services[0].outcome is Outcome.COMPLETED
    assert rows(spark, free) == before


@pytest.mark.soak  # tests/unit/spark_jobs/test_standing.py: what fails as Spark ends is not reported as failed
def test_item_that_takes_the_memory_of_the_application_runs_alone_and_the_others_are_completed(
    spark: SparkSession, make_table: MakeTable, manager: Manager, tmp_path: Path
) -> None:
    healthy = [make_table(f"users_{number}") for number in range(3)]
    large = make_table()
    # Three rows of 32 MB in one log file: 256 MB do not hold its block and its records.
    orders = spark.read.format("hudi").load(str(large.path))
    orders = orders.drop(*(name for name in orders.columns if name.startswith("_hoodie_")))
    city = orders.collect()[0]["city"]
    few = (
        orders.where(orders.city == city)
        .limit(3)
        .selectExpr("*", "nullif(repeat('0123456789abcdef', 2000000), '') AS note")
    )
    options = lake_writer.write_options(large.written, 9, None, {})
    few.write.format("hudi").options(**options).mode("append").save(str(large.path))
    before = {table.path: rows(spark, table) for table in (*healthy, large)}
    tries = {manager.submit(request_of(table, Service.COMPACTION)): (table, 1) for table in (large, *healthy)}
    # Spark would not start with so little of it, if it kept 300 MB for itself.
    small = {"spark.driver.memory": "256m", "spark.testing.reservedMemory": "33554432"}
    alone: list[Path] = []
    deadline = time.monotonic() + 400
    number = 0
    while tries:
        assert time.monotonic() < deadline, manager.ask(*tries)
        number += 1
        application = Application(manager, tmp_path, number, at_once=2, idle_s=3, conf=small, classes=CLASSES)
        try:
            while (
                any(item.state in LIVE for item in manager.ask(*tries).values()) and application.process.poll() is None
            ):
                assert time.monotonic() < deadline, application.log()
                time.sleep(0.1)
        finally:
            application.kill()
        for name, item in manager.ask(*tries).items():
            if item.state in LIVE:
                continue
            table, try_number = tries.pop(name)
            (table.path / ".hoodie" / "lock").unlink(missing_ok=True)
            if item.state is WorkState.ALONE:
                alone.append(table.path)
                _run_alone(spark, table)
            elif _is_to_be_repeated(item.result):
                tries[manager.submit(request_of(table, Service.COMPACTION), try_number + 1)] = (table, try_number + 1)
    # One that ran next to it both times runs alone as well: nothing says which of the two took the memory.
    assert large.path in alone
    assert len(alone) < len(healthy)
    for table in (*healthy, large):
        assert rows(spark, table) == before[table.path]
        assert len(compactions(table)) == 1
    sizes = (
        spark.read.format("hudi").load(str(large.path)).selectExpr("length(note)").where("note IS NOT NULL").collect()
    )
    assert [size for (size,) in sizes] == [32_000_000] * 3


@pytest.mark.parametrize(
    ("kills", "at_once"),
    [pytest.param(2, 3, id="2-kills"), pytest.param(50, 8, id="50-kills", marks=pytest.mark.soak)],
)
def test_killed_applications_lose_nothing_and_execute_no_plan_twice(
    spark: SparkSession, make_table: MakeTable, manager: Manager, tmp_path: Path, kills: int, at_once: int
) -> None:
    dice, number, round_number, killed = random.Random(7), 0, 0, []
    while len(killed) < kills:
        round_number += 1
        tables = [make_table(f"orders_{round_number}_{index}") for index in range(at_once)]
        before = {table.path: rows(spark, table) for table in tables}
        tries = {manager.submit(request_of(table, Service.COMPACTION)): (table, 1) for table in tables}
        alone: set[Path] = set()
        applications = 0
        deadline = time.monotonic() + 900
        while tries:
            assert time.monotonic() < deadline, manager.ask(*tries)
            number, applications = number + 1, applications + 1
            application = Application(manager, tmp_path, number, at_once=at_once, classes=CLASSES)
            try:
                # The last ones of a round are left to end their work.
                patience_s = dice.uniform(0.0, 4.0) if applications <= 2 and len(killed) < kills else 120.0
                _let_run(manager, tries, application, patience_s)
                running = sum(item.state is WorkState.RUNNING for item in manager.ask(*tries).values())
                killed += [running] if running else []
            finally:
                application.kill()
            for table, _ in tries.values():
                # What a killed holder leaves counts as gone after a minute at the earliest (Hudi's setting).
                (table.path / ".hoodie" / "lock").unlink(missing_ok=True)
            for name, item in manager.ask(*tries).items():
                if item.state in LIVE:
                    continue
                table, try_number = tries.pop(name)
                if item.state is WorkState.ALONE:
                    alone.add(table.path)
                    _run_alone(spark, table)
                elif _is_to_be_repeated(item.result):
                    again = request_of(table, Service.COMPACTION)
                    tries[manager.submit(again, try_number + 1)] = (table, try_number + 1)
        for table in tables:
            assert rows(spark, table) == before[table.path], f"{table.path} after {len(killed)} kills"
            done = compactions(table)
            assert len(done) == 1, f"{table.path}: {sorted(table.files())}"
        print(
            f"round {round_number}: {len(killed)} kills, with {killed} items running; {len(alone)} alone in this round"
        )


def _let_run(
    manager: Manager, tries: dict[str, tuple[Table, int]], application: Application, patience_s: float
) -> None:
    """Wait until items run, and then so long, or until all have ended."""
    deadline = time.monotonic() + 120
    while all(item.state is WorkState.WAITING for item in manager.ask(*tries).values()):
        assert time.monotonic() < deadline, application.log()
        assert application.process.poll() is None, application.log()
        time.sleep(0.02)
    ends = time.monotonic() + patience_s
    while time.monotonic() < ends and any(item.state in LIVE for item in manager.ask(*tries).values()):
        time.sleep(0.05)


def _is_to_be_repeated(result: str) -> bool:
    (service,) = from_json(JobResult, result).services
    if service.outcome is not Outcome.FAILED:
        return False
    # The dead executor's heartbeat: Airflow's next try comes after a pause.
    assert service.failure_kind in {FailureKind.BUSY, FailureKind.LOCK}, service.message
    time.sleep(2)
    return True


def _run_alone(spark: SparkSession, table: Table) -> None:
    import importlib

    time.sleep(2)
    result = importlib.import_module("run_services").run_job(spark, request_of(table, Service.COMPACTION)).services[0]
    assert result.outcome is not Outcome.FAILED, result.message
