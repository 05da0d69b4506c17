"""Blocking calls that may never return, made with a bound on how long their caller waits.

A call that is given up cannot be ended: its thread waits on, until the server answers or the connection breaks. So
that an outage of hours costs a handful of threads, a server that left a call unanswered is asked again by one caller
at a time, and the others are refused at once.
"""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_lake_provider.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

# A pause in which nobody asks a server that left a call unanswered.
PAUSE_S = 5.0
MAX_UNANSWERED = 64
MAX_IDLE_THREADS = 8


class BoundedCalls:
    """Makes calls to one server; thread safe. `on_silence` is called when one is given up, before its caller learns."""

    def __init__(
        self,
        server: str,
        timeout_s: float,
        on_silence: Callable[[], None] = lambda: None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._timeout_s = timeout_s
        self._on_silence = on_silence
        self._now_s = now_s
        self._lock = threading.Lock()
        self._idle: list[_CallThread] = []
        self._unanswered = 0
        self._is_silent = False
        self._has_probe = False
        self._ask_again_s = 0.0

    @property
    def unanswered(self) -> int:
        """How many calls were given up and have not ended since."""
        return self._unanswered

    def run(self, call: Callable[[], T]) -> T:
        """Return what the call returns, or raise what it raises. Raises StorageError when it takes too long."""
        self._admit()
        answer: Future[T] = Future()
        self._take_thread().work.put((call, answer))
        if not wait((answer,), self._timeout_s).done:
            self._give_up(answer)
            raise StorageError(f"{self._server} did not answer within {self._timeout_s:g} s")
        with self._lock:
            self._is_silent = self._has_probe = False
        return answer.result()

    def _admit(self) -> None:
        with self._lock:
            if self._unanswered >= MAX_UNANSWERED:
                raise StorageError(f"{self._server} has left {self._unanswered} calls unanswered")
            if not self._is_silent:
                return
            left_s = self._ask_again_s - self._now_s()
            if left_s > 0 or self._has_probe:
                when = f"in {left_s:.0f} s" if left_s > 0 else "under way"
                raise StorageError(f"{self._server} did not answer within {self._timeout_s:g} s; another try is {when}")
            self._has_probe = True

    def _give_up(self, answer: Future[Any]) -> None:
        with self._lock:
            self._unanswered += 1
            self._is_silent = True
            self._has_probe = False
            self._ask_again_s = self._now_s() + PAUSE_S
        answer.add_done_callback(self._came_late)
        self._on_silence()

    def _came_late(self, _: Future[Any]) -> None:
        with self._lock:
            self._unanswered -= 1

    def _take_thread(self) -> _CallThread:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return _CallThread(self._give_back)

    def _give_back(self, thread: _CallThread) -> bool:
        with self._lock:
            if len(self._idle) >= MAX_IDLE_THREADS:
                return False
            self._idle.append(thread)
            return True


class _CallThread:
    """A thread that makes one call after the other. A daemon: the interpreter must not wait for a stuck one."""

    def __init__(self, give_back: Callable[[_CallThread], bool]) -> None:
        self.work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._give_back = give_back
        threading.Thread(target=self._run, name="lake-store", daemon=True).start()

    def _run(self) -> None:
        is_wanted = True
        while is_wanted:
            call, answer = self.work.get()
            result: Any = None
            failure: BaseException | None = None
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001  the caller gets it, whatever it is
                failure = error
            # Given back first: whoever has the answer may ask for the next call at once.
            is_wanted = self._give_back(self)
            if failure is None:
                answer.set_result(result)
            else:
                answer.set_exception(failure)
            del call, answer, result, failure
