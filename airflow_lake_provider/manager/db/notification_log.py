"""Which notifications people got, so that each is sent once, with any number of servers, sweeps and restarts."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, delete, func, insert, literal, or_, select, union_all, update
from sqlalchemy.exc import IntegrityError

from airflow_lake_provider.manager.db.schema import lake_report, lake_search, lake_snooze, lake_table
from airflow_lake_provider.manager.health.health import LEAST_ATTENTION, parse_health
from airflow_lake_provider.manager.health.table_problems import (
    TableOfProblems,
    parse_problem,
    problem_to_text,
    problems_of,
)

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from airflow_lake_provider.manager.db.database import Database
    from airflow_lake_provider.manager.health.table_problems import TableProblem

NOTIFY_WITHIN_MS = 300_000
"""How long a server may take to notify; after that it counts as dead, and the next sweep notifies again."""
KEEP_MS = 30 * 86_400_000
"""A problem that still exists after so long may be notified again."""


def report_id_of(*parts: str) -> str:
    """Return a report's key: the same for the same parts, of one length however long they are."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def allow_again(session: Session, problem_key: tuple[str, ...]) -> None:
    """Let people be notified again of a problem that lasts, in the caller's transaction."""
    session.execute(delete(lake_report).where(lake_report.c.open_key == report_id_of(*problem_key)))


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

    def end(self, report_id: str, lasting: TableProblem | None = None) -> None:
        """Record that people were notified, of a problem that lasts: until `close` ends it."""
        with self._database.transaction() as session:
            values: dict[str, Any] = {"notified_ms": self._database.clock.read_ms(session)}
            if lasting is not None:
                values |= {"open_key": report_id_of(*lasting.key), "problem": problem_to_text(lasting)}
            session.execute(update(lake_report).where(lake_report.c.report_id == report_id).values(**values))

    def close(self, problem: TableProblem) -> None:
        """Record that a problem has ended."""
        with self._database.transaction() as session:
            mine = lake_report.c.open_key == report_id_of(*problem.key)
            session.execute(update(lake_report).where(mine).values(open_key=None))

    def is_snoozed(self, problem: TableProblem) -> bool:
        """Return whether a person has silenced a problem."""
        row = lake_snooze.c
        with self._database.transaction() as session:
            now_ms = self._database.clock.read_ms(session)
            same = (row.state == problem.state, row.source == problem.source, row.subject == problem.subject)
            query = select(row.table_id).where(row.table_id == problem.table_id, *same, row.ends_ms > now_ms)
            return session.execute(query).first() is not None

    def load_problems(self) -> tuple[list[TableProblem], dict[tuple[str, ...], TableProblem]]:
        """Return the problems that tables have, and those of which people were notified and not yet of their end.

        One query, because each sweep asks.
        """
        table = lake_table.c
        none = literal("")
        names = (table.table_id, table.base_path, table.table_name, table.owner, table.health)
        has_some = select(literal("table"), *names, func.coalesce(table.identified_ms, 0)).join(
            lake_search, lake_search.c.table_id == table.table_id
        )
        notified = select(literal("notified"), none, none, none, none, lake_report.c.problem, literal(0))
        query = union_all(
            has_some.where(or_(lake_search.c.severity >= LEAST_ATTENTION, lake_search.c.is_snoozed)),
            notified.where(lake_report.c.open_key.is_not(None)),
        )
        found: list[TableProblem] = []
        open_ones: dict[tuple[str, ...], TableProblem] = {}
        with self._database.transaction() as session:
            rows = session.execute(query).all()
        for kind, table_id, base_path, name, owner, text, identified_ms in rows:
            if kind == "notified":
                problem = parse_problem(text)
                open_ones[problem.key] = problem
            else:
                table_of = TableOfProblems(table_id, base_path, name, owner, is_identified=bool(identified_ms))
                found += problems_of(table_of, parse_health(text))
        return found, open_ones

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
