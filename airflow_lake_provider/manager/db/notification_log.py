"""What people were told of, so that it is told once, whichever server sweeps and however often one restarts."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from airflow_lake_provider.manager.db.schema import lake_report

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from airflow_lake_provider.manager.db.registry import Registry

TELL_WITHIN_MS = 300_000
"""How long a server may take to tell; then it counts as dead, and the next sweep tells again."""
KEEP_MS = 30 * 86_400_000
"""What still stands after so long may be told again."""


def report_id_of(*parts: str) -> str:
    """Return a report's key: the same for the same parts, of one length however long they are."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class Reports:
    """Reads and writes `lake_report`. Safe with any number of servers."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def begin(self, report_id: str) -> bool:
        """Return whether the caller is the one to tell: nobody did, and nobody is about to."""
        try:
            with self._registry.transaction() as session:
                return self._begin(session, report_id)
        except IntegrityError:
            return False  # another server was faster

    def end(self, report_id: str) -> None:
        """Say that people were told."""
        with self._registry.transaction() as session:
            now_ms = self._registry.clock.read_ms(session)
            session.execute(update(lake_report).where(lake_report.c.report_id == report_id).values(told_ms=now_ms))

    def forget_old(self) -> None:
        """Drop what was told or begun long ago."""
        with self._registry.transaction() as session:
            oldest_ms = self._registry.clock.read_ms(session) - KEEP_MS
            session.execute(delete(lake_report).where(lake_report.c.claim_until_ms < oldest_ms))

    def _begin(self, session: Session, report_id: str) -> bool:
        now_ms = self._registry.clock.read_ms(session)
        mine, values = lake_report.c.report_id == report_id, {"claim_until_ms": now_ms + TELL_WITHIN_MS}
        # Asked for before it is inserted: databases log each refused insert, and every sweep comes here.
        if session.execute(select(lake_report.c.report_id).where(mine)).first() is None:
            session.execute(insert(lake_report).values(report_id=report_id, **values))
            return True
        is_left = and_(lake_report.c.told_ms.is_(None), lake_report.c.claim_until_ms <= now_ms)
        begun: Any = session.execute(update(lake_report).where(mine, is_left).values(**values))
        return bool(begun.rowcount)
