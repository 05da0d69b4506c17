"""Nowhere: counts what it is given. For trying a table's replication out, and for measuring the reader alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.replication.checkpoint import to_text

if TYPE_CHECKING:
    from airflow_lake_provider.replication.change import Batch
    from airflow_lake_provider.replication.checkpoint import Checkpoint
    from airflow_lake_provider.replication.sink import SinkSettings


class NoopSink:
    """Keeps nothing, so each run begins with a snapshot."""

    def __init__(self, settings: SinkSettings) -> None:
        self.stream = settings.stream
        self.rows = 0
        self.checkpoint = ""

    def open(self) -> str | None:
        """There is no checkpoint, ever."""
        return None

    def write(self, batch: Batch) -> None:
        """Count."""
        self.rows += len(batch.changes)

    def commit(self, checkpoint: Checkpoint) -> None:
        """Remember the last checkpoint for whoever looks at this object."""
        self.checkpoint = to_text(checkpoint)

    def close(self) -> None:
        """Nothing is held."""
