"""The trigger of `HudiConflictSensor`: polls one table until nothing is in the way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hooks.open_tables import Preflight

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class ConflictTrigger(BaseTrigger):
    """Fires once: `{"status": "success"}` when the partitions are free, `{"status": "error", "message": ...}` when the
    table can never be read.
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

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll each `poll_interval_s`."""
        preflight: Preflight | None = None
        while True:
            try:
                if preflight is None:
                    preflight = await asyncio.to_thread(self._open)
                obstacles = await asyncio.to_thread(preflight.obstacles)
            except LakeError as error:
                if not error.retriable:
                    yield TriggerEvent({"status": "error", "message": str(error)})  # type: ignore[no-untyped-call]
                    return
                self.log.warning("%s", error)
            else:
                if not obstacles:
                    yield TriggerEvent({"status": "success"})  # type: ignore[no-untyped-call]
                    return
                self.log.info("table %s: waiting for %s", self.base_path, "; ".join(obstacles))
            await asyncio.sleep(self.poll_interval_s)

    def _open(self) -> Preflight:
        return Preflight(self.base_path, self.partitions, self.hudi_options, self.storage_options)
