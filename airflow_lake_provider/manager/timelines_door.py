"""What the loop tells the process's shared timelines, and asks of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from airflow_lake_provider.manager.notice import Notice, Source
from airflow_lake_provider.view.timeline_server import FedTable

if TYPE_CHECKING:
    from airflow_lake_provider.manager.claim import Mark
    from airflow_lake_provider.view.timeline_server import TimelineServer


class TimelinesDoor(Protocol):
    """The loop's side of the timeline server."""

    def announce(self, notice: Notice, mark: Mark) -> None:
        """Tell of a notice that this process made durable."""

    def pause_s(self, base_path: str) -> float:
        """Return for how long a silent table is left alone; 0 when nobody watches it."""


class ServerDoor:
    """The door to this process's own timeline server."""

    def __init__(self, server: TimelineServer) -> None:
        self._server = server

    def announce(self, notice: Notice, mark: Mark) -> None:
        """See TimelinesDoor."""
        # Only a commit callback names instants that are completed, and only it shows that a writer announces commits.
        is_by_writer = notice.source is Source.COMMIT_CALLBACK
        instants = notice.instants if is_by_writer else ()
        self._server.hint(FedTable(notice.base_path, mark.seq, instants, is_by_writer))

    def pause_s(self, base_path: str) -> float:
        """See TimelinesDoor."""
        return self._server.pause_s(base_path)
