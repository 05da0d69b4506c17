"""The writer barrier: a moment, under the table's lock, in which no writer would be missing in an index."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lake_jobs.hudi.metadata_writes import find_metadata_write_mode
from lake_jobs.indexing.rules import find_unaware_writers
from lake_jobs.indexing.state import find_pending_instants
from lake_jobs.indexing.writers import find_writers_in_flight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lake_jobs.hudi.table import LoadedTable
    from lake_jobs.indexing.rules import WriterInFlight
    from lake_jobs.services.context import ServiceContext

BARRIER_INTERVAL_S = 2.0
LISTING_INTERVAL_S = 0.2
"""Between two listings of the timeline, without the lock, while a build waits for a writer in flight to end."""


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
