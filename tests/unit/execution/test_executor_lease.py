"""G2 on the worker's side: a job whose lease cannot be kept is ended before another may start."""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.errors import (
    ConfigError,
    ExecutorBusyError,
    LakeError,
    LeaseLostError,
    ManagerUnreachableError,
)
from airflow_lake_provider.execution.engines.job_files import JobFolder
from airflow_lake_provider.execution.lease import LeaseKeeper, LeaseRequest, LeaseTimes
from airflow_lake_provider.instant_clock import boot_s
from airflow_lake_provider.job_contract import Service
from local_stack.processes import PATIENCE

LEASE_S = 1.2 * max(1.0, PATIENCE / 2)
"""Where the job has to be ended within it."""
LONG_LEASE_S = 1.2 * PATIENCE
"""Where the lease has to survive: on a busy machine a thread may stand still for a second."""


@dataclass
class FakeHook:
    """Plays the manager; `answer` is raised by each renewal."""

    answer: Exception | None = None
    calls: list[str] = field(default_factory=list)
    busy: bool = False
    lease_s: float = LEASE_S
    on_renewal: Callable[[], None] = lambda: None

    def acquire_executor(self, *_: Any, **__: Any) -> tuple[str, float]:
        if self.busy:
            raise ExecutorBusyError("held by run r (try 1)")
        self.calls.append("acquire")
        return "token", self.lease_s

    def renew_executor(self, *_: Any) -> None:
        self.calls.append("renew")
        self.on_renewal()
        if self.answer is not None:
            raise self.answer

    def release_executor(self, *_: Any) -> None:
        self.calls.append("release")


def lease_request(hook: FakeHook) -> LeaseRequest:
    folder = JobFolder("memory://lease-tests", "run", 1)
    return LeaseRequest(hook, "t", Service.COMPACTION, folder)  # type: ignore[arg-type]


def lease(hook: FakeHook, ended: threading.Event) -> LeaseKeeper:
    return LeaseKeeper(lease_request(hook), on_lost=ended.set)


def test_lease_is_renewed_while_the_job_runs_and_given_back() -> None:
    hook, ended = FakeHook(lease_s=LONG_LEASE_S), threading.Event()
    with lease(hook, ended) as held:
        time.sleep(LONG_LEASE_S)
    assert hook.calls[0] == "acquire"
    assert hook.calls.count("renew") >= 2
    assert hook.calls[-1] == "release"
    assert not held.lost
    assert not ended.is_set()


def test_lease_that_passed_to_another_ends_the_job_and_is_not_released() -> None:
    hook, ended = FakeHook(LeaseLostError("passed to another executor")), threading.Event()
    with lease(hook, ended) as held:
        assert ended.wait(LEASE_S)
    assert held.lost
    assert "release" not in hook.calls


def test_lease_with_the_manager_down_ends_the_job_before_the_lease_ends() -> None:
    hook, ended = FakeHook(ManagerUnreachableError("down")), threading.Event()
    began = time.monotonic()
    with lease(hook, ended) as held:
        assert ended.wait(LEASE_S)
        assert time.monotonic() - began < LEASE_S
    assert held.lost


def test_lease_with_the_manager_down_for_a_moment_goes_on() -> None:
    hook, ended = FakeHook(ManagerUnreachableError("down"), lease_s=LONG_LEASE_S), threading.Event()
    with lease(hook, ended) as held:
        time.sleep(LONG_LEASE_S / 4 * 1.5)
        hook.answer = None
        time.sleep(LONG_LEASE_S)
    assert not held.lost
    assert hook.calls[-1] == "release"


def test_lease_held_by_another_starts_no_job() -> None:
    with pytest.raises(ExecutorBusyError, match="held by run r"), lease(FakeHook(busy=True), threading.Event()):
        pytest.fail("the job was started")


def test_lease_is_given_back_when_the_job_raises() -> None:
    hook = FakeHook()
    with pytest.raises(RuntimeError, match="spark"), lease(hook, threading.Event()):
        raise RuntimeError("spark")
    assert hook.calls[-1] == "release"


def test_lease_that_was_lost_ends_the_job_again_and_again_and_begins_none() -> None:
    """A job that was only starting when the lease was lost had no process yet to be ended."""
    hook, ended = FakeHook(LeaseLostError("passed to another executor")), threading.Semaphore(0)
    held = LeaseKeeper(lease_request(hook), on_lost=ended.release)
    with held:
        held.require_held()
        for _ in range(3):
            assert ended.acquire(timeout=10)
        with pytest.raises(LeaseLostError, match="passed to another executor"):
            held.require_held()


def test_lease_of_a_process_that_slept_past_its_end_begins_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = FakeHook(lease_s=60.0)
    with lease(hook, threading.Event()) as held:
        awake_s = boot_s()
        monkeypatch.setattr("airflow_lake_provider.execution.lease.boot_s", lambda: awake_s + 61)
        with pytest.raises(LakeError):
            held.require_held()


def read_page(page: str) -> Any:
    return json.loads(page)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda: read_page("<html>maintenance</html>"), id="a-page-that-is-no-json"),
        pytest.param(lambda: {}["token"], id="json-without-the-field"),
        pytest.param(lambda: (_ for _ in ()).throw(ConfigError("refused: 404")), id="server-half-started"),
        pytest.param(lambda: (_ for _ in ()).throw(OSError("reset")), id="connection-reset"),
        pytest.param(lambda: (_ for _ in ()).throw(RuntimeError("no event loop")), id="any-other"),
    ],
)
def test_lease_survives_any_answer_and_is_renewed_when_the_manager_is_back(answer: Callable[[], Any]) -> None:
    hook, ended = FakeHook(on_renewal=answer, lease_s=LONG_LEASE_S), threading.Event()
    with lease(hook, ended) as held:
        wait_for(lambda: "renew" in hook.calls)
        hook.on_renewal = lambda: None
        hook.calls.clear()
        wait_for(lambda: hook.calls.count("renew") >= 2)
        assert not held.lost
    assert hook.calls[-1] == "release"
    assert not ended.is_set()


@pytest.mark.parametrize("error", [ValueError("no JSON"), KeyError("token"), ManagerUnreachableError("down")])
def test_lease_that_cannot_be_renewed_ends_the_job_whatever_the_answer_is(error: Exception) -> None:
    hook, ended = FakeHook(error), threading.Event()
    with lease(hook, ended):
        assert ended.wait(LEASE_S)


def test_renewal_that_hangs_does_not_hold_up_the_end_of_the_job() -> None:
    answered = threading.Event()
    hook, ended = FakeHook(on_renewal=lambda: assert_set(answered)), threading.Event()
    began_s = boot_s()
    with lease(hook, ended):
        assert ended.wait(LEASE_S)
        assert boot_s() - began_s < LEASE_S
        answered.set()


def test_job_is_ended_before_a_line_about_it_waits_for_airflow() -> None:
    """Lines go to Airflow's supervisor, which takes none while it asks an API server that is away."""
    taken = threading.Event()

    class Stuck(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            assert_set(taken)

    logger, stuck = logging.getLogger("airflow_lake_provider.execution.lease"), Stuck()
    logger.addHandler(stuck)
    ended = threading.Event()
    try:
        with lease(FakeHook(ManagerUnreachableError("down")), ended):
            assert ended.wait(LEASE_S)
            taken.set()
    finally:
        logger.removeHandler(stuck)


def test_job_is_ended_again_when_ending_it_failed() -> None:
    asked = threading.Semaphore(0)

    def fail() -> None:
        asked.release()
        raise OSError("the work folder does not answer")

    with LeaseKeeper(lease_request(FakeHook(LeaseLostError("passed"))), on_lost=fail):
        for _ in range(3):
            assert asked.acquire(timeout=10)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (ManagerUnreachableError("down"), r"manager did not answer for .* executor_lease_s"),
        (LeaseLostError("has passed to another executor"), "has passed to another executor"),
    ],
)
def test_error_says_whether_the_lease_passed_on_or_the_manager_was_away(answer: LakeError, said: str) -> None:
    ended = threading.Event()
    with lease(FakeHook(answer), ended) as held:
        assert ended.wait(LEASE_S)
        with pytest.raises(type(answer), match=said):
            held.require_held()


def test_default_lease_rides_out_ten_minutes_in_every_phase_of_the_renewals() -> None:
    times = LeaseTimes(LakeSettings().executor_lease_s)
    hanging_request_s = 20.0
    for phase_s in range(int(times.interval_s + hanging_request_s) + 1):
        assert times.lease_s - times.reserve_s - phase_s >= 600
    assert times.reserve_s >= 60


def test_outages_at_random_end_the_job_only_and_always_before_the_lease_ends() -> None:
    problems: list[str] = []
    players = [threading.Thread(target=play_outages, args=(seed, problems)) for seed in range(12)]
    for player in players:
        player.start()
    for player in players:
        player.join()
    assert problems == []


def play_outages(seed: int, problems: list[str]) -> None:
    """Keep a lease through outages; the judge goes by when renewals were answered, as a manager does.

    On a busy machine threads come late: all times are longer there.
    """
    pace = max(1.0, PATIENCE / 2)
    lease_s = 2.0 * pace
    rng, began_s, times = random.Random(seed), boot_s(), LeaseTimes(lease_s)
    begins = rng.uniform(0, 1.2) * pace, rng.uniform(2.0, 3.0) * pace
    outages = [(begin, begin + rng.choice((0.3, 0.6, 3.0)) * pace) for begin in begins]
    answered, ended_at_s = [began_s], []

    def renew() -> None:
        if any(begin <= boot_s() - began_s < end for begin, end in outages):
            raise ManagerUnreachableError("down")
        answered.append(boot_s())

    def end() -> None:
        ended_at_s.append(boot_s())

    hook = FakeHook(on_renewal=renew, lease_s=lease_s)
    held = LeaseKeeper(lease_request(hook), on_lost=end)
    with held:
        time.sleep(4.0 * pace)
    if held.lost is not bool(ended_at_s):
        problems.append(f"seed {seed}: lost {held.lost}, job ended {bool(ended_at_s)}")
    last_s = ended_at_s[0] if ended_at_s else boot_s()
    silent_s = last_s - max(moment for moment in answered if moment <= last_s)
    if silent_s >= lease_s:
        problems.append(f"seed {seed}: the job ran on for {silent_s:.2f} s without a renewal")
    if ended_at_s and silent_s < lease_s - times.reserve_s - 2 * times.interval_s:
        problems.append(f"seed {seed}: the job was ended {silent_s:.2f} s after a renewal")


def assert_set(event: threading.Event) -> None:
    assert event.wait(timeout=20)


def wait_for(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.01)
