"""Evaluations pause while the server's event loop is late, and never otherwise."""

from __future__ import annotations

import asyncio
import time

import pytest

from airflow_lake_provider.manager.loop.courtesy import BUSY_SHARE, MAX_PAUSE_S, Courtesy


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def busy(clock: Clock) -> Courtesy:
    courtesy = Courtesy(clock)
    for _ in range(10):
        courtesy.record_lag(0.1)
    return courtesy


def test_server_that_keeps_up_is_no_reason_to_pause() -> None:
    courtesy = Courtesy(Clock())
    courtesy.record_lag(0.001)
    courtesy.record_use(3.0)
    assert courtesy.pause_s() == 0


def test_one_late_moment_is_no_reason_to_pause() -> None:
    courtesy = Courtesy(Clock())
    courtesy.record_lag(0.04)
    courtesy.record_use(3.0)
    assert courtesy.pause_s() == 0


def test_busy_server_leaves_evaluations_their_share_however_many_threads_there_are() -> None:
    clock = Clock()
    courtesy = busy(clock)
    for _ in range(4):
        courtesy.record_use(0.05)
    assert courtesy.pause_s() == pytest.approx(4 * 0.05 * (1 / BUSY_SHARE - 1))
    clock.now_s += courtesy.pause_s()
    assert courtesy.pause_s() == 0


def test_pause_has_an_end() -> None:
    courtesy = busy(Clock())
    courtesy.record_use(600.0)
    assert courtesy.pause_s() == pytest.approx(MAX_PAUSE_S)


def test_delay_of_the_event_loop_is_what_counts() -> None:
    courtesy = Courtesy()

    async def story() -> None:
        measuring = asyncio.create_task(courtesy.measure())
        for _ in range(3):
            await asyncio.sleep(0.05)
            time.sleep(0.2)  # noqa: ASYNC251 - a request's own work, on the loop
        measuring.cancel()

    asyncio.run(story())
    courtesy.record_use(0.1)
    assert courtesy.pause_s() > 0
