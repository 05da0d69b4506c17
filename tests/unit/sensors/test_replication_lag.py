"""The sensor of a sink's lag: the manager's answer is made up, the table is a real one."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_lake_provider.hooks.lake import LakeHook
from airflow_lake_provider.hudi.base_path import normalise_base_path, table_id_of
from airflow_lake_provider.replication.change import CommitRef
from airflow_lake_provider.replication.checkpoint import Checkpoint, to_text
from airflow_lake_provider.sensors.replication_lag import HudiReplicationLagSensor
from airflow_lake_provider.triggers import replication_lag
from tests.support.fixture_tables import FixtureTable, unpack
from tests.support.stored_triggers import again, first_event


@pytest.fixture
def table(tmp_path: Path) -> FixtureTable:
    return unpack("cow_v9", tmp_path)


def commits_of(table: FixtureTable) -> list[CommitRef]:
    """Return the commits that change rows; the table's one replacecommit is a clustering."""
    found = [
        CommitRef(instant["requested_time"], instant["completed_time"])
        for instant in table.expected
        if instant["action"] == "commit" and instant["state"] == "COMPLETED"
    ]
    return sorted(found, key=lambda commit: commit.order)


def sink_with(done: list[CommitRef], name: str = "kafka") -> dict[str, Any]:
    checkpoint = Checkpoint(
        "t.kafka", 1, 1, done[-1] if done else None, done=tuple(commit.requested_time for commit in done)
    )
    text = to_text(checkpoint) if done else ""
    return {"name": name, "hold": "0", "needs_snapshot": False, "checkpoint_text": text}


def answer(monkeypatch: pytest.MonkeyPatch, table: FixtureTable, *sinks: dict[str, Any], status: int = 200) -> None:
    """Have the manager know these sinks of the table."""
    path = f"/v1/hoodie/tables/{table_id_of(normalise_base_path(str(table.path)))}/sinks"

    def serve(request: httpx.Request) -> httpx.Response:
        assert request.url.path == path
        return httpx.Response(status, json={"sinks": sinks, "detail": "the database is away"})

    client = httpx.Client(transport=httpx.MockTransport(serve), base_url="http://manager/v1/hoodie")
    monkeypatch.setattr(LakeHook, "get_conn", lambda _: client)


def poke(table: FixtureTable, sink: str = "kafka", **settings: Any) -> bool:
    sensor = HudiReplicationLagSensor(task_id="lag", base_path=str(table.path), sink=sink, **settings)
    return bool(sensor.poke({}))  # type: ignore[typeddict-item]


def test_sink_that_is_behind_is_waited_for_until_it_has_everything(
    table: FixtureTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = commits_of(table)
    assert len(commits) > 2
    answer(monkeypatch, table, sink_with([], "other"), sink_with(commits[:-2]))
    assert not poke(table)
    assert not poke(table, max_commits=1)
    assert poke(table, max_commits=2)
    answer(monkeypatch, table, sink_with(commits))
    assert poke(table)
    answer(monkeypatch, table, sink_with([]))
    assert not poke(table), "it has not begun"


def test_oldest_missing_commit_may_be_so_old_and_no_older(table: FixtureTable, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = commits_of(table)
    answer(monkeypatch, table, sink_with(commits[:-1]))
    completed = datetime.strptime(commits[-1].completed_time[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    monkeypatch.setattr(replication_lag.time, "time", lambda: completed.timestamp() + 60)
    assert poke(table, max_commits=9, max_lag_s=61)
    assert not poke(table, max_commits=9, max_lag_s=58)
    assert not poke(table, max_commits=0, max_lag_s=61)


@pytest.mark.parametrize(
    ("known", "said"),
    [
        pytest.param(["mirror", "kafka"], "has no sink 'kafak'; its sinks: kafka, mirror", id="typo"),
        pytest.param([], "has no sink 'kafak'; its sinks: none", id="no-sinks"),
    ],
)
def test_unknown_sink_fails_at_once_and_the_known_ones_are_named(
    table: FixtureTable, monkeypatch: pytest.MonkeyPatch, known: list[str], said: str
) -> None:
    answer(monkeypatch, table, *(sink_with([], name) for name in known))
    with pytest.raises(AirflowFailException, match=f"table {table.path} {said}"):
        poke(table, "kafak")


def test_manager_that_does_not_answer_is_asked_again(table: FixtureTable, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, table, status=503)
    assert not poke(table)


def test_trigger_asks_what_the_sensor_asks_until_the_sink_has_everything(
    table: FixtureTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = commits_of(table)
    sensor = HudiReplicationLagSensor(
        task_id="lag", base_path=str(table.path), sink="kafka", poke_interval=0.01, deferrable=True
    )
    answer(monkeypatch, table, sink_with(commits[:-1]))
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute({})  # type: ignore[typeddict-item]
    trigger = again(deferred.value.trigger)

    async def catch_up() -> dict[str, Any]:
        events = aiter(trigger.run())
        found = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.1)
        assert not found.done()
        answer(monkeypatch, table, sink_with(commits))
        return dict((await asyncio.wait_for(found, 10)).payload)

    event = asyncio.run(catch_up())
    assert (event["status"], event["commits"]) == ("success", 0)
    sensor.execute_complete({}, event)  # type: ignore[typeddict-item]


def test_trigger_of_an_unknown_sink_fails_its_task(table: FixtureTable, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, table, sink_with([], "kafka"))
    sensor = HudiReplicationLagSensor(task_id="lag", base_path=str(table.path), sink="kafak")
    event = asyncio.run(first_event(again(sensor.build_trigger())))
    with pytest.raises(AirflowFailException, match="has no sink 'kafak'; its sinks: kafka"):
        sensor.execute_complete({}, event)  # type: ignore[typeddict-item]
