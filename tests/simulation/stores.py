"""The stores of the lake, each of which may fail, or not answer at all, while the others do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.hudi.base_path import store_of
from tests.simulation.faults import InjectedStoreError

if TYPE_CHECKING:
    from tests.simulation.threads import SimThread
    from tests.simulation.world import World


ALL_CALLS = frozenset({"list", "read", "stat"})


class Stalled(Exception):
    """A call of a worker's process: it returns when the store is back."""

    def __init__(self, until_ms: int) -> None:
        super().__init__(f"until {until_ms}")
        self.until_ms = until_ms


class Stores:
    """Until when each of them fails or hangs, and the threads that wait for an answer."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._fails_until_ms: dict[str, int] = {}
        self._hangs_until_ms: dict[str, int] = {}
        self._hanging: dict[str, frozenset[str]] = {}
        self._hung: dict[str, list[SimThread]] = {}
        self.never_answered: dict[SimThread, str] = {}
        """Threads that wait for a store that answers others again."""

    def fail(self, base_path: str, until_ms: int) -> None:
        """Let each call of a table's store fail."""
        self._fails_until_ms[store_of(base_path)] = until_ms

    def hang(self, base_path: str, until_ms: int, calls: frozenset[str] = ALL_CALLS) -> None:
        """Let these calls of a table's store hang; half of them never return, not even afterwards."""
        world, store = self._world, store_of(base_path)
        world.say(f"the store of {base_path} hangs for {until_ms - world.now_ms} ms")
        world.counts["stores that hung"] += 1
        self._hanging[store] = calls
        self._hangs_until_ms[store] = max(until_ms, self._hangs_until_ms.get(store, 0))
        world.after(until_ms - world.now_ms, lambda: self._come_back(store))

    def add_hung(self, base_path: str, thread: SimThread) -> None:
        """Note a thread that waits for an answer."""
        self._hung.setdefault(store_of(base_path), []).append(thread)

    def is_hung(self, base_path: str, what: str = "") -> bool:
        """Whether a call of a table's store would not be answered; without a call, whether any would not."""
        if what and what not in self._hanging.get(store_of(base_path), ALL_CALLS):
            return False
        return self._world.now_ms < self._hangs_until_ms.get(store_of(base_path), 0)

    def is_sick(self, base_path: str) -> bool:
        """Whether it fails or hangs."""
        return self.is_hung(base_path) or self._world.now_ms < self._fails_until_ms.get(store_of(base_path), 0)

    def keeps_waiting(self, base_path: str) -> bool:
        """Whether a thread still waits for it although it answers others: until a person restarts its process."""
        store = store_of(base_path)
        return any(of == store and thread.server.is_parked(thread) for thread, of in self.never_answered.items())

    def recover(self) -> None:
        """End every failure; what hangs, hangs on."""
        self._fails_until_ms.clear()

    @property
    def well_since_ms(self) -> int:
        """When all of them answer again, or when the last one did."""
        return max((*self._fails_until_ms.values(), *self._hangs_until_ms.values()), default=0)

    def require_answer(self, base_path: str, what: str) -> None:
        """Raise what the call of a worker's process raises, and Stalled when it is answered later."""
        if self.is_hung(base_path, what):
            raise Stalled(self._hangs_until_ms[store_of(base_path)])
        if self._world.now_ms < self._fails_until_ms.get(store_of(base_path), 0):
            raise InjectedStoreError(f"injected: {what} failed")

    def _come_back(self, store: str) -> None:
        if self._world.now_ms < self._hangs_until_ms[store]:
            return
        self._world.say(f"store {store!r} answers again")
        for thread in self._hung.pop(store, []):
            if self._world.rng.random() < 0.5:
                thread.server.wake(thread)
            else:
                self.never_answered[thread] = store
