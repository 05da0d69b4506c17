"""Blocking calls that may never return, made with a bound on how long their caller waits.

A call that is given up cannot be ended: its thread waits until the server answers or the connection breaks. So that an
outage of hours costs only a few threads, one caller at a time retries a server that left a call unanswered, and the
others are refused immediately.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from airflow_lake_provider.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

# A pause without calls to a server that left a call unanswered.
PAUSE_S = 5.0
MAX_UNANSWERED = 64
MAX_IDLE_THREADS = 8


class BoundedCalls:
    """Makes calls to one server; thread safe. It calls `on_silence` when it gives a call up."""

    def __init__(
        self,
        server: str,
        timeout_s: float,
        on_silence: Callable[[], None] = lambda: None,
        now_s: Callable[[], float] = time.monotonic,
        max_unanswered: int | None = None,
    ) -> None:
        self._max_unanswered = MAX_UNANSWERED if max_unanswered is None else max_unanswered
        self._server = server
        self._timeout_s = timeout_s
        self._on_silence = on_silence
        self._now_s = now_s
        self._lock = threading.Lock()
        self._idle: list[_CallThread] = []
        self._unanswered = 0
        self._is_silent = False
        self._retry_at_s = 0.0

    @property
    def unanswered(self) -> int:
        """How many calls were given up and have not ended since."""
        return self._unanswered

    def run(self, call: Callable[[], T]) -> T:
        """Return what the call returns, or raise what it raises. Raises StorageError when it takes too long."""
        self._admit()
        made = _Call(call)
        self._take_thread().work.put(made)
        if not made.has_ended.acquire(timeout=self._timeout_s) and self._give_up(made):
            self._on_silence()
            raise StorageError(f"{self._server} did not answer within {self._timeout_s:g} s")
        self._is_silent = False
        return made.result()

    def _admit(self) -> None:
        with self._lock:
            if self._unanswered >= self._max_unanswered:
                raise StorageError(f"{self._server} has left {self._unanswered} calls unanswered")
            if not self._is_silent:
                return
            now_s = self._now_s()
            if now_s < self._retry_at_s:
                left_s = self._retry_at_s - now_s
                raise StorageError(
                    f"{self._server} did not answer within {self._timeout_s:g} s; the next try is in {left_s:.0f} s"
                )
            # This caller's call goes to the server; the others wait for its result.
            self._retry_at_s = now_s + self._timeout_s + PAUSE_S

    def _give_up(self, call: _Call[T]) -> bool:
        with self._lock:
            if call.has_ended.acquire(blocking=False):  # in the last moment
                return False
            call.is_given_up = True
            self._unanswered += 1
            self._is_silent = True
            self._retry_at_s = self._now_s() + PAUSE_S
            return True

    def _take_thread(self) -> _CallThread:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return _CallThread(self._end)

    def _end(self, thread: _CallThread, call: _Call[Any]) -> bool:
        """Take the thread back before the caller wakes and may call again; False when it is not wanted."""
        with self._lock:
            call.has_ended.release()
            if call.is_given_up:
                self._unanswered -= 1
            if len(self._idle) >= MAX_IDLE_THREADS:
                return False
            self._idle.append(thread)
            return True


class _Call(Generic[T]):
    """One call and its result."""

    __slots__ = ("_call", "_failure", "_result", "has_ended", "is_given_up")
    _result: T

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._failure: BaseException | None = None
        self.is_given_up = False
        # The cheapest thing to wait for: every stat waits for it.
        self.has_ended = threading.Lock()
        self.has_ended.acquire()

    def make(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:  # noqa: BLE001  the caller gets it, whatever it is
            self._failure = error

    def result(self) -> T:
        if self._failure is not None:
            raise self._failure
        return self._result


class _CallThread:
    """A thread that makes one call after the other. A daemon: the interpreter must not wait for a stuck one."""

    def __init__(self, end: Callable[[_CallThread, _Call[Any]], bool]) -> None:
        self.work: queue.SimpleQueue[_Call[Any]] = queue.SimpleQueue()
        self._end = end
        threading.Thread(target=self._run, name="lake-store", daemon=True).start()

    def _run(self) -> None:
        is_wanted = True
        while is_wanted:
            call = self.work.get()
            call.make()
            is_wanted = self._end(self, call)
            del call  # or this frame would keep its result until the next call
