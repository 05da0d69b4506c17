"""One running executor per table and service: a lease in the database that the running task renews.

A lease that is not renewed ends, so a dead worker blocks others for the length of a lease at most. A worker that
cannot renew must end its own job before the lease ends (the operator does), so two executors never overlap (G2). A
lease changes its holder earlier in two cases: the next task has checked that the holder's process has ended, or the
holder's item of work has ended, so that no standing application runs it any more.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, delete, false, not_, or_, select, update
from sqlalchemy.exc import IntegrityError

from airflow_lake_provider.errors import ExecutorBusyError, LeaseHolder, LeaseLostError
from airflow_lake_provider.job_contract import ALONE, Service, Standing
from airflow_lake_provider.manager.db.operations import begin_run, drop_claim, record_run
from airflow_lake_provider.manager.db.schema import lake_executor
from airflow_lake_provider.manager.db.typed_rows import ExecutorRow, rows_from
from airflow_lake_provider.manager.db.work import require_no_item
from airflow_lake_provider.manager.db.work_item import is_left

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import ColumnElement
    from sqlalchemy.orm import Session

    from airflow_lake_provider.manager.db.database import Database


_RECORDED_AS: Mapping[Service | Standing, Service] = MappingProxyType(
    {Standing.RESTORE: Service.SAVEPOINT, Standing.UPGRADE: Service.SAVEPOINT, Standing.ERASURE: Service.TTL}
)


@dataclass(frozen=True, slots=True)
class ExecutorLease:
    """The right to execute one service of one table until `lease_until_ms`."""

    table_id: str
    service: str
    token: str
    run_id: str
    try_number: int
    lease_until_ms: int


class Executors:
    """Grants leases. Shares the database's transactions and clock."""

    def __init__(self, database: Database, lease_s: float) -> None:
        self._database = database
        self._lease_ms = int(lease_s * 1000)

    def acquire(
        self,
        table_id: str,
        service: Service | Standing,
        run_id: str,
        try_number: int,
        ended: LeaseHolder | None = None,
        *,
        is_sure: bool = False,
    ) -> ExecutorLease:
        """Acquire the lease, or raise ExecutorBusyError that names the holder and when its lease ends.

        `ended` is a holder whose process has ended, as the caller has checked; only that holder's lease is taken over.
        An item that a standing application runs for another try has to end first; when the lease is free, it is
        cancelled. With `is_sure` the run is this table's, whatever another table's caller said before.
        """
        token = uuid.uuid4().hex
        recorded_as = _RECORDED_AS.get(service, service)
        mine = (lake_executor.c.table_id == table_id, lake_executor.c.service == service.value)
        if isinstance(service, Service) and self._is_free(mine, ended):
            require_no_item(self._database, table_id, service.value, (run_id, try_number))
        try:
            with self._database.transaction() as session:
                now_ms = self._database.clock.read_ms(session)
                values: dict[str, Any] = {
                    "token": token,
                    "run_id": run_id,
                    "try_number": try_number,
                    "acquired_ms": now_ms,
                    "lease_until_ms": now_ms + self._lease_ms,
                }
                free = or_(lake_executor.c.lease_until_ms <= now_ms, is_left(now_ms), _is_of(ended))
                taken: Any = session.execute(update(lake_executor).where(*mine, free).values(**values))
                if taken.rowcount == 0:
                    session.execute(lake_executor.insert().values(table_id=table_id, service=service.value, **values))
        except IntegrityError as error:
            raise self._busy(table_id, service) from error
        self._require_apart(table_id, service, token)
        if isinstance(recorded_as, Service):
            self._record(table_id, recorded_as, run_id, now_ms, is_sure=is_sure)
        return ExecutorLease(table_id, service.value, token, run_id, try_number, now_ms + self._lease_ms)

    def _require_apart(self, table_id: str, service: Service | Standing, token: str) -> None:
        """Raise ExecutorBusyError, without the lease, where what runs alone would run next to a service of its table.

        Each of two that come at once has its lease before it asks, so one of them at least sees the other.
        """
        for row in self.find_active(table_id):
            if row.token != token and not ALONE.isdisjoint({row.service, service.value}):
                self.release(table_id, service, token)
                # Without its holder: a job of another service may outlive the process that holds its lease.
                raise ExecutorBusyError(
                    f"run {row.run_id} executes {row.service} of table {table_id}, and one of the two runs alone"
                )

    def renew(self, table_id: str, service: Service | Standing, token: str) -> int:
        """Prolong the lease and return its new end in ms; raise LeaseLostError when another executor has it."""
        with self._database.transaction() as session:
            lease_until_ms = self._database.clock.read_ms(session) + self._lease_ms
            renewed: Any = session.execute(
                update(lake_executor)
                .where(*_held(table_id, service.value, token))
                .values(lease_until_ms=lease_until_ms)
            )
        if renewed.rowcount == 0:
            raise LeaseLostError(f"the lease on {service} of table {table_id} has passed to another executor")
        return lease_until_ms

    def release(self, table_id: str, service: Service | Standing, token: str) -> None:
        """Release the lease; doing so twice, or after losing it, changes nothing."""
        with self._database.transaction() as session:
            session.execute(delete(lake_executor).where(*_held(table_id, service.value, token)))

    def find_silent(self, table_id: str, silent_ms: int) -> list[ExecutorRow]:
        """Return the table's leases that were not renewed for so long, in ms, whether they have ended or not."""
        renewed_ms = lake_executor.c.lease_until_ms - self._lease_ms
        with self._database.transaction() as session:
            before_ms = self._database.clock.read_ms(session) - silent_ms
            query = select(lake_executor).where(lake_executor.c.table_id == table_id, renewed_ms <= before_ms)
            return rows_from(ExecutorRow, session.execute(query))

    def lock_unchanged(self, session: Session, found: ExecutorRow) -> bool:
        """Lock a lease in the caller's transaction; false when it was renewed, released or passed on since."""
        mine = _held(found.table_id, found.service, found.token)
        is_same = lake_executor.c.lease_until_ms == found.lease_until_ms
        locked: Any = session.execute(update(lake_executor).where(*mine, is_same).values(token=found.token))
        return bool(locked.rowcount)

    def drop_ended(self, session: Session, found: ExecutorRow) -> None:
        """Remove a lease in the caller's transaction if it has ended; before, its executor may still be alive (G2)."""
        has_ended = lake_executor.c.lease_until_ms <= self._database.clock.read_ms(session)
        mine = _held(found.table_id, found.service, found.token)
        session.execute(delete(lake_executor).where(*mine, has_ended))

    def find_active(self, table_id: str) -> list[ExecutorRow]:
        """Return the table's leases that have not ended."""
        with self._database.transaction() as session:
            return find_leases(session, table_id, self._database.clock.read_ms(session))

    def _is_free(self, mine: Sequence[ColumnElement[bool]], ended: LeaseHolder | None) -> bool:
        with self._database.transaction() as session:
            now_ms = self._database.clock.read_ms(session)
            held = select(lake_executor.c.token).where(*mine, lake_executor.c.lease_until_ms > now_ms)
            return session.execute(held.where(not_(_is_of(ended)), not_(is_left(now_ms)))).first() is None

    def _record(self, table_id: str, service: Service, run_id: str, now_ms: int, *, is_sure: bool) -> None:
        """Record the run: the manager does so when it creates one, but nothing else announces a run by hand."""
        with suppress(IntegrityError), self._database.transaction() as session:
            if is_sure:
                drop_claim(session, table_id, run_id)
            record_run(session, table_id, run_id, service.value, now_ms)
            begin_run(session, table_id, run_id, now_ms)

    def _busy(self, table_id: str, service: Service | Standing) -> ExecutorBusyError:
        now_ms = self._database.now_ms()
        for row in self.find_active(table_id):
            if row.service == service.value:
                rest_s = max(0, row.lease_until_ms - now_ms) / 1000
                return ExecutorBusyError(
                    f"run {row.run_id} executes {service} of table {table_id} "
                    f"(try {row.try_number}); its lease ends in {rest_s:.0f} s unless renewed",
                    LeaseHolder(row.run_id, row.try_number, rest_s),
                )
        return ExecutorBusyError(f"{service} of table {table_id} was taken by another executor just now; try again")


def find_leases(session: Session, table_id: str, now_ms: int) -> list[ExecutorRow]:
    """Return the table's leases that have not ended, within the caller's transaction."""
    query = select(lake_executor).where(lake_executor.c.table_id == table_id, lake_executor.c.lease_until_ms > now_ms)
    return rows_from(ExecutorRow, session.execute(query))


def _is_of(holder: LeaseHolder | None) -> ColumnElement[bool]:
    if holder is None:
        return false()
    return and_(lake_executor.c.run_id == holder.run_id, lake_executor.c.try_number == holder.try_number)


def _held(table_id: str, service: str, token: str) -> tuple[Any, ...]:
    return (
        lake_executor.c.table_id == table_id,
        lake_executor.c.service == service,
        lake_executor.c.token == token,
    )
