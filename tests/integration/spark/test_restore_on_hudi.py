"""The restore as a job: the rows that were written up to the savepoint are back, wherever a run of it was killed."""

from __future__ import annotations

import shutil
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest
from conftest import MakeTable, Table, content, rows, rows_written, run, write

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.doctor.report_lines import LineKind, is_refused
from airflow_lake_provider.doctor.restore_check import check_restore
from airflow_lake_provider.doctor.restore_facts import load_restore_facts
from airflow_lake_provider.job_contract import (
    RESTORE_TAKES_BACK,
    FailureKind,
    JobRequest,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
)
from airflow_lake_provider.planner.verdict import TableReader
from airflow_lake_provider.storage.table_storage import open_storage
from lake_jobs.hudi.table import open_client
from local_stack import lake_writer
from tests.support.hudi_tables import require_rows
from tests.support.killed_jobs import kill_at

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

LATER_MS = 600_000
"""The heartbeats of the tests' writers are old by then."""


def make_savepoint(spark: SparkSession, table: Table) -> str:
    saved = max(table.completed() | table.completed("deltacommit"))
    settings = lake_writer.write_options(table.written, 3, None, {}) | {
        "hoodie.table.services.enabled": "true",
        "hoodie.write.table.version": str(table.written.version),
        "hoodie.write.auto.upgrade": "false",
    }
    with open_client(spark, str(table.path), settings, {}) as client:
        client.savepoint(saved, "people", "before the change")
    return saved


def restore_of(table: Table, savepoint: str, **options: str) -> JobRequest:
    """Return the request as the DAG makes it: what the check names may be taken back."""
    now_ms = int(time.time() * 1000) + LATER_MS
    lines = check_restore(load_restore_facts(open_storage(str(table.path)), TablePolicy(), savepoint, now_ms))
    assert not is_refused(lines), lines
    taken = ",".join(line.subject for line in lines if line.kind is LineKind.TAKEN_BACK)
    return table.request(
        Mode.RESTORE, savepoint, service=Service.SAVEPOINT, service_options={RESTORE_TAKES_BACK: taken} | options
    )


def mdt_timeline(table: Table) -> set[str]:
    folder = table.path / ".hoodie" / "metadata" / ".hoodie"
    return {path.name for path in folder.rglob("*") if path.is_file()}


def taken_back(table: Table, request: JobRequest) -> list[str]:
    return request.services[0].options[RESTORE_TAKES_BACK].split(",")


def left_of(table: Table, request: JobRequest) -> int:
    return sum(any(name.startswith(time) for name in table.files()) for time in taken_back(table, request))


POINTS: dict[str, Callable[[Table, JobRequest], bool]] = {
    "planned": lambda table, _: any(name.endswith(".restore.requested") for name in table.files()),
    "begun": lambda table, _: any(name.endswith(".restore.inflight") for name in table.files()),
    "one write is gone": lambda table, request: left_of(table, request) < len(taken_back(table, request)),
    "the metadata table is being restored": lambda table, _: any("restore" in name for name in mdt_timeline(table)),
    "completed": lambda table, _: bool(table.completed("restore")),
}


@pytest.mark.parametrize(
    ("type", "version", "points"),
    [
        ("MOR", 9, ["begun"]),
        pytest.param("MOR", 9, list(POINTS), marks=pytest.mark.soak),
        pytest.param("COW", 6, list(POINTS), marks=pytest.mark.soak),
        pytest.param("MOR", 6, list(POINTS), marks=pytest.mark.soak),
        pytest.param("MOR", 8, list(POINTS), marks=pytest.mark.soak),
    ],
)
def test_rows_are_those_written_up_to_the_savepoint_wherever_a_run_was_killed(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path, type: str, version: int, points: list[str]
) -> None:
    table = make_table(type=type, version=version)
    before = content(spark, table)
    saved = make_savepoint(spark, table)
    for commit in (3, 4, 5):
        write(spark, table.written, commit)
    if type == "MOR":
        assert run(spark, table.request(Mode.SCHEDULE)).outcome is Outcome.SCHEDULED
    request = restore_of(table, saved)
    whole = tmp_path / "whole"
    shutil.copytree(table.path, whole)
    for point in points:
        shutil.rmtree(table.path)
        shutil.copytree(whole, table.path)
        kill_at(table, request, tmp_path / f"killed {point}", partial(POINTS[point], table, request))

        if point != "completed":
            # A second run of the DAG goes on, too, and its task waits for no write that is half gone.
            restore_of(table, saved)
            reader = TableReader(str(table.path), open_storage)
            reader.require_guarded_writers(ServiceRequest(Service.SAVEPOINT, Mode.RESTORE, (saved,)))

        retried = run(spark, request)

        assert retried.outcome is Outcome.COMPLETED, (point, retried.message)
        assert "equal" in retried.message
        require_rows(spark, table, 3)
        assert content(spark, table) == before, point
        assert table.completed("restore") == set(retried.completed_instants), point
        assert not left_of(table, request), point
        assert table.properties()["hoodie.table.version"] == str(version)
    write(spark, table.written, 3)
    if type == "MOR":
        assert run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE)).outcome is Outcome.COMPLETED
    assert rows(spark, table) == rows_written(spark, table.written, 4)


def test_restore_takes_back_nothing_that_the_check_did_not_name(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(type="COW")
    saved = make_savepoint(spark, table)
    write(spark, table.written, 3)
    request = restore_of(table, saved)
    write(spark, table.written, 4)

    refused = run(spark, request)

    assert (refused.outcome, refused.failure_kind) == (Outcome.FAILED, FailureKind.REFUSED)
    assert "after the check" in refused.message
    require_rows(spark, table, 5)
    done = run(spark, restore_of(table, saved))
    assert done.outcome is Outcome.COMPLETED, done.message
    require_rows(spark, table, 3)
    # Cleared by mistake, when writers go on: nothing is taken back twice.
    write(spark, table.written, 3)
    again = run(spark, request)
    assert "written since" in again.message, again.message
    require_rows(spark, table, 4)


def test_restore_waits_for_a_living_writer(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(type="COW")
    saved = make_savepoint(spark, table)
    write(spark, table.written, 3)
    request = restore_of(table, saved)
    beat = table.path / ".hoodie" / ".heartbeat" / "29991231000000000"
    beat.parent.mkdir(exist_ok=True)
    beat.touch()
    waits = run(spark, request)
    assert (waits.outcome, waits.failure_kind) == (Outcome.FAILED, FailureKind.CONFLICT)
    assert beat.name in waits.message
    require_rows(spark, table, 4)


def test_restore_without_the_metadata_tables_past_goes_on_without_it(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table(type="MOR")
    saved = make_savepoint(spark, table)
    for commit in (3, 4):
        write(spark, table.written, commit)
    # As where the metadata table begins behind the savepoint: it was compacted, or built again, since.
    for file in (table.path / ".hoodie" / "metadata" / ".hoodie" / "timeline").glob(f"*{saved}*"):
        file.unlink()
    done = run(spark, restore_of(table, saved, **{"hoodie.metadata.enable": "false"}))
    assert done.outcome is Outcome.COMPLETED, done.message
    require_rows(spark, table, 3)
    write(spark, table.written, 3)
    require_rows(spark, table, 4)
