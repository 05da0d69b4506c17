"""The pre-flight sensor and its trigger in a real Airflow, on a table with a writer planted in flight."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_lake_provider.sensors.conflict import HudiConflictSensor
from airflow_lake_provider.triggers.conflict import ConflictTrigger
from tests.support.fixture_tables import unpack
from tests.unit.conflict.fake_table import commit_body

WRITER = "20991231000000001"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = unpack("mor_v9", tmp_path).path
    meta = path / ".hoodie"
    (meta / ".heartbeat").mkdir(exist_ok=True)
    (meta / ".heartbeat" / WRITER).touch()
    (meta / "timeline" / f"{WRITER}.deltacommit.requested").touch()
    (meta / "timeline" / f"{WRITER}.deltacommit.inflight").write_bytes(commit_body([("Oslo", "f1-0")]))
    return path


def test_writer_waits_only_for_its_own_partitions(table: Path) -> None:
    def poke(*partitions: str) -> bool:
        return HudiConflictSensor(task_id="free", base_path=str(table), partitions=partitions).poke({})

    assert poke("Bonn")
    assert not poke("Oslo", "Bonn")
    assert not poke()
    (table / ".hoodie" / ".heartbeat" / WRITER).unlink()
    assert poke()


def test_settings_of_the_tables_file_count(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables_file = tmp_path / "tables.yaml"
    tables_file.write_text(
        f"tables:\n- base_path: {table}\n  hudi_options: {{hoodie.client.heartbeat.interval_in_ms: 300000}}\n"
    )
    monkeypatch.setenv("AIRFLOW__LAKE__TABLES_FILE", str(tables_file))
    heartbeat = table / ".hoodie" / ".heartbeat" / WRITER
    os.utime(heartbeat, (time.time() - 300, time.time() - 300))
    assert not HudiConflictSensor(task_id="free", base_path=str(table)).poke({}), "a beat each five minutes is due"
    assert HudiConflictSensor(task_id="free", base_path=str(table), hudi_options={}).poke({})
    non_blocking = {"hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL"}
    heartbeat.touch()
    assert HudiConflictSensor(task_id="free", base_path=str(table), hudi_options=non_blocking).poke({})


def test_partition_that_the_table_lacks_is_named_in_the_log(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (table / "Lima").mkdir()
    (table / "Lima" / ".hoodie_partition_metadata").touch()
    sensor = HudiConflictSensor(task_id="free", base_path=str(table), partitions=["Lima", "lima"])
    assert sensor.poke({})
    assert sensor.poke({})
    assert capsys.readouterr().out.count("has no partition") == 1
    assert not HudiConflictSensor(task_id="free", base_path=str(table), partitions=["lima", "Oslo"]).poke({})
    assert f"table {table} has no partition 'lima': it is new, or misspelt" in capsys.readouterr().out


def test_sensor_defers_and_its_trigger_fires_when_the_writer_is_gone(table: Path) -> None:
    sensor = HudiConflictSensor(
        task_id="free", base_path=str(table), partitions=["Oslo"], deferrable=True, poke_interval=0.05
    )
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute({})
    path, arguments = deferred.value.trigger.serialize()
    assert path == f"{ConflictTrigger.__module__}.{ConflictTrigger.__qualname__}"
    trigger = ConflictTrigger(**arguments)

    async def fire() -> dict[str, str]:
        events = trigger.run()
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        heartbeat = table / ".hoodie" / ".heartbeat" / WRITER
        await asyncio.to_thread(os.utime, heartbeat, (time.time() - 600, time.time() - 600))
        event = await asyncio.wait_for(waiting, timeout=30)
        await events.aclose()
        return event.payload

    event = asyncio.run(fire())
    assert event == {"status": "success"}
    sensor.execute_complete({}, event)


def test_sensors_of_one_table_share_one_reading_of_it(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Airflow's own manager of shared streams runs them; each fires for its own partitions."""
    import structlog
    from airflow.triggers.shared_stream import SharedStreamManager

    from airflow_lake_provider.conflict.activity import ConflictTable

    readings, really_read = [], ConflictTable.read_activity
    monkeypatch.setattr(
        ConflictTable, "read_activity", lambda *given: readings.append(time.monotonic()) or really_read(*given)
    )
    busy = [ConflictTrigger(str(table), ["Oslo", f"p{number}"], {}, 0.5, {}) for number in range(20)]
    free = ConflictTrigger(str(table), ["Bonn"], {}, 0.5, {})
    assert len({trigger.shared_stream_key() for trigger in (*busy, free)}) == 1
    assert ConflictTrigger(str(table), [], {}, 0.7, {}).shared_stream_key() != free.shared_stream_key()

    async def fire_all() -> list[dict[str, str]]:
        streams = SharedStreamManager(log=structlog.get_logger())
        key = free.shared_stream_key()

        async def wait_for(number: int, trigger: ConflictTrigger) -> list[dict[str, str]]:
            stream = streams.subscribe(trigger_id=number, trigger=trigger, key=key)
            events = [event.payload async for event in trigger.filter_shared_stream(stream)]
            await streams.unsubscribe(number, key)
            return events

        waiting = [asyncio.create_task(wait_for(number, trigger)) for number, trigger in enumerate(busy)]
        assert await asyncio.wait_for(wait_for(100, free), 20) == [{"status": "success"}]
        await asyncio.sleep(2.0)
        assert not any(task.done() for task in waiting)
        (table / ".hoodie" / ".heartbeat" / WRITER).unlink()
        return [event for events in await asyncio.wait_for(asyncio.gather(*waiting), 20) for event in events]

    assert asyncio.run(fire_all()) == [{"status": "success"}] * 20
    took_s = readings[-1] - readings[0]
    assert len(readings) <= took_s / 0.5 + 2, "one each half second, not one for each sensor"


def test_path_without_a_table_fails_at_once(tmp_path: Path) -> None:
    with pytest.raises(AirflowFailException, match="no Hudi table"):
        HudiConflictSensor(task_id="free", base_path=str(tmp_path)).poke({})
    trigger = ConflictTrigger(str(tmp_path), [], {}, 0.01, {})

    async def fire() -> dict[str, str]:
        return (await anext(trigger.run())).payload

    assert asyncio.run(fire())["status"] == "error"
