"""Adds the commits of a table to its asset as events: the event and the cursor in one transaction, under the lease.

While Airflow has not yet made runs of an earlier event, new commits wait and become one event: Airflow gives a run only
the events up to the first one that queued it, and leaves the others until the next event comes.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from airflow_lake_provider.errors import LeaseLostError
from airflow_lake_provider.manager.loop.commit_events import begin_cursor, find_events, parse_cursor
from airflow_lake_provider.metrics import COMMIT_EVENTS, FAILED_COMMIT_EVENTS, NoMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy.orm import Session

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.db.rows import TableLease
    from airflow_lake_provider.manager.loop.commit_events import EventCursor
    from airflow_lake_provider.metrics import Metrics
    from airflow_lake_provider.planner.table_view import TableView

log = logging.getLogger(__name__)

RETRY_MS = 1_000
"""When commits that wait for Airflow's scheduler, or whose event failed, are tried again."""


class AssetGateway(Protocol):
    """Airflow's assets, as the loop sees them. All calls work in the caller's transaction."""

    def waits_for_runs(self, session: Session, base_path: str) -> bool:
        """Whether Airflow's scheduler has still to make runs of an event of the table's asset."""
        ...

    def add_events(self, session: Session, base_path: str, extras: Sequence[dict[str, Any]]) -> Callable[[], None]:
        """Add events to the table's asset; return what to call once they are durable."""
        ...


class CommitEvents:
    """Emits what a view shows and no event has reported; for any number of threads, loops and servers."""

    def __init__(self, registry: Registry, gateway: AssetGateway, metrics: Metrics | None = None) -> None:
        self._registry = registry
        self._gateway = gateway
        self._metrics = metrics if metrics is not None else NoMetrics()

    def emit(self, lease: TableLease, view: TableView, policy: TablePolicy) -> int | None:
        """Emit the events that are due; return when to try again what waits, ms since the epoch. None: nothing waits.

        Raises LeaseLostError. Nothing else that fails here stops the table's services.
        """
        is_wanted = policy.asset_events != "services"
        if not is_wanted and lease.event_cursor is None:
            return None
        try:
            return self._emit(lease, view, is_wanted=is_wanted)
        except LeaseLostError:
            raise
        except Exception:  # of Airflow, of a listener, of a database: the cursor stands where it stood
            self._metrics.incr(FAILED_COMMIT_EVENTS)
            log.exception("table %s: the event of its commits failed; the next evaluation tries again", lease.base_path)
            return self._registry.now_ms() + 10 * RETRY_MS

    def _emit(self, lease: TableLease, view: TableView, *, is_wanted: bool) -> int | None:
        cursor = _parse(lease, lease.event_cursor)
        if cursor is not None and is_wanted and not find_events(cursor, view.timeline, view.commits)[1]:
            return None
        with self._registry.transaction() as session:
            # Of two loops that both believe to have the lease, one goes on.
            self._registry.hold(session, lease)
            # This evaluation may have emitted before.
            cursor = _parse(lease, self._registry.find_event_cursor(session, lease))
            if cursor is None or not is_wanted:
                begun = begin_cursor(view.timeline, view.commits).to_text() if is_wanted else None
                self._registry.keep_event_cursor(session, lease, begun)
                return None
            after, events = find_events(cursor, view.timeline, view.commits)
            if not events:
                return None
            if self._gateway.waits_for_runs(session, lease.base_path):
                return self._registry.now_ms() + RETRY_MS
            extras = [event.to_extra(lease.base_path, lease.table_name) for event in events]
            announce = self._gateway.add_events(session, lease.base_path, extras)
            self._registry.keep_event_cursor(session, lease, after.to_text())
        self._metrics.incr(COMMIT_EVENTS, len(events))
        announce()
        return None


def _parse(lease: TableLease, text: str | None) -> EventCursor | None:
    try:
        return None if text is None else parse_cursor(text)
    except ValueError as error:
        log.error("table %s: %s; its events begin with the next commit", lease.base_path, error)
        return None
