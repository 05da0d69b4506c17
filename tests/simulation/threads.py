"""Threads of a server's process in virtual time: one that waits for a store stands aside, and the others go on.

Only one runs at a time, so a schedule is the same each time. What the provider asks of `threading` and `time` is
answered from here where a thread may wait: its evaluators, and the locks that it holds while it reads a store.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from greenlet import GreenletExit, getcurrent, greenlet

from airflow_lake_provider.manager.loop import evaluators
from airflow_lake_provider.timeline_server.table_memory import TableLocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.server import Server


class SimThread(greenlet):  # type: ignore[misc]
    """One thread of a server. `is_request`: it answers an HTTP request, so it must wait for no store."""

    def __init__(
        self, server: Server, work: Callable[[], object], *, is_request: bool = False, is_evaluator: bool = False
    ) -> None:
        super().__init__(work)
        self.server = server
        self.is_request = is_request
        self.is_evaluator = is_evaluator
        self.transactions = 0

    def stand_aside(self, why: str) -> None:
        """Let the others go on until `go_on`; ends with its process."""
        server = self.server
        if self.is_request:
            server.world.violate(f"{server.name}: a request waits for a store: {why}")
        server.park(self)
        self.parent.switch()
        server.unpark(self)

    def go_on(self) -> None:
        """Continue it, from wherever the world is now."""
        self.parent = getcurrent()
        self.switch()

    def end(self) -> None:
        """End it where it stands aside; the process that ends it goes on afterwards, not the last that let it run."""
        self.parent = getcurrent()
        self.throw(GreenletExit)


def this_thread() -> SimThread:
    """Return the thread that runs; what waits for a store outside of one would stop the world."""
    thread = getcurrent()
    assert isinstance(thread, SimThread)
    return thread


class ThreadLock:
    """A lock that a thread may hold while it waits for a store; others that want it stand aside."""

    def __init__(self) -> None:
        self._is_held = False
        self._waiting: deque[SimThread] = deque()

    def __enter__(self) -> None:
        while self._is_held:
            thread = this_thread()
            self._waiting.append(thread)
            thread.stand_aside("it needs a lock of a thread that waits for a store")
        self._is_held = True

    def __exit__(self, *error: object) -> None:
        self._is_held = False
        if self._waiting:
            thread = self._waiting.popleft()
            thread.server.wake(thread)


class SimLocks(TableLocks):
    """The provider's locks of tables, made of the simulation's."""

    def __init__(self, what: str) -> None:
        super().__init__(lambda: self.make_lock(what))

    @staticmethod
    def make_lock(what: str) -> ThreadLock:
        """Return the lock of one table for refreshes, or for its commits."""
        return ThreadLock()


class _Threading:
    """What `manager/loop/evaluators.py` uses of `threading`."""

    Lock = staticmethod(threading.Lock)

    class Thread:
        def __init__(self, target: Callable[[], None], name: str, *, daemon: bool) -> None:
            assert daemon
            self._target = target

        def start(self) -> None:
            this_thread().server.begin_thread(self._target)

    class Timer:
        def __init__(self, interval: float, function: Callable[[], None]) -> None:
            self.daemon = False
            self._after_ms = int(interval * 1000)
            self._function = function
            self._is_cancelled = False

        def start(self) -> None:
            assert self.daemon
            this_thread().server.begin_thread(self._ring, self._after_ms)

        def cancel(self) -> None:
            self._is_cancelled = True

        def _ring(self) -> None:
            if not self._is_cancelled:
                self._function()


class _Time:
    """What it uses of `time`."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms

    def monotonic(self) -> float:
        return self._now_ms() / 1000


class _Patch:
    """What `manager/loop/evaluators.py` had before, and how many `simulated_threads` are open.

    A thread that is forgotten while it stands aside inside of one leaves it at any time, and in any order: the
    garbage collector ends it.
    """

    before: tuple[Any, Any] | None = None
    depth = 0


@contextmanager
def simulated_threads(now_ms: Callable[[], int]) -> Iterator[None]:
    """Have the provider's evaluators use these threads, and this clock."""
    module: Any = evaluators
    if _Patch.before is None:
        _Patch.before = module.threading, module.time
    _Patch.depth += 1
    module.threading, module.time = _Threading, _Time(now_ms)
    try:
        yield
    finally:
        _Patch.depth -= 1
        if not _Patch.depth:
            module.threading, module.time = _Patch.before
            _Patch.before = None
