"""When an index build is due."""

from __future__ import annotations

import json

import pytest

from airflow_lake_provider.config.policies import IndexingPolicy, TablePolicy
from airflow_lake_provider.hudi.instant import Action, Instant, State
from airflow_lake_provider.hudi.timeline import Timeline
from airflow_lake_provider.job_contract import INDEX_CHECK, INDEX_CHECK_TIMEOUT, INDEX_WANTED, Mode
from airflow_lake_provider.planner.facts import TableFacts
from airflow_lake_provider.planner.indexing import decide_indexing
from airflow_lake_provider.planner.rules import Verdict
from airflow_lake_provider.planner.table_view import TableView
from tests.unit.indexing.test_rules import LOCK, properties, write

PLAN = Instant("20261121105000000", Action.INDEXING, State.REQUESTED, None, "20261121105000000.indexing.requested")


def view(*instants: Instant, partitions: str = "files") -> TableView:
    return TableView("/lake/orders", properties(partitions), Timeline(instants), {}, "1")


def policy(*indexes: str, lock: dict[str, str] = LOCK) -> TablePolicy:
    return TablePolicy().replace(indexing=IndexingPolicy(indexes=indexes), hudi_options=lock)


def test_missing_index_is_due_with_its_settings() -> None:
    found = decide_indexing(TableFacts(view(write(1, done=True))), policy("record_index", "secondary_index:city"))
    assert (found.verdict, found.mode) == (Verdict.DUE, Mode.SCHEDULE_AND_EXECUTE)
    assert "lacks record_index, secondary_index_city" in found.reason
    assert [wish["partition"] for wish in json.loads(found.options[INDEX_WANTED])] == [
        "record_index",
        "secondary_index_city",
    ]
    assert (found.options[INDEX_CHECK], found.options[INDEX_CHECK_TIMEOUT]) == ("cheap", "900")
    assert found.key_instant == write(1, done=True).requested_time


def test_pending_plan_of_anybody_is_due_without_a_policy() -> None:
    found = decide_indexing(TableFacts(view(write(1, done=True), PLAN)), policy())
    assert (found.verdict, found.mode) == (Verdict.DUE, Mode.EXECUTE)
    assert found.plan_instants == (PLAN.requested_time,)


@pytest.mark.parametrize(
    ("partitions", "indexes"),
    [("files", ()), ("files,record_index", ("record_index",))],
    ids=["none-asked", "all-there"],
)
def test_nothing_to_build_is_not_due(partitions: str, indexes: tuple[str, ...]) -> None:
    found = decide_indexing(TableFacts(view(write(1, done=True), partitions=partitions)), policy(*indexes))
    assert found.verdict is Verdict.NOT_DUE


def test_table_without_a_completed_write_is_left_alone() -> None:
    assert decide_indexing(TableFacts(view(write(1, done=False))), policy("record_index")).verdict is Verdict.NOT_DUE


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (policy("record_index", lock={}), "hoodie.write.lock.provider"),
        (policy("secondary_index:city"), "needs record_index"),
    ],
    ids=["no-lock", "unmet-need"],
)
def test_what_must_not_run_is_blocked_with_the_reason(rules: TablePolicy, words: str) -> None:
    found = decide_indexing(TableFacts(view(write(1, done=True))), rules)
    assert found.verdict is Verdict.BLOCKED
    assert words in found.reason


def test_switched_off_and_old_tables_are_not_due() -> None:
    off = policy("record_index").replace(indexing=IndexingPolicy(enabled=False, indexes=("record_index",)))
    assert decide_indexing(TableFacts(view(PLAN)), off).verdict is Verdict.NOT_DUE
