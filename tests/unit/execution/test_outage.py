"""Which of Airflow's settings end a task while the API server is away."""

from __future__ import annotations

import pytest

from airflow_lake_provider.execution.retry import RECOMMENDED, AirflowLimits, explain_short, read_limits

DEFAULTS = AirflowLimits(3, 5.0, 300.0, 600.0)
ADVISED = AirflowLimits(180, 5.0, 900.0, 3600.0)


def test_airflows_defaults_are_too_short_and_each_setting_is_named_with_a_value() -> None:
    said = explain_short(DEFAULTS)
    for name, value in RECOMMENDED.items():
        assert f"{name} = {value}" in said
    assert "(now: 10 s)" in said


def test_recommended_settings_bear_ten_minutes() -> None:
    assert list(RECOMMENDED.values()) == [180, 900, 3600]
    assert explain_short(ADVISED) == ""


@pytest.mark.parametrize(
    ("limits", "setting"),
    [
        (AirflowLimits(100, 5.0, 900.0, 3600.0), "[workers] max_failed_heartbeats"),
        (AirflowLimits(180, 5.0, 600.0, 3600.0), "[scheduler] task_instance_heartbeat_timeout"),
        (AirflowLimits(180, 5.0, 900.0, 1800.0), "[execution_api] jwt_expiration_time"),
    ],
)
def test_each_setting_alone_is_enough_to_end_a_task(limits: AirflowLimits, setting: str) -> None:
    assert list(limits.find_short()) == [setting]


def test_settings_of_this_airflow_are_read() -> None:
    assert read_limits().max_failed_heartbeats > 0
