"""The metadata database: its transactions, and the time that leases use, because servers' clocks differ and leases must
not overlap.

A lease is compared with the database's own clock, within the statement's transaction. For everything else (when to
evaluate again, how long ago) this machine's monotonic clock continues that time, and a query corrects it now and
then: this neither costs a query each time nor follows a jump of this machine's clock.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import select, text
from sqlalchemy.exc import SQLAlchemyError

from airflow_lake_provider.errors import StorageError
from airflow_lake_provider.instant_clock import boot_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    from sqlalchemy import ColumnElement, RowMapping, Update
    from sqlalchemy.orm import Session


log = logging.getLogger(__name__)


MEASURE_EVERY_S = 10.0


# Milliseconds since the epoch, at the moment of the statement (not of its transaction's begin).
NOW_MS = {
    "postgresql": text("SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"),
    "mysql": text("SELECT CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS UNSIGNED)"),
    "sqlite": text("SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"),
}


class Clock(Protocol):
    """Milliseconds since the epoch."""

    def now_ms(self) -> int:
        """Return the time; cheap."""

    def read_ms(self, session: Session) -> int:
        """Return the time that all servers agree on."""


class ProcessClock:
    """One clock for both: for a single process, or a test."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now

    def now_ms(self) -> int:
        """Return the time of `now`."""
        return int(self._now().timestamp() * 1000)

    def read_ms(self, session: Session) -> int:
        """Return the same time as `now_ms`; the session is not used."""
        return self.now_ms()


class DatabaseClock:
    """The clock of the metadata database (SQLite, PostgreSQL, MySQL)."""

    def __init__(self, open_session: Callable[[], Session], monotonic_s: Callable[[], float] = boot_s) -> None:
        self._open_session = open_session
        self._monotonic_s = monotonic_s
        self._measured: tuple[int, float] | None = None
        """Database's milliseconds, and this machine's monotonic seconds at that moment."""

    def now_ms(self) -> int:
        """Return the database's time, continued from the last query; a failed query changes nothing."""
        measured = self._measured
        if measured is None or not 0 <= self._monotonic_s() - measured[1] < MEASURE_EVERY_S:
            measured = self._measure(measured)
        return measured[0] + int((self._monotonic_s() - measured[1]) * 1000)

    def read_ms(self, session: Session) -> int:
        """Return the database's time at this statement; raise StorageError for a database without a known query."""
        dialect = session.get_bind().dialect.name
        if dialect not in NOW_MS:
            raise StorageError(f"the time of a {dialect} database cannot be read; use {', '.join(NOW_MS)}")
        return int(session.execute(NOW_MS[dialect]).scalar_one())

    def _measure(self, before: tuple[int, float] | None) -> tuple[int, float]:
        try:
            with self._open_session() as session:
                sent_s = self._monotonic_s()
                now_ms = self.read_ms(session)
                answered_s = self._monotonic_s()
        except SQLAlchemyError:
            if before is None:
                raise
            log.warning("the manager cannot read the database's time and continues the last answer", exc_info=True)
            return before
        self._measured = (now_ms, (sent_s + answered_s) / 2)
        return self._measured


IDS_PER_QUERY = 500


def batched(ids: Sequence[str], most: int) -> Iterator[Sequence[str]]:
    """Return the ids in parts, for `IN` lists of bounded length."""
    return (ids[begin : begin + most] for begin in range(0, len(ids), most))


def update_and_read(
    session: Session, change: Update, row: ColumnElement[bool], columns: Iterable[ColumnElement[Any]]
) -> RowMapping | None:
    """Change the one `row` and return columns of it as they are then; None when the change's conditions do not hold.

    The update locks the row, so no other transaction can have changed it in between where it takes two statements
    (MySQL).
    """
    if session.get_bind().dialect.update_returning:
        return session.execute(change.returning(*columns)).mappings().one_or_none()
    changed: Any = session.execute(change)
    return session.execute(select(*columns).where(row)).mappings().one() if changed.rowcount else None


class Database:
    """Transactions and the clock. `open_session` gives a new session of Airflow's metadata database."""

    def __init__(self, open_session: Callable[[], Session], clock: Clock) -> None:
        self._open_session = open_session
        self.clock = clock

    def now_ms(self) -> int:
        """Return the clock's milliseconds since the epoch."""
        return self.clock.now_ms()

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """One transaction: committed at the end, rolled back on any error."""
        session = self._open_session()
        try:
            yield session
            session.commit()
        except BaseException:
            session.rollback()
            raise
        finally:
            session.close()
