"""The trigger that waits for writers in the way of a table. One reading of a table serves all tasks that wait for it in
one triggerer.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_lake_provider.conflict.guard_register import find_obstacles
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hooks.open_tables import Preflight
from airflow_lake_provider.triggers.polling import pause_of, read_table

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Mapping

    from airflow_lake_provider.conflict.activity import TableActivity


class ConflictTrigger(BaseEventTrigger):
    """Fires once: `{"status": "success"}` when the partitions are free, `{"status": "error", "message": ...}` when the
    table can never be read.

    Triggers of one table, in one triggerer and with the same settings, share one reading of it, whatever partitions
    they wait for.
    """

    def __init__(
        self,
        base_path: str,
        partitions: list[str],
        hudi_options: dict[str, str],
        poll_interval_s: float,
        storage_options: dict[str, Any],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.base_path = base_path
        self.partitions = partitions
        self.hudi_options = hudi_options
        self.poll_interval_s = poll_interval_s
        self.storage_options = storage_options

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments."""
        return (
            "airflow_lake_provider.triggers.conflict.ConflictTrigger",
            {
                "base_path": self.base_path,
                "partitions": self.partitions,
                "hudi_options": self.hudi_options,
                "poll_interval_s": self.poll_interval_s,
                "storage_options": self.storage_options,
            },
        )

    def shared_stream_key(self) -> Hashable:
        """Triggers that read one table in the same way, and as often, share a stream."""
        how = [self.base_path, self.hudi_options, self.poll_interval_s, self.storage_options]
        return json.dumps(how, sort_keys=True, default=str)

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[Any]:
        """Yield what is active on the table each `poll_interval_s`, or why that cannot be read."""
        preflight: Preflight | None = None
        while True:
            seen: TableActivity | LakeError
            try:
                if preflight is None:
                    preflight = await read_table(_open_preflight, kwargs)
                seen = await read_table(preflight.read_activity)
            except LakeError as error:
                seen = error
            yield seen
            await asyncio.sleep(pause_of(kwargs["poll_interval_s"]))

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        """Fire when this trigger's partitions are free."""
        async for seen in shared_stream:
            if (event := self._examine(seen)) is not None:
                yield event
                return

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Do the same with a reading of its own; used where streams are not shared."""
        _, arguments = self.serialize()
        async with aclosing(cast("AsyncGenerator[Any]", self.open_shared_stream(arguments))) as stream:
            async for event in self.filter_shared_stream(stream):
                yield event

    def _examine(self, seen: TableActivity | LakeError) -> TriggerEvent | None:
        if isinstance(seen, LakeError):
            if not seen.retriable:
                return TriggerEvent({"status": "error", "message": str(seen)})  # type: ignore[no-untyped-call]
            self.log.warning("%s", seen)
            return None
        obstacles = find_obstacles(seen, self.partitions, seen.rule)
        if not obstacles:
            return TriggerEvent({"status": "success"})  # type: ignore[no-untyped-call]
        self.log.info("table %s: waiting for %s", self.base_path, "; ".join(obstacles))
        return None


def _open_preflight(arguments: Mapping[str, Any]) -> Preflight:
    return Preflight(arguments["base_path"], (), arguments["hudi_options"], arguments["storage_options"])
