"""When Hudi needs a lock between a table's writers and a service in another process, and whether one is set.

As soon as a second process schedules or completes anything on a table, all of them need the same distributed lock
provider and multi-writer mode (Hudi, concurrency control; `HoodieLockConfig`). Writers in single-writer mode would
also roll back what another process has in flight (failed-writes policy EAGER).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.errors import LockNotConfiguredError, WriterUnguardedError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

LOCK_PROVIDER = "hoodie.write.lock.provider"
CONCURRENCY_MODE = "hoodie.write.concurrency.mode"
MULTI_WRITER_MODES = ("OPTIMISTIC_CONCURRENCY_CONTROL", "NON_BLOCKING_CONCURRENCY_CONTROL")
# A pending write without a heartbeat is taken for a writer at work for this long; after it, for one that failed.
UNGUARDED_WRITE_AGE_MS = 10 * 60_000
# These guard threads of one JVM, or nothing at all.
PROVIDERS_WITHOUT_REACH = ("InProcessLockProvider", "NoopLockProvider")


def find_lock_problem(hudi_options: Mapping[str, str]) -> str | None:
    """Say in one sentence why these options do not guard a service against writers; None when they do."""
    provider = hudi_options.get(LOCK_PROVIDER, "").strip()
    if not provider:
        return (
            f"no {LOCK_PROVIDER} is configured; a service in a second process needs the lock provider that the "
            f"table's writers use: set it in hudi_options of the tables file (and in the writers, with "
            f"{CONCURRENCY_MODE}=optimistic_concurrency_control)"
        )
    if provider.rsplit(".", 1)[-1] in PROVIDERS_WITHOUT_REACH:
        return (
            f"{LOCK_PROVIDER}={provider} does not reach beyond one process; use one that all writers share, "
            "for example FileSystemBasedLockProvider or ZookeeperBasedLockProvider"
        )
    mode = hudi_options.get(CONCURRENCY_MODE, MULTI_WRITER_MODES[0]).strip().upper()
    if mode not in MULTI_WRITER_MODES:
        return f"{CONCURRENCY_MODE}={mode.lower()} takes no lock; use optimistic_concurrency_control"
    return None


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
                f"lock or has just failed; set {CONCURRENCY_MODE}=optimistic_concurrency_control and the same "
                f"{LOCK_PROVIDER} in the writer as in this service"
            )
