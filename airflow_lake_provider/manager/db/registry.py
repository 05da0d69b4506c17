"""The table registry: durable dirty marks, table leases, and the results of evaluations.

Every statement is safe with any number of API servers. A mark is one upsert; a lease is acquired by a conditional
update of one row, so that on every database no second loop acquires it before it ends.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, String, and_, bindparam, case, delete, func, or_, select, update
from sqlalchemy.exc import IntegrityError

from airflow_lake_provider.errors import ExecutorBusyError, LeaseHolder, LeaseLostError, TableUnknownError
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.manager.db.database import update_and_read
from airflow_lake_provider.manager.db.health import (
    judge_row,
    keep_findings,
    keep_short,
    lock_row,
    replace_findings,
    search_health,
)
from airflow_lake_provider.manager.db.history import keep_history
from airflow_lake_provider.manager.db.leases import find_leases
from airflow_lake_provider.manager.db.operations import AGED, OBSERVED
from airflow_lake_provider.manager.db.rows import (
    EvaluationResult,
    FirstLease,
    Mark,
    Notice,
    Source,
    TableLease,
    TableRows,
)
from airflow_lake_provider.manager.db.schema import (
    lake_bill,
    lake_executor,
    lake_finding,
    lake_history,
    lake_hold,
    lake_run,
    lake_search,
    lake_sink,
    lake_sink_event,
    lake_snooze,
    lake_table,
    lake_waiting,
)
from airflow_lake_provider.manager.db.search import search_files, search_names, search_sizes
from airflow_lake_provider.manager.db.typed_rows import TableNames, columns_of, rows_from
from airflow_lake_provider.manager.health.health import FoundBy, health_to_text, own_settings_finding, parse_health

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import ColumnElement, CursorResult, Select
    from sqlalchemy.orm import Session

    from airflow_lake_provider.hudi.properties import TableProperties
    from airflow_lake_provider.manager.health.health import OpenFinding

log = logging.getLogger(__name__)


LONGEST_NAME = 500
_MAX_INSTANTS_CHARACTERS = 900
_INSTANT_CHARACTERS = 18
_NAMES = ("table_name", "database_name", "base_path", "owner")
_JUDGED = ("decisions", "problem", "evaluated_ms", "missing_since_ms", "conformance")
"""What of an evaluation's result the table's state follows from."""
FAILED_BEHIND_MS = 600_000
"""How much longer than its back-off a table whose last evaluation failed waits while others wait as well."""


class Registry(TableRows):
    """Writes `lake_table`: marks it, leases it, records evaluations of it."""

    # --- marks ---------------------------------------------------------------------------------------------

    def mark_dirty(self, notice: Notice, *, may_register: bool = True) -> Mark:
        """Make the notice durable and return its mark; when this returns, the mark is committed.

        A registered table keeps its name: only hoodie.properties change it (`identify`). Raises TableUnknownError for a
        table that is not registered when `may_register` is false.
        """
        try:
            return self._mark_dirty(notice, may_register=may_register)
        except IntegrityError:
            # Another transaction inserted the row between this update and insert; now the update finds it.
            return self._mark_dirty(notice, may_register=may_register)

    def _mark_dirty(self, notice: Notice, *, may_register: bool) -> Mark:
        table_id = table_id_of(notice.base_path)
        now_ms = self.now_ms()
        values: dict[str, Any] = {
            "notices": lake_table.c.notices + 1,
            "dirty_seq": lake_table.c.dirty_seq + 1,
            "dirty_since_ms": func.coalesce(lake_table.c.dirty_since_ms, now_ms),
            "last_notice_ms": now_ms,
            "last_notice_source": notice.source.value,
        }
        if notice.instants:
            values["last_notice_instant"] = notice.instants[-1][:40]
        announced = _listed(notice.instants) if notice.source is Source.COMMIT_CALLBACK else ""
        served = _listed((*notice.instants, str(now_ms))) if notice.is_own else ""
        with self.transaction() as session:
            known = update(lake_table).where(lake_table.c.table_id == table_id)
            listed = {
                name: _with_newest(lake_table.c[name], instants)
                for name, instants in (("announced", announced), ("served", served))
                if instants
            }
            marking = known.values(**values, **_announced(notice), **listed)
            marked = update_and_read(session, marking, lake_table.c.table_id == table_id, _MARK)
            if marked is None:
                if not may_register:
                    raise TableUnknownError(f"no table at {notice.base_path!r} in the registry")
                session.execute(
                    lake_table.insert().values(
                        **values
                        | {
                            "table_id": table_id,
                            "base_path": notice.base_path,
                            "table_name": notice.table_name,
                            "database_name": notice.database,
                            "owner": notice.owner,
                            "is_only_discovered": notice.source is Source.DISCOVERY,
                            "registered_ms": now_ms,
                            "notices": 1,
                            "dirty_seq": 1,
                            "dirty_since_ms": now_ms,
                            "announced": announced,
                            "served": served,
                        }
                    )
                )
                session.execute(
                    lake_search.insert().values(
                        table_id=table_id,
                        **search_names(notice.table_name, notice.database, notice.base_path, notice.owner),
                    )
                )
                return Mark(table_id, 1, notice.base_path)
        return Mark(table_id, marked["dirty_seq"], marked["base_path"])

    def register(self, notice: Notice) -> bool:
        """Add a table without a notice, once, and return whether it is new; an existing one stays as it is."""
        if self.find(table_id_of(notice.base_path)) is not None:
            return False
        self.mark_dirty(notice)
        return True

    # --- leases --------------------------------------------------------------------------------------------

    def acquire(
        self, most: int, lease_s: float, *, except_stores: Sequence[str] = (), except_tables: Sequence[str] = ()
    ) -> list[TableLease]:
        """Lease up to `most` dirty tables, one after another, as `acquire_first` does."""
        leases: list[TableLease] = []
        while len(leases) < most:
            found = self.acquire_first(lease_s, except_stores=except_stores, except_tables=except_tables)
            if found.lease is None:
                break
            leases.append(found.lease)
        return leases

    def acquire_first(
        self, lease_s: float, *, except_stores: Sequence[str] = (), except_tables: Sequence[str] = ()
    ) -> FirstLease:
        """Lease the dirty table with the oldest mark for `lease_s` seconds, and return whether others wait as well.

        A table whose evaluation failed waits `FAILED_BEHIND_MS` longer, so that unreadable tables are never in front of
        all others. `except_stores` are stores (`store_of`), `except_tables` table ids.
        """
        query = _WAITING_TABLES
        if except_stores or except_tables:
            others = (~_is_in(store) for store in except_stores)
            query = query.where(*others, lake_table.c.table_id.not_in(except_tables))
        with self.transaction() as session:
            now_ms = self.clock.read_ms(session)
            candidates = session.scalars(query, {"now_ms": now_ms}).all()
            for place, table_id in enumerate(candidates, 1):
                lease = self._acquire_one(session, table_id, now_ms, lease_s)
                if lease is not None:
                    return FirstLease(lease, are_more=place < len(candidates))
        return FirstLease(None, are_more=False)

    def _acquire_one(self, session: Session, table_id: str, now_ms: int, lease_s: float) -> TableLease | None:
        token = uuid.uuid4().hex
        mine = lake_table.c.table_id == table_id
        taking = (
            update(lake_table)
            .where(mine, lake_table.c.claim_until_ms <= now_ms)
            .values(claim_token=token, claim_until_ms=now_ms + int(lease_s * 1000))
        )
        row = update_and_read(session, taking, mine, lake_table.c)
        if row is None:
            return None
        return TableLease(
            table_id=table_id,
            base_path=row["base_path"],
            table_name=row["table_name"],
            database=row["database_name"],
            token=token,
            dirty_seq=row["dirty_seq"],
            dirty_since_ms=row["dirty_since_ms"] or now_ms,
            evaluation_failures=row["evaluation_failures"],
            evaluated_ms=row["evaluated_ms"],
            is_retry=row["retry_ms"] is not None and row["retry_ms"] <= now_ms,
            last_runs=row["last_runs"],
            decisions=row["decisions"],
            is_identified=row["identified_ms"] is not None,
            has_database=row["has_database"],
            is_only_discovered=row["is_only_discovered"],
            real_id=row["real_id"],
            registered_ms=row["registered_ms"],
            announced=row["announced"],
            served=row["served"],
            conformance=row["conformance"],
            owner=row["owner"],
            source=row["last_notice_source"],
            last_notice_ms=row["last_notice_ms"] or 0,
            event_cursor=row["event_cursor"],
        )

    def identify(self, lease: TableLease, properties: TableProperties) -> TableLease:
        """Store the name and database of hoodie.properties, and return the lease with them.

        Every decision for the table comes after this: a notice's name selects no policy. Raises LeaseLostError when
        another loop has acquired the lease.
        """
        name = properties.name[:LONGEST_NAME]
        database = properties.database[:LONGEST_NAME]
        known = (lease.is_identified, lease.table_name, lease.database if lease.has_database else "")
        if known == (True, name, database):
            return lease
        values: dict[str, Any] = {
            "table_name": name,
            "has_database": bool(database),
            "identified_ms": self.now_ms(),
        }
        if database or lease.has_database:
            values["database_name"] = database
        with self.transaction() as session:
            mine = and_(lake_table.c.table_id == lease.table_id, lake_table.c.claim_token == lease.token)
            if _rows(session.execute(update(lake_table).where(mine).values(**values))) == 0:
                raise _lost(lease)
        if lease.table_name != name:
            log.warning(
                "table %s is %r by its hoodie.properties and was %r so far: the new name selects its policy",
                lease.base_path, name, lease.table_name,
            )  # fmt: skip
        return replace(
            lease,
            table_name=name,
            database=values.get("database_name", lease.database),
            is_identified=True,
            has_database=bool(database),
        )

    def keep_real_id(self, lease: TableLease, real_id: str) -> None:
        """Record where a table's path leads: before `find_other_path` is asked, so that of two evaluations at once at
        least one sees both rows. `real_id` is `table_id_of` where the lease's path leads.
        """
        if lease.real_id != real_id:
            with self.transaction() as session:
                mine = and_(lake_table.c.table_id == lease.table_id, lake_table.c.claim_token == lease.token)
                session.execute(update(lake_table).where(mine).values(real_id=real_id))

    @staticmethod
    def find_other_path(session: Session, lease: TableLease, real_id: str) -> TableNames | None:
        """Return the row of the same table that was registered first by another path; None when this one was.

        A row whose table is missing does not count.
        """
        first = next(iter(rows_from(TableNames, session.execute(_FIRST_PATH, {"real_id": real_id}))), None)
        return None if first is None or first.table_id == lease.table_id else first

    def hold(self, session: Session, lease: TableLease) -> None:
        """Lock the leased row in the caller's transaction; raise LeaseLostError when another loop has the lease.

        This serialises what the caller writes in the same transaction (a DAG run) per table, even if a loop stalls past
        the end of its lease and another one takes over.
        """
        held = _rows(
            session.execute(
                update(lake_table)
                .where(lake_table.c.table_id == lease.table_id, lake_table.c.claim_token == lease.token)
                .values(claim_token=lease.token)
            )
        )
        if held == 0:
            raise _lost(lease)

    def keep_last_runs(self, session: Session, lease: TableLease, last_runs: str) -> None:
        """Record the services' last runs in the caller's transaction, which holds the lease."""
        session.execute(
            update(lake_table)
            .where(lake_table.c.table_id == lease.table_id, lake_table.c.claim_token == lease.token)
            .values(last_runs=last_runs)
        )

    def find_event_cursor(self, session: Session, lease: TableLease) -> str | None:
        """Return which commits have become events, read in the caller's transaction."""
        return session.scalar(select(lake_table.c.event_cursor).where(lake_table.c.table_id == lease.table_id))

    def keep_event_cursor(self, session: Session, lease: TableLease, cursor: str | None) -> None:
        """Record which commits have become events, in the caller's transaction, which holds the lease."""
        session.execute(
            update(lake_table)
            .where(lake_table.c.table_id == lease.table_id, lake_table.c.claim_token == lease.token)
            .values(event_cursor=cursor)
        )

    def release(self, lease: TableLease, result: EvaluationResult) -> bool:
        """Record an evaluation and release the lease; return whether the table is clean now.

        It stays dirty when a notice arrived after the lease was acquired, or when the evaluation failed.
        """
        return self.conclude(lease, lambda _session: result)[1]

    def conclude(
        self, lease: TableLease, find_result: Callable[[Session], EvaluationResult]
    ) -> tuple[EvaluationResult, bool]:
        """Find an evaluation's result, record it and release the lease, all in one transaction.

        Returns the result, and what `release` returns. Raises what `find_result` raises, and nothing is recorded.
        """
        with self.transaction() as session:
            result = find_result(session)
            return result, self._release(session, lease, result)

    def _release(self, session: Session, lease: TableLease, result: EvaluationResult) -> bool:
        now_ms = self.now_ms()
        mine = and_(lake_table.c.table_id == lease.table_id, lake_table.c.claim_token == lease.token)
        values: dict[str, Any] = {
            "claim_token": None,
            "claim_until_ms": 0,
            "evaluated_ms": now_ms,
            "next_evaluation_ms": result.next_evaluation_ms,
            "retry_ms": result.retry_ms,
            "problem": result.problem,
        }
        if result.failed:
            values["evaluation_failures"] = lake_table.c.evaluation_failures + 1
            # What made this evaluation due is still to be evaluated, since this time.
            values["dirty_since_ms"] = func.coalesce(lake_table.c.dirty_since_ms, now_ms)
        else:
            values |= {
                "evaluation_failures": 0,
                "missing_since_ms": None,
                "completed_time": result.completed_time,
                "changed_time": result.changed_time,
                "last_commit_ms": result.last_commit_ms,
                "view_version": result.view_version,
                "decisions": result.decisions_json,
                "holes": result.holes,
                "last_runs": result.last_runs_json,
            }
            if result.conformance is not None:
                values["conformance"] = result.conformance
            seen = lake_table.c.dirty_seq == lease.dirty_seq
            values["dirty_since_ms"] = case((seen, None), else_=lake_table.c.dirty_since_ms)
        if result.failed:
            # What cannot be read must not stand before tables that can; what waits keeps its age.
            mine_waiting = lake_waiting.c.table_id == lease.table_id
            kept = lake_waiting.c.scope.in_(("", AGED, OBSERVED))
            session.execute(delete(lake_waiting).where(mine_waiting, ~kept))
            marked = {"short_of": "", "reason": f"the table cannot be read: {result.problem}"[:1000]}
            session.execute(update(lake_waiting).where(mine_waiting, lake_waiting.c.scope == "").values(**marked))
        row = lock_row(session, lease.table_id)
        if row is None or row["claim_token"] != lease.token:
            return False
        short: dict[str, Any] = dict(search_names(*(row[name] for name in _NAMES)))
        if result.failed:
            values["missing_since_ms"] = (row["missing_since_ms"] or now_ms) if result.is_missing else None
        else:
            keep_history(session, row, result.decisions_json, now_ms)
            short |= search_sizes(result.decisions_json)
            short |= search_files(result.base_files, result.last_commit_ms)
            self._keep_left_out(session, row, result.left_out, now_ms)
        marks = None if result.failed else (result.observed, result.paused)
        health = judge_row(session, row | {name: values[name] for name in _JUDGED if name in values}, now_ms, marks)
        values["health"] = health_to_text(health)
        # As the update left it: SQLite locks no row that is read, so a notice may have come since.
        releasing = update(lake_table).where(mine).values(**values)
        left = update_and_read(session, releasing, lake_table.c.table_id == lease.table_id, (lake_table.c.dirty_seq,))
        keep_short(session, lease.table_id, short | search_health(health))
        return left is not None and not result.failed and left["dirty_seq"] == lease.dirty_seq

    def _keep_left_out(self, session: Session, row: Mapping[str, Any], left_out: Sequence[str], now_ms: int) -> None:
        # Most tables set nothing: the findings are read only when there are some, or were.
        if left_out or any(one.source is FoundBy.SETTINGS for one in parse_health(row["health"]).problems):
            replace_findings(session, row["table_id"], FoundBy.SETTINGS, own_settings_finding(left_out), now_ms)

    # --- what else a table's state follows from ----------------------------------------------------------------

    def keep_findings(self, table_id: str, found_by: FoundBy, findings: Sequence[OpenFinding]) -> bool:
        """Make these a finder's open findings of a table; those that it finds no more are gone.

        Returns whether the table is registered, as far as that was asked.
        """
        try:
            with self.transaction() as session:
                return keep_findings(session, table_id, found_by, findings, self.now_ms())
        except IntegrityError:
            return True  # another server has found the same at the same moment

    # --- removal -------------------------------------------------------------------------------------------

    def forget(self, table_id: str) -> str:
        """Remove a table with its leases, sinks and holds, and return its base path; a later notice registers it again.

        Raises TableUnknownError, and ExecutorBusyError while a job executes one of its services.
        """
        with self.transaction() as session:
            now_ms = self.clock.read_ms(session)
            for executor in find_leases(session, table_id, now_ms):
                rest_s = (executor.lease_until_ms - now_ms) / 1000
                raise ExecutorBusyError(
                    f"run {executor.run_id} executes {executor.service} of table {table_id}; forget the table "
                    "when the run has ended",
                    LeaseHolder(executor.run_id, executor.try_number, rest_s),
                )
            path = select(lake_table.c.base_path).where(lake_table.c.table_id == table_id)
            base_path = session.execute(path).scalar_one_or_none()
            if base_path is None:
                raise TableUnknownError(f"no table {table_id!r} in the registry")
            of_table = (
                lake_run, lake_bill, lake_history, lake_waiting, lake_sink, lake_sink_event, lake_hold, lake_executor,
                lake_finding, lake_snooze, lake_search, lake_table,
            )  # fmt: skip
            for rows in of_table:
                session.execute(delete(rows).where(rows.c.table_id == table_id))
        return str(base_path)

    def postpone(self, table_id: str, next_evaluation_ms: int) -> None:
        """Record that a sensor read a silent table and found nothing new."""
        with self.transaction() as session:
            session.execute(
                update(lake_table)
                .where(lake_table.c.table_id == table_id, lake_table.c.next_evaluation_ms < next_evaluation_ms)
                .values(next_evaluation_ms=next_evaluation_ms)
            )


def _announced(notice: Notice) -> dict[str, Any]:
    """Return what a notice changes in a known table's row besides its mark: what people read until an evaluation.

    Only a commit callback changes it, because only that comes from the table's writer and carries a token.
    """
    if notice.source is not Source.COMMIT_CALLBACK:
        return {}
    table = lake_table.c
    values: dict[str, Any] = {
        "is_only_discovered": False,
        "table_name": case((table.identified_ms.is_(None), notice.table_name), else_=table.table_name),
    }
    if notice.database:
        values["database_name"] = case((table.has_database.is_(False), notice.database), else_=table.database_name)
    if notice.owner:
        values["owner"] = notice.owner
    return values


def _listed(instants: Sequence[str]) -> str:
    """Return instants as the registry keeps them: only those that Hudi may have made, a space behind each."""
    named = [instant for instant in instants if instant.isascii() and instant.isdigit() and len(instant) <= 17]
    return "".join(f"{instant} " for instant in named[-20:])


def _with_newest(column: ColumnElement[str], instants: str) -> ColumnElement[str]:
    """Return the column with instants behind its own; the oldest go first. One that is cut is no instant any more."""
    rest = func.substr(column, 20 * _INSTANT_CHARACTERS + 1, type_=String)
    kept = case((func.length(column) > _MAX_INSTANTS_CHARACTERS - len(instants), rest), else_=column)
    return kept + instants


def parse_instants(text: str) -> frozenset[str]:
    """Return the instants, and moments, that a column of the registry lists."""
    return frozenset(text.split())


def _is_in(store: str) -> ColumnElement[bool]:
    return lake_table.c.base_path.startswith(f"{store}/", autoescape=True)


def _find_waiting() -> Select[str]:
    """Return the query for the first waiting table and the one behind it, at the time `now_ms`."""
    table = lake_table.c
    now_ms = bindparam("now_ms", type_=BigInteger)
    # After a failed evaluation only its retry time counts: notices must not turn a broken table into a busy loop.
    dirty = and_(table.dirty_since_ms.is_not(None), table.evaluation_failures == 0)
    # A table from before an upgrade, with only an announced name.
    unidentified = and_(table.identified_ms.is_(None), table.evaluation_failures == 0)
    failed_ms = table.retry_ms + FAILED_BEHIND_MS
    waiting_ms = func.coalesce(table.dirty_since_ms, table.retry_ms, now_ms)
    return (
        select(table.table_id)
        .where(or_(dirty, table.retry_ms <= now_ms, unidentified), table.claim_until_ms <= now_ms)
        .order_by(case((table.evaluation_failures > 0, failed_ms), else_=waiting_ms))
        .limit(2)
        .with_for_update(skip_locked=True)
    )


_MARK = (lake_table.c.dirty_seq, lake_table.c.base_path)
_FIRST_PATH = (
    select(*columns_of(TableNames, lake_table))
    .where(lake_table.c.real_id == bindparam("real_id"), lake_table.c.missing_since_ms.is_(None))
    .order_by(lake_table.c.registered_ms, lake_table.c.table_id)
    .limit(1)
)
_WAITING_TABLES = _find_waiting()
"""These two are built once: to build a query takes longer than to execute it."""


def _lost(lease: TableLease) -> LeaseLostError:
    return LeaseLostError(f"the lease on table {lease.base_path!r} has passed to another loop")


def _rows(result: Any) -> int:
    outcome: CursorResult[Any] = result
    return outcome.rowcount
