"""The writer barrier: a moment, under the table's lock, in which no writer would be missing in an index."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError

from airflow_lake_provider.job_contract import LOCK_PROVIDER
from lake_jobs.driver.failure import causes_of, describe
from lake_jobs.hudi.files import open_path
from lake_jobs.hudi.metadata_writes import find_metadata_write_mode
from lake_jobs.hudi.settings import LOCK_FILE_PROVIDER
from lake_jobs.indexing.rules import find_unaware_writers
from lake_jobs.indexing.state import find_pending_instants
from lake_jobs.indexing.writers import find_writers_in_flight

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lake_jobs.hudi.table import LoadedTable
    from lake_jobs.indexing.rules import WriterInFlight
    from lake_jobs.services.context import ServiceContext

BARRIER_INTERVAL_S = 2.0
LISTING_INTERVAL_S = 0.2
"""Between two listings of the timeline, without the lock, while a build waits for a writer in flight to end."""
TOUCH_INTERVAL_S = 1.0


class WritersInTheWayError(Exception):
    """Until the end of the wait there was no moment at which the build could go on without losing a write."""


def wait_for_end_of_one(context: ServiceContext, awaited: frozenset[str]) -> None:
    """Wait until one of these writes has ended, or until it is time to examine all writers again.

    Without the lock: a writer that commits again and again leaves moments that are shorter than a second.
    """
    deadline = time.monotonic() + BARRIER_INTERVAL_S
    while awaited <= find_pending_instants(context) and time.monotonic() < deadline:
        time.sleep(min(LISTING_INTERVAL_S, BARRIER_INTERVAL_S))


def find_unaware_instants(context: ServiceContext) -> frozenset[str]:
    """Return the writers in flight that may have begun without knowing of an index that is complete now."""
    state = context.read_table_state()
    return find_unaware(context, state, find_writers_in_flight(context, state))


def find_unaware(context: ServiceContext, state: LoadedTable, writers: Sequence[WriterInFlight]) -> frozenset[str]:
    """Return those of the writers in flight that may not know of an index that is listed at this moment."""
    found = find_unaware_writers(writers, find_metadata_write_mode(context.spark, state))
    return frozenset(writer.instant for writer in found)


@contextmanager
def keep_lock_file(context: ServiceContext) -> Iterator[None]:
    """Keep the lock file of FileSystemBasedLockProvider young while it is held: an old one counts as an orphan."""
    if not context.settings[LOCK_PROVIDER].strip().endswith(LOCK_FILE_PROVIDER):
        yield
        return
    folder = context.settings.get("hoodie.write.lock.filesystem.path") or f"{context.job.base_path}/.hoodie"
    fs, path = open_path(context.spark, f"{folder}/lock")
    stop = threading.Event()

    def touch() -> None:
        while not stop.wait(TOUCH_INTERVAL_S):
            try:
                fs.setTimes(path, int(time.time() * 1000), -1)
            except Py4JJavaError as error:
                context.log_progress(f"the lock file was removed: {describe(causes_of(error.java_exception))}")
                return

    thread = threading.Thread(target=touch, name="index-lock-file", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
