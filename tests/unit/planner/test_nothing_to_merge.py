"""No compaction is due while no log file came since all were merged: a run would open Spark and find nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.hudi.commit_metadata import CommitMetadata
from airflow_lake_provider.hudi.instant import Instant
from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.planner.decide import decide, remember_shown
from airflow_lake_provider.planner.facts import TableFacts
from airflow_lake_provider.planner.last_runs import (
    NO_LAST_RUNS,
    LastRuns,
    RunEnd,
    last_runs_to_text,
    parse_last_runs,
)
from airflow_lake_provider.planner.rules import Decision, Verdict
from airflow_lake_provider.planner.table_view import TableView
from airflow_lake_provider.shared.actions import Action
from airflow_lake_provider.shared.hudi_settings import LOCK_PROVIDER
from tests.unit.planner.views import NOW_MS, at, base, commit, completed, log, pending, view

POLICY = TablePolicy(hudi_options={LOCK_PROVIDER: "x.ZookeeperBasedLockProvider"})


def inserts(first: int, count: int) -> list[tuple[Instant, CommitMetadata]]:
    return [(completed(n), commit(base(f"g{n}", 100, is_new=True))) for n in range(first, first + count)]


def compaction(second: int) -> tuple[Instant, CommitMetadata]:
    return completed(second, Action.COMMIT), commit(base("a", 100), operation="COMPACT")


def decision(table: TableView, last_runs: LastRuns = NO_LAST_RUNS, policy: TablePolicy = POLICY) -> Decision:
    return next(d for d in decide(TableFacts(table), policy, NOW_MS, last_runs) if d.service is Service.COMPACTION)


def after_a_run(table: TableView, end: RunEnd = RunEnd.SUCCESS) -> LastRuns:
    return NO_LAST_RUNS.started(decision(table), "run-1").ended("run-1", end, NOW_MS)


def test_inserts_after_a_compaction_leave_nothing_to_merge() -> None:
    found = decision(view(compaction(1), *inserts(3, 9)))
    assert found.verdict is Verdict.NOT_DUE
    assert "nothing to merge: no log file came since all were merged (9 delta commits" in found.reason
    assert found.evaluate_again_ms is None


def test_one_log_file_makes_it_due_by_its_rules_as_before() -> None:
    table = view(compaction(1), *inserts(3, 9), (completed(20), commit(log("g3", 10))))
    assert decision(table).verdict is Verdict.DUE


def test_log_file_that_was_written_while_the_compaction_ran_is_not_merged() -> None:
    table = view(
        (completed(1), commit(log("a", 10))),
        (completed(2, Action.COMMIT, took_s=9), commit(base("a", 100), operation="COMPACT")),
        (completed(3), commit(log("a", 10))),
        *inserts(12, 9),
    )
    assert decision(table).verdict is Verdict.DUE


def test_without_a_compaction_the_first_run_finds_out_and_the_next_does_not_come() -> None:
    table = view(*inserts(1, 9))
    last_runs = after_a_run(table)
    assert decision(table).verdict is Verdict.DUE, "what lies before the active timeline is not known"
    more = view(*inserts(1, 40))
    assert decision(more).verdict is Verdict.DUE
    assert "nothing to merge: no log file came" in decision(more, last_runs).reason
    assert decision(more, after_a_run(table, RunEnd.FAILED)).verdict is Verdict.DUE
    # It found nothing: the first log files are merged when their rule holds, without a pause of ten writes.
    logs = [(completed(n), commit(log("g3", 10))) for n in range(10, 15)]
    assert decision(view(*inserts(1, 9), *logs), last_runs).verdict is Verdict.DUE


def test_what_is_known_outlives_the_active_timeline_and_the_text_of_the_registry() -> None:
    last_runs = after_a_run(view(*inserts(1, 9)))
    for first in range(2, 40, 4):
        table = view(*inserts(first, 12))
        last_runs = parse_last_runs(last_runs_to_text(remember_shown(TableFacts(table), POLICY, last_runs, NOW_MS)))
        assert last_runs.merged_until == at(first + 12)
    assert decision(view(*inserts(30, 12)), last_runs).verdict is Verdict.NOT_DUE
    # A gap between what is known and the active timeline: it may hide a log file.
    assert not TableFacts(view(*inserts(50, 9))).is_nothing_to_merge(POLICY, last_runs.merged_until)


def test_damaged_write_may_have_added_a_log_file() -> None:
    table = view(compaction(1), *inserts(3, 9))
    commits = {time: found for time, found in table.commits.items() if time != at(5)}
    assert decision(replace(table, commits=commits)).verdict is Verdict.DUE


@pytest.mark.parametrize("second", [12, 20])
def test_restore_may_have_taken_a_compaction_back(second: int) -> None:
    restore = completed(second, Action.RESTORE)
    table = view(compaction(1), *inserts(3, 9), plans=(restore,))
    last_runs = NO_LAST_RUNS.merged(at(5))
    assert decision(table, last_runs).verdict is Verdict.DUE
    assert remember_shown(TableFacts(table), POLICY, last_runs, NOW_MS).merged_until == ""


def test_plan_of_another_process_proves_nothing_about_later_log_files() -> None:
    plan = pending(5, Action.COMPACTION)
    due = decision(view(*inserts(1, 9), plans=(plan,)))
    assert (due.verdict, due.mode) == (Verdict.DUE, Mode.EXECUTE)
    ended = NO_LAST_RUNS.started(due, "run-1").ended("run-1", RunEnd.SUCCESS, NOW_MS)
    assert ended.merged_until == ""


def test_compaction_that_takes_a_part_of_the_file_slices_proves_nothing() -> None:
    table = view(compaction(1), *inserts(3, 9))
    options = {**POLICY.hudi_options, "hoodie.compaction.target.io": "100"}
    assert decision(table, policy=POLICY.replace(hudi_options=options)).verdict is Verdict.DUE


def test_text_of_an_earlier_release_is_read() -> None:
    assert parse_last_runs('{"of":{},"cleaned_before":"1"}') == LastRuns(cleaned_before="1")
