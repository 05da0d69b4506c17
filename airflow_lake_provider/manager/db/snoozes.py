"""Problems of tables that people have silenced: until when, by whom and why.

A silenced problem stays on the table's page, counts for no state, and notifies no one. It ends by itself: then the
problem, if it is still there, is what it was before, and people are notified of it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, delete, insert, select

from airflow_lake_provider.errors import MalformedRequestError
from airflow_lake_provider.instant_clock import DAY_MS
from airflow_lake_provider.manager.db.health import lock_row, refresh_health
from airflow_lake_provider.manager.db.notification_log import allow_again
from airflow_lake_provider.manager.db.schema import lake_snooze
from airflow_lake_provider.manager.health.health import FoundBy, ProblemKey, TableState, parse_health
from airflow_lake_provider.manager.health.table_problems import problem_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement

    from airflow_lake_provider.manager.db.database import Database

MAX_SNOOZE_MS = 90 * DAY_MS
"""A problem is silenced for no longer at a time."""


class Snoozes:
    """Reads and writes `lake_snooze`. Safe with any number of servers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, table_id: str, keys: Sequence[ProblemKey], why: str, ends_ms: int) -> None:
        """Silence problems that a table has now, until a time. Raises MalformedRequestError."""
        with self._database.transaction() as session:
            now_ms = self._database.clock.read_ms(session)
            if not now_ms < ends_ms <= now_ms + MAX_SNOOZE_MS:
                raise MalformedRequestError(
                    f"a snooze ends in the future, at most {MAX_SNOOZE_MS // DAY_MS} days ahead"
                )
            row = lock_row(session, table_id)
            there = set() if row is None else {one.key for one in parse_health(row["health"]).problems}
            for key in keys:
                if key not in there:
                    raise MalformedRequestError(
                        f"the table has no problem {key.subject or key.source} ({key.state}) any more"
                    )
                session.execute(delete(lake_snooze).where(_is(table_id, key)))
                values = {"table_id": table_id, "why": why[:500], "since_ms": now_ms, "ends_ms": ends_ms}
                session.execute(insert(lake_snooze).values(**key._asdict(), **values))
            refresh_health(session, table_id, now_ms)

    def end(self, table_id: str, keys: Sequence[ProblemKey]) -> None:
        """End snoozes before their time."""
        with self._database.transaction() as session:
            for key in keys:
                session.execute(delete(lake_snooze).where(_is(table_id, key)))
            refresh_health(session, table_id, self._database.clock.read_ms(session))

    def find(self, table_id: str) -> list[ProblemKey]:
        """Return the problems of a table that are silenced now."""
        row = lake_snooze.c
        with self._database.transaction() as session:
            now_ms = self._database.clock.read_ms(session)
            mine = (row.table_id == table_id, row.ends_ms > now_ms)
            return [_key(found) for found in session.execute(select(lake_snooze).where(*mine))]

    def end_old(self, now_ms: int) -> None:
        """End those whose time has come; people may be notified again of their problems."""
        row = lake_snooze.c
        with self._database.transaction() as session:
            over = session.execute(select(lake_snooze).where(row.ends_ms <= now_ms)).all()
            for found in over:
                session.execute(delete(lake_snooze).where(_is(found.table_id, _key(found))))
                allow_again(session, problem_key(found.table_id, *_key(found)))
            for table_id in {found.table_id for found in over}:
                refresh_health(session, table_id, now_ms)


def _is(table_id: str, key: ProblemKey) -> ColumnElement[bool]:
    row = lake_snooze.c
    same = (getattr(row, name) == value for name, value in key._asdict().items())
    return and_(row.table_id == table_id, *same)


def _key(row: Any) -> ProblemKey:
    return ProblemKey(TableState(row.state), FoundBy(row.source), row.subject)
