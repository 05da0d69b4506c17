"""Compactions of real metadata tables that their writers left undone, run inside the test's own Spark session."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from conftest import LOCK, MakeTable, Table, content, run
from test_archive_on_hudi import archive

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import MetadataCompactionPolicy
from airflow_lake_provider.job_contract import JobRequest, Mode, Outcome, Service
from airflow_lake_provider.planner.decide import decide_now, load_facts
from airflow_lake_provider.planner.rules import Decision, Verdict
from airflow_lake_provider.planner.table_view import TableViewCache

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def compaction(table: Table, mode: Mode = Mode.EXECUTE) -> JobRequest:
    return table.request(mode, service=Service.METACOMPACTION)


def metadata_commits(table: Table) -> set[str]:
    folder = table.path / ".hoodie" / "metadata" / ".hoodie" / "timeline"
    return {path.name.split("_")[0] for path in folder.glob("*.commit")}


def test_compaction_left_behind_is_made_up_for_and_archiving_goes_on(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table(type="COW")
    before, files = content(spark, table), table.files()
    frozen = run(spark, archive(table))
    assert "the metadata table has no completed compaction" in frozen.message

    assert find_decision(table).verdict is Verdict.DUE
    result = run(spark, compaction(table))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert find_decision(table).verdict is Verdict.NOT_DUE
    assert set(result.completed_instants) == metadata_commits(table)
    assert table.files() == files
    assert content(spark, table) == before

    assert run(spark, archive(table)).outcome is Outcome.COMPLETED
    assert content(spark, table) == before


def find_decision(table: Table) -> Decision:
    """Decide as the manager does, by a policy that lets two writes pass."""
    views = TableViewCache()
    policy = TablePolicy(metacompaction=MetadataCompactionPolicy(commits=2), hudi_options=LOCK)
    now_ms = int(time.time() * 1000)
    facts = load_facts(views, views.refresh(str(table.path)), policy, now_ms)
    decisions = decide_now(views, facts, policy, now_ms)
    return next(decision for decision in decisions if decision.service is Service.METACOMPACTION)


def test_table_without_metadata_table_has_nothing_to_do(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(type="COW", **{"hoodie.metadata.enable": "false"})
    result = run(spark, compaction(table))
    assert (result.outcome, result.message) == (Outcome.NOTHING_TO_DO, "the table has no metadata table")
    assert not (table.path / ".hoodie" / "metadata").exists()


def test_scheduling_is_refused_with_a_sentence(spark: SparkSession, make_table: MakeTable) -> None:
    result = run(spark, compaction(make_table(type="COW"), Mode.SCHEDULE))
    assert result.outcome is Outcome.FAILED
    assert "no plan to schedule" in result.message
