"""Replication's sinks in the database: what each holds back, until when, and what is wrong with it.

A hold is released, and its sink marked as needing a snapshot, in the transaction that answers the safepoint; so whoever
cleans by an answer can be sure that the sink knows. A run that begins renews the hold in a transaction as well.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, select, update
from sqlalchemy.exc import IntegrityError

from airflow_lake_provider.errors import SinkUnknownError
from airflow_lake_provider.manager.schema import lake_sink
from airflow_lake_provider.replication.checkpoint import from_text
from airflow_lake_provider.replication.safepoint import EVERYTHING, Safepoint, SinkHold, find_safepoint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import RowMapping
    from sqlalchemy.orm import Session

    from airflow_lake_provider.manager.registry import Registry

log = logging.getLogger(__name__)

RUN_LEASE_MS = 90_000
"""A run that was not heard of for so long is over; another one may begin. Sinks bear two at once, so this is thrift."""
FIRST_RETRY_MS, LAST_RETRY_MS = 30_000, 1_800_000


@dataclass(frozen=True, slots=True)
class RunNews:
    """What a run tells of itself: while it lasts, and when it has ended."""

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

    def configure(self, table_id: str, ttls_s: Mapping[str, float]) -> None:
        """Make the configured sinks of a table count from now on, and drop those that are configured no more."""
        rows = {row["sink"]: row for row in self.list_sinks(table_id)}
        for sink, ttl_s in ttls_s.items():
            row = rows.get(sink)
            if row is None:
                self._insert(table_id, sink, ttl_s, is_configured=True)
            elif row["ttl_s"] != int(ttl_s) or not row["is_configured"]:
                self._update(table_id, sink, ttl_s=int(ttl_s), is_configured=True)
        for sink, row in rows.items():
            if row["is_configured"] and sink not in ttls_s:
                self.forget(table_id, sink)

    def forget(self, table_id: str, sink: str) -> None:
        """Hold nothing for this sink any more, and know nothing of it."""
        with self._registry.transaction() as session:
            session.execute(delete(lake_sink).where(*_of(table_id, sink)))
        log.warning("sink %s of table %s is no longer configured: its hold is released", sink, table_id)

    def safepoint(self, table_id: str) -> Safepoint:
        """Return what cleaning and archiving must not pass, releasing what is past its time to live."""
        with self._registry.transaction() as session:
            rows = session.execute(select(lake_sink).where(lake_sink.c.table_id == table_id)).mappings().all()
            now_ms = self._registry.now_ms()
            safepoint = find_safepoint([_hold_of(row, now_ms) for row in rows], now_ms)
            for sink in safepoint.released:
                if not self._release(session, table_id, sink, now_ms):
                    # A run has renewed it between our two statements: its hold counts.
                    return Safepoint(EVERYTHING, sink)
        return safepoint

    def begin_run(self, table_id: str, sink: str, ttl_s: float) -> RowMapping:
        """Take note that a run begins; return the sink's row. A sink that nobody configured counts from now on."""
        if self._find(table_id, sink) is None:
            self._insert(table_id, sink, ttl_s, is_configured=False)
        now_ms = self._registry.now_ms()
        self._update(table_id, sink, running_until_ms=now_ms + RUN_LEASE_MS)
        return self.get(table_id, sink)

    def tell(self, table_id: str, sink: str, news: RunNews) -> None:
        """Take note of a run's news: progress and being up to date renew the hold, an error does not."""
        row, now_ms = self.get(table_id, sink), self._registry.now_ms()
        values: dict[str, Any] = {"running_until_ms": 0 if news.ended else now_ms + RUN_LEASE_MS}
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
        self._update(table_id, sink, **values)

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

    def is_due(self, row: RowMapping, table_completed_time: str) -> bool:
        """Whether a run should begin now, given how far the table is."""
        now_ms = self._registry.now_ms()
        if row["paused"] or row["running_until_ms"] > now_ms or row["retry_ms"] > now_ms:
            return False
        return bool(row["needs_snapshot"] or row["problem"] or row["completed_time"] != table_completed_time)

    def _release(self, session: Session, table_id: str, sink: str, now_ms: int) -> bool:
        problem = "its time to live is over: what it held is released, and it will begin with a new snapshot"
        overdue = (lake_sink.c.renewed_ms + lake_sink.c.ttl_s * 1000 <= now_ms, lake_sink.c.needs_snapshot.is_(False))
        released: Any = session.execute(
            update(lake_sink).where(*_of(table_id, sink), *overdue).values(needs_snapshot=True, problem=problem)
        )
        if released.rowcount:
            log.error("sink %s of table %s: %s", sink, table_id, problem)
        return bool(released.rowcount)

    def _find(self, table_id: str, sink: str) -> RowMapping | None:
        with self._registry.transaction() as session:
            return session.execute(select(lake_sink).where(*_of(table_id, sink))).mappings().one_or_none()

    def _insert(self, table_id: str, sink: str, ttl_s: float, *, is_configured: bool) -> None:
        values = {
            "table_id": table_id,
            "sink": sink,
            "is_configured": is_configured,
            "hold": EVERYTHING,
            "ttl_s": int(ttl_s),
            "renewed_ms": self._registry.now_ms(),
            "needs_snapshot": False,
            "paused": False,
            "checkpoint": "",
            "completed_time": "",
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


def _of(table_id: str, sink: str) -> tuple[Any, Any]:
    return lake_sink.c.table_id == table_id, lake_sink.c.sink == sink


def _hold_of(row: RowMapping, now_ms: int) -> SinkHold:
    if row["needs_snapshot"] and row["running_until_ms"] > now_ms:
        # Its snapshot is being taken: nothing may go meanwhile. Only while it runs, or a sink that fails each time
        # would hold for ever.
        return SinkHold(row["sink"], EVERYTHING, now_ms, row["ttl_s"])
    return SinkHold(row["sink"], row["hold"], row["renewed_ms"], row["ttl_s"], bool(row["needs_snapshot"]))
