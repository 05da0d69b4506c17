"""`delete_partition` and `drop partition` failed, or brought rows back, while a service's plan was pending.

Report: https://github.com/apache/hudi/issues/7663
Report: https://github.com/apache/hudi/pull/7669
Report: https://github.com/apache/hudi/issues/19074
Verdict: refused
Way out: drop it again after the plan's run, or withdraw a plan that stays (mode `withdraw`) before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import run
from kept_rows import CITIES, COMPARE_ALL, KeptTable, first_rows
from py4j.protocol import Py4JJavaError

from airflow_lake_provider.job_contract import FailureKind, Mode, Outcome, Service
from lake_jobs.hudi.table import leave_expired_heartbeat, open_client
from lake_jobs.verify import rewrite
from local_stack import lake_writer

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SERVICES = (Service.COMPACTION, Service.LOGCOMPACTION, Service.CLUSTERING)
LOG_FILES = {"hoodie.log.compaction.blocks.threshold": "1"}
REFUSES = "Please ensure that there are no pending table service actions"
"""What Hudi answers where a pending plan has file groups of the partition (`DeletePartitionUtils`)."""
PARTITIONS = "hoodie.datasource.write.partitions.to.delete"
BY_SQL = {
    "drop": "alter table {table} drop partition (city='Aachen')",
    "truncate": "truncate table {table} partition (city='Aachen')",
}


def planned(spark: SparkSession, path: Path, service: Service, version: int = 9) -> tuple[KeptTable, str]:
    kept = KeptTable(spark, path, version=version)
    kept.write(first_rows())
    kept.write((i, CITIES[i % 2], 1.0, 1) for i in range(6))
    kept.write(((i, CITIES[i % 2], 1.5, 1) for i in range(30, 40)), "insert")
    options = LOG_FILES if service is Service.LOGCOMPACTION else {}
    (plan,) = kept.serve(service, Mode.SCHEDULE, **options).scheduled_instants
    return kept, plan


def drop(kept: KeptTable) -> None:
    """Delete a partition, as a stock writer does."""
    kept.write([(0, CITIES[0], 0.0, 9)], "delete_partition", **{PARTITIONS: CITIES[0]})
    kept.rows = {key: row for key, row in kept.rows.items() if row[1] != CITIES[0]}


@pytest.mark.parametrize(
    "service", [Service.COMPACTION, *(pytest.param(each, marks=pytest.mark.soak) for each in SERVICES[1:])]
)
def test_it_passes_once_the_plan_is_withdrawn(spark: SparkSession, tmp_path: Path, service: Service) -> None:
    kept, plan = planned(spark, tmp_path / "t", service)
    with pytest.raises(Py4JJavaError, match=REFUSES):
        drop(kept)
    kept.require_rows()
    gone = run(spark, kept.table.request(Mode.WITHDRAW, plan, service=service))
    assert (gone.outcome, gone.message) == (Outcome.COMPLETED, f"withdrawn: {plan}")
    kept.require_rows()
    drop(kept)
    kept.require_rows()
    kept.serve(service)
    kept.require_rows()


@pytest.mark.soak
@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("statement", BY_SQL)
def test_it_passes_once_the_plan_is_executed(
    spark: SparkSession, tmp_path: Path, service: Service, statement: str
) -> None:
    kept, plan = planned(spark, tmp_path / "t", service)
    table = f"dropped_{statement}_{service}"
    spark.sql(f"create table {table} using hudi location '{kept.path}'")
    with pytest.raises(Py4JJavaError, match=REFUSES):
        spark.sql(BY_SQL[statement].format(table=table))
    assert run(spark, kept.table.request(Mode.EXECUTE, plan, service=service)).outcome is Outcome.COMPLETED
    kept.require_rows()
    spark.sql(BY_SQL[statement].format(table=table))
    kept.forget([key for key, row in kept.rows.items() if row[1] == CITIES[0]])
    kept.require_rows()
    spark.sql(f"drop table {table}")


@pytest.mark.soak
def test_plan_that_a_try_has_begun_is_rolled_back_with_its_files(spark: SparkSession, tmp_path: Path) -> None:
    kept, plan = planned(spark, tmp_path / "t", Service.COMPACTION)
    kept.write([(50, CITIES[0], 5.0, 1)])
    settings = lake_writer.write_options(kept.table.written, 0, None, {}) | {"hoodie.table.services.enabled": "true"}
    with open_client(spark, str(kept.path), settings, {}) as client:
        assert rewrite.write_files(spark, client, Service.COMPACTION, plan).written
    busy = run(spark, kept.table.request(Mode.WITHDRAW, plan))
    assert (busy.outcome, busy.failure_kind) == (Outcome.FAILED, FailureKind.BUSY), busy.message
    leave_expired_heartbeat(spark, str(kept.path), plan)
    gone = run(spark, kept.table.request(Mode.WITHDRAW, plan))
    assert gone.outcome is Outcome.COMPLETED, gone.message
    assert not [file for file in kept.path.rglob(f"*_{plan}.parquet") if ".hoodie" not in file.parts]
    kept.require_rows()
    assert kept.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    kept.require_rows()


@pytest.mark.soak
def test_before_version_8_the_plan_stays_and_is_executed_first(spark: SparkSession, tmp_path: Path) -> None:
    kept, plan = planned(spark, tmp_path / "t", Service.COMPACTION, version=6)
    with pytest.raises(Py4JJavaError, match=REFUSES):
        drop(kept)
    stays = run(spark, kept.table.request(Mode.WITHDRAW, plan))
    assert (stays.outcome, stays.failure_kind) == (Outcome.FAILED, FailureKind.REFUSED)
    assert "log files written since belong to it; run compaction with mode execute" in stays.message
    executed = run(spark, kept.table.request(Mode.EXECUTE, plan, service_options=COMPARE_ALL))
    assert executed.outcome is Outcome.COMPLETED, executed.message
    drop(kept)
    kept.require_rows()
