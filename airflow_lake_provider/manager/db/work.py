"""The queue of work for standing Spark applications: tasks submit items, and the application of their kind pulls them.

The right to run items is the application's lease, which is like an executor's: while the application holds it, no
other one gets the item, and when the lease has ended or passed on, the item waits again. The transactions lock the
rows of items and applications in one order. `work_item.py` has the states of an item and its moves.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from airflow_lake_provider.errors import ExecutorBusyError, LakeError, LeaseLostError, TableUnknownError, backoff
from airflow_lake_provider.job_contract import IN_TURN, Standing
from airflow_lake_provider.manager.db.schema import lake_application, lake_executor, lake_run, lake_work
from airflow_lake_provider.manager.db.work_item import (
    LIVE,
    ItemState,
    Pulled,
    Question,
    WorkEvent,
    WorkItem,
    WorkState,
    answer_of,
    append_lines,
    cancel_items,
    find_end_reason,
    find_item,
    move,
    record_death,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlalchemy import RowMapping, Select
    from sqlalchemy.orm import Session

    from airflow_lake_provider.manager.db.database import Database

log = logging.getLogger(__name__)

KEPT_MS = 7 * 86_400_000
"""How long items that ended are kept."""
UNASKED_MS = 1_800_000
"""The queue cancels an item for which its task has not asked for so long: its run ended while no triggerer ran."""
START_AGAIN_S = 30.0
MAX_START_AGAIN_S = 900.0
GATHER_MS = 20_000
"""So long after its run was created, an item of a service that comes first (`IN_TURN`) may come before others begin."""


def start_again_ms(started_ms: int, failures: int) -> int:
    """Return when an application may be started again after so many in a row that never pulled."""
    return started_ms + int(backoff(START_AGAIN_S, failures, MAX_START_AGAIN_S) * 1000) if failures else 0


def turn_of(service: str) -> int:
    """Return the place of a service among those of its table that wait."""
    return IN_TURN.index(service) if service in IN_TURN else len(IN_TURN)


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
        self, database: Database, patience_s: float = 600.0, gateway: ApplicationGateway | None = None
    ) -> None:
        self._database = database
        self._patience_ms = int(patience_s * 1000)
        self._gateway = gateway

    def submit(self, item: WorkItem) -> WorkState:
        """Add an item, or return the state of the live one that this try has submitted before.

        An item whose run met two applications that ended is not added: it is to run alone. Raises ExecutorBusyError
        while another item of the table's service is live; that one is cancelled.
        """
        require_no_item(self._database, item.table_id, item.service, (item.run_id, item.try_number))
        try:
            with self._database.transaction() as session:
                now_ms = self._database.clock.read_ms(session)
                state = self._add(session, item, now_ms)
        except IntegrityError:
            # Two servers got the same request.
            with self._database.transaction() as session:
                row = find_item(session, item.item_id)
                state = WorkState.WAITING if row is None else WorkState(row["state"])
        if state is WorkState.WAITING:
            self._start_application(item.app_key)
        return state

    def ask(self, questions: Sequence[Question]) -> list[ItemState]:
        """Answer tasks' questions; an item that is not known is not answered."""
        if not questions:
            return []
        by_id = {question.item_id: question for question in questions}
        with self._database.transaction() as session:
            now_ms = self._database.clock.read_ms(session)
            keys = session.scalars(
                select(lake_work.c.app_key)
                .where(lake_work.c.item_id.in_(by_id), lake_work.c.state.in_(LIVE))
                .distinct()
            ).all()
        for key in keys:
            self.recover(key)
            self._start_application(key)
        with self._database.transaction() as session:
            session.execute(
                update(lake_work)
                .where(lake_work.c.item_id.in_(by_id), lake_work.c.state.in_(LIVE))
                .values(asked_ms=now_ms)
            )
            rows = session.execute(select(lake_work).where(lake_work.c.item_id.in_(by_id))).mappings().all()
        return [answer_of(row, by_id[row["item_id"]].seen) for row in rows]

    def cancel(self, item_id: str, reason: str) -> None:
        """End an item: at once while it waits, otherwise through its application; one that ended stays."""
        with self._database.transaction() as session:
            now_ms = self._database.clock.read_ms(session)
            cancel_items(session, lake_work.c.item_id == item_id, reason=reason, now_ms=now_ms)

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
        with self._database.transaction() as session:
            now_ms = self._database.clock.read_ms(session)
            self._require_lease(session, app_key, lease, now_ms)
            mine = (lake_work.c.app_key == app_key, lake_work.c.claim_token == lease)
            for item_id, new in lines.items():
                append_lines(session, item_id, lease, new)
            running = session.execute(
                select(lake_work).where(*mine, lake_work.c.state == WorkState.RUNNING)
            ).mappings().all()  # fmt: skip
            cancel = {row["item_id"]: reason for row in running if (reason := find_end_reason(row, now_ms))}
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
        with self._database.transaction() as session:
            now_ms = self._database.clock.read_ms(session)
            self._require_lease(session, app_key, lease, now_ms)
            mine = (lake_work.c.item_id == item_id, lake_work.c.claim_token == lease)
            row = find_item(session, item_id)
            if row is not None and row["state"] == WorkState.RUNNING:
                append_lines(session, item_id, lease, lines)
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
        with self._database.transaction() as session:
            conf = session.scalar(select(lake_application.c.conf).where(lake_application.c.app_key == app_key))
        if conf is None:
            raise TableUnknownError(f"no work was ever submitted for standing application {app_key!r}")
        return dict(json.loads(conf))

    def recover(self, app_key: str) -> int:
        """Release the items whose application has ended, give up those for which none comes; return how many."""
        with self._database.transaction() as session:
            now_ms = self._database.clock.read_ms(session)
            holder = _holder(session, app_key, now_ms)
            lost = select(lake_work).where(
                lake_work.c.app_key == app_key,
                lake_work.c.state == WorkState.RUNNING,
                lake_work.c.claim_token != (holder or ""),
            )
            rows = session.execute(lost).mappings().all()
            changed = sum(record_death(session, row, now_ms) for row in rows)
            live = (lake_work.c.app_key == app_key, lake_work.c.state.in_(LIVE))
            cancel_items(
                session,
                *live,
                lake_work.c.asked_ms < now_ms - UNASKED_MS,
                reason="its task no longer asks for it",
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
        same = find_item(session, item.item_id)
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
        """Create a run that starts the application, when items wait and no run is active; two servers create one."""
        if self._gateway is None:
            return
        try:
            self._start(app_key, self._gateway)
        except LakeError as error:
            # The work waits, and runs alone when its patience ends.
            log.warning("standing application %s was not started: %s", app_key, error)

    def _start(self, app_key: str, gateway: ApplicationGateway) -> None:
        table = lake_application.c
        with self._database.transaction() as session:
            now_ms = self._database.clock.read_ms(session)
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


def require_no_item(database: Database, table_id: str, service: str, me: tuple[str, int]) -> None:
    """Raise ExecutorBusyError while an application runs an item of the table's service for another try, and cancel it.

    An item that still waits is cancelled at once: the caller holds the right to the service, or is about to.
    """
    others = (
        lake_work.c.table_id == table_id,
        lake_work.c.service == service,
        lake_work.c.state.in_(LIVE),
        (lake_work.c.run_id != me[0]) | (lake_work.c.try_number != me[1]),
    )
    with database.transaction() as session:
        now_ms = database.clock.read_ms(session)
        rows = session.execute(select(lake_work).where(*others)).mappings().all()
        for row in rows:
            if row["state"] == WorkState.RUNNING and _holder(session, row["app_key"], now_ms) != row["claim_token"]:
                record_death(session, row, now_ms)
        if rows:
            cancel_items(session, *others, reason=f"run {me[0]}, try {me[1]}, takes over", now_ms=now_ms)
            rows = session.execute(select(lake_work).where(*others)).mappings().all()
    if rows:
        run_id = rows[0]["run_id"]
        try_number = rows[0]["try_number"]
        raise ExecutorBusyError(
            f"a standing application still runs {service} of table {table_id} for run {run_id} (try {try_number}); it "
            "is being ended"
        )


def _run_alone(now_ms: int) -> Select[tuple[str]]:
    """Return the tables of which a task runs an item by a spark-submit of its own at the moment."""
    item = lake_work.c
    lease = lake_executor.c
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
