"""What a sensor of index builds misses in a table: the same as the planner would build."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import IndexingPolicy
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.hudi.instant import Instant, Layout
from airflow_lake_provider.hudi.properties import TableProperties
from airflow_lake_provider.hudi.timeline import Timeline
from airflow_lake_provider.indexing.index_spec import split_indexes
from airflow_lake_provider.indexing.wanted_indexes import indexes_of, parse_wanted
from airflow_lake_provider.planner.facts import TableFacts
from airflow_lake_provider.planner.periodic import decide_indexing
from airflow_lake_provider.planner.rules import Verdict
from airflow_lake_provider.planner.table_view import TableView
from airflow_lake_provider.shared.actions import Action
from airflow_lake_provider.timeline_server.snapshot import TimelineSnapshot
from airflow_lake_provider.timeline_server.watch import Watch, WatchKind, examine, found
from tests.support.index_rules import LOCK, properties, write

PATH = "/lake/orders"
DONE = (write(1, done=True),)


def snapshot(of: TableProperties, *instants: Instant) -> TimelineSnapshot:
    return TimelineSnapshot(PATH, "1", of, Timeline(instants), as_of_ms=0)


@pytest.mark.parametrize(
    ("wanted", "of", "instants", "missing"),
    [
        pytest.param(("record_index",), properties(), DONE, ("record_index",), id="missing"),
        pytest.param(("record_index",), properties("files,record_index"), DONE, (), id="there"),
        pytest.param(("record_index",), properties("files", "record_index"), DONE, ("record_index",), id="half-built"),
        pytest.param(("partition_stats",), properties(fields=""), DONE, (), id="impossible"),
        pytest.param(("record_index",), properties(), (write(1, done=False),), (), id="no-write-yet"),
        pytest.param(("record_index",), replace(properties(), layout=Layout.V1), DONE, (), id="table-version-6"),
        pytest.param((), properties(), DONE, (), id="nothing-wanted"),
    ],
)
def test_sensor_misses_what_the_planner_would_build(
    wanted: tuple[str, ...], of: TableProperties, instants: tuple[Instant, ...], missing: tuple[str, ...]
) -> None:
    watch = Watch(WatchKind.PENDING_INDEX, ((PATH, ""),), find_missing=parse_wanted({PATH: wanted}).find_missing)
    finding = examine(watch, PATH, "", snapshot(of, *instants))
    assert finding.missing == missing
    assert bool(found([finding])) is bool(missing)
    assert finding.to_dict()["missing"] == list(missing)
    policy = TablePolicy().replace(indexing=IndexingPolicy(indexes=wanted), hudi_options=LOCK)
    decision = decide_indexing(TableFacts(TableView(PATH, of, Timeline(instants), {}, "1")), policy, 0)
    assert (decision.verdict is Verdict.DUE) is bool(missing)


def test_plan_and_missing_index_are_both_reported_and_other_tables_want_nothing() -> None:
    watch = Watch(
        WatchKind.PENDING_INDEX, ((PATH, ""),), find_missing=parse_wanted({PATH: ["record_index"]}).find_missing
    )
    plan = write(2, done=False, action=Action.INDEXING)
    finding = examine(watch, PATH, "", snapshot(properties(), *DONE, plan))
    assert ([i.requested_time for i in finding.instants], finding.missing) == ([plan.requested_time], ("record_index",))
    assert examine(watch, "/lake/other", "", snapshot(properties(), *DONE)).missing == ()


def test_watch_for_commits_does_not_ask_for_indexes() -> None:
    watch = Watch(WatchKind.COMMIT, ((PATH, ""),), find_missing=parse_wanted({PATH: ["record_index"]}).find_missing)
    assert examine(watch, PATH, DONE[0].requested_time, snapshot(properties(), *DONE)).missing == ()


def test_wanted_indexes_survive_the_database_as_they_were_spelled() -> None:
    wanted = parse_wanted({PATH: ["secondary_index:city", "record_index"], "/lake/none": []})
    stored = json.loads(json.dumps(wanted.to_dict()))
    assert stored == {PATH: ["secondary_index:city", "record_index"]}
    assert parse_wanted(stored) == wanted
    with pytest.raises(ConfigError, match="allowed"):
        parse_wanted({PATH: ["recordindex"]})


def test_policy_that_is_switched_off_wants_nothing() -> None:
    assert indexes_of(IndexingPolicy(indexes=("record_index",))) == ("record_index",)
    assert indexes_of(IndexingPolicy(enabled=False, indexes=("record_index",))) == ()


@pytest.mark.parametrize("text", [["a", "b"], "a;b", '["a", "b"]', " a ;b; "])
def test_indexes_come_as_list_as_text_or_as_rendered_json(text: list[str] | str) -> None:
    assert [name.strip() for name in split_indexes(text)] == ["a", "b"]
