"""When an index build is due."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import IndexingPolicy
from airflow_lake_provider.hudi.instant import Instant
from airflow_lake_provider.hudi.timeline import Timeline
from airflow_lake_provider.job_contract import INDEX_CHECK, INDEX_WANTED, Mode
from airflow_lake_provider.planner.facts import TableFacts
from airflow_lake_provider.planner.last_runs import NO_LAST_RUNS, RunEnd, basis_of, wait_for_change
from airflow_lake_provider.planner.periodic import decide_indexing
from airflow_lake_provider.planner.rules import Verdict
from airflow_lake_provider.planner.table_view import TableView
from airflow_lake_provider.shared.actions import Action, State
from airflow_lake_provider.shared.hudi_settings import INDEX_CHECK_TIMEOUT
from tests.support.index_rules import LOCK, properties, write

PLAN = Instant("20261121105000000", Action.INDEXING, State.REQUESTED, None, "20261121105000000.indexing.requested")


def view(*instants: Instant, partitions: str = "files") -> TableView:
    return TableView("/lake/orders", properties(partitions), Timeline(instants), {}, "1")


def policy(*indexes: str, lock: dict[str, str] = LOCK) -> TablePolicy:
    return TablePolicy().replace(indexing=IndexingPolicy(indexes=indexes), hudi_options=lock)


def test_missing_index_is_due_with_its_settings() -> None:
    found = decide_indexing(TableFacts(view(write(1, done=True))), policy("record_index", "secondary_index:city"), 0)
    assert (found.verdict, found.mode) == (Verdict.DUE, Mode.SCHEDULE_AND_EXECUTE)
    assert "lacks record_index, secondary_index_city" in found.reason
    assert [wish["partition"] for wish in json.loads(found.options[INDEX_WANTED])] == [
        "record_index",
        "secondary_index_city",
    ]
    assert (found.options[INDEX_CHECK], found.options[INDEX_CHECK_TIMEOUT]) == ("cheap", "900")
    assert found.key_instant == write(1, done=True).requested_time


def test_pending_plan_of_any_builder_is_due_without_a_policy() -> None:
    found = decide_indexing(TableFacts(view(write(1, done=True), PLAN)), policy(), 0)
    assert (found.verdict, found.mode) == (Verdict.DUE, Mode.EXECUTE)
    assert found.plan_instants == (PLAN.requested_time,)


@pytest.mark.parametrize(
    ("partitions", "indexes"),
    [("files", ()), ("files,record_index", ("record_index",))],
    ids=["none-asked", "all-there"],
)
def test_nothing_to_build_is_not_due(partitions: str, indexes: tuple[str, ...]) -> None:
    found = decide_indexing(TableFacts(view(write(1, done=True), partitions=partitions)), policy(*indexes), 0)
    assert found.verdict is Verdict.NOT_DUE


def test_table_without_a_completed_write_is_left_alone() -> None:
    assert decide_indexing(TableFacts(view(write(1, done=False))), policy("record_index"), 0).verdict is Verdict.NOT_DUE


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (policy("record_index", lock={}), "hoodie.write.lock.provider"),
        (policy("secondary_index:city"), "needs record_index"),
    ],
    ids=["no-lock", "unmet-need"],
)
def test_what_must_not_run_is_blocked_with_the_reason(rules: TablePolicy, words: str) -> None:
    found = decide_indexing(TableFacts(view(write(1, done=True))), rules, 0)
    assert found.verdict is Verdict.BLOCKED
    assert words in found.reason


DAY_MS = 86_400_000


def test_searches_by_complete_indexes_are_due_once_in_each_period_and_only_when_asked() -> None:
    table = TableFacts(view(write(1, done=True), partitions="files,record_index,column_stats"))
    asked = policy("record_index", "column_stats:amount")
    daily = asked.replace(indexing=asked.indexing.replace(verify_every_s=86_400.0))
    now_ms = 1_800_000_000_000
    assert decide_indexing(table, asked, now_ms).verdict is Verdict.NOT_DUE
    found = decide_indexing(table, daily, now_ms)
    assert (found.verdict, found.mode, found.options[INDEX_CHECK]) == (Verdict.DUE, Mode.SCHEDULE_AND_EXECUTE, "sample")
    keys = {decide_indexing(table, daily, now_ms + hour * 3_600_000).key_instant for hour in range(48)}
    assert len(keys) in {2, 3}
    run = NO_LAST_RUNS.started(replace(found, basis=basis_of(found, table, "")), "run-1")
    run = run.ended("run-1", RunEnd.SUCCESS, now_ms)
    (again,) = (wait_for_change(found, run, table, daily, now_ms),)
    assert again.verdict is Verdict.NOT_DUE, "it ran in this period"
    next_ms = found.evaluate_again_ms or 0
    later = decide_indexing(table, daily, next_ms)
    later = replace(later, basis=basis_of(later, table, ""))
    assert wait_for_change(later, run, table, daily, next_ms).verdict is Verdict.DUE, "without a write in between"


def test_searches_wait_for_what_is_to_be_built_and_leave_out_indexes_that_find_no_rows() -> None:
    rules = policy("record_index", "column_stats:amount")
    daily = rules.replace(indexing=rules.indexing.replace(verify_every_s=86_400.0))
    lacking = decide_indexing(TableFacts(view(write(1, done=True), partitions="files,record_index")), daily, DAY_MS)
    assert (lacking.verdict, lacking.options[INDEX_CHECK]) == (Verdict.DUE, "cheap")
    statistics = daily.replace(indexing=daily.indexing.replace(indexes=("column_stats:amount",)))
    partitions = "files,column_stats"
    found = decide_indexing(TableFacts(view(write(1, done=True), partitions=partitions)), statistics, DAY_MS)
    assert found.verdict is Verdict.NOT_DUE


def test_switched_off_and_old_tables_are_not_due() -> None:
    off = policy("record_index").replace(indexing=IndexingPolicy(enabled=False, indexes=("record_index",)))
    assert decide_indexing(TableFacts(view(PLAN)), off, 0).verdict is Verdict.NOT_DUE
