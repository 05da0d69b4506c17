"""Commits that a heartbeat found and nobody announced: marked like any notice, and again after a database error."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from airflow_lake_provider.manager.notice import Notice, Source
from airflow_lake_provider.table_id import table_id_of

if TYPE_CHECKING:
    from airflow_lake_provider.manager.registry import Registry
    from airflow_lake_provider.timeline.instant import Instant
    from airflow_lake_provider.view.snapshot import TimelineSnapshot

log = logging.getLogger(__name__)


class UnannouncedCommits:
    """Marks tables. The timeline tells of a commit once only, so what could not be marked is kept until it is."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._waiting: dict[str, tuple[str, ...]] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether something could not be marked yet."""
        return bool(self._waiting)

    def tell(self, base_path: str, instants: tuple[Instant, ...]) -> None:
        """Mark the table; never raises for the database's sake."""
        times = tuple(instant.requested_time for instant in instants)
        with self._lock:
            self._waiting[base_path] = (*self._waiting.get(base_path, ()), *times)
        try:
            self._mark(base_path)
        except SQLAlchemyError as error:
            log.warning("unannounced commits of %s are marked later: %s", base_path, error)

    def compare(self, base_path: str, snapshot: TimelineSnapshot) -> None:
        """Mark a table that went on while no server watched it: its timeline is ahead of the manager's last look."""
        latest = snapshot.timeline.latest_completed()
        if latest is None:
            return
        try:
            row = self._registry.find(table_id_of(base_path))
        except SQLAlchemyError as error:
            log.warning("whether %s went on unwatched cannot be told, so it is marked: %s", base_path, error)
            self.tell(base_path, (latest,))
            return
        if row is None or row["looked_ms"] is None:
            return  # nobody's to manage, or never looked at: that one has its mark already
        if snapshot.timeline.latest_completed_time() > row["completed_time"]:
            self.tell(base_path, (latest,))

    def retry(self) -> None:
        """Mark what could not be marked before. Raises SQLAlchemyError while that does not work."""
        for base_path in tuple(self._waiting):
            self._mark(base_path)

    def _mark(self, base_path: str) -> None:
        times = self._waiting.get(base_path)
        if times is None:  # another thread was faster
            return
        row = self._registry.find(table_id_of(base_path))
        if row is not None:  # a table that only a reader watches is nobody's to manage
            self._registry.mark_dirty(Notice(base_path, row["table_name"], Source.HEARTBEAT, times))
        with self._lock:
            # What came meanwhile stays; marking a table twice only makes it be looked at twice.
            if self._waiting.get(base_path) == times:
                del self._waiting[base_path]
