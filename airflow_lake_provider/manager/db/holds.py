"""Holds of readers in the database: what each keeps of a table's files, and until when.

A reader renews its hold while it reads, so that of one that died ends by itself. A hold never lives beyond its end
(`until_ms`), which no renewal moves. An executor reads the safepoint under its lease: a clean that holds its lease when
a hold is there for all to see may have read it before, so the reader waits for it (`is_firm`).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, case, delete, func, insert, select, update

from airflow_lake_provider.errors import HoldLostError, HoldRefusedError
from airflow_lake_provider.job_contract import Service, Standing
from airflow_lake_provider.manager.db.schema import lake_executor, lake_hold, lake_run, lake_search, lake_table
from airflow_lake_provider.manager.db.search import audience_clauses
from airflow_lake_provider.manager.db.typed_rows import HoldOfTable, HoldRow, row_from, rows_from
from airflow_lake_provider.shared.plain_text import plain

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement
    from sqlalchemy.orm import Session

    from airflow_lake_provider.config.access import Audience
    from airflow_lake_provider.manager.db.database import Database

MAX_HOLDS = 200
"""Of one table: a program that holds again and again without end must not fill the database."""
MAX_HOLDS_OF_ONE = 100
"""Of one table by one token, so that it leaves some to others."""
MAX_READER = 100
MAX_TOKEN = 100
MAX_REASON = 300
REMOVERS = (Service.CLEAN.value, Service.ARCHIVE.value, Standing.ERASURE.value)
"""Services that keep what is held."""


@dataclass(frozen=True, slots=True)
class NewHold:
    """A hold that a reader asks for."""

    reader: str
    reason: str
    hold: str
    at_instant: str
    ttl_ms: int
    until_ms: int
    token: str = ""
    """The name of the token by which it asks; empty: a command of an operator's."""


class ReaderHolds:
    """Reads and writes `lake_hold`. Shares the database's transactions and clock."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, table_id: str, new: NewHold) -> str:
        """Hold files from now on; return the hold's id. Raises HoldRefusedError when the table has too many.

        The reader begins when the hold is firm.
        """
        hold_id = uuid.uuid4().hex
        with self._database.transaction() as session:
            now_ms = self._database.clock.read_ms(session)
            drop_ended(session, table_id, now_ms)
            excess = _find_excess(session, table_id, new.token, 1)
            if excess:
                raise HoldRefusedError(excess)
            values = {
                "hold_id": hold_id,
                "table_id": table_id,
                "token": new.token[:MAX_TOKEN],
                # Next to commands, pages and refusals of others: nothing in them is obeyed, or hides the rest.
                "reader": plain(new.reader, kept="")[:MAX_READER],
                "reason": plain(new.reason, kept="")[:MAX_REASON],
                "hold": new.hold,
                "at_instant": new.at_instant,
                "created_ms": now_ms,
                "known_ms": 0,
                "is_firm": False,
                "ttl_ms": new.ttl_ms,
                "ends_ms": min(now_ms + new.ttl_ms, new.until_ms),
                "until_ms": new.until_ms,
            }
            session.execute(insert(lake_hold).values(**values))
        # Now all see it: an executor that begins later knows it.
        with self._database.transaction() as session:
            now_ms = self._database.clock.read_ms(session)
            session.execute(update(lake_hold).where(lake_hold.c.hold_id == hold_id).values(known_ms=now_ms))
            # Others may have been added since the first count.
            excess = _find_excess(session, table_id, new.token, 0)
            if excess:
                session.execute(delete(lake_hold).where(lake_hold.c.hold_id == hold_id))
        if excess:
            raise HoldRefusedError(excess)
        return hold_id

    def renew(self, table_id: str, hold_id: str) -> HoldRow:
        """Prolong a hold by its time to live, and return its row. Raises HoldLostError when it has ended."""
        with self._database.transaction() as session:
            now_ms = self._database.clock.read_ms(session)
            ends_ms = now_ms + lake_hold.c.ttl_ms
            bounded = case((ends_ms < lake_hold.c.until_ms, ends_ms), else_=lake_hold.c.until_ms)
            lives = lake_hold.c.ends_ms > now_ms
            renewed: Any = session.execute(
                update(lake_hold).where(*_of(table_id, hold_id), lives).values(ends_ms=bounded)
            )
            if renewed.rowcount:
                (row,) = rows_from(HoldRow, session.execute(select(lake_hold).where(*_of(table_id, hold_id))))
                return row
        raise HoldLostError(
            f"the hold {hold_id} of table {table_id} has ended: it was released, not renewed in time, or its longest "
            "life is over; cleans may take the files that it kept, so read the table again"
        )

    def find_unaware(self, row: HoldRow) -> list[str]:
        """Return the runs that may remove files without knowledge of a hold: they began before it."""
        executor = lake_executor.c
        with self._database.transaction() as session:
            now_ms = self._database.clock.read_ms(session)
            # A try that follows the job of an earlier one follows what that one knew.
            began_ms = case(
                (lake_run.c.started_ms < executor.acquired_ms, lake_run.c.started_ms), else_=executor.acquired_ms
            )
            query = (
                select(executor.run_id)
                .outerjoin(
                    lake_run, and_(lake_run.c.run_id == executor.run_id, lake_run.c.table_id == executor.table_id)
                )
                .where(executor.table_id == row.table_id, executor.service.in_(REMOVERS))
                .where(executor.lease_until_ms > now_ms, began_ms <= row.known_ms)
            )
            return list(session.execute(query.order_by(executor.run_id)).scalars())

    def set_firm(self, hold_id: str) -> None:
        """Record that the reader may begin."""
        with self._database.transaction() as session:
            session.execute(update(lake_hold).where(lake_hold.c.hold_id == hold_id).values(is_firm=True))

    def release(self, table_id: str, hold_id: str) -> bool:
        """End a hold; return whether there was one. A renewal that comes later does not bring it back."""
        with self._database.transaction() as session:
            released: Any = session.execute(delete(lake_hold).where(*_of(table_id, hold_id)))
        return bool(released.rowcount)

    def list_holds(self, table_id: str) -> list[HoldRow]:
        """Return a table's holds that have not ended, the oldest instant first."""
        with self._database.transaction() as session:
            now_ms = self._database.clock.read_ms(session)
            mine = (lake_hold.c.table_id == table_id, lake_hold.c.ends_ms > now_ms)
            query = select(lake_hold).where(*mine).order_by(lake_hold.c.hold, lake_hold.c.created_ms)
            return rows_from(HoldRow, session.execute(query))

    def list_all(self, audience: Audience, limit: int = 1000) -> list[HoldOfTable]:
        """Return the holds of all tables that have not ended, with the tables; those that began first come first."""
        with self._database.transaction() as session:
            now_ms = self._database.clock.read_ms(session)
            query = (
                select(lake_hold, lake_search.c.table_name, lake_table.c.base_path)
                .join(lake_search, lake_search.c.table_id == lake_hold.c.table_id)
                .join(lake_table, lake_table.c.table_id == lake_hold.c.table_id)
                .where(*audience_clauses(audience), lake_hold.c.ends_ms > now_ms)
                .order_by(lake_hold.c.created_ms, lake_hold.c.hold_id)
            )
            return [
                HoldOfTable(row_from(HoldRow, row), row["table_name"], row["base_path"])
                for row in session.execute(query.limit(limit)).mappings()
            ]


def drop_ended(session: Session, table_id: str, now_ms: int) -> None:
    """Remove a table's holds that have ended, in the caller's transaction; one that was just renewed stays."""
    session.execute(delete(lake_hold).where(lake_hold.c.table_id == table_id, lake_hold.c.ends_ms <= now_ms))


def holder_of(reader: str, reason: str) -> str:
    """Return the reader, and why it reads, as one text."""
    return f"{reader} ({reason})" if reason else reader


def _find_excess(session: Session, table_id: str, token: str, more: int) -> str:
    """Say in one sentence which bound so many more holds of a token pass; empty when they pass none."""
    is_own = lake_hold.c.token == token[:MAX_TOKEN]
    counts = select(func.count(), func.coalesce(func.sum(case((is_own, 1), else_=0)), 0))
    (total, own) = session.execute(counts.where(lake_hold.c.table_id == table_id)).one()
    if own + more > MAX_HOLDS_OF_ONE:
        whose = f"holds of token {token}" if token else "holds of commands"
        return f"table {table_id} has {MAX_HOLDS_OF_ONE} {whose} already, and other readers need some: release some"
    if total + more > MAX_HOLDS:
        return f"readers hold table {table_id} {MAX_HOLDS} times already: release some"
    return ""


def _of(table_id: str, hold_id: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return lake_hold.c.table_id == table_id, lake_hold.c.hold_id == hold_id
