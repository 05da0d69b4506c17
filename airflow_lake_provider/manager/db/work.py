"""Work for standing Spark applications: items that tasks submit, and that the application of their kind pulls.

An item is one job of one table. It waits, runs in one application, and ends with the application's result; the task
judges it by the timeline, as every job. The right to run items is the application's lease, which is like an executor's:
while it holds, no other application gets the item, and when it has ended or passed on, the item waits again. An item
that was running when two applications ended is not given to a third one: its task runs it alone.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from airflow_lake_provider.errors import ExecutorBusyError, LakeError, LeaseLostError, TableUnknownError, backoff
from airflow_lake_provider.job_contract import IN_TURN, Standing
from airflow_lake_provider.manager.db.schema import lake_application, lake_executor, lake_run, lake_work

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlalchemy import ColumnElement, RowMapping, Select
    from sqlalchemy.orm import Session

    from airflow_lake_provider.manager.db.registry import Registry

log = logging.getLogger(__name__)

KEPT_LINES = 100
KEPT_MS = 7 * 86_400_000
"""How long items that ended are kept."""
UNASKED_MS = 1_800_000
"""An item for which its task has not asked for so long is cancelled: its run was ended while no triggerer ran."""
MOST_DEATHS = 2
"""So many applications may end while they run an item; then it runs alone."""
START_AGAIN_S, MOST_START_AGAIN_S = 30.0, 900.0
LEAVE_MS = 10_000
"""So long after an item's end its task may hold the lease: it hears of the end within a second, and releases it."""
GATHER_MS = 20_000
"""So long after its run was created, a service that comes first (`IN_TURN`) is waited for until its item is there."""


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
    if event is WorkEvent.DIE and deaths >= MOST_DEATHS:
        return WorkState.ALONE
    return after


def start_again_ms(started_ms: int, failures: int) -> int:
    """Return when an application may be started again after so many in a row that never pulled."""
    return started_ms + int(backoff(START_AGAIN_S, failures, MOST_START_AGAIN_S) * 1000) if failures else 0


def turn_of(service: str) -> int:
    """Return the place of a service among those of its table that wait."""
    return IN_TURN.index(service) if service in IN_TURN else len(IN_TURN)


# --- The queue


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


class ApplicationGateway(Protocol):
    """Airflow, as the queue sees it: runs of the DAG that starts applications."""

    def has_application_run(self, session: Session, app_key: str) -> bool:
        """Whether a run for this kind of application is active."""
        ...

    def create_application_run(self, session: Session, run_id: str, conf: dict[str, Any]) -> None:
        """Create a queued run. Raises LakeError when the DAG is not there."""
        ...


class WorkQueue:
    """Items, and the applications that run them. Safe with any number of servers."""

    def __init__(
        self, registry: Registry, patience_s: float = 600.0, gateway: ApplicationGateway | None = None
    ) -> None:
        self._registry = registry
        self._patience_ms = int(patience_s * 1000)
        self._gateway = gateway

    def submit(self, item: WorkItem) -> WorkState:
        """Add an item, or return the state of the live one that this try has submitted before.

        An item whose run met two applications that ended is not added: it is to run alone. Raises ExecutorBusyError
        while another item of the table's service is live; that one is cancelled.
        """
        require_no_item(self._registry, item.table_id, item.service, (item.run_id, item.try_number))
        try:
            with self._registry.transaction() as session:
                now_ms = self._registry.clock.read_ms(session)
                state = self._add(session, item, now_ms)
        except IntegrityError:
            # The same request, sent twice.
            with self._registry.transaction() as session:
                row = _get(session, item.item_id)
                state = WorkState.WAITING if row is None else WorkState(row["state"])
        if state is WorkState.WAITING:
            self._start_application(item.app_key)
        return state

    def ask(self, questions: Sequence[Question]) -> list[ItemState]:
        """Answer tasks' questions; an item that is not known is not answered."""
        if not questions:
            return []
        by_id = {question.item_id: question for question in questions}
        with self._registry.transaction() as session:
            now_ms = self._registry.clock.read_ms(session)
            keys = session.scalars(
                select(lake_work.c.app_key)
                .where(lake_work.c.item_id.in_(by_id), lake_work.c.state.in_(LIVE))
                .distinct()
            ).all()
        for key in keys:
            self.recover(key)
            self._start_application(key)
        with self._registry.transaction() as session:
            session.execute(
                update(lake_work)
                .where(lake_work.c.item_id.in_(by_id), lake_work.c.state.in_(LIVE))
                .values(asked_ms=now_ms)
            )
            rows = session.execute(select(lake_work).where(lake_work.c.item_id.in_(by_id))).mappings().all()
        return [_answer(row, by_id[row["item_id"]].seen) for row in rows]

    def cancel(self, item_id: str, reason: str) -> None:
        """End an item: at once while it waits, otherwise its application is asked to; one that ended stays."""
        with self._registry.transaction() as session:
            now_ms = self._registry.clock.read_ms(session)
            _cancel(session, lake_work.c.item_id == item_id, reason=reason, now_ms=now_ms)

    def pull(
        self,
        app_key: str,
        lease: str,
        free: int,
        lines: Mapping[str, Sequence[str]],
        known: Collection[str] | None = None,
    ) -> Pulled:
        """Give the holder of an application's lease as many items as it has room for, at most one of a table.

        `lines` are new lines of its items' logs. `known` are the items that it runs: it gets those of its own again
        that it does not know, because an answer did not reach it; None: it does not say. Raises LeaseLostError for any
        other application.
        """
        with self._registry.transaction() as session:
            now_ms = self._registry.clock.read_ms(session)
            self._require_lease(session, app_key, lease, now_ms)
            mine = (lake_work.c.app_key == app_key, lake_work.c.claim_token == lease)
            for item_id, new in lines.items():
                _append(session, item_id, lease, new)
            running = session.execute(
                select(lake_work).where(*mine, lake_work.c.state == WorkState.RUNNING)
            ).mappings().all()  # fmt: skip
            cancel = {row["item_id"]: reason for row in running if (reason := _why_end(row, now_ms))}
            lost = {} if known is None else {r["item_id"]: r["request"] for r in running if r["item_id"] not in known}
            pulled = lost | self._claim(session, app_key, lease, free - len(lost), now_ms)
            session.execute(
                update(lake_application)
                .where(lake_application.c.app_key == app_key)
                .values(pulled_ms=now_ms, failures=0)
            )
        return Pulled(pulled, cancel)

    def finish(
        self,
        app_key: str,
        lease: str,
        item_id: str,
        result: str,
        lines: Sequence[str] = (),
        *,
        takes_next: bool = False,
    ) -> Mapping[str, str]:
        """Record the end of an item, with its last lines; doing so twice changes nothing.

        With `takes_next` the application gets the next item of the same table, if one waits, so that all services of a
        table run in their order without giving its place away. Raises LeaseLostError as `pull` does.
        """
        with self._registry.transaction() as session:
            now_ms = self._registry.clock.read_ms(session)
            self._require_lease(session, app_key, lease, now_ms)
            mine = (lake_work.c.item_id == item_id, lake_work.c.claim_token == lease)
            row = _get(session, item_id)
            if row is not None and row["state"] == WorkState.RUNNING:
                _append(session, item_id, lease, lines)
            session.execute(
                update(lake_work)
                .where(*mine, lake_work.c.state == WorkState.RUNNING)
                .values(state=move(WorkState.RUNNING, WorkEvent.END), result=result, ended_ms=now_ms)
            )
            if not takes_next or row is None or row["state"] != WorkState.RUNNING:
                return {}
            return self._claim(session, app_key, lease, 1, now_ms, row["table_id"])

    def conf_of(self, app_key: str) -> dict[str, Any]:
        """Return what an application is submitted with. Raises TableUnknownError for a key without work so far."""
        with self._registry.transaction() as session:
            conf = session.scalar(select(lake_application.c.conf).where(lake_application.c.app_key == app_key))
        if conf is None:
            raise TableUnknownError(f"no work was ever submitted for standing application {app_key!r}")
        return dict(json.loads(conf))

    def recover(self, app_key: str) -> int:
        """Release the items whose application has ended, and give up those that none comes for; return how many."""
        with self._registry.transaction() as session:
            now_ms = self._registry.clock.read_ms(session)
            holder = _holder(session, app_key, now_ms)
            lost = select(lake_work).where(
                lake_work.c.app_key == app_key,
                lake_work.c.state == WorkState.RUNNING,
                lake_work.c.claim_token != (holder or ""),
            )
            rows = session.execute(lost).mappings().all()
            changed = sum(_die(session, row, now_ms) for row in rows)
            live = (lake_work.c.app_key == app_key, lake_work.c.state.in_(LIVE))
            _cancel(
                session,
                *live,
                lake_work.c.asked_ms < now_ms - UNASKED_MS,
                reason="its task asks no more",
                now_ms=now_ms,
            )
            if holder is None:
                given_up: Any = session.execute(
                    update(lake_work)
                    .where(lake_work.c.app_key == app_key, lake_work.c.state == WorkState.WAITING)
                    .where(lake_work.c.claimed_ms < now_ms - self._patience_ms)
                    .where(lake_work.c.created_ms < now_ms - self._patience_ms)
                    .values(
                        state=move(WorkState.WAITING, WorkEvent.GIVE_UP),
                        ended_ms=now_ms,
                        message=f"no standing application came within {self._patience_ms // 1000} s",
                    )
                )
                changed += int(given_up.rowcount)
        return changed

    def _add(self, session: Session, item: WorkItem, now_ms: int) -> WorkState:
        session.execute(delete(lake_work).where(lake_work.c.ended_ms > 0, lake_work.c.ended_ms < now_ms - KEPT_MS))
        same = _get(session, item.item_id)
        if same is not None and same["state"] in LIVE:
            return WorkState(same["state"])
        of_run = select(func.count()).where(
            lake_work.c.table_id == item.table_id,
            lake_work.c.run_id == item.run_id,
            lake_work.c.state == WorkState.ALONE,
        )
        if session.execute(of_run).scalar_one():
            return WorkState.ALONE
        if same is not None:
            session.execute(delete(lake_work).where(lake_work.c.item_id == item.item_id))
        session.execute(
            insert(lake_work).values(
                item_id=item.item_id, app_key=item.app_key, table_id=item.table_id, service=item.service,
                run_id=item.run_id, try_number=item.try_number, request=item.request,
                timeout_ms=int(item.timeout_s * 1000), state=WorkState.WAITING, is_cancelled=False, claim_token="",
                deaths=0, lines="[]", line_count=0, result="", message="", created_ms=now_ms, claimed_ms=0, ended_ms=0,
                asked_ms=now_ms,
            )
        )  # fmt: skip
        conf = json.dumps(dict(item.conf), sort_keys=True)
        known: Any = session.execute(
            update(lake_application).where(lake_application.c.app_key == item.app_key).values(conf=conf)
        )
        if known.rowcount == 0:
            session.execute(
                insert(lake_application).values(
                    app_key=item.app_key, conf=conf, run_id="", started_ms=0, pulled_ms=0, failures=0
                )
            )
        return WorkState.WAITING

    def _claim(
        self, session: Session, app_key: str, lease: str, free: int, now_ms: int, table_id: str = ""
    ) -> dict[str, str]:
        if free <= 0:
            return {}
        # Two services of one table would wait for each other's lock, in one JVM.
        busy = set(session.scalars(select(lake_work.c.table_id).where(lake_work.c.state == WorkState.RUNNING)))
        busy |= set(session.scalars(_run_alone(now_ms)))
        waiting = select(lake_work).where(lake_work.c.state == WorkState.WAITING, lake_work.c.app_key == app_key)
        if table_id:
            waiting = waiting.where(lake_work.c.table_id == table_id)
        # A table has few items that wait: one for each service at most.
        most = (free + len(busy) + 100) * len(IN_TURN)
        rows = session.execute(waiting.order_by(lake_work.c.created_ms).limit(most)).mappings().all()
        of_table: dict[str, list[RowMapping]] = {}
        for row in rows:
            of_table.setdefault(row["table_id"], []).append(row)
        requests: dict[str, str] = {}
        for name, items in of_table.items():
            if len(requests) >= free:
                break
            first = min(items, key=lambda item: (turn_of(item["service"]), item["created_ms"]))
            if name in busy or _is_gathering(session, first, now_ms):
                continue
            claimed: Any = session.execute(
                update(lake_work)
                .where(lake_work.c.item_id == first["item_id"], lake_work.c.state == WorkState.WAITING)
                .values(state=move(WorkState.WAITING, WorkEvent.CLAIM), claim_token=lease, claimed_ms=now_ms)
            )
            if claimed.rowcount:
                requests[first["item_id"]] = first["request"]
        return requests

    def _require_lease(self, session: Session, app_key: str, lease: str, now_ms: int) -> None:
        if not lease or _holder(session, app_key, now_ms) != lease:
            raise LeaseLostError(f"the lease of standing application {app_key} has ended or passed on")

    def _start_application(self, app_key: str) -> None:
        """Create a run that starts the application, when items wait and no run is there; two servers create one."""
        if self._gateway is None:
            return
        try:
            self._start(app_key, self._gateway)
        except LakeError as error:
            # The work waits, and runs alone when its patience ends.
            log.warning("standing application %s was not started: %s", app_key, error)

    def _start(self, app_key: str, gateway: ApplicationGateway) -> None:
        table = lake_application.c
        with self._registry.transaction() as session:
            now_ms = self._registry.clock.read_ms(session)
            waiting = select(lake_work.c.item_id).where(
                lake_work.c.app_key == app_key, lake_work.c.state == WorkState.WAITING
            )
            if session.execute(waiting.limit(1)).first() is None or gateway.has_application_run(session, app_key):
                return
            row = session.execute(select(lake_application).where(table.app_key == app_key)).mappings().one()
            failures = row["failures"] + 1 if row["started_ms"] > row["pulled_ms"] else 0
            if now_ms < start_again_ms(row["started_ms"], failures):
                return
            run_id = f"{app_key}.{now_ms}"
            # Of two servers that come here, the second one waits for this row, and finds it changed.
            mine: Any = session.execute(
                update(lake_application)
                .where(table.app_key == app_key, table.started_ms == row["started_ms"])
                .values(run_id=run_id, started_ms=now_ms, failures=failures)
            )
            if mine.rowcount:
                queue = json.loads(row["conf"]).get("queue", "")
                gateway.create_application_run(session, run_id, {"key": app_key, "queue": queue})


def require_no_item(registry: Registry, table_id: str, service: str, me: tuple[str, int]) -> None:
    """Raise ExecutorBusyError while an application runs an item of the table's service for another try, and cancel it.

    An item that still waits is cancelled at once: the caller holds the right to the service, or is about to.
    """
    others = (
        lake_work.c.table_id == table_id,
        lake_work.c.service == service,
        lake_work.c.state.in_(LIVE),
        (lake_work.c.run_id != me[0]) | (lake_work.c.try_number != me[1]),
    )
    with registry.transaction() as session:
        now_ms = registry.clock.read_ms(session)
        rows = session.execute(select(lake_work).where(*others)).mappings().all()
        for row in rows:
            if row["state"] == WorkState.RUNNING and _holder(session, row["app_key"], now_ms) != row["claim_token"]:
                _die(session, row, now_ms)
        if rows:
            _cancel(session, *others, reason=f"run {me[0]}, try {me[1]}, takes over", now_ms=now_ms)
            rows = session.execute(select(lake_work).where(*others)).mappings().all()
    if rows:
        run_id, try_number = rows[0]["run_id"], rows[0]["try_number"]
        raise ExecutorBusyError(
            f"a standing application still runs {service} of table {table_id} for run {run_id} (try {try_number}); it "
            "is being ended"
        )


def is_left(now_ms: int) -> ColumnElement[bool]:
    """Return whether the item of a lease's try has ended, and its task has left the lease.

    That is a task that was marked before a triggerer had begun its trigger: Airflow then calls no `on_kill`.
    """
    item, lease = lake_work.c, lake_executor.c
    same = (item.table_id == lease.table_id) & (item.service == lease.service) & (item.run_id == lease.run_id)
    ended = select(item.item_id).where(
        same,
        item.try_number == lease.try_number,
        item.state.in_((WorkState.ENDED, WorkState.CANCELLED)),
        item.ended_ms <= now_ms - LEAVE_MS,
    )
    return ended.correlate(lake_executor).exists()


def _run_alone(now_ms: int) -> Select[tuple[str]]:
    """Return the tables of which a task runs an item by a spark-submit of its own at the moment."""
    item, lease = lake_work.c, lake_executor.c
    same = (lease.table_id == item.table_id) & (lease.service == item.service) & (lease.run_id == item.run_id)
    alone = select(item.table_id).join(lake_executor, same)
    return alone.where(item.state == WorkState.ALONE, lease.lease_until_ms > now_ms)


def _is_gathering(session: Session, item: RowMapping, now_ms: int) -> bool:
    """Return whether the run of a service that comes before an item's was created just now, and has no item yet."""
    earlier = IN_TURN[: turn_of(item["service"])]
    run = lake_run.c
    submitted = select(lake_work.c.item_id).where(lake_work.c.run_id == run.run_id)
    begins = select(run.run_id).where(
        run.table_id == item["table_id"],
        run.created_ms > now_ms - GATHER_MS,
        run.ended_ms.is_(None),
        run.service.in_([service.value for service in earlier]),
        run.caused_by != "observe",
        ~submitted.exists(),
    )
    return bool(earlier) and session.execute(begins.limit(1)).first() is not None


def _holder(session: Session, app_key: str, now_ms: int) -> str | None:
    """Return the token of the application that holds the lease; None when none does."""
    lease = lake_executor.c
    query = select(lease.token).where(
        lease.table_id == app_key, lease.service == Standing.APPLICATION.value, lease.lease_until_ms > now_ms
    )
    return session.scalar(query)


def _die(session: Session, row: RowMapping, now_ms: int) -> int:
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
        _append(session, row["item_id"], "", [note])
    return int(dead.rowcount)


def _cancel(session: Session, *which: Any, reason: str, now_ms: int) -> None:
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


def _why_end(row: RowMapping, now_ms: int) -> str:
    if row["is_cancelled"]:
        return row["message"] or "it was cancelled"
    if row["timeout_ms"] and now_ms > row["claimed_ms"] + row["timeout_ms"]:
        return f"it runs longer than its time-out of {row['timeout_ms'] // 1000} s"
    return ""


def _append(session: Session, item_id: str, lease: str, new: Collection[str]) -> None:
    row = _get(session, item_id)
    if not new or row is None or row["claim_token"] != lease:
        return
    lines = [*json.loads(row["lines"]), *(line[:2000] for line in new)][-KEPT_LINES:]
    session.execute(
        update(lake_work)
        .where(lake_work.c.item_id == item_id)
        .values(lines=json.dumps(lines), line_count=row["line_count"] + len(new))
    )


def _get(session: Session, item_id: str) -> RowMapping | None:
    return session.execute(select(lake_work).where(lake_work.c.item_id == item_id)).mappings().one_or_none()


def _answer(row: RowMapping, seen: int) -> ItemState:
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
