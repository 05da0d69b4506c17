"""Sensors and their trigger on tables on disk."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.tables import HandMadeTable

pytestmark = pytest.mark.integration


@pytest.fixture
def table(tmp_path: Path) -> HandMadeTable:
    return HandMadeTable.create(tmp_path / "orders; $(x) ü")


def commit_sensor(**arguments: Any) -> Any:
    from airflow_lake_provider.sensors.commit import HudiCommitSensor

    return HudiCommitSensor(task_id="wait", poke_interval=0.05, timeout=5, **arguments)


def test_commit_sensor_returns_new_commits_and_the_cursor(table: HandMadeTable) -> None:
    first = table.commit(1)
    result = commit_sensor(base_path=str(table.path)).execute({})
    assert [instant["requested_time"] for instant in result[0]["instants"]] == [first]
    sensor = commit_sensor(base_path=str(table.path), after=result[0]["after"])
    assert not sensor.poke({}).is_done
    second = table.commit(2)
    assert [i["requested_time"] for i in sensor.poke({}).xcom_value[0]["instants"]] == [second]


def test_commit_sensor_after_a_requested_time_does_not_return_that_commit_again(table: HandMadeTable) -> None:
    first = table.commit(1)
    assert not commit_sensor(base_path=str(table.path), after=first).poke({}).is_done


def test_commit_sensor_for_given_actions_ignores_others(table: HandMadeTable) -> None:
    table.commit(1)
    assert not commit_sensor(base_path=str(table.path), actions=["replacecommit"]).poke({}).is_done


def test_commit_sensor_of_a_missing_table_fails_at_once_with_its_path(tmp_path: Path) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    with pytest.raises(AirflowFailException, match=r"no Hudi table at .*nothing"):
        commit_sensor(base_path=str(tmp_path / "nothing")).execute({})


def test_commit_sensor_of_many_tables_looks_past_a_broken_one(table: HandMadeTable, tmp_path: Path) -> None:
    table.commit(1)
    tables = [{"base_path": str(tmp_path / "nothing"), "after": ""}, {"base_path": str(table.path), "after": ""}]
    result = commit_sensor(tables=tables).execute({})
    assert [finding["base_path"] for finding in result] == [str(table.path)]


def test_commit_sensor_when_deferrable_hands_over_only_if_there_is_nothing_yet(table: HandMadeTable) -> None:
    from airflow.sdk.exceptions import TaskDeferred

    sensor = commit_sensor(base_path=str(table.path), deferrable=True)
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute({})
    table.commit(1)
    event = asyncio.run(first_event(rebuild(deferred.value.trigger)))
    result = sensor.execute_complete({}, event)
    assert result == commit_sensor(base_path=str(table.path), deferrable=True).execute({})


def test_pending_index_sensor_sees_requested_and_inflight_builds(table: HandMadeTable) -> None:
    from airflow_lake_provider.sensors.pending_index import HudiPendingIndexSensor

    sensor = HudiPendingIndexSensor(task_id="wait", base_path=str(table.path))
    assert not sensor.poke({}).is_done
    timeline = table.path / ".hoodie" / "timeline"
    (timeline / "20261121120009000.indexing.requested").write_bytes(b"")
    assert sensor.poke({}).xcom_value[0]["instants"][0]["state"] == "REQUESTED"
    (timeline / "20261121120009000.indexing.inflight").write_bytes(b"")
    assert sensor.poke({}).xcom_value[0]["instants"][0]["state"] == "INFLIGHT"
    (timeline / "20261121120009000_20261121120010000.indexing").write_bytes(b"")
    assert not sensor.poke({}).is_done


@pytest.mark.parametrize("event", [None, {}, {"status": "surprise"}, {"status": "error", "message": "no"}])
def test_sensor_resumed_with_a_bad_event_fails(table: HandMadeTable, event: dict[str, Any] | None) -> None:
    from airflow.sdk.exceptions import AirflowException

    with pytest.raises(AirflowException):
        commit_sensor(base_path=str(table.path)).execute_complete({}, event)


def test_trigger_on_a_slow_store_does_not_block_the_event_loop(
    table: HandMadeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A linter cannot see a blocking call; a store that takes half a second can."""
    from airflow_lake_provider.triggers import timeline as module

    really_look = module.look

    def slow_look(watch: Any) -> Any:
        time.sleep(0.5)
        return really_look(watch)

    monkeypatch.setattr(module, "look", slow_look)
    table.commit(1)
    trigger = commit_sensor(base_path=str(table.path)).build_trigger()

    async def longest_gap_s() -> float:
        task = asyncio.create_task(first_event(trigger))
        longest_s, before = 0.0, time.monotonic()
        while not task.done():
            await asyncio.sleep(0.01)
            now = time.monotonic()
            longest_s, before = max(longest_s, now - before), now
        return longest_s

    assert asyncio.run(longest_gap_s()) < 0.4


async def first_event(trigger: Any) -> Any:
    async for event in trigger.run():
        return event.payload
    return None


def rebuild(trigger: Any) -> Any:
    """Do to a trigger what the database does."""
    import json

    from airflow_lake_provider.triggers.timeline import TimelineTrigger

    path, arguments = trigger.serialize()
    assert path == f"{TimelineTrigger.__module__}.{TimelineTrigger.__qualname__}"
    return TimelineTrigger(**json.loads(json.dumps(arguments)))
