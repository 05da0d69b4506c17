"""A deferred sensor that its trigger wakes up succeeds with nothing but an event of success."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_lake_provider.sensors.commit import HudiCommitSensor
from airflow_lake_provider.sensors.conflict import HudiConflictSensor

SENSORS = [
    HudiCommitSensor(task_id="commit", base_path="/lake/orders"),
    HudiConflictSensor(task_id="conflict", base_path="/lake/orders"),
]


@pytest.mark.parametrize("sensor", SENSORS, ids=lambda sensor: sensor.task_id)
@pytest.mark.parametrize("event", [None, {}, {"status": "surprise"}])
def test_sensor_fails_after_a_trigger_that_said_nothing_known_and_is_tried_again(
    sensor: HudiCommitSensor | HudiConflictSensor, event: dict[str, Any] | None
) -> None:
    with pytest.raises(AirflowException, match="the trigger") as raised:
        sensor.execute_complete({}, event)
    assert not isinstance(raised.value, AirflowFailException)


@pytest.mark.parametrize("sensor", SENSORS, ids=lambda sensor: sensor.task_id)
def test_sensor_of_a_table_that_can_never_be_read_fails_for_good(
    sensor: HudiCommitSensor | HudiConflictSensor,
) -> None:
    with pytest.raises(AirflowFailException, match="no Hudi table"):
        sensor.execute_complete({}, {"status": "error", "message": "no Hudi table at /lake/orders"})


def test_sensors_succeed_with_an_event_of_success() -> None:
    commit, conflict = SENSORS
    assert commit.execute_complete({}, {"status": "success", "findings": [{"after": "1"}]}) == [{"after": "1"}]
    assert conflict.execute_complete({}, {"status": "success"}) is None
