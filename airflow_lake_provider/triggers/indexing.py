"""The trigger that waits until readers may use an index."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hooks.open_tables import timeline_views
from airflow_lake_provider.indexing.table_indexes import load_readiness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from airflow_lake_provider.timeline_server.views import TableTimelineView


class IndexReadyTrigger(BaseTrigger):
    """Fires once: `{"status": "success", "partition": ...}` when readers may use the index, `{"status": "error",
    "message": ...}` when that can never be known. Its whole state is in its arguments.
    """

    def __init__(
        self,
        base_path: str,
        index: str,
        poll_interval_s: float,
        storage_options: dict[str, Any],
        lake_conn_id: str,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.base_path = base_path
        self.index = index
        self.poll_interval_s = poll_interval_s
        self.storage_options = storage_options
        self.lake_conn_id = lake_conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments."""
        return (
            "airflow_lake_provider.triggers.indexing.IndexReadyTrigger",
            {
                "base_path": self.base_path,
                "index": self.index,
                "poll_interval_s": self.poll_interval_s,
                "storage_options": self.storage_options,
                "lake_conn_id": self.lake_conn_id,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Ask at once and then each `poll_interval_s`, in a thread, for a store may be slow."""
        view: TableTimelineView | None = None
        while True:
            try:
                if view is None:
                    view = await asyncio.to_thread(self._open)
                readiness = await asyncio.to_thread(load_readiness, view, self.index)
            except LakeError as error:
                if not error.retriable:
                    yield TriggerEvent({"status": "error", "message": str(error)})  # type: ignore[no-untyped-call]
                    return
                self.log.warning("%s", error)
            else:
                self.log.info("table %s: index %s: %s", self.base_path, readiness.partition, readiness.reason)
                if readiness.is_ready:
                    event = {"status": "success", "partition": readiness.partition}
                    yield TriggerEvent(event)  # type: ignore[no-untyped-call]
                    return
            await asyncio.sleep(self.poll_interval_s)

    def _open(self) -> TableTimelineView:
        return timeline_views(self.lake_conn_id, self.storage_options).get_view(self.base_path)
