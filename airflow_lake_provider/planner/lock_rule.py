"""When Hudi needs a lock between a table's writers and a service in another process, and whether one is set.

As soon as a second process schedules or completes anything on a table, all of them need the same distributed lock
provider and multi-writer mode (Hudi, concurrency control; `HoodieLockConfig`). Writers in single-writer mode would
also roll back what another process has in flight (failed-writes policy EAGER).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.errors import LockNotConfiguredError, WriterUnguardedError
from airflow_lake_provider.job_contract import CONCURRENCY_MODE, LOCK_PROVIDER, OPTIMISTIC, find_lock_problem

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

# A pending write without a heartbeat is taken for a writer at work for this long; after it, for one that failed.
UNGUARDED_WRITE_AGE_MS = 10 * 60_000


def require_lock(hudi_options: Mapping[str, str], table: str) -> None:
    """Raise LockNotConfiguredError, naming the table and the setting, unless the options hold a usable lock."""
    problem = find_lock_problem(hudi_options)
    if problem is not None:
        raise LockNotConfiguredError(f"table {table}: {problem}")


def require_guarded_writers(
    pending_writes: Mapping[str, int], heartbeats: Collection[str], now_ms: int, table: str
) -> None:
    """Raise WriterUnguardedError when a writer is at work that takes no part in the locking.

    `pending_writes` gives for each pending write's requested time when it was begun or last touched, in ms. In
    multi-writer mode a heartbeat exists before the instant and until it completes; in single-writer mode there is
    none, and such a writer would roll back what others have in flight. One that failed in multi-writer mode looks the
    same until it is rolled back, so an old instant does not count.
    """
    for requested_time, touched_ms in sorted(pending_writes.items()):
        if requested_time not in heartbeats and now_ms - touched_ms < UNGUARDED_WRITE_AGE_MS:
            raise WriterUnguardedError(
                f"table {table}: the write {requested_time} is in flight without a heartbeat, so its writer takes no "
                f"lock or has just failed; set {CONCURRENCY_MODE}={OPTIMISTIC} and the same "
                f"{LOCK_PROVIDER} in the writer as in this service"
            )
