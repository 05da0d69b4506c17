"""What a task asks for as a pause stops neither a triggerer nor the stream that all its sensors share."""

from __future__ import annotations

import math

import pytest

from airflow_lake_provider.triggers.polling import LEAST_INTERVAL_S, LONGEST_INTERVAL_S, pause_of


@pytest.mark.parametrize("asked_s", [0.0, -1.0, 1e-9, math.nan, -math.inf])
def test_no_trigger_asks_more_than_once_a_second(asked_s: float) -> None:
    assert pause_of(asked_s) == LEAST_INTERVAL_S


@pytest.mark.parametrize("asked_s", [1e300, math.inf, 10**400, 172_800])
def test_no_pause_is_longer_than_the_timeline_server_takes(asked_s: float) -> None:
    assert pause_of(asked_s) == LONGEST_INTERVAL_S


def test_other_pauses_are_as_asked() -> None:
    assert [pause_of(asked_s) for asked_s in (1.0, 60.0, 86_400.0)] == [1.0, 60.0, 86_400.0]
