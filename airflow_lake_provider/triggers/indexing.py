"""The trigger that waits until readers may use an index."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.hooks.open_tables import timeline_views
from airflow_lake_provider.indexing.table_indexes import load_readiness
from airflow_lake_provider.triggers.polling import PollingTrigger

if TYPE_CHECKING:
    from airflow_lake_provider.timeline_server.views import TableTimelineView


class IndexReadyTrigger(PollingTrigger):
    """Fires when readers may use the index; its event has the index's folder in the metadata table, `partition`."""

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

    def ask(self) -> dict[str, Any] | None:
        """Read the table once."""
        readiness = load_readiness(self._view, self.index)
        self.log.info("table %s: index %s: %s", self.base_path, readiness.partition, readiness.reason)
        return {"partition": readiness.partition} if readiness.is_ready else None

    @cached_property
    def _view(self) -> TableTimelineView:
        return timeline_views(self.lake_conn_id, self.storage_options).get_view(self.base_path)
