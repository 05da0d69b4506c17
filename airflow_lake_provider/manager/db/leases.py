"""One running executor per table and service: a lease in the database that the running task renews.

A lease that is not renewed runs out, so a dead worker blocks nobody for longer than the lease; a worker that cannot
renew must end its own job before the lease ends (the operator does), so two executors never overlap (G2). Before its
end a lease passes on only to a task that has seen the holder's process to be gone.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, delete, false, or_, select, update
from sqlalchemy.exc import IntegrityError

from airflow_lake_provider.errors import ExecutorBusyError, LeaseHolder, LeaseLostError
from airflow_lake_provider.manager.db.schema import lake_executor

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, RowMapping
    from sqlalchemy.orm import Session

    from airflow_lake_provider.job_contract import Service
    from airflow_lake_provider.manager.db.registry import Registry


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
    """Hands out leases. Shares the registry's transactions and clock."""

    def __init__(self, registry: Registry, lease_s: float) -> None:
        self._registry = registry
        self._lease_ms = int(lease_s * 1000)

    def acquire(
        self, table_id: str, service: Service, run_id: str, try_number: int, ended: LeaseHolder | None = None
    ) -> ExecutorLease:
        """Take the lease, or raise ExecutorBusyError that names the holder and until when it holds.

        `ended` is a holder whose process the caller has seen to be gone; only that one's lease is taken over.
        """
        token = uuid.uuid4().hex
        mine = (lake_executor.c.table_id == table_id, lake_executor.c.service == service.value)
        try:
            with self._registry.transaction() as session:
                now_ms = self._registry.clock.read_ms(session)
                values: dict[str, Any] = {
                    "token": token,
                    "run_id": run_id,
                    "try_number": try_number,
                    "acquired_ms": now_ms,
                    "lease_until_ms": now_ms + self._lease_ms,
                }
                free = lake_executor.c.lease_until_ms <= now_ms
                taken: Any = session.execute(
                    update(lake_executor).where(*mine, or_(free, _is_of(ended))).values(**values)
                )
                if taken.rowcount == 0:
                    session.execute(lake_executor.insert().values(table_id=table_id, service=service.value, **values))
        except IntegrityError as error:
            raise self._busy(table_id, service) from error
        return ExecutorLease(table_id, service.value, token, run_id, try_number, now_ms + self._lease_ms)

    def renew(self, table_id: str, service: Service, token: str) -> int:
        """Prolong the lease and return its new end in ms; raise LeaseLostError when it is not ours any more."""
        with self._registry.transaction() as session:
            lease_until_ms = self._registry.clock.read_ms(session) + self._lease_ms
            renewed: Any = session.execute(
                update(lake_executor).where(*_held(table_id, service, token)).values(lease_until_ms=lease_until_ms)
            )
        if renewed.rowcount == 0:
            raise LeaseLostError(f"the lease on {service} of table {table_id} has passed to another executor")
        return lease_until_ms

    def release(self, table_id: str, service: Service, token: str) -> None:
        """Give the lease back; doing so twice, or after it was lost, changes nothing."""
        with self._registry.transaction() as session:
            session.execute(delete(lake_executor).where(*_held(table_id, service, token)))

    def find_active(self, table_id: str) -> list[RowMapping]:
        """Return the table's leases that have not run out."""
        with self._registry.transaction() as session:
            return find_leases(session, table_id, self._registry.clock.read_ms(session))

    def _busy(self, table_id: str, service: Service) -> ExecutorBusyError:
        now_ms = self._registry.now_ms()
        for row in self.find_active(table_id):
            if row["service"] == service.value:
                rest_s = max(0, row["lease_until_ms"] - now_ms) / 1000
                return ExecutorBusyError(
                    f"{service} of table {table_id} is being executed by run {row['run_id']} "
                    f"(try {row['try_number']}); its lease ends in {rest_s:.0f} s unless renewed",
                    LeaseHolder(row["run_id"], row["try_number"], rest_s),
                )
        return ExecutorBusyError(f"{service} of table {table_id} was taken by another executor just now; try again")


def find_leases(session: Session, table_id: str, now_ms: int) -> list[RowMapping]:
    """Return the table's leases that have not run out, within the caller's transaction."""
    query = select(lake_executor).where(lake_executor.c.table_id == table_id, lake_executor.c.lease_until_ms > now_ms)
    return list(session.execute(query).mappings())


def _is_of(holder: LeaseHolder | None) -> ColumnElement[bool]:
    if holder is None:
        return false()
    return and_(lake_executor.c.run_id == holder.run_id, lake_executor.c.try_number == holder.try_number)


def _held(table_id: str, service: Service, token: str) -> tuple[Any, ...]:
    return (
        lake_executor.c.table_id == table_id,
        lake_executor.c.service == service.value,
        lake_executor.c.token == token,
    )
