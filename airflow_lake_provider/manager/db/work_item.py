"""One item of work for a standing Spark application: its states, what task and application exchange, and its moves.

An item is one job of one table. It waits, runs in one application, and ends with the application's result; the task
judges it by the timeline, as every job. When the application that runs it has ended, the item waits again; after
`MAX_DEATHS` such ends it runs alone, by a spark-submit of its task. `work.py` has the queue of all items.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sqlalchemy import select, update

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.manager.db.schema import lake_executor, lake_work

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sqlalchemy import ColumnElement, RowMapping
    from sqlalchemy.orm import Session


KEPT_LINES = 100
MAX_DEATHS = 2
"""So many applications may end while they run an item; then it runs alone."""
LEAVE_MS = 10_000
"""So long after an item's end its task may hold the lease: it learns of the end within a second, and releases it."""


# --- States of an item. Pure


class WorkState(StrEnum):
    """The state of an item."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"
    CANCELLED = "cancelled"
    ALONE = "alone"
    """No application runs it any more: its task runs it by a spark-submit of its own."""


class WorkEvent(StrEnum):
    """What happens to an item."""

    CLAIM = "claim"
    END = "end"
    CANCEL = "cancel"
    DIE = "die"
    """The application that ran it has ended."""
    GIVE_UP = "give_up"
    """No application came."""


LIVE = (WorkState.WAITING, WorkState.RUNNING)

_MOVES: Mapping[tuple[WorkState, WorkEvent], WorkState] = MappingProxyType(
    {
        (WorkState.WAITING, WorkEvent.CLAIM): WorkState.RUNNING,
        (WorkState.WAITING, WorkEvent.CANCEL): WorkState.CANCELLED,
        (WorkState.WAITING, WorkEvent.GIVE_UP): WorkState.ALONE,
        (WorkState.RUNNING, WorkEvent.END): WorkState.ENDED,
        # Only its application ends it: until then no other executor may begin.
        (WorkState.RUNNING, WorkEvent.CANCEL): WorkState.RUNNING,
        (WorkState.RUNNING, WorkEvent.DIE): WorkState.WAITING,
    }
)


class IllegalMoveError(LakeError):
    """An event that an item's state does not allow."""

    http_status = 409


def move(state: WorkState, event: WorkEvent, *, deaths: int = 0, is_cancelled: bool = False) -> WorkState:
    """Return the state after an event; `deaths` counts the applications that ended, this one included.

    Raises IllegalMoveError.
    """
    after = _MOVES.get((state, event))
    if after is None:
        raise IllegalMoveError(f"an item that is {state} allows no {event}")
    if event is WorkEvent.DIE and is_cancelled:
        return WorkState.CANCELLED
    if event is WorkEvent.DIE and deaths >= MAX_DEATHS:
        return WorkState.ALONE
    return after


# --- What tasks submit, ask and get, and what applications get


@dataclass(frozen=True, slots=True)
class WorkItem:
    """An item as its task submits it. `conf` is what its application is submitted with; `timeout_s` 0 is none."""

    item_id: str
    app_key: str
    conf: Mapping[str, Any]
    table_id: str
    service: str
    run_id: str
    try_number: int
    request: str
    timeout_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Question:
    """A task's question about its item. It has seen so many lines; it holds the executor's lease with `lease`."""

    item_id: str
    seen: int = 0
    lease: str = ""


@dataclass(frozen=True, slots=True)
class ItemState:
    """The answer: lines since, and the result of an item that ended."""

    item_id: str
    state: WorkState
    lines: tuple[str, ...] = ()
    line_count: int = 0
    result: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Pulled:
    """What an application gets: requests by item, and which of its items it has to end, with the reason."""

    requests: Mapping[str, str]
    cancel: Mapping[str, str]


# --- Its moves in the database


def record_death(session: Session, row: RowMapping, now_ms: int) -> int:
    """Take an item from its application, which has ended; return 1, or 0 when another server was first."""
    deaths = row["deaths"] + 1
    state = move(WorkState.RUNNING, WorkEvent.DIE, deaths=deaths, is_cancelled=row["is_cancelled"])
    dead: Any = session.execute(
        update(lake_work)
        .where(lake_work.c.item_id == row["item_id"], lake_work.c.state == WorkState.RUNNING)
        .where(lake_work.c.claim_token == row["claim_token"])
        .values(
            state=state,
            deaths=deaths,
            claim_token="",
            ended_ms=0 if state is WorkState.WAITING else now_ms,
            message=f"the application that ran it ended ({deaths} so far)",
        )
    )
    if dead.rowcount:
        what = {WorkState.WAITING: "it waits for the next one", WorkState.ALONE: "it runs alone now"}
        note = f"the standing application ended while it ran this item; {what.get(state, 'it is cancelled')}"
        append_lines(session, row["item_id"], "", [note])
    return int(dead.rowcount)


def cancel_items(session: Session, *which: Any, reason: str, now_ms: int) -> None:
    """End the items that wait, and ask the applications of those that run to end them."""
    session.execute(
        update(lake_work)
        .where(*which, lake_work.c.state == WorkState.WAITING)
        .values(state=move(WorkState.WAITING, WorkEvent.CANCEL), ended_ms=now_ms, message=reason)
    )
    session.execute(
        update(lake_work)
        .where(*which, lake_work.c.state == WorkState.RUNNING)
        .values(is_cancelled=True, message=reason)
    )


def find_end_reason(row: RowMapping, now_ms: int) -> str:
    """Return why the application has to end an item that it runs; empty while it may go on."""
    if row["is_cancelled"]:
        return row["message"] or "it was cancelled"
    if row["timeout_ms"] and now_ms > row["claimed_ms"] + row["timeout_ms"]:
        return f"it runs longer than its time-out of {row['timeout_ms'] // 1000} s"
    return ""


def append_lines(session: Session, item_id: str, lease: str, new: Collection[str]) -> None:
    """Add lines to an item's log, of which the newest `KEPT_LINES` stay; those of an earlier holder are dropped."""
    row = find_item(session, item_id)
    if not new or row is None or row["claim_token"] != lease:
        return
    lines = [*json.loads(row["lines"]), *(line[:2000] for line in new)][-KEPT_LINES:]
    session.execute(
        update(lake_work)
        .where(lake_work.c.item_id == item_id)
        .values(lines=json.dumps(lines), line_count=row["line_count"] + len(new))
    )


def find_item(session: Session, item_id: str) -> RowMapping | None:
    """Return an item's row, or None."""
    return session.execute(select(lake_work).where(lake_work.c.item_id == item_id)).mappings().one_or_none()


def answer_of(row: RowMapping, seen: int) -> ItemState:
    """Return what a task gets that has seen so many lines."""
    lines = json.loads(row["lines"])
    new = row["line_count"] - seen
    return ItemState(
        row["item_id"],
        WorkState(row["state"]),
        tuple(lines[-new:]) if new > 0 else (),
        row["line_count"],
        row["result"],
        row["message"],
    )


def is_left(now_ms: int) -> ColumnElement[bool]:
    """Return whether the item of a lease's try has ended, and its task has left the lease.

    That is a task that was marked before a triggerer had begun its trigger: Airflow then calls no `on_kill`.
    """
    item = lake_work.c
    lease = lake_executor.c
    same = (item.table_id == lease.table_id) & (item.service == lease.service) & (item.run_id == lease.run_id)
    ended = select(item.item_id).where(
        same,
        item.try_number == lease.try_number,
        item.state.in_((WorkState.ENDED, WorkState.CANCELLED)),
        item.ended_ms <= now_ms - LEAVE_MS,
    )
    return ended.correlate(lake_executor).exists()
