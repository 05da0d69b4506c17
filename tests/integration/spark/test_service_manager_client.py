"""What RFC-43's own client leaves behind on real Hudi, fault by fault, and that we pick it up.

Nothing reaches us from it (`HoodieTableServiceManagerClient` never gets as far as a request), so each plan that it
leaves has to be found by reading the table, decided upon, and executed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from conftest import LOCK, MakeTable, Table, content, run
from py4j.protocol import Py4JJavaError

from airflow_lake_provider.config.policies import DoctorPolicy, TablePolicy
from airflow_lake_provider.config.service_policies import CleanPolicy
from airflow_lake_provider.job_contract import Mode, Outcome, Service
from airflow_lake_provider.planner.decide import decide
from airflow_lake_provider.planner.facts import TableFacts
from airflow_lake_provider.planner.rules import Decision, Verdict
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from local_stack import lake_writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_DEFAULT = r"no default value .* hoodie.table.service.manager.deploy.extra.params"
# No server listens there, and no fault below ever finds out.
CLIENT = {
    "hoodie.table.services.enabled": "true",
    "hoodie.table.service.manager.enabled": "true",
    "hoodie.table.service.manager.uris": "http://127.0.0.1:1",
    "hoodie.table.service.manager.deploy.extra.params": "token=secret",
}
COMPACTION = {"hoodie.compact.schedule.inline": "true", "hoodie.compact.inline.max.delta.commits": "1"}
CLUSTERING = {"hoodie.clustering.schedule.inline": "true", "hoodie.clustering.inline.max.commits": "1"}
CLEAN = {"hoodie.clean.automatic": "true", "hoodie.clean.commits.retained": "1", "hoodie.keep.min.commits": "20"}


def delegating(actions: str, *settings: dict[str, str]) -> dict[str, str]:
    merged = {**CLIENT, "hoodie.table.service.manager.actions": actions}
    for more in settings:
        merged |= more
    return merged


def write_with(spark: SparkSession, table: Table, options: dict[str, str], commit: int | None = None) -> None:
    number = table.written.commits if commit is None else commit
    settings = lake_writer.write_options(table.written, number, None, options)
    lake_writer.write_commit(spark, table.written, number, settings)


def pending(table: Table, action: str) -> tuple[str, ...]:
    return tuple(sorted(n.split(".")[0] for n in table.files() if n.endswith(f".{action}.requested")))


def decided(table: Table, service: Service, later_s: float = 0.0) -> Decision:
    """Decide from storage, as the sweep does for a table that was never announced, `later_s` from now."""
    policy = TablePolicy(clean=CleanPolicy(commits=1), hudi_options=LOCK)
    view, now_ms = TableViewCache(SharedTimelines()).refresh(str(table.path)), int((time.time() + later_s) * 1000)
    return next(
        decision for decision in decide(TableFacts(view), policy, now_ms) if decision.service.value == service.value
    )


def pick_up(spark: SparkSession, table: Table, service: Service, plans: tuple[str, ...], later_s: float = 0.0) -> None:
    decision = decided(table, service, later_s)
    assert (decision.verdict, decision.mode.value, decision.plan_instants) == (Verdict.DUE, Mode.EXECUTE.value, plans)
    before = content(spark, table)
    result = run(spark, table.request(Mode.EXECUTE, *decision.plan_instants, service=service))
    assert (result.outcome, result.completed_instants) == (Outcome.COMPLETED, plans), result.message
    assert content(spark, table) == before


def pick_up_later(spark: SparkSession, table: Table, service: Service, plans: tuple[str, ...]) -> None:
    """A writer that plans a clustering or a clean inline goes on to execute it, so both are left alone for a while."""
    assert "doctor.stuck_after_s" in decided(table, service).reason
    pick_up(spark, table, service, plans, later_s=DoctorPolicy().stuck_after_s + 1)


def test_delegation_that_throws_after_the_commit_leaves_a_plan_that_we_execute(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table()
    with pytest.raises(Py4JJavaError, match=NO_DEFAULT):
        write_with(spark, table, delegating("compaction", COMPACTION))
    assert len(table.completed("deltacommit")) == table.written.commits + 1, "the write that threw stands"
    plans = pending(table, "compaction")
    assert len(plans) == 1
    pick_up(spark, table, Service.COMPACTION, plans)
    write_with(spark, table, {}, commit=table.written.commits + 1)


@pytest.mark.soak
def test_delegation_whose_error_is_swallowed_leaves_a_plan_and_a_writer_that_knows_nothing(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table()
    quiet = {"hoodie.fail.writes.on.inline.table.service.exception": "false"}
    write_with(spark, table, delegating("compaction", COMPACTION, quiet))
    pick_up(spark, table, Service.COMPACTION, pending(table, "compaction"))


@pytest.mark.soak
def test_clustering_delegated_without_compaction_is_scheduled_asked_of_no_server_and_executed_by_the_provider(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table(type="COW")
    write_with(spark, table, delegating("clustering", CLUSTERING))
    plans = pending(table, "clustering")
    assert len(plans) == 1
    with pytest.raises(Py4JJavaError, match="HoodieClusteringUpdateException"):
        write_with(spark, table, {}, commit=table.written.commits + 1)
    pick_up_later(spark, table, Service.CLUSTERING, plans)
    write_with(spark, table, {}, commit=table.written.commits + 1)


def test_clean_that_is_scheduled_and_never_announced_is_executed_by_us(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table(type="COW")
    write_with(spark, table, delegating("clean", CLEAN))
    plans = pending(table, "clean")
    assert len(plans) == 1
    pick_up_later(spark, table, Service.CLEAN, plans)


@pytest.mark.soak
def test_clean_delegated_next_to_compaction_throws_and_its_plan_is_executed_by_the_provider(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table(type="COW")
    with pytest.raises(Py4JJavaError, match=NO_DEFAULT):
        write_with(spark, table, delegating("compaction,clean", CLEAN))
    pick_up_later(spark, table, Service.CLEAN, pending(table, "clean"))


@pytest.mark.soak
def test_log_compaction_is_never_delegated_but_run_by_the_writer_itself(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table()
    log_compaction = {
        "hoodie.log.compaction.enable": "true",
        "hoodie.log.compaction.inline": "true",
        "hoodie.log.compaction.blocks.threshold": "1",
    }
    write_with(spark, table, delegating("logcompaction", log_compaction))
    plans = pending(table, "logcompaction")
    assert len(plans) == 1
    assert set(plans) <= table.completed("deltacommit")
