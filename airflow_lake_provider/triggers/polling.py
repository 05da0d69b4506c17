"""What triggers share that ask one question again and again."""

from __future__ import annotations

import asyncio
import inspect
from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_lake_provider.errors import LakeError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

P = ParamSpec("P")
R = TypeVar("R")

LEAST_INTERVAL_S = 1.0
LONGEST_INTERVAL_S = 86_400.0
"""Between two questions. All tasks of a deployment share triggerers, and each question costs a store a request."""


def pause_of(poll_interval_s: float) -> float:
    """Return how long a trigger pauses: what its task asks for, within what the timeline server takes as well."""
    return min(max(LEAST_INTERVAL_S, poll_interval_s), LONGEST_INTERVAL_S)


_READERS = ThreadPoolExecutor(32, thread_name_prefix="lake-tables")


async def read_table(read: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return what a reading of a table's storage returns; it runs in threads of its own.

    Tables that take long, whatever their writers put there, leave the process's threads to all other triggers.
    """
    return await asyncio.get_running_loop().run_in_executor(_READERS, partial(read, *args, **kwargs))


class PollingTrigger(BaseTrigger):
    """Fires once: `{"status": "success", ...}` when `ask` has an answer, `{"status": "error", "message": ...}` when it
    can never have one. Its whole state is in its arguments.
    """

    poll_interval_s: float

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments: each is an attribute of the same name."""
        kind = type(self)
        arguments = {name: getattr(self, name) for name in inspect.signature(kind).parameters}
        return f"{kind.__module__}.{kind.__qualname__}", arguments

    @abstractmethod
    def ask(self) -> dict[str, Any] | None:
        """Return what the event says of a success; None to ask again. Raises LakeError."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Ask at once and then each `poll_interval_s`, in a thread, for a store or a manager may be slow."""
        while True:
            try:
                found = await asyncio.to_thread(self.ask)
            except LakeError as error:
                if not error.retriable:
                    yield TriggerEvent({"status": "error", "message": str(error)})  # type: ignore[no-untyped-call]
                    return
                self.log.warning("%s", error)
            else:
                if found is not None:
                    yield TriggerEvent({"status": "success", **found})  # type: ignore[no-untyped-call]
                    return
            await asyncio.sleep(pause_of(self.poll_interval_s))
