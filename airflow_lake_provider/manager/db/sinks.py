"""Replication's sinks in the database: what each holds back, until when, and what is wrong with it.

The safepoint is that of sinks and of readers (`db.holds`), the one place that cleaning and archiving ask.

A hold is released, and its sink marked as needing a snapshot, in the transaction that answers the safepoint; so a clean
that uses the answer can rely on the sink knowing. A sink that is up to date renews its hold in the same transaction,
before: a sink of a silent table has no runs that could report.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    String,
    bindparam,
    case,
    delete,
    exists,
    false,
    insert,
    literal,
    null,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.exc import IntegrityError

from airflow_lake_provider.config.settings import SINK_GRACE_S
from airflow_lake_provider.errors import SinkBusyError, SinkUnknownError, backoff
from airflow_lake_provider.manager.db.database import IDS_PER_QUERY, batched
from airflow_lake_provider.manager.db.health import refresh_health
from airflow_lake_provider.manager.db.holds import drop_ended, holder_of
from airflow_lake_provider.manager.db.schema import lake_hold, lake_search, lake_sink, lake_sink_event, lake_table
from airflow_lake_provider.manager.db.search import audience_clauses
from airflow_lake_provider.manager.db.standing_sinks import find_standing
from airflow_lake_provider.manager.db.typed_rows import SinkOfTable, SinkRow, row_from, rows_from
from airflow_lake_provider.manager.health.health import retiring_text
from airflow_lake_provider.manager.health.sink_events import (
    EVENT_LIFE_MS,
    FAILING_AFTER,
    SinkEvent,
    SinkEventKind,
)
from airflow_lake_provider.planner.rules import Hold
from airflow_lake_provider.replication.checkpoint import (
    EVERYTHING,
    Safepoint,
    SinkHold,
    find_oldest,
    find_safepoint,
    from_text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import CompoundSelect, Result, Row
    from sqlalchemy.orm import Session

    from airflow_lake_provider.config.access import Audience
    from airflow_lake_provider.manager.db.database import Database
    from airflow_lake_provider.manager.db.registry import Registry

log = logging.getLogger(__name__)

RUN_LEASE_MS = 90_000
"""A run without a report for so long counts as ended. Two concurrent runs are harmless; this only saves work."""
CLAIM_LEASE_MS = 180_000
"""How long a run that has claimed a sink may wait for a worker."""
FIRST_RETRY_MS = 30_000
LAST_RETRY_MS = 1_800_000


@dataclass(frozen=True, slots=True)
class RunProgress:
    """What a run reports about itself: while it lasts, and when it has ended."""

    run_id: str

    checkpoint: str = ""
    """The durable checkpoint's text; empty when there is none, or no new one."""
    completed_time: str = ""
    """Set by a run that left nothing to do: when the table had changed last as it began."""
    problem: str = ""
    ended: bool = False
    snapshot_reason: str = ""
    """Why a new snapshot began, as far as the run knows."""


class Sinks:
    """Reads and writes `lake_sink`. Shares the registry's transactions and clock."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def configure(self, table_id: str, ttls_s: Mapping[str, float], grace_s: float = SINK_GRACE_S) -> None:
        """Make the configured sinks of a table count from now on; release others after a grace.

        For `grace_s` seconds such a sink keeps its hold, its time to live stops, and it loses nothing when it is
        configured again.
        """
        rows = {row.sink: row for row in self.list_sinks(table_id)}
        for sink, ttl_s in ttls_s.items():
            row = rows.get(sink)
            if row is None:
                self._insert(table_id, sink, ttl_s, is_configured=True)
                continue
            if row.retire_ms is not None:
                self._take_back(table_id, sink)
            if row.ttl_s != int(ttl_s) or not row.is_configured:
                self._update(table_id, sink, ttl_s=int(ttl_s), is_configured=True)
        dropped = [row for sink, row in rows.items() if row.is_configured and sink not in ttls_s]
        for row in dropped:
            if row.retire_ms is None:
                self._give_notice(table_id, row.sink, grace_s)
        if dropped:
            with self._registry.transaction() as session:
                self._retire(session, table_id)

    def forget(self, table_id: str, sink: str) -> None:
        """Delete the sink with its hold."""
        with self._registry.transaction() as session:
            session.execute(delete(lake_sink).where(*_of(table_id, sink)))
            refresh_health(session, table_id, self._registry.now_ms())
        log.warning("sink %s of table %s is forgotten: its hold is released", sink, table_id)

    def renew(self, *table_ids: str) -> None:
        """Renew the holds of tables' working sinks that have everything up to their table's last evaluation."""
        with self._registry.transaction() as session:
            for some in batched(table_ids, IDS_PER_QUERY):
                self._renew(session, *some)

    def safepoint(self, table_id: str) -> Safepoint:
        """Return what cleaning and archiving must not pass, and release what is past its time to live."""
        with self._registry.transaction() as session:
            self._retire(session, table_id)
            self._renew(session, table_id)
            # What a reader renewed just now is not among those that end here.
            drop_ended(session, table_id, self._registry.clock.read_ms(session))
            now_ms = self._registry.now_ms()
            holds = [
                replace(hold, renewed_ms=now_ms + 1) if hold.is_reader else hold
                for hold in _load_holds(session, table_id, now_ms)
            ]
            safepoint = find_safepoint(holds, now_ms)
            for sink in safepoint.released:
                if not self._release(session, table_id, sink, now_ms):
                    # A run renewed it between the two statements: its hold counts.
                    return Safepoint(EVERYTHING, sink)
        return safepoint

    def find_hold(self, table_id: str) -> Hold | None:
        """As `find_hold_within`, in a transaction of its own."""
        with self._registry.transaction() as session:
            return self.find_hold_within(session, table_id)

    def find_hold_within(self, session: Session, table_id: str) -> Hold | None:
        """Return the hold that sets the safepoint, None when nothing is held. An overdue one does not count.

        An evaluation calls this before it records what is new, so sinks are renewed until the table changes, whether or
        not the DAG of replication runs.
        """
        now_ms = self._registry.now_ms()
        holds = _load_holds(session, table_id, now_ms)
        if any(not hold.is_reader for hold in holds):
            self._renew(session, table_id)
            holds = _load_holds(session, table_id, now_ms)
        counting = (hold for hold in holds if not hold.needs_snapshot and hold.ends_ms() > now_ms)
        oldest = find_oldest(counting)
        return None if oldest is None else Hold(oldest.hold, oldest.sink, oldest.ends_ms(), oldest.is_reader)

    def claim(self, table_id: str, sink: str, run_id: str) -> bool:
        """Give the sink to a run that will begin soon; return whether the run has it. It may repeat the call."""
        return self._take(table_id, sink, run_id, CLAIM_LEASE_MS)

    def begin_run(self, table_id: str, sink: str, ttl_s: float, run_id: str) -> SinkRow:
        """Record that a run begins; return the sink's row. A sink that is not configured counts from now on.

        A later try of the same run begins immediately. Raises SinkBusyError while another run has the sink.
        """
        if self._find(table_id, sink) is None:
            self._insert(table_id, sink, ttl_s, is_configured=False)
        if not self._take(table_id, sink, run_id, RUN_LEASE_MS):
            raise self._busy(table_id, sink)
        return self.get(table_id, sink)

    def record_progress(self, table_id: str, sink: str, progress: RunProgress) -> None:
        """Record a run's report: progress and being up to date renew the hold, an error does not.

        Raises SinkBusyError when another run has taken over: its reports are newer.
        """
        row = self.get(table_id, sink)
        now_ms = self._registry.now_ms()
        events = dict[SinkEventKind, str]()
        values: dict[str, Any] = {"run_id": "" if progress.ended else progress.run_id}
        values["running_until_ms"] = 0 if progress.ended else now_ms + RUN_LEASE_MS
        if progress.checkpoint and progress.checkpoint != row.checkpoint:
            checkpoint = from_text(progress.checkpoint)
            if row.checkpoint and checkpoint.generation > from_text(row.checkpoint).generation:
                why = progress.snapshot_reason or row.problem or "the run's log says why"
                events[SinkEventKind.SNAPSHOT] = f"generation {checkpoint.generation} of its rows: {why}"
            values |= {
                "checkpoint": progress.checkpoint,
                "hold": checkpoint.hold or EVERYTHING,
                "renewed_ms": now_ms,
                "needs_snapshot": False,
            }
        if progress.ended and not progress.problem:
            values |= {"renewed_ms": now_ms, "completed_time": _seen_by(progress, row.checkpoint), "due_ms": 0}
            values["had_all_ms"] = now_ms
            values |= {"failures": 0, "retry_ms": 0, "problem": ""}
        elif progress.problem:
            failures = row.failures + 1
            pause_ms = int(backoff(FIRST_RETRY_MS, failures, LAST_RETRY_MS))
            values |= {"failures": failures, "retry_ms": now_ms + pause_ms, "problem": progress.problem}
            if failures == FAILING_AFTER:
                events[SinkEventKind.FAILING] = f"{failures} runs have failed: {progress.problem}"
        mine = lake_sink.c.run_id.in_(("", progress.run_id))
        with self._registry.transaction() as session:
            updated: Any = session.execute(update(lake_sink).where(*_of(table_id, sink), mine).values(**values))
            if updated.rowcount:
                for kind, reason in events.items():
                    _note(session, table_id, sink, kind, reason, now_ms)
                if values.get("problem", row.problem) != row.problem:
                    refresh_health(session, table_id, now_ms)
        if updated.rowcount == 0:
            raise self._busy(table_id, sink)

    def release(self, table_id: str, sink: str, hold: str, reason: str) -> None:
        """End a hold that has grown beyond its cap, unless it has moved; the sink begins with a new snapshot."""
        self.get(table_id, sink)
        problem = f"the manager released its hold, and it will begin with a new snapshot: {reason}"
        is_held = (lake_sink.c.hold == hold, lake_sink.c.needs_snapshot.is_(False))
        with self._registry.transaction() as session:
            released: Any = session.execute(
                update(lake_sink).where(*_of(table_id, sink), *is_held).values(needs_snapshot=True, problem=problem)
            )
            if released.rowcount:
                now_ms = self._registry.now_ms()
                _note(session, table_id, sink, SinkEventKind.RELEASED, problem, now_ms)
                refresh_health(session, table_id, now_ms)
        if released.rowcount:
            log.error("sink %s of table %s: %s", sink, table_id, problem)

    def pause(self, table_id: str, sink: str, *, paused: bool) -> None:
        """Start no more runs, or start them again. A paused sink holds until its time to live ends."""
        self.get(table_id, sink)
        self._update(table_id, sink, paused=paused)

    def get(self, table_id: str, sink: str) -> SinkRow:
        """Return a sink's row. Raises SinkUnknownError."""
        row = self._find(table_id, sink)
        if row is None:
            raise SinkUnknownError(f"table {table_id} has no sink {sink!r}")
        return row

    def list_sinks(self, table_id: str) -> list[SinkRow]:
        """Return the rows of a table's sinks."""
        with self._registry.transaction() as session:
            query = select(lake_sink).where(lake_sink.c.table_id == table_id).order_by(lake_sink.c.sink)
            return rows_from(SinkRow, session.execute(query))

    def list_between(self, after: str, until: str) -> Mapping[str, Mapping[str, SinkRow]]:
        """Return the rows of tables' sinks, by table id and name; ids from `after` (exclusive) to `until`."""
        found: dict[str, dict[str, SinkRow]] = {}
        with self._registry.transaction() as session:
            query = select(lake_sink).where(lake_sink.c.table_id > after, lake_sink.c.table_id <= until)
            for row in rows_from(SinkRow, session.execute(query)):
                found.setdefault(row.table_id, {})[row.sink] = row
        return found

    def list_all(self) -> list[SinkRow]:
        """Return the rows of all tables' sinks."""
        with self._registry.transaction() as session:
            query = select(lake_sink).order_by(lake_sink.c.table_id, lake_sink.c.sink)
            return rows_from(SinkRow, session.execute(query))

    def list_events(self, now_ms: int) -> list[SinkEvent]:
        """Return what people must know of all sinks, and forget what is old."""
        old_ms = now_ms - EVENT_LIFE_MS
        with self._registry.transaction() as session:
            # A lake without sinks, as most are, costs no more than this question.
            asked = select(exists(select(lake_sink_event.c.sink)), exists(select(lake_sink.c.sink)))
            has_events, has_sinks = session.execute(asked).one()
            if not has_events and not has_sinks:
                return []
            query = select(lake_sink_event, lake_table.c.base_path, lake_table.c.owner).join(
                lake_table, lake_table.c.table_id == lake_sink_event.c.table_id
            )
            found = [
                SinkEvent(SinkEventKind(row.kind), row.base_path, row.sink, row.reason, row.at_ms, row.owner)
                for row in session.execute(query.order_by(lake_sink_event.c.at_ms))
            ]
            if any(event.at_ms < old_ms for event in found):
                session.execute(delete(lake_sink_event).where(lake_sink_event.c.at_ms < old_ms))
                found = [event for event in found if event.at_ms >= old_ms]
            if not has_sinks:
                return found
            self._note_what_is_due(session, now_ms)
            query = (
                select(lake_sink, lake_table.c.table_name, lake_table.c.base_path, lake_table.c.owner)
                .join(lake_table, lake_table.c.table_id == lake_sink.c.table_id)
                .where(lake_sink.c.due_ms > 0, lake_sink.c.paused.is_(False))
            )
            standing = (find_standing(row, now_ms) for row in _with_tables(session.execute(query)))
            return [*found, *(event for event in standing if event is not None)]

    def _note_what_is_due(self, session: Session, now_ms: int) -> None:
        """Keep `due_ms` as it is, whether or not any DAG asks what is due."""
        changed = select(lake_table.c.changed_time).where(lake_table.c.table_id == lake_sink.c.table_id)
        lacks = or_(
            lake_sink.c.needs_snapshot.is_(True),
            lake_sink.c.problem != "",
            lake_sink.c.completed_time != changed.scalar_subquery(),
        )
        counts = (lake_sink.c.is_configured.is_(True), lake_sink.c.retire_ms.is_(None))
        session.execute(update(lake_sink).where(lake_sink.c.due_ms == 0, lacks, *counts).values(due_ms=now_ms))
        session.execute(update(lake_sink).where(lake_sink.c.due_ms > 0, ~lacks).values(due_ms=0))

    def is_due(self, row: SinkRow, changed_time: str, run_id: str = "", heartbeat_s: float = 0.0) -> bool:
        """Whether a run should begin now, given when the table changed last; `run_id` is the run that checks.

        With `heartbeat_s` also when the last run that left nothing to do ended that long ago.
        """
        now_ms = self._registry.now_ms()
        is_taken = row.running_until_ms > now_ms and row.run_id != run_id
        if row.paused or is_taken or row.retry_ms > now_ms:
            return False
        if heartbeat_s and row.had_all_ms + heartbeat_s * 1000 <= now_ms:
            return True
        return bool(row.needs_snapshot or row.problem or row.completed_time != changed_time)

    def note_due(self, rows: Sequence[SinkRow]) -> list[tuple[str, str]]:
        """Record of due sinks that they are; return table id and name of each, that which waits longest first.

        A sink that failed waits since its pause ended, so that those whose broker is away leave places to others.
        """
        now_ms = self._registry.now_ms()
        new = [{"of_table": row.table_id, "of_sink": row.sink} for row in rows if not row.due_ms]
        if new:
            mine = _of(bindparam("of_table"), bindparam("of_sink"))
            with self._registry.transaction() as session:
                # On the connection: the session would take the rows for updates by primary key.
                session.connection().execute(
                    update(lake_sink).where(*mine, lake_sink.c.due_ms == 0).values(due_ms=now_ms), new
                )

        def since_ms(row: SinkRow) -> tuple[int, int]:
            return max(row.due_ms or now_ms, row.retry_ms), row.renewed_ms

        return [(row.table_id, row.sink) for row in sorted(rows, key=since_ms)]

    def _renew(self, session: Session, *table_ids: str) -> None:
        now_ms = self._registry.now_ms()
        seen = select(lake_table.c.changed_time).where(lake_table.c.table_id == lake_sink.c.table_id).scalar_subquery()
        has_all = (lake_sink.c.completed_time == seen, lake_sink.c.completed_time != "")
        works = (lake_sink.c.paused.is_(False), lake_sink.c.needs_snapshot.is_(False), lake_sink.c.problem == "")
        # Not before a tenth of its time to live has passed, or each minute's evaluation would write each row.
        is_worth_it = lake_sink.c.renewed_ms + lake_sink.c.ttl_s * 100 <= now_ms
        session.execute(
            update(lake_sink)
            .where(lake_sink.c.table_id.in_(table_ids), *has_all, *works, is_worth_it)
            .values(renewed_ms=now_ms)
        )

    def _give_notice(self, table_id: str, sink: str, grace_s: float) -> None:
        retire_ms = self._registry.now_ms() + int(grace_s * 1000)
        self._update(table_id, sink, retire_ms=retire_ms)
        log.warning("sink %s of table %s is %s", sink, table_id, retiring_text(retire_ms))

    def _take_back(self, table_id: str, sink: str) -> None:
        # Its time to live did not run during the grace.
        self._update(table_id, sink, retire_ms=None, renewed_ms=self._registry.now_ms())
        log.warning("sink %s of table %s is configured again: it continues from its hold", sink, table_id)

    def _retire(self, session: Session, table_id: str) -> None:
        is_over = (lake_sink.c.table_id == table_id, lake_sink.c.retire_ms <= self._registry.now_ms())
        for sink in session.execute(select(lake_sink.c.sink).where(*is_over)).scalars().all():
            retired: Any = session.execute(delete(lake_sink).where(lake_sink.c.sink == sink, *is_over))
            if retired.rowcount:
                refresh_health(session, table_id, self._registry.now_ms())
                log.error("sink %s of table %s is no longer configured: its hold is released", sink, table_id)

    def _release(self, session: Session, table_id: str, sink: str, now_ms: int) -> bool:
        problem = "its time to live has ended: the manager released its hold, and it will begin with a new snapshot"
        overdue = (lake_sink.c.renewed_ms + lake_sink.c.ttl_s * 1000 <= now_ms, lake_sink.c.needs_snapshot.is_(False))
        released: Any = session.execute(
            update(lake_sink).where(*_of(table_id, sink), *overdue).values(needs_snapshot=True, problem=problem)
        )
        if released.rowcount:
            _note(session, table_id, sink, SinkEventKind.RELEASED, problem, now_ms)
            refresh_health(session, table_id, now_ms)
            log.error("sink %s of table %s: %s", sink, table_id, problem)
        return bool(released.rowcount)

    def _take(self, table_id: str, sink: str, run_id: str, lease_ms: int) -> bool:
        # One conditional update: of any number of runs that try at the same time, on any database, one finds the sink
        # free.
        with self._registry.transaction() as session:
            now_ms = self._registry.clock.read_ms(session)
            is_free = or_(lake_sink.c.running_until_ms <= now_ms, lake_sink.c.run_id == run_id)
            values = {"run_id": run_id, "running_until_ms": now_ms + lease_ms}
            taken: Any = session.execute(update(lake_sink).where(*_of(table_id, sink), is_free).values(**values))
        return bool(taken.rowcount)

    def _busy(self, table_id: str, sink: str) -> SinkBusyError:
        row = self.get(table_id, sink)
        rest_s = max(0, row.running_until_ms - self._registry.now_ms()) // 1000
        return SinkBusyError(
            f"run {row.run_id} has sink {sink} of table {table_id} for {rest_s} s more, unless it reports again"
        )

    def _find(self, table_id: str, sink: str) -> SinkRow | None:
        with self._registry.transaction() as session:
            found = session.execute(select(lake_sink).where(*_of(table_id, sink)))
            return next(iter(rows_from(SinkRow, found)), None)

    def _insert(self, table_id: str, sink: str, ttl_s: float, *, is_configured: bool) -> None:
        values = {
            "table_id": table_id,
            "sink": sink,
            "is_configured": is_configured,
            "retire_ms": None,
            "hold": EVERYTHING,
            "ttl_s": int(ttl_s),
            "renewed_ms": self._registry.now_ms(),
            "needs_snapshot": False,
            "paused": False,
            "checkpoint": "",
            "completed_time": "",
            "had_all_ms": 0,
            "due_ms": 0,
            "run_id": "",
            "running_until_ms": 0,
            "failures": 0,
            "retry_ms": 0,
            "problem": "",
        }
        try:
            with self._registry.transaction() as session:
                session.execute(lake_sink.insert().values(**values))
        except IntegrityError:
            return  # another server inserted it just now

    def _update(self, table_id: str, sink: str, **values: Any) -> None:
        with self._registry.transaction() as session:
            session.execute(update(lake_sink).where(*_of(table_id, sink)).values(**values))
            if "retire_ms" in values:
                refresh_health(session, table_id, self._registry.now_ms())


def list_most_behind(database: Database, audience: Audience, limit: int) -> list[SinkOfTable]:
    """Return the sinks that have lacked a change for the longest, with their tables; then those that lack none."""
    sink = lake_sink.c
    table = lake_search.c
    lacks_none = case((sink.due_ms > 0, 0), else_=1)
    query = (
        select(lake_sink, table.table_name, lake_table.c.base_path, lake_table.c.owner)
        .join(lake_search, table.table_id == sink.table_id)
        .join(lake_table, lake_table.c.table_id == sink.table_id)
        .where(*audience_clauses(audience))
        .order_by(lacks_none, sink.due_ms, sink.failures.desc(), sink.table_id, sink.sink)
    )
    with database.transaction() as session:
        return _with_tables(session.execute(query.limit(limit)))


def _with_tables(found: Result[Any]) -> list[SinkOfTable]:
    return [
        SinkOfTable(row_from(SinkRow, row), row["table_name"], row["base_path"], row["owner"])
        for row in found.mappings()
    ]


def _seen_by(progress: RunProgress, known_checkpoint: str) -> str:
    """Return up to which time of the table a run has left nothing to do; empty when it did not say so.

    What completed while it ran, and is in the sink, needs no other run.
    """
    text = progress.checkpoint or known_checkpoint
    newest = from_text(text).commit if text and progress.completed_time else None
    return max(progress.completed_time, newest.completed_time) if newest is not None else progress.completed_time


def is_as_configured(rows: Mapping[str, SinkRow], ttls_s: Mapping[str, float]) -> bool:
    """Whether `configure` would change nothing; `rows` are the table's sinks by name."""
    kept = {sink: row.ttl_s for sink, row in rows.items() if row.is_configured and row.retire_ms is None}
    is_any_retiring = any(row.is_configured and row.retire_ms is not None for row in rows.values())
    return not is_any_retiring and kept == {sink: int(ttl_s) for sink, ttl_s in ttls_s.items()}


def _note(session: Session, table_id: str, sink: str, kind: SinkEventKind, reason: str, now_ms: int) -> None:
    event = {"table_id": table_id, "sink": sink, "kind": kind.value, "at_ms": now_ms, "reason": reason}
    session.execute(insert(lake_sink_event).values(**event))


def _of(table_id: Any, sink: Any) -> tuple[Any, Any]:
    return lake_sink.c.table_id == table_id, lake_sink.c.sink == sink


def _find_holds() -> CompoundSelect[Any]:
    sink = lake_sink.c
    reader = lake_hold.c
    table_id = bindparam("of_table", type_=String)
    sinks = select(
        literal("sink").label("kind"), sink.sink, literal("").label("reason"), sink.hold, sink.renewed_ms, sink.ttl_s,
        sink.needs_snapshot, sink.running_until_ms, sink.retire_ms,
    ).where(sink.table_id == table_id)  # fmt: skip
    readers = select(
        literal("reader"), reader.reader, reader.reason, reader.hold, reader.ends_ms, literal(0), false(), literal(0),
        null(),
    ).where(reader.table_id == table_id)  # fmt: skip
    return union_all(sinks, readers)


_HOLDS = _find_holds()
"""Built once: to build it takes longer than to execute it, and each evaluation asks."""


def _load_holds(session: Session, table_id: str, now_ms: int) -> list[SinkHold]:
    """Return the holds of a table's sinks and readers."""
    return [_hold_of(row, now_ms) for row in session.execute(_HOLDS, {"of_table": table_id})]


def _hold_of(row: Row[Any], now_ms: int) -> SinkHold:
    if row.kind == "reader":
        return SinkHold(holder_of(row.sink, row.reason), row.hold, row.renewed_ms, 0, is_reader=True)
    if row.needs_snapshot and row.running_until_ms > now_ms:
        # A run takes its snapshot: nothing may be released meanwhile. Only while it runs, or a sink that always fails
        # would hold indefinitely.
        return SinkHold(row.sink, EVERYTHING, now_ms, row.ttl_s)
    if row.retire_ms is not None:
        return SinkHold(row.sink, row.hold, row.retire_ms, 0, bool(row.needs_snapshot))
    return SinkHold(row.sink, row.hold, row.renewed_ms, row.ttl_s, bool(row.needs_snapshot))
