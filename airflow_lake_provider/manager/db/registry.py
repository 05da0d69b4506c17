"""The table registry: durable dirty marks, claims, and what each look said.

Every statement is safe with any number of API servers at once. A mark is one upsert; a claim is a conditional
update of one row, so that no row can be claimed twice while its lease lasts, on every database.
"""

from __future__ import annotations

import logging
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, case, func, or_, select, update
from sqlalchemy.exc import IntegrityError

from airflow_lake_provider.errors import LeaseLostError, TableUnknownError
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.manager.db.schema import lake_table
from airflow_lake_provider.planner.rules import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import ColumnElement, CursorResult, RowMapping
    from sqlalchemy.orm import Session

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.config.tables_file import TablesConfig
    from airflow_lake_provider.hudi.properties import TableProperties
    from airflow_lake_provider.manager.db.clock import Clock
    from airflow_lake_provider.storage.table_storage import Storage

log = logging.getLogger(__name__)

# --- Marks, claims and looks: how a table gets from a notice to a look, as values of the registry


@dataclass(frozen=True, slots=True)
class Mark:
    """A durable dirty mark: whoever looks at the table after it was made has seen what it stands for."""

    table_id: str
    seq: int


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to look at one dirty table until the lease ends."""

    table_id: str
    base_path: str
    table_name: str
    database: str
    token: str
    dirty_seq: int
    dirty_since_ms: int
    look_failures: int
    looked_ms: int | None = None
    """When the table was looked at before; None when it never was."""
    is_retry: bool = False
    """The loop's own time to look again has come; otherwise only the marks up to `dirty_seq` made the table due."""
    turns: str | None = None
    """The services' last runs, as text (`planner.turns`)."""
    is_identified: bool = False
    """Name and database come from hoodie.properties; otherwise they are what a notice announced."""
    has_database: bool = False
    """hoodie.properties name a database; otherwise `database` is what a commit callback announced."""


@dataclass(frozen=True, slots=True)
class LookResult:
    """What a look at a table said.

    `next_look_ms` is when the table counts as silent. `retry_ms` is when the loop itself shall look again although
    nothing was announced: a back-off ends, a run should have ended, a failed look is due again.
    """

    next_look_ms: int
    retry_ms: int | None = None
    completed_time: str = ""
    view_version: str = ""
    decisions_json: str = "[]"
    holes: int = 0
    problem: str = ""
    failed: bool = False
    turns_json: str = ""
    """Of a look that did not fail."""


# --- A notice: somebody says that a table changed. It makes us look and is never believed


class Source(StrEnum):
    """Who sent the notice."""

    COMMIT_CALLBACK = "commit_callback"
    SERVICE_MANAGER_CLIENT = "service_manager_client"
    HINT = "hint"
    """Our own tasks: a service ended, or a sensor saw a commit that nobody announced."""
    CONFIG = "config"
    DISCOVERY = "discovery"
    """The search of a root found the table."""
    HEARTBEAT = "heartbeat"
    """The timeline server pulled a silent table and found a commit that nobody announced."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One table changed, as somebody says.

    `base_path` is normalised. `instants` are requested times, oldest first, and may be empty. `files` and
    `written_bytes` sum up the write statistics that came along.
    """

    base_path: str
    table_name: str
    source: Source
    instants: tuple[str, ...] = ()
    database: str = ""
    owner: str = ""
    files: int = 0
    written_bytes: int = 0


LONGEST_NAME = 500


class Registry:
    """Reads and writes `lake_table`. `open_session` gives a new session of Airflow's metadata database."""

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

    # --- marks ---------------------------------------------------------------------------------------------

    def mark_dirty(self, notice: Notice, *, may_register: bool = True) -> Mark:
        """Make the notice durable and return its mark; when this returns, the mark is committed.

        A registered table keeps its name: hoodie.properties alone say it (`identify`). Raises TableUnknownError for a
        table that is not registered when `may_register` is false.
        """
        try:
            return self._mark_dirty(notice, may_register=may_register)
        except IntegrityError:
            # Somebody else inserted the row between our update and our insert; now the update finds it.
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
        with self.transaction() as session:
            known = update(lake_table).where(lake_table.c.table_id == table_id)
            marked = _rows(session.execute(known.values(**values, **_announced(notice))))
            if marked == 0:
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
                            "registered_ms": now_ms,
                            "notices": 1,
                            "dirty_seq": 1,
                            "dirty_since_ms": now_ms,
                        }
                    )
                )
            # The row is locked by our own update: this is our mark's number, nobody can have raised it since.
            seq = session.execute(select(lake_table.c.dirty_seq).where(lake_table.c.table_id == table_id)).scalar_one()
        return Mark(table_id, seq)

    def register(self, notice: Notice) -> bool:
        """Add a table that nobody announced, once, and return whether it is new; one that is there stays as it is."""
        if self.find(table_id_of(notice.base_path)) is not None:
            return False
        self.mark_dirty(notice)
        return True

    # --- claims --------------------------------------------------------------------------------------------

    def claim(self, most: int, lease_s: float) -> list[Claim]:
        """Claim up to `most` dirty tables, oldest mark first, for `lease_s` seconds."""
        # After a failed look only its time counts: notices must not turn a broken table into a busy loop.
        dirty = and_(lake_table.c.dirty_since_ms.is_not(None), lake_table.c.look_failures == 0)
        # A table from before an upgrade, of which nothing but an announced name is known.
        unidentified = and_(lake_table.c.identified_ms.is_(None), lake_table.c.look_failures == 0)
        with self.transaction() as session:
            now_ms = self.clock.read_ms(session)
            retry = lake_table.c.retry_ms <= now_ms
            candidates = session.execute(
                select(lake_table.c.table_id)
                .where(or_(dirty, retry, unidentified), lake_table.c.claim_until_ms <= now_ms)
                .order_by(func.coalesce(lake_table.c.dirty_since_ms, lake_table.c.retry_ms, now_ms))
                .limit(most)
                .with_for_update(skip_locked=True)
            ).scalars()
            return [
                claim
                for table_id in candidates.all()
                if (claim := self._claim_one(session, table_id, now_ms, lease_s)) is not None
            ]

    def _claim_one(self, session: Session, table_id: str, now_ms: int, lease_s: float) -> Claim | None:
        token = uuid.uuid4().hex
        taken = _rows(
            session.execute(
                update(lake_table)
                .where(lake_table.c.table_id == table_id, lake_table.c.claim_until_ms <= now_ms)
                .values(claim_token=token, claim_until_ms=now_ms + int(lease_s * 1000))
            )
        )
        if taken == 0:
            return None
        row = session.execute(select(lake_table).where(lake_table.c.table_id == table_id)).mappings().one()
        return Claim(
            table_id=table_id,
            base_path=row["base_path"],
            table_name=row["table_name"],
            database=row["database_name"],
            token=token,
            dirty_seq=row["dirty_seq"],
            dirty_since_ms=row["dirty_since_ms"] or now_ms,
            look_failures=row["look_failures"],
            looked_ms=row["looked_ms"],
            is_retry=row["retry_ms"] is not None and row["retry_ms"] <= now_ms,
            turns=row["turns"],
            is_identified=row["identified_ms"] is not None,
            has_database=row["has_database"],
        )

    def identify(self, claim: Claim, properties: TableProperties) -> Claim:
        """Keep the name and database that hoodie.properties say, and return the claim with them.

        Whatever is decided for the table comes after this: a notice's name selects no policy. Raises LeaseLostError
        when the claim has passed on.
        """
        name, database = properties.name[:LONGEST_NAME], properties.database[:LONGEST_NAME]
        known = (claim.is_identified, claim.table_name, claim.database if claim.has_database else "")
        if known == (True, name, database):
            return claim
        values: dict[str, Any] = {
            "table_name": name,
            "has_database": bool(database),
            "identified_ms": self.now_ms(),
        }
        if database or claim.has_database:
            values["database_name"] = database
        with self.transaction() as session:
            mine = and_(lake_table.c.table_id == claim.table_id, lake_table.c.claim_token == claim.token)
            if _rows(session.execute(update(lake_table).where(mine).values(**values))) == 0:
                raise _lost(claim)
        if claim.table_name != name:
            log.warning(
                "table %s is %r by its hoodie.properties and was %r so far: that name selects its policy",
                claim.base_path, name, claim.table_name,
            )  # fmt: skip
        return replace(
            claim,
            table_name=name,
            database=values.get("database_name", claim.database),
            is_identified=True,
            has_database=bool(database),
        )

    def hold(self, session: Session, claim: Claim) -> None:
        """Lock the claimed row in the caller's transaction; raise LeaseLostError when the claim has passed on.

        What the caller writes in the same transaction (a DAG run) is thereby serialised per table, even if a loop
        slept through its lease and another one took over.
        """
        held = _rows(
            session.execute(
                update(lake_table)
                .where(lake_table.c.table_id == claim.table_id, lake_table.c.claim_token == claim.token)
                .values(claim_token=claim.token)
            )
        )
        if held == 0:
            raise _lost(claim)

    def keep_turns(self, session: Session, claim: Claim, turns: str) -> None:
        """Record the services' last runs in the caller's transaction, in which the claim is held."""
        session.execute(
            update(lake_table)
            .where(lake_table.c.table_id == claim.table_id, lake_table.c.claim_token == claim.token)
            .values(turns=turns)
        )

    def settle(self, claim: Claim, result: LookResult) -> bool:
        """Record a look and give the claim back; return whether the table is clean now.

        It stays dirty when a notice arrived since the claim, or when the look failed.
        """
        now_ms = self.now_ms()
        mine = and_(lake_table.c.table_id == claim.table_id, lake_table.c.claim_token == claim.token)
        values: dict[str, Any] = {
            "claim_token": None,
            "claim_until_ms": 0,
            "looked_ms": now_ms,
            "next_look_ms": result.next_look_ms,
            "retry_ms": result.retry_ms,
            "problem": result.problem,
        }
        if result.failed:
            values["look_failures"] = lake_table.c.look_failures + 1
        else:
            values |= {
                "look_failures": 0,
                "completed_time": result.completed_time,
                "view_version": result.view_version,
                "decisions": result.decisions_json,
                "holes": result.holes,
                "turns": result.turns_json,
            }
        with self.transaction() as session:
            clean = 0
            if not result.failed:
                clean = _rows(
                    session.execute(
                        update(lake_table)
                        .where(mine, lake_table.c.dirty_seq == claim.dirty_seq)
                        .values(dirty_since_ms=None)
                    )
                )
            session.execute(update(lake_table).where(mine).values(**values))
        return clean == 1

    # --- reading -------------------------------------------------------------------------------------------

    def find(self, table_id: str) -> RowMapping | None:
        """Return a table's row, or None."""
        with self.transaction() as session:
            return session.execute(select(lake_table).where(lake_table.c.table_id == table_id)).mappings().one_or_none()

    def get(self, table_id: str) -> RowMapping:
        """Return a table's row; raise TableUnknownError."""
        row = self.find(table_id)
        if row is None:
            raise TableUnknownError(f"no table {table_id!r} in the registry")
        return row

    def list_tables(self, limit: int = 1000, after: str = "") -> Sequence[RowMapping]:
        """Return rows in the order of their ids, those after `after` (exclusive)."""
        with self.transaction() as session:
            query = select(lake_table).where(lake_table.c.table_id > after).order_by(lake_table.c.table_id)
            return session.execute(query.limit(limit)).mappings().all()

    def list_silent(self, limit: int = 1000) -> Sequence[RowMapping]:
        """Return the tables whose time to be looked at without a notice has come, longest overdue first."""
        now_ms = self.now_ms()
        with self.transaction() as session:
            query = (
                select(lake_table)
                .where(lake_table.c.next_look_ms <= now_ms, lake_table.c.dirty_since_ms.is_(None))
                .order_by(lake_table.c.next_look_ms)
                .limit(limit)
            )
            return session.execute(query).mappings().all()

    def count_holes(self) -> int:
        """Return how many holes the last looks saw, over all tables."""
        with self.transaction() as session:
            return int(session.execute(select(func.coalesce(func.sum(lake_table.c.holes), 0))).scalar_one())

    def list_waiting(self, limit: int = 1000) -> Sequence[RowMapping]:
        """Return the tables that a mark or their own time asks to be looked at, longest waiting first."""
        since_ms = func.coalesce(lake_table.c.dirty_since_ms, lake_table.c.retry_ms)
        with self.transaction() as session:
            query = select(lake_table).where(since_ms <= self.now_ms()).order_by(since_ms).limit(limit)
            return session.execute(query).mappings().all()

    def postpone(self, table_id: str, next_look_ms: int) -> None:
        """Say that a silent table was looked at from outside and showed nothing new."""
        with self.transaction() as session:
            session.execute(
                update(lake_table)
                .where(lake_table.c.table_id == table_id, lake_table.c.next_look_ms < next_look_ms)
                .values(next_look_ms=next_look_ms)
            )


def _announced(notice: Notice) -> dict[str, Any]:
    """Return what a notice may change of a known table's row beside its mark: what people read, until a look knows it.

    Only the callback of a commit may, for it alone comes from the table's writer and carries a token.
    """
    if notice.source is not Source.COMMIT_CALLBACK:
        return {}
    table = lake_table.c
    values: dict[str, Any] = {
        "table_name": case((table.identified_ms.is_(None), notice.table_name), else_=table.table_name)
    }
    if notice.database:
        values["database_name"] = case((table.has_database.is_(False), notice.database), else_=table.database_name)
    if notice.owner:
        values["owner"] = notice.owner
    return values


def _lost(claim: Claim) -> LeaseLostError:
    return LeaseLostError(f"the claim on table {claim.base_path!r} has passed to another loop")


def _rows(result: Any) -> int:
    outcome: CursorResult[Any] = result
    return outcome.rowcount


# --- Find tables in the registry as people ask for them: by a part of the name or path, by what is the matter

PAGE_SIZE = 100


class Show(StrEnum):
    """Which tables are shown."""

    ALL = "all"
    DUE = "due"
    BLOCKED = "blocked"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Search:
    """What somebody asks for. `page` counts from 1."""

    text: str = ""
    show: Show = Show.ALL
    page: int = 1


@dataclass(frozen=True, slots=True)
class Found:
    """One page of rows, at most PAGE_SIZE, and how many there are on all pages."""

    rows: tuple[RowMapping, ...]
    total: int

    @property
    def pages(self) -> int:
        """Return how many pages there are, at least one."""
        return max(1, -(-self.total // PAGE_SIZE))


def search_tables(registry: Registry, search: Search) -> Found:
    """Return a page of the tables that match, by name."""
    matches = [*_text_clauses(search.text), *_show_clauses(search.show)]
    page = (
        select(lake_table)
        .where(*matches)
        .order_by(lake_table.c.table_name, lake_table.c.table_id)
        .limit(PAGE_SIZE)
        .offset((search.page - 1) * PAGE_SIZE)
    )
    with registry.transaction() as session:
        total = session.execute(select(func.count()).select_from(lake_table).where(*matches)).scalar_one()
        return Found(tuple(session.execute(page).mappings().all()), total)


def _text_clauses(text: str) -> list[ColumnElement[bool]]:
    wanted = text.strip().lower()
    if not wanted:
        return []
    columns = (lake_table.c.table_name, lake_table.c.base_path, lake_table.c.database_name)
    return [or_(*(func.lower(column).contains(wanted, autoescape=True) for column in columns))]


def _show_clauses(show: Show) -> list[ColumnElement[bool]]:
    if show is Show.PROBLEM:
        return [lake_table.c.problem != ""]
    if show is Show.ALL:
        return []
    verdict = Verdict.DUE if show is Show.DUE else Verdict.BLOCKED
    # The loop keeps decisions as json.dumps writes them.
    return [lake_table.c.decisions.contains(f'"verdict": "{verdict.value}"', autoescape=True)]


# --- The name that selects a table's policy: `hoodie.table.name`, never what a notice calls the table


def is_identified(row: RowMapping) -> bool:
    """Whether the row's name comes from hoodie.properties; otherwise it is only what a notice announced."""
    return row["identified_ms"] is not None


def policy_of(row: RowMapping, tables: TablesConfig, open_table: Callable[[str], Storage]) -> TablePolicy:
    """Return the policy of a table of the registry, for whatever may delete something or release a hold.

    The manager's evaluation keeps the name in the row. Before the first one the properties are read here; raises what
    reading them raises.
    """
    base_path = row["base_path"]
    name = row["table_name"] if is_identified(row) else load_table_properties(open_table(base_path)).name
    return tables.policy_for(base_path, name)
