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


def require_lock(hudi_options: Mapping[str, str], table: str) -> None:
    """Raise LockNotConfiguredError, naming the table and the setting, unless the options hold a usable lock."""
    problem = find_lock_problem(hudi_options)
    if problem is not None:
        raise LockNotConfiguredError(f"table {table}: {problem}")


def require_guarded_writers(pending_writes: Collection[str], heartbeats: Collection[str], table: str) -> None:
    """Raise WriterUnguardedError when a writer may be at work that takes no part in the locking.

    `pending_writes` are requested times. In multi-writer mode a heartbeat exists before the instant and until it
    completes, and a writer that is killed leaves it behind. In single-writer mode there is none, and such a writer may
    roll back what others have in flight. Its age tells nothing: a commit may take hours.
    """
    unguarded = tuple(sorted(time for time in pending_writes if time not in heartbeats))
    if unguarded:
        raise WriterUnguardedError(f"table {table}: {explain_unguarded(unguarded)}")


def explain_unguarded(writes: Collection[str]) -> str:
    """Say what pending writes without a heartbeat mean, and what to do; of these requested times."""
    named, several = ", ".join(writes), len(writes) > 1
    return (
        f"the write{'s' if several else ''} {named} {'are' if several else 'is'} in flight without a heartbeat, so "
        "nothing proves that the writer is dead, and it takes no lock: set "
        f"{CONCURRENCY_MODE}={OPTIMISTIC} (with it hoodie.clean.failed.writes.policy=LAZY) and the same "
        f"{LOCK_PROVIDER} in every writer as in this service; a write that its dead writer left is rolled back by that "
        "writer's next commit, or by a run of the service rollback by hand that names the instant"
    )
