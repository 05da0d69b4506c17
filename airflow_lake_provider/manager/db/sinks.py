"""Replication's sinks in the database: what each holds back, until when, and what is wrong with it.

A hold is released, and its sink marked as needing a snapshot, in the transaction that answers the safepoint; so whoever
cleans by an answer can be sure that the sink knows. Who lacks nothing is renewed in that transaction, before it: a
sink of a quiet table has no runs that could tell of it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, or_, select, update
from sqlalchemy.exc import IntegrityError

from airflow_lake_provider.config.settings import SINK_GRACE_S
from airflow_lake_provider.errors import SinkBusyError, SinkUnknownError
from airflow_lake_provider.manager.db.schema import lake_sink, lake_table
from airflow_lake_provider.manager.instances import moment
from airflow_lake_provider.planner.rules import Hold
from airflow_lake_provider.replication.checkpoint import EVERYTHING, Safepoint, SinkHold, find_safepoint, from_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import RowMapping
    from sqlalchemy.orm import Session

    from airflow_lake_provider.manager.db.registry import Registry

log = logging.getLogger(__name__)

RUN_LEASE_MS = 90_000
"""A run that was not heard of for so long is over; another one may begin. Sinks bear two at once, so this is thrift."""
CLAIM_LEASE_MS = 180_000
"""So long a run that has claimed a sink may wait for a worker."""
FIRST_RETRY_MS, LAST_RETRY_MS = 30_000, 1_800_000


@dataclass(frozen=True, slots=True)
class RunNews:
    """What a run tells of itself: while it lasts, and when it has ended."""

    run_id: str

    checkpoint: str = ""
    """The durable checkpoint's text; empty when there is none, or none that is new."""
    completed_time: str = ""
    """Set by a run that left nothing to do: how far the table was."""
    problem: str = ""
    ended: bool = False


class Sinks:
    """Reads and writes `lake_sink`. Shares the registry's transactions and clock."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def configure(self, table_id: str, ttls_s: Mapping[str, float], grace_s: float = SINK_GRACE_S) -> None:
        """Make the configured sinks of a table count from now on; those that are configured no more go after a grace.

        Meanwhile such a sink holds what it holds, and loses nothing when it is configured again: `grace_s` seconds, in
        which its time to live stands still.
        """
        rows = {row["sink"]: row for row in self.list_sinks(table_id)}
        for sink, ttl_s in ttls_s.items():
            row = rows.get(sink)
            if row is None:
                self._insert(table_id, sink, ttl_s, is_configured=True)
                continue
            if row["retire_ms"] is not None:
                self._take_back(table_id, sink)
            if row["ttl_s"] != int(ttl_s) or not row["is_configured"]:
                self._update(table_id, sink, ttl_s=int(ttl_s), is_configured=True)
        gone = [row for sink, row in rows.items() if row["is_configured"] and sink not in ttls_s]
        for row in gone:
            if row["retire_ms"] is None:
                self._give_notice(table_id, row["sink"], grace_s)
        if gone:
            with self._registry.transaction() as session:
                self._retire(session, table_id)

    def forget(self, table_id: str, sink: str) -> None:
        """Hold nothing for this sink any more, and know nothing of it."""
        with self._registry.transaction() as session:
            session.execute(delete(lake_sink).where(*_of(table_id, sink)))
        log.warning("sink %s of table %s is forgotten: its hold is released", sink, table_id)

    def renew(self, table_id: str) -> None:
        """Renew the holds of a table's sinks that have all that the table had at its last look, and work."""
        with self._registry.transaction() as session:
            self._renew(session, table_id)

    def safepoint(self, table_id: str) -> Safepoint:
        """Return what cleaning and archiving must not pass, releasing what is past its time to live."""
        with self._registry.transaction() as session:
            self._retire(session, table_id)
            self._renew(session, table_id)
            rows = session.execute(select(lake_sink).where(lake_sink.c.table_id == table_id)).mappings().all()
            now_ms = self._registry.now_ms()
            safepoint = find_safepoint([_hold_of(row, now_ms) for row in rows], now_ms)
            for sink in safepoint.released:
                if not self._release(session, table_id, sink, now_ms):
                    # A run has renewed it between our two statements: its hold counts.
                    return Safepoint(EVERYTHING, sink)
        return safepoint

    def find_hold(self, table_id: str) -> Hold | None:
        """Return the hold that the safepoint is, None when nothing is held. An overdue one is over, and not released.

        A look at a table asks this before it takes note of what is new, so sinks are renewed until the table moves,
        whether or not the DAG of replication is running.
        """
        if not self.list_sinks(table_id):
            return None
        self.renew(table_id)
        now_ms = self._registry.now_ms()
        holds = {row["sink"]: _hold_of(row, now_ms) for row in self.list_sinks(table_id)}
        found = find_safepoint(holds.values(), now_ms)
        if found.instant is None:
            return None
        return Hold(found.instant, found.holder, holds[found.holder].ends_ms())

    def claim(self, table_id: str, sink: str, run_id: str) -> bool:
        """Give the sink to a run that will begin soon; whether it has it now. Who asks again has it still."""
        return self._take(table_id, sink, run_id, CLAIM_LEASE_MS)

    def begin_run(self, table_id: str, sink: str, ttl_s: float, run_id: str) -> RowMapping:
        """Take note that a run begins; return the sink's row. A sink that nobody configured counts from now on.

        A later try of the same run begins at once. Raises SinkBusyError while another run has the sink.
        """
        if self._find(table_id, sink) is None:
            self._insert(table_id, sink, ttl_s, is_configured=False)
        if not self._take(table_id, sink, run_id, RUN_LEASE_MS):
            raise self._busy(table_id, sink)
        return self.get(table_id, sink)

    def tell(self, table_id: str, sink: str, news: RunNews) -> None:
        """Take note of a run's news: progress and being up to date renew the hold, an error does not.

        Raises SinkBusyError when another run has taken over: what that one tells is newer.
        """
        row, now_ms = self.get(table_id, sink), self._registry.now_ms()
        values: dict[str, Any] = {"run_id": "" if news.ended else news.run_id}
        values["running_until_ms"] = 0 if news.ended else now_ms + RUN_LEASE_MS
        if news.checkpoint and news.checkpoint != row["checkpoint"]:
            checkpoint = from_text(news.checkpoint)
            values |= {
                "checkpoint": news.checkpoint,
                "hold": checkpoint.hold or EVERYTHING,
                "renewed_ms": now_ms,
                "needs_snapshot": False,
            }
        if news.ended and not news.problem:
            values |= {"renewed_ms": now_ms, "completed_time": news.completed_time}
            values |= {"failures": 0, "retry_ms": 0, "problem": ""}
        elif news.problem:
            failures = row["failures"] + 1
            pause_ms = min(LAST_RETRY_MS, FIRST_RETRY_MS * 2 ** min(failures - 1, 10))
            values |= {"failures": failures, "retry_ms": now_ms + pause_ms, "problem": news.problem}
        mine = lake_sink.c.run_id.in_(("", news.run_id))
        with self._registry.transaction() as session:
            told: Any = session.execute(update(lake_sink).where(*_of(table_id, sink), mine).values(**values))
        if told.rowcount == 0:
            raise self._busy(table_id, sink)

    def pause(self, table_id: str, sink: str, *, paused: bool) -> None:
        """Start no more runs, or start them again. A paused sink holds until its time to live is over."""
        self.get(table_id, sink)
        self._update(table_id, sink, paused=paused)

    def get(self, table_id: str, sink: str) -> RowMapping:
        """Return a sink's row. Raises SinkUnknownError."""
        row = self._find(table_id, sink)
        if row is None:
            raise SinkUnknownError(f"table {table_id} has no sink {sink!r}")
        return row

    def list_sinks(self, table_id: str) -> Sequence[RowMapping]:
        """Return the rows of a table's sinks."""
        with self._registry.transaction() as session:
            query = select(lake_sink).where(lake_sink.c.table_id == table_id).order_by(lake_sink.c.sink)
            return session.execute(query).mappings().all()

    def list_all(self) -> Sequence[RowMapping]:
        """Return the rows of all tables' sinks."""
        with self._registry.transaction() as session:
            query = select(lake_sink).order_by(lake_sink.c.table_id, lake_sink.c.sink)
            return session.execute(query).mappings().all()

    def list_retiring(self) -> Sequence[RowMapping]:
        """Return the rows of all tables' sinks that are configured no more and still hold, with their base paths."""
        with self._registry.transaction() as session:
            query = (
                select(lake_sink, lake_table.c.base_path)
                .join(lake_table, lake_table.c.table_id == lake_sink.c.table_id)
                .where(lake_sink.c.retire_ms.is_not(None))
                .order_by(lake_sink.c.table_id, lake_sink.c.sink)
            )
            return session.execute(query).mappings().all()

    def is_due(self, row: RowMapping, table_completed_time: str, run_id: str = "") -> bool:
        """Whether a run should begin now, given how far the table is; `run_id` is the one that asks."""
        now_ms = self._registry.now_ms()
        is_taken = row["running_until_ms"] > now_ms and row["run_id"] != run_id
        if row["paused"] or is_taken or row["retry_ms"] > now_ms:
            return False
        return bool(row["needs_snapshot"] or row["problem"] or row["completed_time"] != table_completed_time)

    def _renew(self, session: Session, table_id: str) -> None:
        now_ms = self._registry.now_ms()
        seen = select(lake_table.c.completed_time).where(lake_table.c.table_id == table_id).scalar_subquery()
        has_all = (lake_sink.c.completed_time == seen, lake_sink.c.completed_time != "")
        works = (lake_sink.c.paused.is_(False), lake_sink.c.needs_snapshot.is_(False), lake_sink.c.problem == "")
        # Not before a tenth of its time is over: or each minute's look would write each row.
        is_worth_it = lake_sink.c.renewed_ms + lake_sink.c.ttl_s * 100 <= now_ms
        session.execute(
            update(lake_sink)
            .where(lake_sink.c.table_id == table_id, *has_all, *works, is_worth_it)
            .values(renewed_ms=now_ms)
        )

    def _give_notice(self, table_id: str, sink: str, grace_s: float) -> None:
        retire_ms = self._registry.now_ms() + int(grace_s * 1000)
        self._update(table_id, sink, retire_ms=retire_ms)
        log.warning("sink %s of table %s is %s", sink, table_id, retiring_text(retire_ms))

    def _take_back(self, table_id: str, sink: str) -> None:
        # Its time to live stood still.
        self._update(table_id, sink, retire_ms=None, renewed_ms=self._registry.now_ms())
        log.warning("sink %s of table %s is configured again: it goes on from its hold", sink, table_id)

    def _retire(self, session: Session, table_id: str) -> None:
        is_over = (lake_sink.c.table_id == table_id, lake_sink.c.retire_ms <= self._registry.now_ms())
        for sink in session.execute(select(lake_sink.c.sink).where(*is_over)).scalars().all():
            retired: Any = session.execute(delete(lake_sink).where(lake_sink.c.sink == sink, *is_over))
            if retired.rowcount:
                log.error("sink %s of table %s is configured no more: its hold is released", sink, table_id)

    def _release(self, session: Session, table_id: str, sink: str, now_ms: int) -> bool:
        problem = "its time to live is over: what it held is released, and it will begin with a new snapshot"
        overdue = (lake_sink.c.renewed_ms + lake_sink.c.ttl_s * 1000 <= now_ms, lake_sink.c.needs_snapshot.is_(False))
        released: Any = session.execute(
            update(lake_sink).where(*_of(table_id, sink), *overdue).values(needs_snapshot=True, problem=problem)
        )
        if released.rowcount:
            log.error("sink %s of table %s: %s", sink, table_id, problem)
        return bool(released.rowcount)

    def _take(self, table_id: str, sink: str, run_id: str, lease_ms: int) -> bool:
        # One conditional update: of any number of runs that ask at once, on any database, one finds the sink free.
        with self._registry.transaction() as session:
            now_ms = self._registry.clock.read_ms(session)
            is_free = or_(lake_sink.c.running_until_ms <= now_ms, lake_sink.c.run_id == run_id)
            values = {"run_id": run_id, "running_until_ms": now_ms + lease_ms}
            taken: Any = session.execute(update(lake_sink).where(*_of(table_id, sink), is_free).values(**values))
        return bool(taken.rowcount)

    def _busy(self, table_id: str, sink: str) -> SinkBusyError:
        row = self.get(table_id, sink)
        rest_s = max(0, row["running_until_ms"] - self._registry.now_ms()) // 1000
        return SinkBusyError(
            f"sink {sink} of table {table_id} is run {row['run_id']}'s for {rest_s} s more, unless that run goes on"
        )

    def _find(self, table_id: str, sink: str) -> RowMapping | None:
        with self._registry.transaction() as session:
            return session.execute(select(lake_sink).where(*_of(table_id, sink))).mappings().one_or_none()

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
            return  # somebody else inserted it just now

    def _update(self, table_id: str, sink: str, **values: Any) -> None:
        with self._registry.transaction() as session:
            session.execute(update(lake_sink).where(*_of(table_id, sink)).values(**values))


def retiring_text(retire_ms: int) -> str:
    """Return what people read of a sink that is configured no more."""
    return (
        f"no longer configured: its hold is released at {moment(retire_ms)} UTC. Configured again before, it goes on "
        "from its hold; action forget of lake_replication releases it now"
    )


def _of(table_id: str, sink: str) -> tuple[Any, Any]:
    return lake_sink.c.table_id == table_id, lake_sink.c.sink == sink


def _hold_of(row: RowMapping, now_ms: int) -> SinkHold:
    if row["needs_snapshot"] and row["running_until_ms"] > now_ms:
        # Its snapshot is being taken: nothing may go meanwhile. Only while it runs, or a sink that fails each time
        # would hold for ever.
        return SinkHold(row["sink"], EVERYTHING, now_ms, row["ttl_s"])
    if row["retire_ms"] is not None:
        return SinkHold(row["sink"], row["hold"], row["retire_ms"], 0, bool(row["needs_snapshot"]))
    return SinkHold(row["sink"], row["hold"], row["renewed_ms"], row["ttl_s"], bool(row["needs_snapshot"]))
