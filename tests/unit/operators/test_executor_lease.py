"""G2 on the worker's side: a job whose lease cannot be kept is ended before anybody else may start."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_lake_provider.errors import ExecutorBusyError, LakeError, LeaseLostError, ManagerUnreachableError
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.operators.executor_lease import ExecutorLease

LEASE_S = 0.4


@dataclass
class FakeHook:
    """Plays the manager; `answer` is raised by each renewal."""

    answer: LakeError | None = None
    calls: list[str] = field(default_factory=list)
    busy: bool = False

    def acquire_executor(self, *_: Any) -> tuple[str, float]:
        if self.busy:
            raise ExecutorBusyError("held by run r (try 1)")
        self.calls.append("acquire")
        return "token", LEASE_S

    def renew_executor(self, *_: Any) -> None:
        self.calls.append("renew")
        if self.answer is not None:
            raise self.answer

    def release_executor(self, *_: Any) -> None:
        self.calls.append("release")


def lease(hook: FakeHook, ended: threading.Event) -> ExecutorLease:
    return ExecutorLease(hook, "t", Service.COMPACTION, "run", 1, on_lost=ended.set)  # type: ignore[arg-type]


def test_lease_is_renewed_while_the_job_runs_and_given_back() -> None:
    hook, ended = FakeHook(), threading.Event()
    with lease(hook, ended) as held:
        time.sleep(LEASE_S)
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
    hook, ended = FakeHook(ManagerUnreachableError("down")), threading.Event()
    with lease(hook, ended) as held:
        time.sleep(LEASE_S / 4 * 1.5)
        hook.answer = None
        time.sleep(LEASE_S)
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
    held = ExecutorLease(hook, "t", Service.COMPACTION, "run", 1, on_lost=ended.release)  # type: ignore[arg-type]
    with held:
        held.require_held()
        for _ in range(3):
            assert ended.acquire(timeout=10)
        with pytest.raises(LeaseLostError, match="before the job began"):
            held.require_held()


def test_lease_of_a_process_that_slept_past_its_end_begins_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = FakeHook()
    with lease(hook, threading.Event()) as held:
        awake_s = time.monotonic()
        monkeypatch.setattr("airflow_lake_provider.operators.executor_lease.time.monotonic", lambda: awake_s + 60)
        with pytest.raises(LeaseLostError):
            held.require_held()
        monkeypatch.undo()
