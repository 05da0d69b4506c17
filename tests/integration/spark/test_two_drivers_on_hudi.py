"""One table under two names, and two drivers: a plan has one executor, whichever name each driver was given."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from conftest import LOCK, MakeTable, Table, content, run

from airflow_lake_provider.job_contract import FailureKind, JobRequest, Mode, Outcome, Service, ServiceResult
from lake_jobs.services import planned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from lake_jobs.services.context import ServiceContext

FEW_BLOCKS = {"hoodie.log.compaction.blocks.threshold": "2"}


def by_link(request: JobRequest, table: Table) -> JobRequest:
    """Return a request that names the table by a symbolic link."""
    link = table.path.parent / "link"
    if not link.exists():
        link.symlink_to(table.path, target_is_directory=True)
    return replace(request, base_path=str(link), result_path=f"{request.result_path}.other")


@pytest.fixture
def before_execution(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Return a function that has something happen once, after a driver has found its plan pending."""

    def once(happens: Callable[[], None]) -> None:
        open_client, waiting = planned.open_waiting_client, [happens]

        @contextmanager
        def open_afterwards(context: ServiceContext) -> Iterator[Any]:
            while waiting:
                waiting.pop()()
            with open_client(context) as client:
                yield client

        monkeypatch.setattr(planned, "open_waiting_client", open_afterwards)

    return once


@pytest.mark.parametrize(("service", "type"), [(Service.CLUSTERING, "COW"), (Service.LOGCOMPACTION, "MOR")])
def test_plan_that_another_driver_completes_meanwhile_is_not_begun_again(
    spark: SparkSession,
    make_table: MakeTable,
    before_execution: Callable[[Callable[[], None]], None],
    capfd: pytest.CaptureFixture[str],
    service: Service,
    type: str,
) -> None:
    table = make_table(type=type)
    request = table.request(Mode.EXECUTE, service=service, service_options=FEW_BLOCKS)
    scheduled = run(spark, table.request(Mode.SCHEDULE, service=service, service_options=FEW_BLOCKS))
    (plan,) = scheduled.scheduled_instants
    others: list[ServiceResult] = []
    seen: list[object] = []

    def run_the_other_driver() -> None:
        others.append(run(spark, by_link(request, table)))
        seen.extend((table.files(), content(spark, table)))

    before_execution(run_the_other_driver)
    result = run(spark, request)
    assert (others[0].outcome, others[0].completed_instants) == (Outcome.COMPLETED, (plan,)), others[0].message
    assert (result.outcome, result.completed_instants) == (Outcome.COMPLETED, (plan,)), result.message
    assert [table.files(), content(spark, table)] == seen
    assert "stack trace" not in capfd.readouterr().out, "Hudi was asked to execute a plan that is completed"


def test_plan_that_a_writers_own_service_begins_meanwhile_is_left_to_it(
    spark: SparkSession, make_table: MakeTable, before_execution: Callable[[Callable[[], None]], None]
) -> None:
    """It has no heartbeat; Hudi would roll back what it has written, and begin again."""
    table = make_table(type="COW")
    (plan,) = run(spark, table.request(Mode.SCHEDULE, service=Service.CLUSTERING)).scheduled_instants
    inflight = table.timeline / f"{plan}.clustering.inflight"
    before_execution(inflight.touch)
    files = table.files()
    result = run(spark, by_link(table.request(Mode.EXECUTE, service=Service.CLUSTERING), table))
    assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.BUSY), result.message
    assert plan in result.message
    assert table.files() == files | {inflight.name}


def test_lock_that_is_made_of_the_tables_name_is_refused_for_a_second_name(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table(type="COW")
    provider = "org.apache.hudi.client.transaction.lock.ZookeeperBasedImplicitBasePathLockProvider"
    options = {**LOCK, "hoodie.write.lock.provider": provider}
    files = table.files()
    result = run(spark, by_link(table.request(Mode.EXECUTE, options=options, service=Service.CLUSTERING), table))
    assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.REFUSED), result.message
    assert f"{table.path} by another name" in result.message
    assert table.files() == files
