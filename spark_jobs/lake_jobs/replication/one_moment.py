"""A sink and its table at one moment, while writers go on: the sink has all of the rows that are about to be read.

The sink is brought up to date. Then a query of the table is planned between two readings of the timeline, both of which
show no commit that the sink lacks.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol, TypeVar

from airflow_lake_provider.errors import SinkUnavailableError
from airflow_lake_provider.replication.checkpoint import unread
from airflow_lake_provider.replication.feed import find_gap

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_lake_provider.replication.checkpoint import Checkpoint
    from airflow_lake_provider.replication.feed import SourceTimeline

log = logging.getLogger(__name__)

MAX_TRIES = 20
_T = TypeVar("_T")


class MovingTable(Protocol):
    """A table with a timeline."""

    def read_timeline(self, known: Checkpoint | None = None) -> SourceTimeline:
        """Read the timeline again."""


def plan_at_one_moment(
    table: MovingTable, catch_up: Callable[[], Checkpoint | None], plan: Callable[[], _T]
) -> tuple[Checkpoint, _T]:
    """Return the sink's position, and what `plan` returned while the table had just what the sink has.

    `catch_up` returns what is durable then. Raises SinkUnavailableError where commits come faster than they are
    replicated, and what reading raises.
    """
    for _ in range(MAX_TRIES):
        checkpoint = catch_up()
        if checkpoint is None or checkpoint.commit is None:
            raise SinkUnavailableError("the sink has no snapshot of the table yet, so there is nothing to compare")
        if not _is_current(table, checkpoint):
            continue
        planned = plan()
        if _is_current(table, checkpoint):
            return checkpoint, planned
        log.info("a commit completed while the rows were looked up: once more")
    raise SinkUnavailableError(f"commits came faster than they were replicated, {MAX_TRIES} times in a row")


def _is_current(table: MovingTable, checkpoint: Checkpoint) -> bool:
    timeline = table.read_timeline(checkpoint)
    return not unread(checkpoint, timeline.completed) and find_gap(checkpoint, timeline) is None
