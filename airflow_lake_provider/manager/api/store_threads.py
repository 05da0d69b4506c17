"""Threads for requests that read a table's store, which may not answer: all other routes share the server's own.

FastAPI has forty threads for the routes of the whole API server, Airflow's among them. Requests that wait for a store
must not take them all; and those of one token, or of one kind, none of the others'.
"""

from __future__ import annotations

from collections import defaultdict
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from anyio import CapacityLimiter, to_thread

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

AT_ONCE = 8
"""Requests of one kind that read at the same time."""
AT_ONCE_OF_ONE = 4
"""Of one token."""


class Reads(StrEnum):
    """Kinds of such requests."""

    HOLD = "hold"
    """A reader's hold is added."""
    RENEWAL = "renewal"
    """A reader's hold is renewed: a late one is lost."""
    POLICY = "policy"
    """A table's own settings are read, for a run."""
    INSTANCES = "instances"
    """A table's instances are listed."""


class StoreThreads:
    """Runs such requests; those that find no thread wait in their order, without one."""

    def __init__(self) -> None:
        self._of_kind: defaultdict[Reads, CapacityLimiter] = defaultdict(lambda: CapacityLimiter(AT_ONCE))
        self._of_token: defaultdict[tuple[Reads, str], CapacityLimiter] = defaultdict(
            lambda: CapacityLimiter(AT_ONCE_OF_ONE)
        )

    async def run(self, kind: Reads, token: str, work: Callable[[], T]) -> T:
        """Return what `work` does, in a thread. For the event loop only."""
        async with self._of_token[kind, token]:
            return await to_thread.run_sync(work, limiter=self._of_kind[kind])
