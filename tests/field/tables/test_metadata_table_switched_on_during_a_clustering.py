"""Most rows vanished when a writer switched the metadata table on during a clustering.

Report: https://github.com/apache/hudi/issues/4896
Verdict: right
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from conftest import MakeTable, Table, run
from paused_writers import insert

from airflow_lake_provider.job_contract import FailureKind, JobRequest, Mode, Outcome, Service
from lake_jobs.services import planned
from lake_jobs.verify import rewrite

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

OFF, ON = {"hoodie.metadata.enable": "false"}, {"hoodie.metadata.enable": "true"}
SERVICES = [
    Service.CLUSTERING,
    pytest.param(Service.COMPACTION, marks=pytest.mark.soak),
]


def request(table: Table, service: Service) -> JobRequest:
    return table.request(Mode.SCHEDULE_AND_EXECUTE, service=service)


def count(spark: SparkSession, table: Table, **options: str) -> int:
    return int(spark.read.format("hudi").options(**options).load(str(table.path)).count())


def switch_on(spark: SparkSession, table: Table) -> None:
    """Commit as a writer whose settings have the metadata table on: Hudi builds it then."""
    with_it = replace(table.written, hudi_options={**table.written.hudi_options, **ON})
    insert(spark, Table(with_it), 60_000)
    assert has_metadata_table(table)


def has_metadata_table(table: Table) -> bool:
    return "files" in table.properties().get("hoodie.table.metadata.partitions", "")


def call_once(patch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[[], None], *, before: bool) -> None:
    """Let something happen just before a function of the job, or just after it, when it is called first."""
    function, calls = getattr(owner, name), []

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if before and not calls:
            calls.append(name)
            act()
        result = function(*args, **kwargs)
        if not calls:
            calls.append(name)
            act()
        return result

    patch.setattr(owner, name, wrapped)


def switch_off(spark: SparkSession, table: Table) -> None:
    """Commit as a writer whose settings have the metadata table off: Hudi removes it then."""
    removes = {**OFF, "hoodie.metadata.auto.delete.partitions": "true"}
    without_it = replace(table.written, hudi_options={**table.written.hudi_options, **removes})
    insert(spark, Table(without_it), 60_000)
    assert not has_metadata_table(table)


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("comes", [pytest.param(True, id="on"), pytest.param(False, id="off", marks=pytest.mark.soak)])
def test_no_row_vanishes_when_it_is_switched_before_the_commit(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch, service: Service, *, comes: bool
) -> None:
    table = make_table(type="MOR", **(OFF if comes else ON))
    before, switch = count(spark, table), switch_on if comes else switch_off
    call_once(monkeypatch, rewrite, "commit_files", lambda: switch(spark, table), before=True)
    result = run(spark, request(table, service))
    assert count(spark, table, **OFF) == before + 20
    assert count(spark, table) == before + 20
    assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.CONFLICT), result.message
    assert f"its metadata table was switched {'on' if comes else 'off'}" in result.message

    monkeypatch.undo()
    done = run(spark, table.request(Mode.EXECUTE, service=service))
    assert done.outcome is Outcome.COMPLETED, done.message
    assert count(spark, table) == count(spark, table, **OFF) == before + 20


@pytest.mark.soak
@pytest.mark.parametrize("service", SERVICES)
def test_no_row_vanishes_when_it_is_switched_off_between_the_last_check_and_the_commit(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch, service: Service
) -> None:
    table = make_table(type="MOR", **ON)
    before = count(spark, table)
    call_once(monkeypatch, rewrite, "_commit", lambda: switch_off(spark, table), before=True)
    result = run(spark, request(table, service))
    assert count(spark, table) == count(spark, table, **OFF) == before + 20
    # Hudi itself refuses what streamed to a metadata table that is gone, before it commits.
    assert result.outcome is Outcome.FAILED, result.message
    assert "should be part of inflight metadata partitions" in result.message

    monkeypatch.undo()
    switch_on(spark, table)
    done = run(spark, table.request(Mode.EXECUTE, service=service))
    assert done.outcome is Outcome.COMPLETED, done.message
    assert count(spark, table) == count(spark, table, **OFF) == before + 20


@pytest.mark.parametrize("service", SERVICES)
def test_no_row_vanishes_when_it_is_switched_on_while_the_job_waits(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch, service: Service
) -> None:
    table = make_table(type="MOR", **OFF)
    before = count(spark, table)
    call_once(monkeypatch, planned, "_execute_with_hudi", lambda: switch_on(spark, table), before=True)
    result = run(spark, request(table, service))
    assert count(spark, table, **OFF) == before + 20
    assert count(spark, table) == before + 20
    assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.CONFLICT), result.message
    assert "its metadata table was switched on" in result.message

    monkeypatch.undo()
    done = run(spark, table.request(Mode.EXECUTE, service=service))
    assert done.outcome is Outcome.COMPLETED, done.message
    assert count(spark, table) == count(spark, table, **OFF) == before + 20
