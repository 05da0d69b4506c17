"""One metadata database in memory, wiped between schedules; transactions report commits, and undo on rollback."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import StaticPool

from airflow_lake_provider.manager.db.schema import metadata

_CLAIMABLE = """
    select min(case
        when dirty_since_ms is not null and evaluation_failures = 0 then claim_until_ms
        when retry_ms is not null then max(retry_ms, claim_until_ms)
    end) from lake_table
"""


class Transaction(Session):
    """A session that asks `info["boundary"]` around each commit; what was put into `undo` happens on rollback."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.undo: list[Callable[[], None]] = []

    def commit(self) -> None:
        self.info["boundary"]("before commit")
        super().commit()
        self.undo.clear()
        self.info["boundary"]("after commit")

    def rollback(self) -> None:
        super().rollback()
        while self.undo:
            self.undo.pop()()


class Database:
    """SQLite behind SQLAlchemy, and a direct way in for cheap questions."""

    def __init__(self) -> None:
        self.raw = sqlite3.connect(":memory:", check_same_thread=False)
        self.engine = create_engine("sqlite://", creator=lambda: self.raw, poolclass=StaticPool)
        metadata.create_all(self.engine)

    def close(self) -> None:
        self.engine.dispose()
        self.raw.close()

    def wipe(self) -> None:
        for table in metadata.tables:
            self.raw.execute(f"delete from {table}")
        self.raw.commit()

    def transactions(self, boundary: Callable[[str], None]) -> sessionmaker[Transaction]:
        return sessionmaker(self.engine, class_=Transaction, info={"boundary": boundary})

    @property
    def changes(self) -> int:
        """A number that grows with each changed row."""
        return self.raw.total_changes

    def next_claim_ms(self) -> int | None:
        """When the next row may be claimed; a pass before that finds nothing."""
        found: int | None = self.raw.execute(_CLAIMABLE).fetchone()[0]
        return found

    def has_work_for_a_sweep(self, now_ms: int) -> bool:
        due = "dirty_since_ms is not null or next_evaluation_ms <= ? or retry_ms <= ?"
        query = f"select 1 from lake_table where {due} limit 1"
        return self.raw.execute(query, (now_ms, now_ms)).fetchone() is not None

    def rows(self) -> list[dict[str, Any]]:
        cursor = self.raw.execute("select * from lake_table")
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def mark_state(self, table_id: str) -> tuple[str | None, int | None]:
        """Return the claim's token and since when the row is dirty."""
        query = "select claim_token, dirty_since_ms from lake_table where table_id = ?"
        token, dirty_since_ms = self.raw.execute(query, (table_id,)).fetchone()
        return token, dirty_since_ms

    def leases(self) -> list[tuple[str, str, str, int]]:
        return self.raw.execute("select table_id, service, token, lease_until_ms from lake_executor").fetchall()
