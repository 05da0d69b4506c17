"""The sensor lets a writer's DAG go on while the budgets bear the backlog."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_lake_provider.hooks.lake import LakeHook
from airflow_lake_provider.sensors.backpressure import HudiBackpressureSensor


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
    assert sensor.poke({}) is goes_on  # type: ignore[typeddict-item]
    assert asked == ["/lake/orders"]


@pytest.mark.parametrize(("answer", "allow"), [("ok", "sometimes"), ("None", "ok")])
def test_unknown_pressure_is_an_error_and_never_a_permission(
    monkeypatch: pytest.MonkeyPatch, answer: str, allow: str
) -> None:
    monkeypatch.setattr(LakeHook, "find_backpressure", lambda *_: {"pressure": answer})
    with pytest.raises(AirflowException, match="allowed: ok, slow, stop"):
        HudiBackpressureSensor(task_id="wait", allow=allow).poke({})  # type: ignore[typeddict-item]
