"""Which notifications people got, so that each is sent once, with any number of servers, sweeps and restarts."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from airflow_lake_provider.manager.db.schema import lake_report

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from airflow_lake_provider.manager.db.database import Database

NOTIFY_WITHIN_MS = 300_000
"""How long a server may take to notify; after that it counts as dead, and the next sweep notifies again."""
KEEP_MS = 30 * 86_400_000
"""A problem that still exists after so long may be notified again."""


def report_id_of(*parts: str) -> str:
    """Return a report's key: the same for the same parts, of one length however long they are."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class NotificationLog:
    """Reads and writes `lake_report`. Safe with any number of servers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, report_id: str) -> bool:
        """Return whether the caller must notify: no server has, and none is doing so now."""
        try:
            with self._database.transaction() as session:
                return self._begin(session, report_id)
        except IntegrityError:
            return False  # another server was faster

    def end(self, report_id: str) -> None:
        """Record that people were notified."""
        with self._database.transaction() as session:
            now_ms = self._database.clock.read_ms(session)
            session.execute(update(lake_report).where(lake_report.c.report_id == report_id).values(notified_ms=now_ms))

    def forget_old(self) -> None:
        """Delete the notifications that ended or began long ago."""
        with self._database.transaction() as session:
            oldest_ms = self._database.clock.read_ms(session) - KEEP_MS
            session.execute(delete(lake_report).where(lake_report.c.claim_until_ms < oldest_ms))

    def _begin(self, session: Session, report_id: str) -> bool:
        now_ms = self._database.clock.read_ms(session)
        mine = lake_report.c.report_id == report_id
        values = {"claim_until_ms": now_ms + NOTIFY_WITHIN_MS}
        # A query comes before the insert: databases log each refused insert, and every sweep comes here.
        if session.execute(select(lake_report.c.report_id).where(mine)).first() is None:
            session.execute(insert(lake_report).values(report_id=report_id, **values))
            return True
        is_left = and_(lake_report.c.notified_ms.is_(None), lake_report.c.claim_until_ms <= now_ms)
        begun: Any = session.execute(update(lake_report).where(mine, is_left).values(**values))
        return bool(begun.rowcount)
