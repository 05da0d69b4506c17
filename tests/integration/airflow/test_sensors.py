"""Sensors and their trigger on tables on disk."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.tables import HandMadeTable

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
    time.sleep(sensor.poke_interval)
    assert [i["requested_time"] for i in sensor.poke({}).xcom_value[0]["instants"]] == [second]


def test_commit_sensor_after_a_requested_time_does_not_return_that_commit_again(table: HandMadeTable) -> None:
    first = table.commit(1)
    assert not commit_sensor(base_path=str(table.path), after=first).poke({}).is_done


def test_commit_sensor_for_given_actions_ignores_others(table: HandMadeTable) -> None:
    table.commit(1)
    assert not commit_sensor(base_path=str(table.path), actions=["replacecommit"]).poke({}).is_done


@pytest.mark.parametrize("name", ["HudiCommitSensor", "HudiPendingIndexSensor"])
def test_sensor_that_pokes_once_succeeds_without_a_finding(table: HandMadeTable, name: str) -> None:
    """So `lake_watch` goes on to what it does with unchanged tables."""
    from airflow_lake_provider.sensors import commit, indexing

    kind: Any = getattr(commit if name == "HudiCommitSensor" else indexing, name)
    more = {} if name == "HudiCommitSensor" else {"indexes": []}
    watched = [{"base_path": str(table.path), "after": ""}]
    assert kind(task_id="s", tables=watched, once=True, deferrable=False, **more).execute({}) == []


def test_commit_sensor_of_a_missing_table_fails_at_once_with_its_path(tmp_path: Path) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    with pytest.raises(AirflowFailException, match=r"no Hudi table at .*nothing"):
        commit_sensor(base_path=str(tmp_path / "nothing")).execute({})


def test_commit_sensor_of_many_tables_passes_over_a_broken_one(table: HandMadeTable, tmp_path: Path) -> None:
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
    from airflow_lake_provider.sensors.indexing import HudiPendingIndexSensor

    sensor = HudiPendingIndexSensor(task_id="wait", base_path=str(table.path), max_age_s=0)
    assert not sensor.poke({}).is_done
    timeline = table.path / ".hoodie" / "timeline"
    (timeline / "20261121120009000.indexing.requested").write_bytes(b"")
    assert sensor.poke({}).xcom_value[0]["instants"][0]["state"] == "REQUESTED"
    (timeline / "20261121120009000.indexing.inflight").write_bytes(b"")
    assert sensor.poke({}).xcom_value[0]["instants"][0]["state"] == "INFLIGHT"
    (timeline / "20261121120009000_20261121120010000.indexing").write_bytes(b"")
    assert not sensor.poke({}).is_done


def index_sensor(table: HandMadeTable, **arguments: Any) -> Any:
    from airflow_lake_provider.sensors.indexing import HudiPendingIndexSensor

    arguments = {"base_path": str(table.path)} | arguments
    return HudiPendingIndexSensor(task_id="wait", max_age_s=0, poke_interval=0.05, timeout=5, **arguments)


def list_index(table: HandMadeTable, partition: str) -> None:
    with (table.path / ".hoodie" / "hoodie.properties").open("a", encoding="utf-8") as properties:
        properties.write(f"\nhoodie.table.metadata.partitions={partition}\n")


def test_pending_index_sensor_misses_what_the_table_must_have(table: HandMadeTable) -> None:
    wanted = '["record_index", "secondary_index:city"]'
    sensor = index_sensor(table, indexes=wanted)
    assert not sensor.poke({}).is_done  # Hudi plans nothing before the first write
    table.commit(1)
    (finding,) = sensor.poke({}).xcom_value
    assert (finding["instants"], finding["missing"]) == ([], ["record_index", "secondary_index_city"])
    list_index(table, "files,record_index,secondary_index_city")
    # A sensor of its own: views ask for the properties again only after a while, or when the timeline changed.
    assert not index_sensor(table, indexes=wanted).poke({}).is_done


def test_pending_index_sensor_when_deferred_fires_when_an_index_is_gone(table: HandMadeTable) -> None:
    from airflow.sdk.exceptions import TaskDeferred

    table.commit(1)
    list_index(table, "files,record_index")
    sensor = index_sensor(table, indexes=["record_index"], deferrable=True)
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute({})
    list_index(table, "files")
    event = asyncio.run(first_event(rebuild(deferred.value.trigger)))
    assert [finding["missing"] for finding in sensor.execute_complete({}, event)] == [["record_index"]]


def test_pending_index_sensor_takes_the_tables_file_and_the_variable_over_it(
    table: HandMadeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = HandMadeTable.create(tmp_path / "returns")
    for each in (table, other):
        each.commit(1)
    file = tmp_path / "tables.yaml"
    file.write_text("tables: [{name: named, indexing: {indexes: [record_index]}}, {name: plain}]", encoding="utf-8")
    monkeypatch.setenv("AIRFLOW__LAKE__TABLES_FILE", str(file))
    rows = [
        {"base_path": str(table.path), "table_name": "named"},
        {"base_path": str(other.path), "table_name": "plain"},
    ]
    both = {"base_path": "", "tables": rows}
    (finding,) = index_sensor(table, **both).poke({}).xcom_value
    assert (finding["base_path"], finding["missing"]) == (str(table.path), ["record_index"])
    assert not index_sensor(table, **both, indexes=[]).poke({}).is_done
    monkeypatch.setenv("AIRFLOW_VAR_LAKE_TABLES", "tables: [{name: named, indexing: {enabled: false}}]")
    assert not index_sensor(table, **both).poke({}).is_done


def test_pending_index_sensor_with_a_wrong_policy_fails_for_one_table_and_searches_plans_of_many(
    table: HandMadeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import AirflowException, AirflowFailException

    table.commit(1)
    with pytest.raises(AirflowFailException, match="allowed"):
        index_sensor(table, indexes=["recordindex"]).poke({})
    # A tables file that is not there may come back: that fails the try, and not the task.
    monkeypatch.setenv("AIRFLOW__LAKE__TABLES_FILE", str(tmp_path / "none.yaml"))
    with pytest.raises(AirflowException, match="cannot be read") as caught:
        index_sensor(table).poke({})
    assert not isinstance(caught.value, AirflowFailException)
    many = index_sensor(table, base_path="", tables=[{"base_path": str(table.path)}])
    assert not many.poke({}).is_done
    (table.path / ".hoodie" / "timeline" / "20261121120009000.indexing.requested").write_bytes(b"")
    assert many.poke({}).is_done


@pytest.mark.parametrize("event", [None, {}, {"status": "surprise"}, {"status": "error", "message": "no"}])
def test_sensor_resumed_with_a_bad_event_fails(table: HandMadeTable, event: dict[str, Any] | None) -> None:
    from airflow.sdk.exceptions import AirflowException

    with pytest.raises(AirflowException):
        commit_sensor(base_path=str(table.path)).execute_complete({}, event)


def test_trigger_on_a_slow_store_does_not_block_the_event_loop(
    table: HandMadeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A linter cannot see a blocking call; a store that takes half a second can."""
    from airflow_lake_provider.storage.table_storage import Storage

    really_list = Storage.list_names

    def list_slowly(storage: Storage, folder: str) -> list[str]:
        time.sleep(0.5)
        return really_list(storage, folder)

    monkeypatch.setattr(Storage, "list_names", list_slowly)
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


def test_triggers_of_one_triggerer_share_one_stream(tmp_path: Path) -> None:
    """As Airflow's own manager of shared streams runs them: one poll, each trigger fires once, for its own table."""
    from airflow.triggers.shared_stream import SharedStreamManager

    tables = [HandMadeTable.create(tmp_path / f"t{number}") for number in range(30)]
    triggers = [commit_sensor(base_path=str(table.path)).build_trigger() for table in tables]
    assert len({trigger.shared_stream_key() for trigger in triggers}) == 1
    other = commit_sensor(base_path=str(tables[0].path), storage_options={"auto_mkdir": False}).build_trigger()
    assert other.shared_stream_key() != triggers[0].shared_stream_key()

    async def fire_all() -> list[Any]:
        import structlog

        streams = SharedStreamManager(log=structlog.get_logger())
        key = triggers[0].shared_stream_key()

        async def wait_for(number: int) -> Any:
            stream = streams.subscribe(trigger_id=number, trigger=triggers[number], key=key)
            events = [event.payload async for event in triggers[number].filter_shared_stream(stream)]
            await streams.unsubscribe(number, key)
            return events

        waiting = [asyncio.create_task(wait_for(number)) for number in range(len(triggers))]
        await asyncio.sleep(0.5)
        assert len(streams._groups) == 1
        for table in reversed(tables):
            table.commit(1)
        return await asyncio.wait_for(asyncio.gather(*waiting), 20)

    for table, events in zip(tables, asyncio.run(fire_all()), strict=True):
        assert [event["status"] for event in events] == ["success"]
        assert [finding["base_path"] for finding in events[0]["findings"]] == [str(table.path)]
    assert_no_stream_is_left()


def test_stream_of_credentials_that_no_sensor_uses_any_more_is_closed_with_its_threads(table: HandMadeTable) -> None:
    """Credentials that a DAG renews each hour, for a year."""
    table.commit(1)

    async def fire(number: int) -> Any:
        sensor = commit_sensor(base_path=str(table.path), storage_options={"auto_mkdir": bool(number % 2)})
        return [event.payload["status"] async for event in sensor.build_trigger().run()]

    async def fire_all() -> list[Any]:
        return [await fire(number) for number in range(4)]

    assert asyncio.run(fire_all()) == [["success"]] * 4
    assert_no_stream_is_left()


def assert_no_stream_is_left() -> None:
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("lake-watch")]
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)


def test_trigger_of_a_missing_table_fires_an_error(tmp_path: Path) -> None:
    trigger = commit_sensor(base_path=str(tmp_path / "nothing")).build_trigger()
    event = asyncio.run(first_event(trigger))
    assert event["status"] == "error"
    assert "nothing" in event["message"]


@pytest.mark.parametrize("deferrable", [False, True], ids=["poke", "trigger"])
def test_commit_sensor_after_a_point_that_is_archived_returns_the_archived_commits_as_well(
    tmp_path: Path, deferrable: bool
) -> None:
    from airflow_lake_provider.hudi.archive import load_archive
    from airflow_lake_provider.hudi.properties import load_table_properties
    from airflow_lake_provider.storage.table_storage import open_storage
    from tests.support.fixture_tables import unpack

    path = str(unpack("archived_v9", tmp_path).path)
    storage = open_storage(path)
    archive = load_archive(storage, load_table_properties(storage))
    writes = archive.completed_writes_by_completion()
    sensor = commit_sensor(base_path=path, after=writes[2].requested_time)
    if deferrable:
        findings = sensor.execute_complete({}, asyncio.run(first_event(sensor.build_trigger())))
    else:
        findings = sensor.execute({})
    found = [instant["requested_time"] for instant in findings[0]["instants"]]
    assert found[: len(writes) - 3] == [instant.requested_time for instant in writes[3:]]
    assert len(found) > len(writes) - 3
    assert findings[0]["incomplete"] == ""


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
