"""Tables that only the manager serves, on real Hudi: each commit leaves room for one service, and it chooses.

Whether the timeline stays bounded, and everything is still there, Hudi's own timelines and reader say.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from conftest import LOCK, MakeTable, Table, rows, rows_written, run

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import ArchivePolicy, CleanPolicy, CompactionPolicy
from airflow_lake_provider.job_contract import Mode, Outcome, Service
from airflow_lake_provider.manager.runs.airflow_runs import RunState, ServiceRun
from airflow_lake_provider.manager.runs.run_ids import is_run_of
from airflow_lake_provider.manager.scheduling.scheduling import StartVerdict, decide_start
from airflow_lake_provider.planner.decide import decide_now, load_facts, remember_shown
from airflow_lake_provider.planner.last_runs import NO_LAST_RUNS, LastRuns, RunEnd
from airflow_lake_provider.planner.rules import Verdict
from airflow_lake_provider.planner.table_view import TableViewCache
from lake_jobs.hudi.table import read_table_state, requested_times
from local_stack import lake_writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_lake_provider.planner.rules import Decision

NO_METADATA_TABLE = {"hoodie.metadata.enable": "false"}
POLICY = TablePolicy(
    compaction=CompactionPolicy(delta_commits=1),
    clean=CleanPolicy(commits=2, retained_commits=2),
    archive=ArchivePolicy(min_commits=4, max_commits=5),
    hudi_options=LOCK,
    retry_backoff_s=0.001,
)


@dataclass
class OneSlot:
    """The manager of one table: after each commit it starts the service whose turn it is, and waits for its end."""

    spark: SparkSession
    table: Table
    views: TableViewCache = field(default_factory=TableViewCache)
    last_runs: LastRuns = NO_LAST_RUNS
    runs: list[ServiceRun] = field(default_factory=list)
    outcomes: Counter[tuple[Service, Outcome]] = field(default_factory=Counter)
    clean: str = ""

    def evaluate(self) -> None:
        view, now_ms = self.views.refresh(str(self.table.path)), int(time.time() * 1000)
        facts = load_facts(self.views, view, POLICY, now_ms)
        self.last_runs = remember_shown(facts, POLICY, self.last_runs, now_ms)
        decisions = decide_now(self.views, facts, POLICY, now_ms, self.last_runs)
        self.clean = next(decision.reason for decision in decisions if decision.service is Service.CLEAN)
        for decision in decisions:
            if decision.verdict is Verdict.DUE and self._run(decision, now_ms):
                return

    def _run(self, decision: Decision, now_ms: int) -> bool:
        runs = [run for run in self.runs if is_run_of(run.run_id, "t-1", decision.service)]
        start = decide_start("t-1", decision, runs, now_ms=now_ms, max_attempts=3, backoff_s=60)
        if start.verdict is not StartVerdict.START:
            return False
        request = self.table.request(
            Mode(decision.mode),
            *decision.plan_instants,
            service=Service(decision.service),
            service_options=dict(decision.options),
        )
        result = run(self.spark, request)
        assert result.outcome is not Outcome.FAILED, result.message
        self.outcomes[Service(decision.service), result.outcome] += 1
        ended_ms = int(time.time() * 1000)
        self.runs.append(ServiceRun(start.run_id, RunState.SUCCESS, ended_ms))
        self.last_runs = self.last_runs.started(decision, start.run_id).ended(start.run_id, RunEnd.SUCCESS, ended_ms)
        return True


def write_and_evaluate(spark: SparkSession, slot: OneSlot, first: int, commits: int, operation: str) -> int:
    """Write commits, with an evaluation after each; return how many writes were active at most after them."""
    written, most = slot.table.written, 0
    options = {**NO_METADATA_TABLE, "hoodie.datasource.write.operation": operation}
    for commit in range(first, first + commits):
        settings = lake_writer.write_options(written, commit, None, {})
        lake_writer.write_commit(spark, written, commit, settings | options)
        slot.evaluate()
        most = max(most, len(active_writes(spark, slot.table)))
    return most


def active_writes(spark: SparkSession, table: Table) -> tuple[str, ...]:
    timeline = read_table_state(spark, str(table.path)).meta_client.getActiveTimeline()
    return requested_times(timeline.getCommitsTimeline().filterCompletedInstants())


def archived_writes(spark: SparkSession, table: Table) -> tuple[str, ...]:
    timeline = read_table_state(spark, str(table.path)).meta_client.getArchivedTimeline()
    return requested_times(timeline.getCommitsTimeline())


def test_table_that_is_only_appended_to_is_archived_and_not_cleaned_for_nothing(
    spark: SparkSession, make_table: MakeTable
) -> None:
    # Its first three commits are upserts of half of its rows: what they replaced goes before there is nothing to clean.
    table = make_table(type="COW", **NO_METADATA_TABLE)
    slot = OneSlot(spark, table)
    everything = set(active_writes(spark, table))
    before = rows(spark, table)
    most = write_and_evaluate(spark, slot, 3, 9, "bulk_insert")
    assert most <= 7, slot.outcomes
    assert len(set(active_writes(spark, table)) & set(archived_writes(spark, table))) == 0
    assert len({*active_writes(spark, table), *archived_writes(spark, table)}) == len(everything) + 9
    assert everything <= set(archived_writes(spark, table))
    assert slot.outcomes[Service.ARCHIVE, Outcome.COMPLETED] >= 2
    assert slot.outcomes[Service.ARCHIVE, Outcome.NOTHING_TO_DO] == 0
    assert slot.outcomes[Service.CLEAN, Outcome.NOTHING_TO_DO] <= 1, slot.outcomes
    assert "nothing to clean" in slot.clean
    # Hudi appends what has the same key; the rows of before are there as they were.
    assert len(rows(spark, table)) == len(before) + sum(
        lake_writer.orders_of_commit(spark, table.written, commit).count() for commit in range(3, 12)
    )


@pytest.mark.soak(covered_by="tests/unit/manager/test_every_service_gets_its_turn.py")
def test_table_whose_compaction_is_always_due_is_cleaned_and_archived(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table(type="MOR", **NO_METADATA_TABLE)
    slot = OneSlot(spark, table)
    most = write_and_evaluate(spark, slot, 3, 10, "upsert")
    assert slot.outcomes[Service.COMPACTION, Outcome.COMPLETED] >= 3, slot.outcomes
    assert slot.outcomes[Service.CLEAN, Outcome.COMPLETED] >= 2, slot.outcomes
    assert slot.outcomes[Service.ARCHIVE, Outcome.COMPLETED] >= 1, slot.outcomes
    # Hudi leaves the archiver as many delta commits as its compaction trigger counts, 5.
    assert most <= 12, slot.outcomes
    seen = {*active_writes(spark, table), *archived_writes(spark, table)}
    assert len(seen) == 13 + slot.outcomes[Service.COMPACTION, Outcome.COMPLETED]
    assert rows(spark, table) == rows_written(spark, table.written, 13)
