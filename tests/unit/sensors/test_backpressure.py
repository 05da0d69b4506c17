"""The sensor lets a writer's DAG go on while the budgets bear the backlog."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, TaskDeferred

from airflow_lake_provider.hooks.lake import LakeHook
from airflow_lake_provider.sensors.backpressure import HudiBackpressureSensor
from tests.support.stored_triggers import again, first_event


@pytest.mark.parametrize(
    ("pressure", "allow", "goes_on"),
    [
        ("ok", "ok", True), ("slow", "ok", False), ("slow", "slow", True), ("stop", "slow", False),
        ("stop", "stop", True),
    ],
)  # fmt: skip
def test_writer_goes_on_up_to_the_pressure_that_it_allows(
    monkeypatch: pytest.MonkeyPatch, pressure: str, allow: str, goes_on: bool
) -> None:
    asked: list[str] = []

    def find(_hook: LakeHook, table: str = "") -> dict[str, Any]:
        asked.append(table)
        return {"pressure": pressure, "text": "4 services wait"}

    monkeypatch.setattr(LakeHook, "find_backpressure", find)
    sensor = HudiBackpressureSensor(task_id="wait", table="/lake/orders", allow=allow)
    assert bool(sensor.poke({})) is goes_on  # type: ignore[typeddict-item]
    assert asked == ["/lake/orders"]


@pytest.mark.parametrize(("answer", "allow"), [("ok", "sometimes"), ("None", "ok")])
def test_unknown_pressure_is_an_error_and_never_a_permission(
    monkeypatch: pytest.MonkeyPatch, answer: str, allow: str
) -> None:
    monkeypatch.setattr(LakeHook, "find_backpressure", lambda *_: {"pressure": answer})
    with pytest.raises(AirflowException, match="allowed: ok, slow, stop"):
        HudiBackpressureSensor(task_id="wait", allow=allow).poke({})  # type: ignore[typeddict-item]


def test_deferred_writer_goes_on_when_the_backlog_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["stop", "stop", "slow", "ok"])
    monkeypatch.setattr(LakeHook, "find_backpressure", lambda *_: {"pressure": next(answers)})
    sensor = HudiBackpressureSensor(task_id="wait", poke_interval=0.01, deferrable=True)
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute({})  # type: ignore[typeddict-item]
    event = asyncio.run(first_event(again(deferred.value.trigger)))
    assert event == {"status": "success", "pressure": "ok"}
    assert next(answers, "none left") == "none left"
    sensor.execute_complete({}, event)  # type: ignore[typeddict-item]
