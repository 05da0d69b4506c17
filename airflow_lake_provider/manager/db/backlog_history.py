"""The lake over time: each quarter of an hour, for 15 days; and a day, or a week, next to the one before.

A moment has the backlog, and what executors have reported of its day (UTC) so far. So what ended between two moments
follows from both and from the bill of the days between, however many records of runs are thinned meanwhile.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from sqlalchemy import delete, func, insert, select
from sqlalchemy.exc import IntegrityError

from airflow_lake_provider.instant_clock import DAY_MS
from airflow_lake_provider.manager.db.bill import day_of
from airflow_lake_provider.manager.db.schema import lake_backlog, lake_bill, lake_search, lake_waiting
from airflow_lake_provider.manager.read_model import SpanFigures

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy.orm import Session

    from airflow_lake_provider.manager.db.database import Database

PERIOD_MS = 900_000
WEEK_MS = 7 * DAY_MS
KEEP_BACKLOG_MS = 2 * WEEK_MS + DAY_MS
MAX_WAITING = 20_000
"""Rows of services that wait, at most, that one measurement adds up."""
NEAR_MS = 2 * PERIOD_MS
"""A moment stands for another one that is as near."""


@dataclass(frozen=True, slots=True)
class BacklogMoment:
    """The backlog of all tables at one moment, and what had ended of its day."""

    time_ms: int
    log_bytes: int
    """In log files that no compaction has merged."""
    waiting: int
    """Services that are due and wait for a budget."""
    core_ms: int
    """What these are expected to cost."""
    ended_runs: int = 0
    ended_failed_tries: int = 0
    ended_core_ms: int = 0
    ended_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """What executors reported of a day (UTC): the bill of all tables."""

    runs: int = 0
    failed_tries: int = 0
    core_ms: int = 0
    bytes_out: int = 0


def record_backlog(database: Database, now_ms: int) -> bool:
    """Record the backlog unless that is done for this quarter of an hour; return whether it was this call.

    The other calls read one row by its key. It deletes what is older, so there are at most 1,441 rows.
    """
    time_ms = now_ms - now_ms % PERIOD_MS
    kept = lake_backlog.c
    with database.transaction() as session:
        if session.execute(select(kept.time_ms).where(kept.time_ms == time_ms)).first() is not None:
            return False
    try:
        with database.transaction() as session:
            log_bytes = session.scalar(select(func.sum(lake_search.c.log_bytes)))
            shown = select(lake_waiting.c.core_ms).where(lake_waiting.c.scope == "").limit(MAX_WAITING).subquery()
            waiting, core_ms = session.execute(select(func.count(), func.sum(shown.c.core_ms)).select_from(shown)).one()
            ended = _load_days(session, day_of(now_ms)).get(day_of(now_ms), Ended())
            moment = BacklogMoment(
                time_ms,
                int(log_bytes or 0),
                waiting,
                int(core_ms or 0),
                ended.runs,
                ended.failed_tries,
                ended.core_ms,
                ended.bytes_out,
            )
            session.execute(delete(lake_backlog).where(kept.time_ms < now_ms - KEEP_BACKLOG_MS))
            session.execute(insert(lake_backlog).values(**asdict(moment)))
    except IntegrityError:
        return False  # another server was faster
    return True


def load_backlog_over_time(database: Database, since_ms: int) -> list[BacklogMoment]:
    """Return what was recorded since then, the oldest first."""
    with database.transaction() as session:
        return _load_moments(session, since_ms)


@dataclass(frozen=True, slots=True)
class Compared:
    """Spans next to the ones before them, the last first; none, or only the last, where too little was recorded."""

    days: tuple[SpanFigures, ...] = ()
    weeks: tuple[SpanFigures, ...] = ()


def load_compared(database: Database, now_ms: int) -> Compared:
    """Return the last 24 hours and the 24 before, and the last seven days and the seven before."""
    since_ms = now_ms - 2 * WEEK_MS - 2 * NEAR_MS
    with database.transaction() as session:
        moments = _load_moments(session, since_ms)
        days = _load_days(session, day_of(since_ms))
    return Compared(compare_spans(moments, days, DAY_MS), compare_spans(moments, days, WEEK_MS))


def compare_spans(moments: Sequence[BacklogMoment], days: Mapping[int, Ended], span_ms: int) -> tuple[SpanFigures, ...]:
    """Return the span until the newest moment, then the one before, as far as moments were recorded. Pure."""
    found: list[SpanFigures] = []
    until = moments[-1] if moments else None
    while until is not None and len(found) < 2:
        wanted_ms = until.time_ms - span_ms
        since = min(moments, key=lambda one: abs(one.time_ms - wanted_ms))
        if abs(since.time_ms - wanted_ms) > NEAR_MS:
            break
        between = range(day_of(since.time_ms), day_of(until.time_ms), DAY_MS)
        whole = [days.get(day_ms, Ended()) for day_ms in between]
        found.append(
            SpanFigures(
                until.time_ms,
                sum(day.runs for day in whole) - since.ended_runs + until.ended_runs,
                sum(day.failed_tries for day in whole) - since.ended_failed_tries + until.ended_failed_tries,
                (sum(day.core_ms for day in whole) - since.ended_core_ms + until.ended_core_ms) / 1000,
                sum(day.bytes_out for day in whole) - since.ended_bytes + until.ended_bytes,
                until.waiting,
                until.log_bytes,
            )
        )
        until = since
    return tuple(found)


def _load_moments(session: Session, since_ms: int) -> list[BacklogMoment]:
    query = select(lake_backlog).where(lake_backlog.c.time_ms >= since_ms).order_by(lake_backlog.c.time_ms)
    return [BacklogMoment(**row) for row in session.execute(query).mappings()]


def _load_days(session: Session, since_ms: int) -> dict[int, Ended]:
    bill = lake_bill.c
    sums = map(func.sum, (bill.runs, bill.failed_tries, bill.core_ms, bill.bytes_out))
    query = select(bill.day_ms, *sums).where(bill.day_ms >= since_ms).group_by(bill.day_ms)
    return {int(day_ms): Ended(*(int(value or 0) for value in row)) for day_ms, *row in session.execute(query).all()}
