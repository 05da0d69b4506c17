"""Calls that never return, and servers that come back; no network, and no sleeping: the clock is ours."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from airflow_lake_provider.errors import StorageError
from airflow_lake_provider.storage import bounded_calls
from airflow_lake_provider.storage.bounded_calls import BoundedCalls


class FakeServer:
    """Answers at once, or, while it is frozen, not before it is thawed."""

    def __init__(self) -> None:
        self.frozen = False
        self.calls = 0
        self.thaw = threading.Event()

    def __call__(self) -> str:
        self.calls += 1
        if self.frozen:
            self.thaw.wait()
        return "answer"


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    yield fake
    fake.thaw.set()


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def silent_calls(server: FakeServer, clock: Clock, on_silence: Callable[[], None] = lambda: None) -> BoundedCalls:
    calls = BoundedCalls("server", 0.05, on_silence, clock)
    server.frozen = True
    with pytest.raises(StorageError, match=r"server did not answer within 0\.05 s"):
        calls.run(server)
    return calls


def test_answers_and_errors_come_through() -> None:
    calls = BoundedCalls("server", 10)
    assert calls.run(lambda: 5) == 5
    with pytest.raises(TimeoutError, match="its own"):
        calls.run(lambda: (_ for _ in ()).throw(TimeoutError("its own")))
    with pytest.raises(ZeroDivisionError):
        calls.run(lambda: 1 // 0)
    assert calls.run(lambda: None) is None


def test_calls_of_one_thread_share_a_thread() -> None:
    calls = BoundedCalls("server", 10)
    assert len({calls.run(threading.get_ident) for _ in range(50)}) <= 2


def test_after_silence_no_caller_asks_before_the_pause_is_over(server: FakeServer) -> None:
    clock = Clock()
    silences: list[None] = []
    calls = silent_calls(server, clock, lambda: silences.append(None))
    server.frozen = False
    clock.now_s = bounded_calls.PAUSE_S - 1
    with pytest.raises(StorageError, match="the next try is in 1 s"):
        calls.run(server)
    assert server.calls == 1
    assert len(silences) == 1
    clock.now_s += 2
    assert calls.run(server) == "answer"
    assert calls.run(server) == "answer"


def test_one_caller_at_a_time_asks_a_silent_server(server: FakeServer) -> None:
    clock = Clock()
    calls = silent_calls(server, clock)
    clock.now_s += bounded_calls.PAUSE_S + 1
    calls._timeout_s = 10  # the one that asks may be slow on a loaded machine

    def ask_while_another_is_asked() -> str:
        with pytest.raises(StorageError, match="the next try is in"):
            calls.run(server)
        return "answer"

    assert calls.run(ask_while_another_is_asked) == "answer"
    assert server.calls == 1


def test_caller_that_asks_and_is_interrupted_keeps_no_other_out_for_long(server: FakeServer) -> None:
    clock = Clock()
    calls = silent_calls(server, clock)
    clock.now_s += bounded_calls.PAUSE_S + 1
    calls._admit()  # and nothing more of this caller
    with pytest.raises(StorageError, match="the next try is in"):
        calls.run(server)
    clock.now_s += bounded_calls.PAUSE_S + 1
    server.frozen = False
    assert calls.run(server) == "answer"


def test_calls_given_up_are_bounded_and_forgotten_when_they_end(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_calls, "MAX_UNANSWERED", 2)
    clock = Clock()
    calls = silent_calls(server, clock)
    clock.now_s += bounded_calls.PAUSE_S + 1
    with pytest.raises(StorageError, match="did not answer within"):
        calls.run(server)
    clock.now_s += bounded_calls.PAUSE_S + 1
    with pytest.raises(StorageError, match="has left 2 calls unanswered"):
        calls.run(server)
    assert server.calls == 2
    server.frozen = False
    server.thaw.set()
    ended = threading.Event()
    while calls.unanswered and not ended.wait(0.01):
        pass
    assert calls.run(server) == "answer"
