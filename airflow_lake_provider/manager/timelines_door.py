"""What the loop tells the process's shared timelines, and asks of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from airflow_lake_provider.manager.notice import Notice, Source
from airflow_lake_provider.view.timeline_server import FedTable

if TYPE_CHECKING:
    from airflow_lake_provider.manager.claim import Mark
    from airflow_lake_provider.view.timeline_server import TimelineServer

WRITERS_SOURCES = frozenset({Source.COMMIT_CALLBACK, Source.SERVICE_MANAGER_CLIENT})


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
        # Only a commit callback names instants that are completed.
        instants = notice.instants if notice.source is Source.COMMIT_CALLBACK else ()
        self._server.hint(FedTable(notice.base_path, mark.seq, instants, notice.source in WRITERS_SOURCES))

    def pause_s(self, base_path: str) -> float:
        """See TimelinesDoor."""
        return self._server.pause_s(base_path)
